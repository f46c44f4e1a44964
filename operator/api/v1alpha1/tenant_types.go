package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Tenant is a user of the cluster who shares nothing with others: it has namespaces, a number, a key that is derived from that
// number, and virtual networks (VNIs) that nobody else has.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=wten,categories=weir
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Number",type=integer,JSONPath=`.status.number`
// +kubebuilder:printcolumn:name="VNIs",type=string,JSONPath=`.status.vnis`
// +kubebuilder:printcolumn:name="Domain",type=string,JSONPath=`.status.fabricDomain`
// +kubebuilder:printcolumn:name="Isolated",type=string,JSONPath=`.status.conditions[?(@.type=="Isolated")].status`
// +kubebuilder:printcolumn:name="Proven",type=date,JSONPath=`.status.provenAt`
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.quota.used`
// +kubebuilder:printcolumn:name="Quota",type=string,JSONPath=`.status.quota.bytes`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Blocked",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="DeletionBlocked")].reason`
// +kubebuilder:validation:XValidation:rule="!has(self.spec.fabricDomainRef) || !has(self.status) || !has(self.status.fabricDomain) || self.status.fabricDomain == self.spec.fabricDomainRef.name",message="the tenant has its VNIs from the domain in status.fabricDomain: spec.fabricDomainRef can't name another one"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.number) || (has(self.status) && has(self.status.number) && self.status.number == oldSelf.status.number)",message="status.number is immutable once it is set: pools belong to it, and the tenant's keys are made of it"
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
	// namespaceSelector says which namespaces are the tenant's, by their labels. Each gets the Secrets that the tenant's clients
	// attach with. Of several Tenants that select a namespace the oldest has it.
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
	// quota is what the tenant's pools together may use of each StorageCluster. Engines enforce it. Absent means no limit.
	// +optional
	Quota *TenantQuota `json:"quota,omitempty"`
}

// TenantQuota is what the tenant's pools together may use of each StorageCluster.
//
// +kubebuilder:validation:MinProperties=1
type TenantQuota struct {
	// bytes that are held, at least 1Mi, counted as quotas of Containers are: with copies and keys. Where more is held already, nothing
	// more is stored until less is. Absent means no limit.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isInteger() && quantity(string(self)).compareTo(quantity('1Mi')) >= 0",message="bytes must be a whole number of at least 1Mi, for example 10Ti; leave it out for no limit"
	Bytes *resource.Quantity `json:"bytes,omitempty"`
	// iops are requests on objects a second: a read or write of one part of a file is one at least. Absent means no limit.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=1000000000000
	IOPS *int64 `json:"iops,omitempty"`
	// bandwidth is bytes that are written and read a second, at least 1Mi. Absent means no limit.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isInteger() && quantity(string(self)).compareTo(quantity('1Mi')) >= 0",message="bandwidth must be a whole number of bytes a second of at least 1Mi, for example 2Gi; leave it out for no limit"
	Bandwidth *resource.Quantity `json:"bandwidth,omitempty"`
}

// TenantQuotaStatus is what engines enforce of a tenant's quota, and what the tenant uses.
type TenantQuotaStatus struct {
	// used are the bytes that the tenant's pools hold, in the StorageCluster where they hold most, as engines said last.
	// +optional
	Used *resource.Quantity `json:"used,omitempty"`
	// bytes that they may hold there.
	// +optional
	Bytes *resource.Quantity `json:"bytes,omitempty"`
	// iops are the requests a second that engines let through.
	// +optional
	IOPS *int64 `json:"iops,omitempty"`
	// bandwidth is the bytes a second that engines let through.
	// +optional
	Bandwidth *resource.Quantity `json:"bandwidth,omitempty"`
}

// VNIMode says who shares the VNIs of a tenant.
// +kubebuilder:validation:Enum=PerTenant;None
type VNIMode string

const (
	// VNIPerTenant gives all pods of a tenant the same VNIs.
	VNIPerTenant VNIMode = "PerTenant"
	// VNINone gives a tenant no VNIs: its key alone keeps it apart from others.
	VNINone VNIMode = "None"
)

// TenantVNI says how many VNIs a tenant has, and who shares them.
type TenantVNI struct {
	// mode says who shares the VNIs: PerTenant gives all pods of the tenant the same ones, None gives the tenant no VNI, for
	// fabrics that have none. It can change from None to PerTenant.
	// +optional
	// +kubebuilder:default=PerTenant
	// +kubebuilder:validation:XValidation:rule="self == oldSelf || oldSelf == 'None'",message="mode can't change to None: pods may be using the tenant's VNIs"
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
	// conditions of the tenant: Ready, VNIAllocated, CredentialsWritten, EnginesServe, QuotaEnforced, FabricEnforced, Isolated,
	// DeletionBlocked.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// number is what engines know the tenant by. No other Tenant ever has it, not even one of the same name.
	// +optional
	// +kubebuilder:validation:Minimum=65536
	// +kubebuilder:validation:Maximum=9007199254740991
	Number int64 `json:"number,omitempty"`
	// namespaces that have, or may have, Secrets of the tenant.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`
	// fabricDomain is the FabricDomain that the tenant's VNIs are from.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	FabricDomain string `json:"fabricDomain,omitempty"`
	// vnis are the numbers that the tenant has. Each is the name of a VNIAllocation.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4
	VNIs []int32 `json:"vnis,omitempty"`
	// quota is what engines enforce of the tenant's quota, and what it uses; absent without a quota.
	// +optional
	Quota *TenantQuotaStatus `json:"quota,omitempty"`
	// provenAt is the time of the oldest of the proofs that the condition Isolated rests on, one of each node with pods of the tenant.
	// +optional
	ProvenAt *metav1.Time `json:"provenAt,omitempty"`
	// keyProof is what came of the last attempts of a pod of the tenant to reach what is another tenant's, with the tenant's key; absent
	// when none was made.
	// +optional
	KeyProof *IsolationProof `json:"keyProof,omitempty"`
}
