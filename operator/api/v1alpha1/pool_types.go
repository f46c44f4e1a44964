package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pool is space on the engines of a StorageCluster that containers share.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=wpool,categories=weir
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.capacity.total`
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.capacity.used`
// +kubebuilder:printcolumn:name="Free",type=string,JSONPath=`.status.capacity.free`
// +kubebuilder:printcolumn:name="Containers",type=integer,JSONPath=`.status.containers`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Degraded",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`
// +kubebuilder:printcolumn:name="Class",type=string,priority=1,JSONPath=`.spec.objectClass`
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
	// ranks of the engines that hold the pool; absent means every engine.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=127
	Ranks []int32 `json:"ranks,omitempty"`
	// objectClass of new containers, for example SX (all targets) or S1 (one target).
	// +optional
	// +kubebuilder:default=SX
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Z][A-Z0-9_]*$')",message="objectClass is written in capitals, digits and '_', for example SX, S1 or RP_2GX"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="objectClass is immutable: set another class on the Container instead"
	ObjectClass string `json:"objectClass,omitempty"`
	// redundancyFactor is the number of engines that may be lost at once without losing data.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="redundancyFactor is immutable: existing data has the old number of copies"
	// +kubebuilder:default=0
	RedundancyFactor int32 `json:"redundancyFactor"`
	// deletionPolicy says whether deleting the Pool destroys the pool in the engines. Retain keeps it, and a Pool of
	// the same label takes it over.
	// +optional
	// +kubebuilder:default=Retain
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// PoolStatus is the pool that is.
type PoolStatus struct {
	// conditions of the pool: Ready, Degraded, DeletionBlocked.
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
	// capacity of the pool.
	// +optional
	Capacity *Capacity `json:"capacity,omitempty"`
	// containers is the number of containers in the pool, those of volumes among them.
	// +optional
	Containers int32 `json:"containers"`
	// ranks that hold the pool.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	Ranks []int32 `json:"ranks,omitempty"`
	// serviceRanks run the pool's metadata service; the first leads.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	ServiceRanks []int32 `json:"serviceRanks,omitempty"`
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
