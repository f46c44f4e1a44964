package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Tenant is a user of the cluster who has virtual networks of its own: the operator gives it VNIs that nobody else has.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=wten,categories=weir
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="VNIs",type=string,JSONPath=`.status.vnis`
// +kubebuilder:printcolumn:name="Domain",type=string,JSONPath=`.status.fabricDomain`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Blocked",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="DeletionBlocked")].reason`
// +kubebuilder:validation:XValidation:rule="!has(self.spec.fabricDomainRef) || !has(self.status) || !has(self.status.fabricDomain) || self.status.fabricDomain == self.spec.fabricDomainRef.name",message="the tenant has its VNIs from the domain in status.fabricDomain: spec.fabricDomainRef can't name another one"
type Tenant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the tenant that should be.
	// +required
	Spec TenantSpec `json:"spec"`
	// status is the tenant that is.
	// +optional
	Status TenantStatus `json:"status,omitempty"`
}

// TenantList is a list of Tenant.
//
// +kubebuilder:object:root=true
type TenantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Tenant `json:"items"`
}

// TenantSpec is the tenant that should be.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.fabricDomainRef) || (has(self.fabricDomainRef) && self.fabricDomainRef == oldSelf.fabricDomainRef)",message="fabricDomainRef is immutable once it is set: make another Tenant"
type TenantSpec struct {
	// namespaceSelector says which namespaces are the tenant's, by their labels. It is recorded only: no part of Weir acts on
	// it yet.
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.matchLabels) && size(self.matchLabels) > 0 || has(self.matchExpressions) && size(self.matchExpressions) > 0",message="namespaceSelector must have matchLabels or matchExpressions: an empty one would select every namespace"
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	// fabricDomainRef names the FabricDomain that the tenant's VNIs are from. Absent means the only one there is.
	// +optional
	FabricDomainRef *ClusterReference `json:"fabricDomainRef,omitempty"`
	// vni says how many VNIs the tenant has, and who shares them.
	// +optional
	// +kubebuilder:default={}
	VNI TenantVNI `json:"vni,omitempty"`
}

// VNIMode says who shares the VNIs of a tenant.
// +kubebuilder:validation:Enum=PerTenant
type VNIMode string

// VNIPerTenant gives all pods of a tenant the same VNIs.
const VNIPerTenant VNIMode = "PerTenant"

// TenantVNI says how many VNIs a tenant has, and who shares them.
type TenantVNI struct {
	// mode says who shares the VNIs: PerTenant gives all pods of the tenant the same ones. It is the only mode.
	// +optional
	// +kubebuilder:default=PerTenant
	Mode VNIMode `json:"mode,omitempty"`
	// count of VNIs. It can grow. A Cassini service takes at most 4.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4
	// +kubebuilder:validation:XValidation:rule="self >= oldSelf",message="count can only grow: pods may be using the tenant's VNIs"
	Count int32 `json:"count,omitempty"`
}

// TenantStatus is the tenant that is.
type TenantStatus struct {
	// conditions of the tenant: Ready, VNIAllocated, DeletionBlocked.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// fabricDomain is the FabricDomain that the tenant's VNIs are from.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	FabricDomain string `json:"fabricDomain,omitempty"`
	// vnis are the numbers that the tenant has. Each is the name of a VNIAllocation.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4
	VNIs []int32 `json:"vnis,omitempty"`
}
