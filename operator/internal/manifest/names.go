// Package manifest writes the objects that a StorageCluster consists of: services, configuration, StatefulSets, and
// the Secret that clients attach with. Its functions are pure: the same cluster gives the same objects.
package manifest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
)

// Labels that every object of a cluster carries.
const (
	// LabelManagedBy marks what the operator made; of the kinds that it makes it watches only what has this label.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "weir-operator"

	labelName      = "app.kubernetes.io/name"
	labelComponent = "app.kubernetes.io/component"
	componentName  = "engine"
	productName    = "weir"
)

// Keys of Secrets and ConfigMaps.
const (
	// KeyCA is the certificate of the authority.
	KeyCA = "ca.crt"
	// KeyCert is a certificate.
	KeyCert = corev1.TLSCertKey
	// KeyPrivate is the key of a certificate.
	KeyPrivate = corev1.TLSPrivateKeyKey
	// KeySystemKey is the secret that engines and clients share, base64 text of 32 random bytes.
	KeySystemKey = "system.key"
	// KeyEngineKey is the secret that engines share among themselves, of the same form.
	KeyEngineKey = "engines.key"
	// KeyTenantKey is the secret that engines and the clients of one tenant share, of the same form.
	KeyTenantKey = "tenant.key"
	// KeyClient is the attach file of clients.
	KeyClient = "client.json"
	// KeyConfig is the configuration file of engines.
	KeyConfig = "engine.toml"
)

// EnginesName names the headless Service, the ConfigMap, the PodDisruptionBudget and the NetworkPolicy of the engines.
func EnginesName(cluster string) string { return cluster + "-engines" }

// EngineName names the StatefulSet of a rank.
func EngineName(cluster string, rank int32) string { return fmt.Sprintf("%s-engine-%d", cluster, rank) }

// PodName names the pod of a rank.
func PodName(cluster string, rank int32) string { return EngineName(cluster, rank) + "-0" }

// EraseName names the Job that erases the data of a rank.
func EraseName(cluster string, rank int32) string { return fmt.Sprintf("%s-erase-%d", cluster, rank) }

// AuthorityName names the Secret with the certificate authority. Only the operator reads it.
func AuthorityName(cluster string) string { return cluster + "-ca" }

// EngineTLSName names the Secret with the certificate of the engines.
func EngineTLSName(cluster string) string { return cluster + "-engine-tls" }

// AuthName names the Secret with the system key.
func AuthName(cluster string) string { return cluster + "-auth" }

// EngineAuthName names the Secret with the key that engines have for themselves. Only the operator and engines read it.
func EngineAuthName(cluster string) string { return cluster + "-engine-auth" }

// ManagementName names the Secret with which pools are managed: by the operator, and by administrators.
func ManagementName(cluster string) string { return cluster + "-management" }

// MetricsName names the Secret with which figures are read.
func MetricsName(cluster string) string { return cluster + "-metrics" }

// ClientName names the Secret that clients attach with. Its certificate makes containers and no pools.
func ClientName(cluster string) string { return cluster + "-client" }

// TenantName names the Secret with which the clients of a tenant attach to a cluster, in each of the tenant's namespaces.
func TenantName(cluster string) string { return "weir-tenant-" + cluster }

// ClientsName names the Secret of the operator's namespace that CSI driver and mount daemon mount: it has what clients of every
// cluster attach with, under keys that begin with the cluster's name.
const ClientsName = "weir-clients"

// ClientPrefix is what the keys of a cluster begin with in the Secret of all clusters. Names of clusters have no dot.
func ClientPrefix(cluster string) string { return cluster + "." }

// PlacementName names the ConfigMap that records the node of each rank.
func PlacementName(cluster string) string { return cluster + "-placement" }

// Host is the name by which others reach the engine of a rank.
func Host(c *v1alpha1.StorageCluster, rank int32) string {
	return PodName(c.Name, rank) + "." + serviceDomain(c)
}

func serviceDomain(c *v1alpha1.StorageCluster) string {
	return EnginesName(c.Name) + "." + c.Namespace + ".svc"
}

// ServerNames are the names in the certificate of the engines: a wildcard, so that engines added later need no new
// one, and localhost for the command line inside an engine's pod.
func ServerNames(c *v1alpha1.StorageCluster) []string {
	return []string{"*." + serviceDomain(c), "localhost"}
}

// Labels are the labels of every object of a cluster.
func Labels(cluster string) map[string]string {
	return map[string]string{
		labelName:             productName,
		LabelManagedBy:        ManagedBy,
		v1alpha1.LabelCluster: cluster,
	}
}

// AllPods selects the pods of Weir itself, those of engines among them.
func AllPods() map[string]string { return map[string]string{labelName: productName} }

// EngineSelector selects the pods of a cluster's engines.
func EngineSelector(cluster string) map[string]string {
	return map[string]string{
		labelName:             productName,
		labelComponent:        componentName,
		v1alpha1.LabelCluster: cluster,
	}
}

// engineLabels are the labels of the engine of a rank.
func engineLabels(cluster string, rank int32) map[string]string {
	labels := Labels(cluster)
	labels[labelComponent] = componentName
	labels[v1alpha1.LabelRank] = fmt.Sprintf("%d", rank)
	return labels
}

// Meta is the metadata of an object that goes when the cluster goes.
func Meta(c *v1alpha1.StorageCluster, name string) metav1.ObjectMeta {
	meta := LastingMeta(c, name)
	meta.OwnerReferences = []metav1.OwnerReference{{
		APIVersion:         v1alpha1.GroupVersion.String(),
		Kind:               "StorageCluster",
		Name:               c.Name,
		UID:                c.UID,
		Controller:         new(true),
		BlockOwnerDeletion: new(true),
	}}
	return meta
}

// LastingMeta is the metadata of an object that deletionPolicy Retain keeps.
func LastingMeta(c *v1alpha1.StorageCluster, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: c.Namespace, Labels: Labels(c.Name)}
}
