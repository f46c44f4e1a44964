package v1alpha1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TenantNumberMin is the least number that the operator gives to a Tenant: smaller ones are those that administrators give with
// `weir fabric tenant`.
const TenantNumberMin = 1 << 16

// TenantNumberMax is the greatest number of a Tenant: every reader of JSON takes it for what it is.
const TenantNumberMax = 1<<53 - 1

// Selects tells whether a namespace with these labels is one that the tenant's selector names.
func (t *Tenant) Selects(namespace map[string]string) (bool, error) {
	selector, err := metav1.LabelSelectorAsSelector(&t.Spec.NamespaceSelector)
	if err != nil {
		return false, fmt.Errorf("namespaceSelector of Tenant %s: %w", t.Name, err)
	}
	return !selector.Empty() && selector.Matches(labels.Set(namespace)), nil
}

// TenantOf is the tenant that a namespace with these labels belongs to: the oldest of those that select it. It is nil if there is
// none. A Tenant with a malformed selector selects none; its own conditions say so.
func TenantOf(tenants []Tenant, namespace map[string]string) *Tenant {
	var owner *Tenant
	for i := range tenants {
		selects, err := tenants[i].Selects(namespace)
		if err == nil && selects && (owner == nil || Older(&tenants[i], owner)) {
			owner = &tenants[i]
		}
	}
	return owner
}

// Older tells which of two objects for the same thing was there first, and so owns it.
func Older(a, b metav1.Object) bool {
	ta, tb := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	if ta.Equal(&tb) {
		return a.GetName() < b.GetName()
	}
	return ta.Before(&tb)
}
