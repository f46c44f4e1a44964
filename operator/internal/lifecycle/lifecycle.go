// Package lifecycle has what the controllers of all kinds do alike with their own objects: it writes finalizer and status,
// and leads an object from the one to the other.
package lifecycle

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"weir.dev/weir/operator/api/v1alpha1"
)

// hold puts our finalizer on an object, which comes before anything is made for it, so that nothing is left behind.
func hold(ctx context.Context, c client.Client, obj client.Object) error {
	base, ok := obj.DeepCopyObject().(client.Object)
	if !ok || !controllerutil.AddFinalizer(obj, v1alpha1.Finalizer) {
		return nil
	}
	if err := c.Patch(ctx, obj, exactly(base)); err != nil {
		return fmt.Errorf("add finalizer to %T %s: %w", obj, client.ObjectKeyFromObject(obj), err)
	}
	return nil
}

// held tells whether our finalizer is on an object.
func held(obj client.Object) bool { return controllerutil.ContainsFinalizer(obj, v1alpha1.Finalizer) }

// release takes our finalizer off an object. That the object is gone is as good.
func release(ctx context.Context, c client.Client, obj client.Object) error {
	base, ok := obj.DeepCopyObject().(client.Object)
	if !ok || !controllerutil.RemoveFinalizer(obj, v1alpha1.Finalizer) {
		return nil
	}
	if err := c.Patch(ctx, obj, exactly(base)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove finalizer of %T %s: %w", obj, client.ObjectKeyFromObject(obj), err)
	}
	return nil
}

// exactly patches base and nothing newer: a merge patch replaces lists as a whole, the finalizers of others and engines that an
// older copy in the cache did not know of.
func exactly(base client.Object) client.Patch {
	return client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
}

// patchStatus writes the status of obj if it differs from that of base, the object as it was read. Where somebody has written
// since it fails, and the object is dealt with again.
func patchStatus(ctx context.Context, c client.Client, obj, base client.Object) error {
	if equality.Semantic.DeepEqual(obj, base) {
		return nil
	}
	if err := c.Status().Patch(ctx, obj, exactly(base)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("patch status of %T %s: %w", obj, client.ObjectKeyFromObject(obj), err)
	}
	return nil
}
