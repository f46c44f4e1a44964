package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StorageCluster is a set of storage engines, one per rank, that serve pools.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=stc,categories=weir
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Engines",type=integer,JSONPath=`.status.readyEngines`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.spec.engines.replicas`
// +kubebuilder:printcolumn:name="Total",type=string,JSONPath=`.status.capacity.total`
// +kubebuilder:printcolumn:name="Free",type=string,JSONPath=`.status.capacity.free`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Degraded",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`
// +kubebuilder:printcolumn:name="Provider",type=string,priority=1,JSONPath=`.spec.fabric.provider`
// +kubebuilder:printcolumn:name="Image",type=string,priority=1,JSONPath=`.spec.image`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name becomes part of host names: use at most 40 characters, lower-case letters, digits and '-', starting with a letter"
// +kubebuilder:validation:XValidation:rule="self.spec.engines.replicas >= oldSelf.spec.engines.replicas || !has(oldSelf.status) || !has(oldSelf.status.engines) || oldSelf.status.engines.all(e, e.rank < self.spec.engines.replicas || !has(e.version))",message="spec.engines.replicas can't take away an engine that has been up: its data would be lost"
type StorageCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the cluster that should be.
	// +required
	Spec StorageClusterSpec `json:"spec"`
	// status is the cluster that is.
	// +optional
	Status StorageClusterStatus `json:"status,omitempty"`
}

// StorageClusterList is a list of StorageCluster.
//
// +kubebuilder:object:root=true
type StorageClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StorageCluster `json:"items"`
}

