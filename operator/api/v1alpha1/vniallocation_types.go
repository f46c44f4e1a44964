package v1alpha1

import (
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VNIAllocation is a VNI that somebody has. Its name is the number, so that the API server lets nobody else have it. Deleting
// it releases the number: the object stays until every node has confirmed that, and then for the domain's quarantine.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=vni,categories=weir
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.spec.owner.name`
// +kubebuilder:printcolumn:name="Domain",type=string,JSONPath=`.spec.fabricDomainRef.name`
// +kubebuilder:printcolumn:name="Released",type=date,JSONPath=`.status.releasedAt`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Nodes",type=string,priority=1,JSONPath=`.status.nodes[*].name`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == string(self.spec.vni)",message="metadata.name must be the number in spec.vni: that makes the API server keep it unique"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.releasedAt) || (has(self.status) && has(self.status.releasedAt) && self.status.releasedAt == oldSelf.status.releasedAt)",message="status.releasedAt is immutable once it is set: the quarantine counts from it"
type VNIAllocation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says who has the number.
	// +required
	Spec VNIAllocationSpec `json:"spec"`
	// status says where the number is in use.
	// +optional
	Status VNIAllocationStatus `json:"status,omitempty"`
}

// VNIAllocationList is a list of VNIAllocation.
//
// +kubebuilder:object:root=true
type VNIAllocationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VNIAllocation `json:"items"`
}

// VNIAllocationSpec says who has a number.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable: delete the VNIAllocation to release its number"
type VNIAllocationSpec struct {
	// vni is the number.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	VNI int32 `json:"vni"`
	// fabricDomainRef names the FabricDomain that the number is from.
	// +required
	FabricDomainRef ClusterReference `json:"fabricDomainRef"`
	// owner has the number.
	// +required
	Owner VNIOwner `json:"owner"`
}

// VNIOwnerKind is a kind of object that can have a VNI.
// +kubebuilder:validation:Enum=Tenant
type VNIOwnerKind string

// VNIOwnerTenant is the kind of an owner that is a Tenant.
const VNIOwnerTenant VNIOwnerKind = "Tenant"

// VNIOwner is the object that has a VNI.
type VNIOwner struct {
	// kind of the owner: Tenant.
	// +required
	Kind VNIOwnerKind `json:"kind"`
	// name of the owner.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the owner. A later object of the same name is another owner.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// VNIAllocationStatus says where a number is in use.
//
// +kubebuilder:validation:XValidation:rule="!has(self.releasedAt) || !has(self.nodes) || self.nodes.all(n, has(n.releasedAt))",message="a released number can't be in use on a node: status.releasedAt needs releasedAt of every node"
type VNIAllocationStatus struct {
	// conditions of the allocation: Ready, DeletionBlocked.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// nodes that have admitted somebody to the number. Whoever admits on a node lists it first, and never on an object that is
	// being deleted.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8192
	Nodes []VNINode `json:"nodes,omitempty"`
	// releasedAt is when the operator found every node's release, rounded up to a whole second. The quarantine counts from it.
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty"`
}

// VNINode is a node that has admitted somebody to a number.
type VNINode struct {
	// name of the node.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// addresses of the pods on the node that are admitted to the number. Simulated fabrics of other nodes let them in.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=2048
	// +kubebuilder:validation:items:MaxLength=45
	Addresses []string `json:"addresses,omitempty"`
	// waiting says which pods on the node are not admitted to the number although they should be, and which are not let go of
	// although they should be, and why. It names 8 at most.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=512
	Waiting []string `json:"waiting,omitempty"`
	// proof is what came of the last attempts to get from the number into others on this node; absent when none was made.
	// +optional
	Proof *IsolationProof `json:"proof,omitempty"`
	// releasedAt is when the node confirmed that nobody on it uses the number any more; absent while somebody may.
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty"`
}

// IsolationProof is what came of attempts to get from a VNI into others, or to reach what is another tenant's. An attempt that nobody
// could have succeeded with proves nothing: the same attempt within the VNI, or with what is the tenant's own, has to succeed, or nothing is written.
type IsolationProof struct {
	// time of the attempts.
	// +required
	Time metav1.Time `json:"time"`
	// refused are the attempts that the network, or the engines, refused, as they should.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	Refused []string `json:"refused,omitempty"`
	// reached are the attempts that got through, and should not have.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	Reached []string `json:"reached,omitempty"`
}

// VNIName is the name of the VNIAllocation of a number.
func VNIName(number int32) string { return strconv.Itoa(int(number)) }

// Node is the entry of a node, nil if there is none.
func (a *VNIAllocation) Node(name string) *VNINode {
	for i := range a.Status.Nodes {
		if a.Status.Nodes[i].Name == name {
			return &a.Status.Nodes[i]
		}
	}
	return nil
}

// HoldingNodes are the nodes that have not confirmed that they released the number.
func (a *VNIAllocation) HoldingNodes() []string {
	var names []string
	for _, node := range a.Status.Nodes {
		if node.ReleasedAt == nil {
			names = append(names, node.Name)
		}
	}
	return names
}
