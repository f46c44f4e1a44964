// Package apply writes the objects that the operator owns by server-side apply, so that fields which others set stay
// theirs.
package apply

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldOwner is the name under which the operator owns fields.
const FieldOwner = "weir-operator"

// Object applies one object. Its kind and apiVersion have to be set.
func Object(ctx context.Context, c client.Client, obj client.Object) error {
	gvk := obj.GetObjectKind().GroupVersionKind()
	describe := func(err error) error {
		return fmt.Errorf("apply %s %s/%s: %w", gvk.Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return describe(err)
	}
	// What the API server writes is not the operator's to own.
	unstructured.RemoveNestedField(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	u := &unstructured.Unstructured{Object: content}
	err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(FieldOwner), client.ForceOwnership)
	if err != nil {
		return describe(err)
	}
	return nil
}
