package manifest

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weir.dev/weir/operator/api/v1alpha1"
)

// Service gives each engine a host name. It publishes engines that are not ready, because engines have to find each
// other in order to become ready.
func Service(c *v1alpha1.StorageCluster) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: Meta(c, EnginesName(c.Name)),
		Spec: corev1.ServiceSpec{
			ClusterIP:                corev1.ClusterIPNone,
			Selector:                 EngineSelector(c.Name),
			PublishNotReadyAddresses: true,
			Ports: []corev1.ServicePort{
				{Name: "fabric", Protocol: corev1.ProtocolTCP, Port: c.Spec.Ports.Fabric, TargetPort: intstr.FromInt32(c.Spec.Ports.Fabric)},
				{Name: "management", Protocol: corev1.ProtocolTCP, Port: c.Spec.Ports.Management, TargetPort: intstr.FromInt32(c.Spec.Ports.Management)},
				{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: c.Spec.Ports.Metrics, TargetPort: intstr.FromInt32(c.Spec.Ports.Metrics)},
			},
		},
	}
}

// DisruptionBudget lets voluntary disruptions take as many engines at a time.
func DisruptionBudget(c *v1alpha1.StorageCluster, engines int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
		ObjectMeta: Meta(c, EnginesName(c.Name)),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(engines)),
			Selector:       &metav1.LabelSelector{MatchLabels: EngineSelector(c.Name)},
		},
	}
}

// NetworkPolicy opens the fabric and the metrics to every pod, whose messages the engines authenticate or which only
// read, and management to the namespaces of the release and the cluster's own.
func NetworkPolicy(c *v1alpha1.StorageCluster, releaseNamespaces ...string) *networkingv1.NetworkPolicy {
	port := func(first, count int32) networkingv1.NetworkPolicyPort {
		p := networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt32(first))}
		if count > 1 {
			p.EndPort = new(first + count - 1)
		}
		return p
	}
	anyone := []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}
	managers := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}
	for _, namespace := range releaseNamespaces {
		managers = append(managers, networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
		})
	}
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: Meta(c, EnginesName(c.Name)),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: EngineSelector(c.Name)},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{
				{From: anyone, Ports: []networkingv1.NetworkPolicyPort{
					port(c.Spec.Ports.Fabric, c.Spec.Engines.TargetsPerEngine),
					port(c.Spec.Ports.Metrics, 1),
				}},
				{From: managers, Ports: []networkingv1.NetworkPolicyPort{port(c.Spec.Ports.Management, 1)}},
			},
		},
	}
}
