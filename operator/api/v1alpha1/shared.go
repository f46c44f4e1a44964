package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// LocalReference names an object of a fixed kind in the same namespace.
type LocalReference struct {
	// name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ClusterReference names an object of a fixed kind that is in no namespace.
type ClusterReference struct {
	// name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// DeletionPolicy says what becomes of the data when the object is deleted.
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

const (
	// DeletionRetain keeps the data; an object with the same label adopts it later.
	DeletionRetain DeletionPolicy = "Retain"
	// DeletionDelete destroys the data.
	DeletionDelete DeletionPolicy = "Delete"
)

// Capacity is space in bytes.
type Capacity struct {
	// total space.
	// +optional
	Total *resource.Quantity `json:"total,omitempty"`
	// used space: data, its metadata, and space not yet reclaimed.
	// +optional
	Used *resource.Quantity `json:"used,omitempty"`
	// free space.
	// +optional
	Free *resource.Quantity `json:"free,omitempty"`
}
