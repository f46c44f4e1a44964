package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pool is space on the engines of a StorageCluster that containers share.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.clusterRef.name`
// +kubebuilder:resource:shortName=wpool,categories=weir
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Health",type=string,JSONPath=`.status.health`
// +kubebuilder:printcolumn:name="MayFail",type=integer,JSONPath=`.status.mayFail`
// +kubebuilder:printcolumn:name="Rebuilt%",type=integer,JSONPath=`.status.rebuild.percent`
// +kubebuilder:printcolumn:name="Left",type=string,JSONPath=`.status.rebuild.timeLeft`
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.capacity.total`
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.capacity.used`
// +kubebuilder:printcolumn:name="Free",type=string,JSONPath=`.status.capacity.free`
// +kubebuilder:printcolumn:name="Containers",type=integer,JSONPath=`.status.containers`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Degraded",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`
// +kubebuilder:printcolumn:name="AtRisk",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="AtRisk")].status`
// +kubebuilder:printcolumn:name="Factor",type=integer,priority=1,JSONPath=`.spec.redundancyFactor`
// +kubebuilder:printcolumn:name="Class",type=string,priority=1,JSONPath=`.status.objectClass`
// +kubebuilder:printcolumn:name="UUID",type=string,priority=1,JSONPath=`.status.uuid`
// +kubebuilder:validation:XValidation:rule="has(self.spec.label) || (size(self.metadata.name) <= 127 && self.metadata.name.matches('^[a-z]'))",message="metadata.name is the pool's label unless spec.label is set: it must start with a letter and have at most 127 characters"
type Pool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the pool that should be.
	// +required
	Spec PoolSpec `json:"spec"`
	// status is the pool that is.
	// +optional
	Status PoolStatus `json:"status,omitempty"`
}

// PoolList is a list of Pool.
//
// +kubebuilder:object:root=true
type PoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Pool `json:"items"`
}