// StorageClusterSpec is the cluster that should be.
//
// +kubebuilder:validation:XValidation:rule="self.fabric.provider != 'shm' || self.engines.replicas == 1",message="fabric.provider shm reaches one node only: set engines.replicas to 1, or choose tcp, verbs or cxi"
// +kubebuilder:validation:XValidation:rule="!has(self.storage.devices) || self.storage.devices.count == self.engines.targetsPerEngine",message="storage.devices.count must equal engines.targetsPerEngine: each target has a drive of its own"
// +kubebuilder:validation:XValidation:rule="!has(self.storage.devices) || self.deletionPolicy == 'Retain'",message="deletionPolicy must be Retain with storage.devices: drives are erased by hand"
// +kubebuilder:validation:XValidation:rule="self.ports.fabric + self.engines.targetsPerEngine <= 65536",message="ports.fabric is the first of targetsPerEngine ports: the last one would be above 65535"
// +kubebuilder:validation:XValidation:rule="self.ports.management != self.ports.metrics && [self.ports.management, self.ports.metrics].all(p, p < self.ports.fabric || p >= self.ports.fabric + self.engines.targetsPerEngine)",message="ports overlap: management, metrics and the targetsPerEngine ports from ports.fabric on must all differ"
type StorageClusterSpec struct {
	// image of the engine. Empty means the image that the operator was installed with. A change restarts the
	// engines one at a time.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
	// engines says how many engines run, and where.
	// +required
	Engines EnginesSpec `json:"engines"`
	// storage of each engine.
	// +required
	Storage StorageSpec `json:"storage"`
	// fabric is the network that data travels over. Clients of another provider can't connect, so it never changes.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="fabric is immutable: engines and clients of two providers can't talk to each other"
	Fabric FabricSpec `json:"fabric,omitempty"`
	// ports that every engine listens on.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="ports are immutable: connected clients would lose the engines"
	Ports PortsSpec `json:"ports,omitempty"`
	// deletionPolicy says whether deleting the StorageCluster erases what its engines stored. Retain keeps data,
	// system key and the node of each rank, and a new StorageCluster of the same name takes them over.
	// +optional
	// +kubebuilder:default=Retain
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// EnginesSpec says how many engines run, and where.
type EnginesSpec struct {
	// replicas is the number of engines; ranks are 0 … replicas-1. It can grow, and shrink again by engines that were
	// never up; the data of others would be lost.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	Replicas int32 `json:"replicas"`
	// targetsPerEngine is the number of targets of an engine. A target uses one thread and one share of the storage.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="engines.targetsPerEngine is immutable: data is placed by the number of targets"
	TargetsPerEngine int32 `json:"targetsPerEngine,omitempty"`
	// resources of the engine's container. Fabric devices such as Slingshot NICs are requested here.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// nodeSelector limits the nodes that may take an engine.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// tolerations of the engine's pods.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// spread says whether two engines may share a node: Required never puts two on one node, Preferred does when
	// there are fewer nodes than engines.
	// +optional
	// +kubebuilder:default=Required
	Spread EngineSpread `json:"spread,omitempty"`
	// seccompProfile of the engine's pods. Absent means the one that the chart puts on every node: it allows io_uring,
	// which engines need and the default profile of newer container runtimes denies.
	// +optional
	SeccompProfile *corev1.SeccompProfile `json:"seccompProfile,omitempty"`
	// failureDomains are the labels of nodes that say what fails together, from the widest to the narrowest. No two copies of anything are
	// in one domain of the narrowest kind; the others spread the pools' services. A node without the narrowest label is a
	// domain of its own. Absent means topology.kubernetes.io/zone, topology.kubernetes.io/rack and kubernetes.io/hostname. Pools that are there
	// keep the domains that they were made with.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	FailureDomains []string `json:"failureDomains,omitempty"`
	// lost are ranks whose data is given up, because their node or drives won't come back: others get at once what they have of pools with
	// redundancy, and a rank whose node was deleted gets another one, if there is any. Without this field others get it after the
	// pool's rebuildDelaySeconds, and the rank waits for its node. What only a lost rank has, of pools without redundancy, is lost. A rank that is taken off the list
	// again is let back into the pools.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=127
	Lost []int32 `json:"lost,omitempty"`
	// logLevel of the engines.
	// +optional
	// +kubebuilder:default=info
	// +kubebuilder:validation:Enum=error;warn;info;debug;trace
	LogLevel string `json:"logLevel,omitempty"`
}

// EngineSpread says whether engines may share a node.
// +kubebuilder:validation:Enum=Required;Preferred
type EngineSpread string

const (
	// SpreadRequired never puts two engines of a cluster on one node.
	SpreadRequired EngineSpread = "Required"
	// SpreadPreferred shares nodes when there are fewer nodes than engines.
	SpreadPreferred EngineSpread = "Preferred"
)

// StorageSpec is the storage of one engine.
//
// +kubebuilder:validation:XValidation:rule="[has(self.hostPath), has(self.volumeClaimTemplate), has(self.devices)].exists_one(is, is)",message="storage needs exactly one of hostPath (a directory of the node), volumeClaimTemplate (a claim per engine) and devices (a drive per target)"
// +kubebuilder:validation:XValidation:rule="has(self.hostPath) == has(oldSelf.hostPath) && has(self.devices) == has(oldSelf.devices)",message="storage can't move between hostPath, volumeClaimTemplate and devices: the engines would start empty"
type StorageSpec struct {
	// size of the storage of one engine; its targets share it evenly. With devices each target uses all of its drive, which has at
	// least that share.
	// +required
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="storage.size must be greater than zero, for example 16Gi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity(string(oldSelf))) == 0",message="storage.size is immutable: the targets are formatted with it"
	Size resource.Quantity `json:"size"`
	// hostPath keeps the data in a directory of the node.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="storage.hostPath is immutable: the engines would start empty"
	HostPath *HostPathStorage `json:"hostPath,omitempty"`
	// volumeClaimTemplate keeps the data in a claim per engine.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="storage.volumeClaimTemplate is immutable: the engines would start empty"
	VolumeClaimTemplate *VolumeClaimStorage `json:"volumeClaimTemplate,omitempty"`
	// devices gives each target a drive of its own: a NodeDevice that is eligible. The agent of drives has to run (devices.enabled of
	// the chart).
	// +optional
	Devices *DeviceStorage `json:"devices,omitempty"`
}

// DeviceStorage gives each target a drive of its own.
//
// +kubebuilder:validation:XValidation:rule="!has(self.deviceClass) || self.count <= 32",message="storage.devices.count is at most 32 with deviceClass: a resource claim has no more requests"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.deviceClass) || (has(self.deviceClass) && self.deviceClass == oldSelf.deviceClass)",message="storage.devices.deviceClass can't change once it is set: templates of resource claims are immutable"
type DeviceStorage struct {
	// count of drives for each engine: as many as engines.targetsPerEngine.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Count int32 `json:"count"`
	// deviceClass of the resource claims by which engines get their drives (dynamic resource allocation, devices.dra of the chart).
	// Absent means that they get them by the device plugin.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	DeviceClass string `json:"deviceClass,omitempty"`
	// selector limits the drives by labels of their NodeDevices; absent means all. A drive that a target has stays when it is
	// selected no more.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// path of a directory of the node, in which each engine keeps what it has to know of its drives: <path>/<namespace>_<cluster>/rank-<r>.
	// +optional
	// +kubebuilder:default="/var/lib/weir/engines"
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[A-Za-z0-9._-]+)+$') && !self.matches('(^|/)[.][.]?(/|$)')",message="storage.devices.path must be an absolute path of letters, digits, '.', '_' and '-', without '..', for example /var/lib/weir/engines"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="storage.devices.path is immutable: the engines would not know their drives"
	Path string `json:"path,omitempty"`
}

