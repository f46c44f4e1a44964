// Package tenants asks the API server which tenant a namespace belongs to.
package tenants

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"weir.dev/weir/operator/api/v1alpha1"
)

// Tenant is who a namespace belongs to.
type Tenant struct {
	// Name of the Tenant; "" for a namespace that belongs to none.
	Name string
	// Number that engines know the tenant by; 0 while the operator has given it none.
	Number uint64
}

// Namespaces knows the tenants of namespaces.
type Namespaces struct {
	namespaces typedv1.NamespaceInterface
	tenants    dynamic.ResourceInterface
}

// New asks through the given clients.
func New(namespaces typedv1.NamespaceInterface, api dynamic.Interface) *Namespaces {
	return &Namespaces{namespaces: namespaces, tenants: api.Resource(v1alpha1.GroupVersion.WithResource("tenants"))}
}

// Of is the tenant that a namespace belongs to; the zero Tenant if it belongs to none.
func (n *Namespaces) Of(ctx context.Context, namespace string) (Tenant, error) {
	found, err := n.namespaces.Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return Tenant{}, fmt.Errorf("read namespace %s: %w", namespace, err)
	}
	list, err := n.tenants.List(ctx, metav1.ListOptions{})
	if err != nil {
		return Tenant{}, fmt.Errorf("list Tenants: %w", err)
	}
	tenants := make([]v1alpha1.Tenant, len(list.Items))
	for i := range list.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &tenants[i]); err != nil {
			return Tenant{}, fmt.Errorf("read Tenant %s: %w", list.Items[i].GetName(), err)
		}
	}
	owner := v1alpha1.TenantOf(tenants, found.Labels)
	if owner == nil {
		return Tenant{}, nil
	}
	return Tenant{Name: owner.Name, Number: uint64(owner.Status.Number)}, nil
}
