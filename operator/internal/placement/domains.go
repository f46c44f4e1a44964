package placement

import (
	corev1 "k8s.io/api/core/v1"

	"weir.dev/weir/operator/api/v1alpha1"
)

// labelRack is the label that nodes of a rack share, by convention: Kubernetes has none of its own.
const labelRack = "topology.kubernetes.io/rack"

// domainLabels are the labels of nodes that say what fails together, where a spec names none.
var domainLabels = []string{corev1.LabelTopologyZone, labelRack, corev1.LabelHostname}

// Domains are the failure domains that an engine on a node is in, from the widest to the narrowest. Labels that the node lacks are left
// out; instead of the narrowest one there is the node's name. An engine that isn't bound to its node takes its data with it: its narrowest
// domain is the engine itself, unless the spec says a wider one than the host.
func Domains(engines v1alpha1.EnginesSpec, node *corev1.Node, bound bool, engine string) []string {
	labels := engines.FailureDomains
	if len(labels) == 0 {
		labels = domainLabels
	}
	var path []string
	for i, label := range labels {
		value := node.Labels[label]
		switch narrowest := i == len(labels)-1; {
		case label == corev1.LabelHostname && !bound:
			value = engine
		case narrowest && value == "":
			value = node.Name
		case value == "":
			continue
		}
		path = append(path, value)
	}
	return path
}
