// Package v1alpha1 is the Kubernetes API of Weir: the kinds StorageCluster, Pool and Container, FabricDomain,
// Tenant and VNIAllocation for virtual networks, and NodeDevice for drives.
//
// +kubebuilder:object:generate=true
// +groupName=storage.weir.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "storage.weir.dev", Version: "v1alpha1"}

// AddToScheme registers the kinds of this package in a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&StorageCluster{}, &StorageClusterList{},
		&Pool{}, &PoolList{},
		&Container{}, &ContainerList{},
		&FabricDomain{}, &FabricDomainList{},
		&Tenant{}, &TenantList{},
		&VNIAllocation{}, &VNIAllocationList{},
		&NodeDevice{}, &NodeDeviceList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
