package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeDevice is a drive of a node. Its name comes from the drive's own identity, so that it is the same in every slot and machine.
// The agent of the drive's node makes it and writes its status; it stays when the drive is gone. Nothing is done to a drive that is
// not assigned.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nd,categories=weir
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.node`
// +kubebuilder:printcolumn:name="Model",type=string,JSONPath=`.status.model`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Healthy",type=string,JSONPath=`.status.conditions[?(@.type=="Healthy")].status`
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.assignment.cluster`
// +kubebuilder:printcolumn:name="Rank",type=integer,JSONPath=`.spec.assignment.rank`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Target",type=integer,priority=1,JSONPath=`.spec.assignment.target`
// +kubebuilder:printcolumn:name="Device",type=string,priority=1,JSONPath=`.status.kernelName`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type NodeDevice struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says whose the drive is.
	// +optional
	Spec NodeDeviceSpec `json:"spec,omitempty"`
	// status is the drive as its node sees it.
	// +optional
	Status NodeDeviceStatus `json:"status,omitempty"`
}

// NodeDeviceList is a list of NodeDevice.
//
// +kubebuilder:object:root=true
type NodeDeviceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeDevice `json:"items"`
}

// NodeDeviceSpec says whose a drive is.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.assignment) || !has(self.assignment) || self.assignment == oldSelf.assignment",message="spec.assignment is immutable: remove it before the drive is given to another target"
type NodeDeviceSpec struct {
	// assignment is the target that the drive is for. The operator assigns drives that are eligible, and takes one away when it
	// has failed. Remove it to let go of a drive whose StorageCluster is gone.
	// +optional
	Assignment *DeviceAssignment `json:"assignment,omitempty"`
}

// DeviceAssignment names a target of an engine.
type DeviceAssignment struct {
	// namespace of the StorageCluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// cluster is the name of the StorageCluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	Cluster string `json:"cluster"`
	// rank of the engine.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=127
	Rank int32 `json:"rank"`
	// target of the engine.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=63
	Target int32 `json:"target"`
}

// DriveKind is a kind of drive.
// +kubebuilder:validation:Enum=NVMe;Loop
type DriveKind string

const (
	// DriveNVMe is a namespace of an NVMe drive.
	DriveNVMe DriveKind = "NVMe"
	// DriveLoop is a loop device that stands in for a drive in tests.
	DriveLoop DriveKind = "Loop"
)

// NodeDeviceStatus is a drive as its node sees it.
type NodeDeviceStatus struct {
	// conditions of the drive: Ready (an engine may have it, or the one that it is assigned to can use it) and Healthy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// node that has the drive, or had it last.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`
	// identity of the drive: EUI-64 or NGUID (eui.…), UUID (uuid.…), or what is made of maker, serial number and model (nvme.…).
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Identity string `json:"identity,omitempty"`
	// kind of the drive: NVMe, or Loop in tests.
	// +optional
	Kind DriveKind `json:"kind,omitempty"`
	// kernelName is what the node's kernel calls it until its next start.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	KernelName string `json:"kernelName,omitempty"`
	// model of the drive.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Model string `json:"model,omitempty"`
	// serial number of the drive.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Serial string `json:"serial,omitempty"`
	// firmware of the drive.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Firmware string `json:"firmware,omitempty"`
	// size of the drive.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// numaNode that the drive is attached to; absent when the platform names none.
	// +optional
	NUMANode *int32 `json:"numaNode,omitempty"`
	// pciAddress of the drive's controller.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	PCIAddress string `json:"pciAddress,omitempty"`
	// driver of the drive's controller.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Driver string `json:"driver,omitempty"`
}