// HostPathStorage keeps the data in a directory of the node.
type HostPathStorage struct {
	// path of the directory; each engine gets <path>/<namespace>_<cluster>/rank-<r> in it.
	// +required
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[A-Za-z0-9._-]+)+$') && !self.matches('(^|/)[.][.]?(/|$)')",message="storage.hostPath.path must be an absolute path of letters, digits, '.', '_' and '-', without '..', for example /var/lib/weir"
	Path string `json:"path"`
}

// VolumeClaimStorage keeps the data in a claim per engine.
type VolumeClaimStorage struct {
	// storageClassName of the claims; absent means the default class of the cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`
}

// FabricSpec is the network that data travels over.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.vniBlock) || has(self.vniBlock)",message="vniBlock can't be removed: tenants may be using its VNIs"
type FabricSpec struct {
	// provider of libfabric. The usual image has tcp, shm and verbs; verbs needs an RDMA device in every engine's and
	// client's pod, and cxi an image that is built with the site's own libfabric. Neither has been run on such hardware yet.
	// +optional
	// +kubebuilder:default=tcp
	// +kubebuilder:validation:Enum=tcp;shm;verbs;cxi
	Provider string `json:"provider,omitempty"`
	// vniBlock is the VNIs that engines serve, where the provider has such (cxi): those of the Tenants, and as the first one that of
	// engines among themselves. A new Tenant with a VNI inside it restarts nobody; a larger block restarts the engines one after the
	// other. Elsewhere the keys of the Tenants alone keep them apart.
	// +optional
	VNIBlock *VNIBlock `json:"vniBlock,omitempty"`
}

// HasVNIs tells whether the provider keeps virtual networks apart.
func (f *FabricSpec) HasVNIs() bool { return f.Provider == "cxi" }

// VNIBlock is a block of VNIs that engines serve, both ends included.
//
// +kubebuilder:validation:XValidation:rule="self.first <= self.last && self.last - self.first < 128",message="vniBlock must have 1 to 128 VNIs: an endpoint takes no more"
// +kubebuilder:validation:XValidation:rule="self.first == oldSelf.first && self.last >= oldSelf.last",message="vniBlock can only grow at its end: tenants may be using its VNIs, and engines reach each other on the first one"
type VNIBlock struct {
	// first VNI of the block, on which engines reach each other.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	First int32 `json:"first"`
	// last VNI of the block.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Last int32 `json:"last"`
}

// PortsSpec are the ports that every engine listens on.
type PortsSpec struct {
	// fabric is the port of target 0; target t listens on fabric + t.
	// +optional
	// +kubebuilder:default=10100
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	Fabric int32 `json:"fabric,omitempty"`
	// management is the port of the management service (gRPC, mutual TLS).
	// +optional
	// +kubebuilder:default=10001
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	Management int32 `json:"management,omitempty"`
	// metrics is the port of metrics and health (HTTP).
	// +optional
	// +kubebuilder:default=10002
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	Metrics int32 `json:"metrics,omitempty"`
}

// StorageClusterStatus is the cluster that is.
type StorageClusterStatus struct {
	// conditions of the cluster: Ready, Progressing, Degraded, DeletionBlocked, and where pools have redundancy Drainable.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// readyEngines is the number of engines that are up.
	// +optional
	ReadyEngines int32 `json:"readyEngines"`
	// engines, by rank.
	// +optional
	// +listType=map
	// +listMapKey=rank
	// +kubebuilder:validation:MaxItems=128
	Engines []EngineStatus `json:"engines,omitempty"`
	// capacity of all engines: total, and what no pool has taken.
	// +optional
	Capacity *Capacity `json:"capacity,omitempty"`
}

// EngineStatus is the state of one engine.
type EngineStatus struct {
	// rank of the engine.
	// +required
	Rank int32 `json:"rank"`
	// node that holds the engine's data; the engine always runs there. Empty before the engine has a node.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`
	// pod that runs the engine.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod,omitempty"`
	// ready is true while the engine is up and reachable.
	// +optional
	Ready bool `json:"ready"`
	// version of the engine.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version,omitempty"`
	// message says why the engine is not ready.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
