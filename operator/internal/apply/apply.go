// Package apply writes the objects that the operator owns by server-side apply, so that fields which others set stay
// theirs.
package apply

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/internal/manifest"
)

// FieldOwner is the name under which the operator owns fields.
const FieldOwner = "weir-operator"

// annotationApplied tells what was applied last, by its fingerprint: so what is not to be there any more is noticed, too.
const annotationApplied = "storage.weir.dev/applied"

// Object applies one object, whose kind and apiVersion have to be set, unless the one that is there has all of it already. It fails
// with a TakenError, and changes nothing, if one of its name is there that is not the same cluster's. live reads past the cache.
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
	if err := mark(content); err != nil {
		return failed(err)
	}
	if found {
		is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(existing)
		if err != nil {
			return failed(err)
		}
		// Objects read by their types don't say of which they are.
		is["apiVersion"], is["kind"] = content["apiVersion"], content["kind"]
		if holds(is, content) {
			return nil
		}
	}
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

// mark writes the fingerprint of an object that is about to be applied among its annotations.
func mark(content map[string]any) error {
	encoded, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return unstructured.SetNestedField(content, manifest.Fingerprint(encoded), "metadata", "annotations", annotationApplied)
}

// holds tells whether something has all that is wanted. It may have more fields, which others set, or the API server, but no longer
// lists: what is in a list by mistake is taken out.
func holds(is, wanted any) bool {
	switch wanted := wanted.(type) {
	case nil:
		return true
	case map[string]any:
		fields, ok := is.(map[string]any)
		if !ok {
			return is == nil && len(wanted) == 0
		}
		for name, value := range wanted {
			if !holds(fields[name], value) {
				return false
			}
		}
		return true
	case []any:
		items, ok := is.([]any)
		if !ok || len(items) != len(wanted) {
			return is == nil && len(wanted) == 0
		}
		for i := range wanted {
			if !holds(items[i], wanted[i]) {
				return false
			}
		}
		return true
	default:
		return equality.Semantic.DeepEqual(is, wanted)
	}
}
