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

// Object applies one object, whose kind and apiVersion have to be set. It fails with a TakenError, and changes nothing, if one
// of its name is there that is not the same cluster's. live reads past the cache.
func Object(ctx context.Context, c client.Client, live client.Reader, obj client.Object) error {
	existing, found, err := Own(ctx, c, live, obj)
	if err != nil {
		return err
	}
	failed := func(err error) error { return fmt.Errorf("apply %s: %w", describe(obj), err) }
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return failed(err)
	}
	// What the API server writes is not the operator's to own.
	unstructured.RemoveNestedField(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	u := &unstructured.Unstructured{Object: content}
	options := []client.ApplyOption{client.FieldOwner(FieldOwner)}
	if found {
		// One that has come since, or instead of the one found, is not meant: the API server compares UIDs, and without force
		// it changes nothing that others set.
		u.SetUID(existing.GetUID())
		options = append(options, client.ForceOwnership)
	}
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...); err != nil {
		return failed(err)
	}
	return nil
}
