package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Container is a namespace of objects in a Pool: a file system, or objects as a program lays them out.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.poolRef.name`
// +kubebuilder:resource:shortName=wcont,categories=weir
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.poolRef.name`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Quota",type=string,JSONPath=`.spec.quota`
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.used`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Degraded",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`
// +kubebuilder:printcolumn:name="Class",type=string,priority=1,JSONPath=`.status.objectClass`
// +kubebuilder:printcolumn:name="UUID",type=string,priority=1,JSONPath=`.status.uuid`
// +kubebuilder:validation:XValidation:rule="has(self.spec.label) || (size(self.metadata.name) <= 127 && self.metadata.name.matches('^[a-z]'))",message="metadata.name is the container's label unless spec.label is set: it must start with a letter and have at most 127 characters"
type Container struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the container that should be.
	// +required
	Spec ContainerSpec `json:"spec"`
	// status is the container that is.
	// +optional
	Status ContainerStatus `json:"status,omitempty"`
}

// ContainerList is a list of Container.
//
// +kubebuilder:object:root=true
type ContainerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Container `json:"items"`
}

// ContainerType says what a container holds.
// +kubebuilder:validation:Enum=posix;object
type ContainerType string

const (
	// ContainerPosix holds a file system.
	ContainerPosix ContainerType = "posix"
	// ContainerObject holds objects as the program lays them out.
	ContainerObject ContainerType = "object"
)

// AttributeValue is the value of a container attribute.
// +kubebuilder:validation:MaxLength=1024
type AttributeValue string

// ContainerSpec is the container that should be.
//
// +kubebuilder:validation:XValidation:rule="has(self.label) == has(oldSelf.label) && (!has(self.label) || self.label == oldSelf.label)",message="label is immutable: programs open the container by it"
// +kubebuilder:validation:XValidation:rule="has(self.objectClass) == has(oldSelf.objectClass) && (!has(self.objectClass) || self.objectClass == oldSelf.objectClass)",message="objectClass is immutable: existing objects are placed by it"
// +kubebuilder:validation:XValidation:rule="has(self.chunkSize) == has(oldSelf.chunkSize) && (!has(self.chunkSize) || quantity(string(self.chunkSize)).compareTo(quantity(string(oldSelf.chunkSize))) == 0)",message="chunkSize is immutable: existing files are cut by it"
// +kubebuilder:validation:XValidation:rule="has(self.owner) == has(oldSelf.owner) && (!has(self.owner) || self.owner == oldSelf.owner)",message="owner is set when the container is made: use chown and chmod on its root afterwards"
// +kubebuilder:validation:XValidation:rule="has(self.attributes) == has(oldSelf.attributes) && (!has(self.attributes) || self.attributes == oldSelf.attributes)",message="attributes are set when the container is made: they are immutable"
// +kubebuilder:validation:XValidation:rule="self.type == 'posix' || !has(self.owner)",message="owner is for type posix: an object container has no root directory"
type ContainerSpec struct {
	// poolRef names the Pool, in the same namespace.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="poolRef is immutable: create a Container in the other pool and copy the data"
	PoolRef LocalReference `json:"poolRef"`
	// label that programs open the container by; empty means metadata.name. A container of that label which the pool
	// already has is adopted when type, class and chunk size agree.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z][A-Za-z0-9._:-]*$')",message="label must start with a letter and hold only letters, digits, '.', '_', ':' and '-'"
	Label string `json:"label,omitempty"`
	// type of the container: posix (a file system) or object.
	// +optional
	// +kubebuilder:default=posix
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="type is immutable: create another Container"
	Type ContainerType `json:"type,omitempty"`
	// quota is the space that the container may use, at least 1Mi; absent means as much as the pool has.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Mi')) >= 0",message="quota must be at least 1Mi, for example 1Gi; leave it out for no limit"
	Quota *resource.Quantity `json:"quota,omitempty"`
	// objectClass of the container's objects; absent means the pool's.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Z][A-Z0-9_]*$')",message="objectClass is written in capitals, digits and '_', for example SX, S1 or RP_2GX"
	ObjectClass string `json:"objectClass,omitempty"`
	// chunkSize is the part of a file that one dkey holds: a power of two from 4Ki to 1Gi; absent means 1Mi.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isInteger() && quantity(string(self)).asInteger() in [4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152, 4194304, 8388608, 16777216, 33554432, 67108864, 134217728, 268435456, 536870912, 1073741824]",message="chunkSize must be a power of two from 4Ki to 1Gi"
	ChunkSize *resource.Quantity `json:"chunkSize,omitempty"`
	// owner of the root directory of a posix container; absent means root, mode 0755.
	// +optional
	Owner *ContainerOwner `json:"owner,omitempty"`
	// attributes are free-form facts that the engines keep with the container. Names that begin with csi.weir.dev/ are the CSI
	// driver's: by them it knows its volumes.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.all(name, !name.startsWith('csi.weir.dev/'))",message="attributes whose names begin with csi.weir.dev/ are the CSI driver's: use another name"
	// +kubebuilder:validation:MaxProperties=32
	Attributes map[string]AttributeValue `json:"attributes,omitempty"`
	// deletionPolicy says whether deleting the Container destroys its data. Retain keeps it, and a Container of the
	// same label takes it over.
	// +optional
	// +kubebuilder:default=Retain
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// ContainerOwner is the owner and mode of a root directory.
type ContainerOwner struct {
	// uid is the numeric user.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967294
	UID int64 `json:"uid"`
	// gid is the numeric group.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967294
	GID int64 `json:"gid"`
	// mode bits in octal, for example "0775".
	// +optional
	// +kubebuilder:default="0755"
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-7]{3,4}$') && !self.matches('^0+$')",message="owner.mode is three or four octal digits in quotes, not all of them 0, for example \"0775\""
	Mode string `json:"mode,omitempty"`
}

// ContainerStatus is the container that is.
type ContainerStatus struct {
	// conditions of the container: Ready, Degraded, DeletionBlocked.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// uuid of the container in the engines.
	// +optional
	// +kubebuilder:validation:MaxLength=36
	UUID string `json:"uuid,omitempty"`
	// used space.
	// +optional
	Used *resource.Quantity `json:"used,omitempty"`
	// objectClass that the container got.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	ObjectClass string `json:"objectClass,omitempty"`
	// openHandles is the number of clients that have the container open.
	// +optional
	OpenHandles int32 `json:"openHandles"`
}

// EngineLabel is the label of the container in its pool.
func (c *Container) EngineLabel() string {
	if c.Spec.Label != "" {
		return c.Spec.Label
	}
	return c.Name
}

// EngineUUID is the UUID of the container in the engines. Until it is known it is the one that the container is made under, unless the
// object takes over one that is there.
func (c *Container) EngineUUID() string {
	if c.Status.UUID != "" {
		return c.Status.UUID
	}
	return string(c.UID)
}
