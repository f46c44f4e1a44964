package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultQuarantine is how long a number rests when its FabricDomain can't be read any more.
const DefaultQuarantine = 10 * time.Minute

// FabricDomain is a range of VNIs of a Slingshot fabric that the operator may give to tenants.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=fdom,categories=weir
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="First",type=integer,JSONPath=`.spec.vniRange.first`
// +kubebuilder:printcolumn:name="Last",type=integer,JSONPath=`.spec.vniRange.last`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Releasing",type=integer,JSONPath=`.status.releasing`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Engines",type=integer,priority=1,JSONPath=`.spec.engineVNI`
// +kubebuilder:printcolumn:name="Quarantine",type=integer,priority=1,JSONPath=`.spec.quarantineSeconds`
// +kubebuilder:printcolumn:name="Blocked",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="DeletionBlocked")].reason`
type FabricDomain struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the domain that should be.
	// +required
	Spec FabricDomainSpec `json:"spec"`
	// status is the domain that is.
	// +optional
	Status FabricDomainStatus `json:"status,omitempty"`
}

// FabricDomainList is a list of FabricDomain.
//
// +kubebuilder:object:root=true
type FabricDomainList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FabricDomain `json:"items"`
}

// FabricDomainSpec is the domain that should be.
//
// +kubebuilder:validation:XValidation:rule="self.engineVNI >= self.vniRange.first && self.engineVNI <= self.vniRange.last",message="engineVNI must be inside vniRange"
// +kubebuilder:validation:XValidation:rule="!has(self.reserved) || self.reserved.all(n, n >= self.vniRange.first && n <= self.vniRange.last)",message="reserved numbers must be inside vniRange: others are never given to a tenant anyway"
type FabricDomainSpec struct {
	// vniRange is the numbers that the fabric's administrator has set aside for this Kubernetes cluster. It can grow.
	// +required
	VNIRange VNIRange `json:"vniRange"`
	// reserved numbers inside the range are never given to a tenant. A number that a tenant has already stays with it.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	Reserved []int32 `json:"reserved,omitempty"`
	// engineVNI is the number that engines use among themselves. It is never given to a tenant.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="engineVNI is immutable: another number may belong to a tenant already"
	EngineVNI int32 `json:"engineVNI"`
	// quarantineSeconds is how long a number rests after the last node has released it, before it can be given away again.
	// +optional
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	QuarantineSeconds int32 `json:"quarantineSeconds,omitempty"`
}

// VNIRange is a range of VNIs, both ends included.
//
// +kubebuilder:validation:XValidation:rule="self.first <= self.last",message="vniRange.first must not be greater than vniRange.last"
// +kubebuilder:validation:XValidation:rule="self.first <= oldSelf.first && self.last >= oldSelf.last",message="vniRange can only grow: tenants may have the numbers that would be lost"
type VNIRange struct {
	// first number of the range.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	First int32 `json:"first"`
	// last number of the range.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Last int32 `json:"last"`
}

// FabricDomainStatus is the domain that is.
type FabricDomainStatus struct {
	// conditions of the domain: Ready, DeletionBlocked.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// allocated is how many numbers of the domain tenants have.
	// +optional
	Allocated int32 `json:"allocated"`
	// releasing is how many numbers wait for nodes to release them, or rest in quarantine.
	// +optional
	Releasing int32 `json:"releasing"`
	// free is how many numbers can be given to tenants.
	// +optional
	Free int32 `json:"free"`
}

// Quarantine is how long a number of the domain rests after the last node has released it.
func (d *FabricDomain) Quarantine() time.Duration {
	return time.Duration(d.Spec.QuarantineSeconds) * time.Second
}
