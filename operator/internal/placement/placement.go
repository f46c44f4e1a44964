// Package placement decides which node holds which engine. A rank that has a node keeps it for ever, because its data
// is there; only ranks without a node are given one, and ranks whose data was given up and whose node is gone another one.
package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"weir.dev/weir/operator/api/v1alpha1"
)

// maxProblems is how many unsuitable nodes a message names: enough to see the pattern, short enough for an event.
const maxProblems = 5

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch

// Assignment maps ranks to node names.
type Assignment map[int32]string

// selected tells whether a node is one that the spec means.
func selected(node *corev1.Node, engines v1alpha1.EnginesSpec) bool {
	for key, value := range engines.NodeSelector {
		if node.Labels[key] != value {
			return false
		}
	}
	return true
}

// Problem says why a node that the spec means can't take an engine, or "" when it can.
func Problem(node *corev1.Node, engines v1alpha1.EnginesSpec) string {
	if node.Spec.Unschedulable {
		return "cordoned"
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		tolerated := slices.ContainsFunc(engines.Tolerations, func(t corev1.Toleration) bool {
			return t.ToleratesTaint(logr.Discard(), taint, false)
		})
		if !tolerated {
			return fmt.Sprintf("taint %s is not in spec.engines.tolerations", taint.ToString())
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return ""
		}
	}
	return "not Ready"
}

// Assign gives every rank below engines.Replicas that is not in held a node. It never changes what is in held. shortage
// says why some rank is left without a node; it is empty when none is. lacks says what a node lacks that an engine needs; nil when
// it needs nothing.
func Assign(held Assignment, engines v1alpha1.EnginesSpec, nodes []corev1.Node, lacks func(node string) string) (assigned Assignment, shortage string) {
	assigned = make(Assignment, engines.Replicas)
	load := map[string]int{}
	for rank, node := range held {
		assigned[rank] = node
		load[node]++
	}
	var candidates, problems []string
	others := 0
	for i := range nodes {
		if !selected(&nodes[i], engines) {
			others++
			continue
		}
		if problem := Problem(&nodes[i], engines); problem != "" {
			problems = append(problems, nodes[i].Name+": "+problem)
			continue
		}
		if lacks != nil {
			if lack := lacks(nodes[i].Name); lack != "" {
				problems = append(problems, nodes[i].Name+": "+lack)
				continue
			}
		}
		candidates = append(candidates, nodes[i].Name)
	}
	slices.Sort(candidates)
	slices.Sort(problems)
	if others > 0 {
		problems = append(problems, fmt.Sprintf("%d nodes without the labels of spec.engines.nodeSelector", others))
	}
	missing := 0
	for rank := range engines.Replicas {
		if _, ok := assigned[rank]; ok {
			continue
		}
		node, ok := leastLoaded(candidates, load, engines.Spread)
		if !ok {
			missing++
			continue
		}
		assigned[rank] = node
		load[node]++
	}
	if missing == 0 {
		return assigned, ""
	}
	return assigned, shortageMessage(engines, missing, len(candidates), problems)
}

// Release takes those ranks off their nodes that the spec calls lost, whose nodes are gone, and that another node can take.
func Release(held Assignment, engines v1alpha1.EnginesSpec, nodes []corev1.Node, lacks func(node string) string) Assignment {
	free := maps.Clone(held)
	maps.DeleteFunc(free, func(rank int32, node string) bool {
		isThere := slices.ContainsFunc(nodes, func(other corev1.Node) bool { return other.Name == node })
		return slices.Contains(engines.Lost, rank) && !isThere
	})
	elsewhere, _ := Assign(free, engines, nodes, lacks)
	for rank, node := range held {
		if _, ok := elsewhere[rank]; !ok {
			free[rank] = node
		}
	}
	return free
}

// leastLoaded picks the candidate with the fewest engines, the first by name among equals.
func leastLoaded(candidates []string, load map[string]int, spread v1alpha1.EngineSpread) (string, bool) {
	best, found := "", false
	for _, name := range candidates {
		if spread != v1alpha1.SpreadPreferred && load[name] > 0 {
			continue
		}
		if !found || load[name] < load[best] {
			best, found = name, true
		}
	}
	return best, found
}

func shortageMessage(engines v1alpha1.EnginesSpec, missing, candidates int, problems []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d engines have no node: ", missing, engines.Replicas)
	if engines.Spread == v1alpha1.SpreadPreferred {
		b.WriteString("no node can take an engine")
	} else {
		fmt.Fprintf(&b, "%d suitable, and spec.engines.spread Required puts one engine on a node", candidates)
	}
	if len(problems) > 0 {
		hidden := max(0, len(problems)-maxProblems)
		fmt.Fprintf(&b, "; unsuitable: %s", strings.Join(problems[:len(problems)-hidden], "; "))
		if hidden > 0 {
			fmt.Fprintf(&b, "; and %d more", hidden)
		}
	}
	b.WriteString(". Add nodes, tolerate their taints")
	if engines.Spread != v1alpha1.SpreadPreferred && candidates > 0 {
		b.WriteString(", set spec.engines.spread to Preferred")
	}
	b.WriteString(", or lower spec.engines.replicas")
	return b.String()
}