// PoolSpec is the pool that should be.
//
// +kubebuilder:validation:XValidation:rule="has(self.label) == has(oldSelf.label) && (!has(self.label) || self.label == oldSelf.label)",message="label is immutable: programs open the pool by it"
// +kubebuilder:validation:XValidation:rule="has(self.ranks) == has(oldSelf.ranks) && (!has(self.ranks) || self.ranks == oldSelf.ranks)",message="ranks is immutable: the pool's data is placed on them"
// +kubebuilder:validation:XValidation:rule="(has(self.objectClass) ? self.objectClass : self.redundancyFactor == 0 ? 'SX' : 'own') == (has(oldSelf.objectClass) ? oldSelf.objectClass : oldSelf.redundancyFactor == 0 ? 'SX' : 'own')",message="objectClass is immutable: set another class on the Container instead"
// +kubebuilder:validation:XValidation:rule="!has(self.rebuildDelaySeconds) || self.redundancyFactor > 0",message="rebuildDelaySeconds needs a redundancyFactor above 0: without copies others never get an engine's data"
// +kubebuilder:validation:XValidation:rule="has(self.tenantRef) == has(oldSelf.tenantRef) && (!has(self.tenantRef) || self.tenantRef == oldSelf.tenantRef)",message="tenantRef is immutable: make another Pool and copy the data"
type PoolSpec struct {
	// clusterRef names the StorageCluster, in the same namespace.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="clusterRef is immutable: create a Pool in the other cluster and copy the data"
	ClusterRef LocalReference `json:"clusterRef"`
	// tenantRef names the Tenant whose clients may connect to the pool. Absent means the tenant that has the pool's namespace, or
	// the system if none has.
	// +optional
	TenantRef *ClusterReference `json:"tenantRef,omitempty"`
	// label that programs open the pool by; empty means metadata.name. A pool of that label which the engines already
	// have is adopted when size, ranks and class agree.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z][A-Za-z0-9._:-]*$')",message="label must start with a letter and hold only letters, digits, '.', '_', ':' and '-'"
	Label string `json:"label,omitempty"`
	// size of the pool over all its engines, divided evenly over their targets. It can grow.
	// +required
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="size must be greater than zero, for example 10Gi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0",message="size can only grow: engines don't give back space of a pool in use"
	Size resource.Quantity `json:"size"`
	// ranks of the engines that hold the pool; absent means every engine. With a redundancyFactor above 0 these are also those by which
	// the StorageCluster grows: they get their share of the pool's data, and the pool's size grows by what they add.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=127
	Ranks []int32 `json:"ranks,omitempty"`
	// objectClass of new containers, for example SX (all targets) or S1 (one target). Absent means the class of redundancyFactor:
	// SX for 0, RP_2GX for 1, RP_3GX for 2 and so on. With a factor above 0 the class has to keep as many copies.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Z][A-Z0-9_]*$')",message="objectClass is written in capitals, digits and '_', for example SX, S1 or RP_2GX"
	ObjectClass string `json:"objectClass,omitempty"`
	// redundancyFactor is the number of engines that may be lost at once without losing data. Engines say which factors they serve.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="redundancyFactor is immutable: existing data has the old number of copies"
	// +kubebuilder:default=0
	RedundancyFactor int32 `json:"redundancyFactor"`
	// rebuildDelaySeconds is how long an engine is away before others get its data, of a pool with a redundancyFactor above 0. Absent
	// leaves it as it is in the engines: 600 unless it was set.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	RebuildDelaySeconds *int32 `json:"rebuildDelaySeconds,omitempty"`
	// deletionPolicy says whether deleting the Pool destroys the pool in the engines. Retain keeps it, and a Pool of
	// the same label takes it over.
	// +optional
	// +kubebuilder:default=Retain
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// PoolStatus is the pool that is.
type PoolStatus struct {
	// conditions of the pool: Ready, Degraded, DeletionBlocked, and with a redundancyFactor above 0 Rebuilding and AtRisk.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// uuid of the pool in the engines.
	// +optional
	// +kubebuilder:validation:MaxLength=36
	UUID string `json:"uuid,omitempty"`
	// tenant is the number of the tenant whose clients may connect to the pool; 0 is the system.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Tenant int64 `json:"tenant,omitempty"`
	// objectClass that containers get which name none.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	ObjectClass string `json:"objectClass,omitempty"`
	// capacity of the pool.
	// +optional
	Capacity *Capacity `json:"capacity,omitempty"`
	// health of the pool's data. Absent until the engines have said it.
	// +optional
	Health PoolHealth `json:"health,omitempty"`
	// mayFail is how many more failure domains may fail at this moment while all data stays available and the pool's service goes on.
	// Absent with redundancyFactor 0.
	// +optional
	MayFail *int32 `json:"mayFail,omitempty"`
	// rebuild says how far copies are that are being made. Absent while none is.
	// +optional
	Rebuild *PoolRebuild `json:"rebuild,omitempty"`
	// givenUpRanks are the ranks of the pool that were taken out of it because spec.engines.lost of the StorageCluster has them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	GivenUpRanks []int32 `json:"givenUpRanks,omitempty"`
	// containers is the number of containers in the pool, those of volumes among them.
	// +optional
	Containers int32 `json:"containers"`
	// ranks that hold the pool.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	Ranks []int32 `json:"ranks,omitempty"`
	// newRanks are those of ranks that have joined the pool since it was made and get their share of its data: nothing is read from
	// them yet.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	NewRanks []int32 `json:"newRanks,omitempty"`
	// serviceRanks run the pool's metadata service; the first leads.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	ServiceRanks []int32 `json:"serviceRanks,omitempty"`
}

// PoolHealth says how a pool's data is.
// +kubebuilder:validation:Enum=Healthy;Degraded;Rebuilding;Unavailable
type PoolHealth string

const (
	// PoolHealthy has all data, with all its copies.
	PoolHealthy PoolHealth = "Healthy"
	// PoolDegraded lacks copies, or data that is on faulty devices, and nothing is being done about it.
	PoolDegraded PoolHealth = "Degraded"
	// PoolRebuilding lacks copies that are being made.
	PoolRebuilding PoolHealth = "Rebuilding"
	// PoolUnavailable lacks more than its redundancy allows: what needs it waits.
	PoolUnavailable PoolHealth = "Unavailable"
)

// PoolRebuild says how far copies are that are being made.
type PoolRebuild struct {
	// targets that get data.
	// +optional
	Targets int32 `json:"targets"`
	// percent of the work that is done. Absent while some target doesn't know yet how much there is.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent *int32 `json:"percent,omitempty"`
	// moved is the data that has come.
	// +optional
	Moved *resource.Quantity `json:"moved,omitempty"`
	// rate of the data that comes, in bytes a second. Absent while too little has come.
	// +optional
	Rate *resource.Quantity `json:"rate,omitempty"`
	// timeLeft until the last target is done, if it goes on as until now, for example 1m30s. Absent while it isn't known.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	TimeLeft string `json:"timeLeft,omitempty"`
}

// EngineLabel is the label of the pool in the engines.
func (p *Pool) EngineLabel() string {
	if p.Spec.Label != "" {
		return p.Spec.Label
	}
	return p.Name
}

// EngineUUID is the UUID of the pool in the engines. Until it is known it is the one that the pool is made under, unless the
// object takes over one that is there.
func (p *Pool) EngineUUID() string {
	if p.Status.UUID != "" {
		return p.Status.UUID
	}
	return string(p.UID)
}
