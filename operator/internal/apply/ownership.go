package apply

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/manifest"
)

// clusterKind is the kind that owns what the operator makes.
const clusterKind = "StorageCluster"

// TakenError says that an object which the operator has to make is there already, and is not the cluster's.
type TakenError struct {
	// Object is kind, namespace and name, such as "Service storage/weir-engines".
	Object string
	// Owner is whose the object is, such as "Deployment storage/web".
	Owner string
	// Leftover is true for what an earlier cluster of the same name owned: Kubernetes is about to delete it.
	Leftover bool
	// Unmarked is true for what nothing says whose it is.
	Unmarked bool
}

// Error says whose the object is and what to do.
func (e *TakenError) Error() string {
	if e.Leftover {
		return fmt.Sprintf("%s belongs to an earlier %s, which is gone: waiting for Kubernetes' garbage collector to delete it", e.Object, e.Owner)
	}
	message := fmt.Sprintf("%s belongs to %s: the operator leaves it as it is. Delete that object, or make it or the StorageCluster under another name",
		e.Object, e.Owner)
	if e.Unmarked {
		message += "; if it was restored, give it that label"
	}
	return message
}

// Taken says why an object that is there is not to be written, nor deleted, for the cluster that wants one of its name; it
// returns nil if it is that cluster's own. An object is a cluster's if the cluster controls it, or if nobody does and it
// carries the operator's label: what outlives its cluster, is in another namespace, or was restored without its owner.
func Taken(existing, wanted client.Object) *TakenError {
	controller, own := metav1.GetControllerOf(existing), metav1.GetControllerOf(wanted)
	taken := &TakenError{Object: describe(wanted)}
	switch {
	case controller != nil && own != nil && controller.UID == own.UID:
		return nil
	case controller == nil && existing.GetLabels()[manifest.LabelManagedBy] != manifest.ManagedBy:
		taken.Owner, taken.Unmarked = ownerOfUnlabelled(existing)
	case controller != nil && !isCluster(controller):
		taken.Owner = fmt.Sprintf("%s %s/%s", controller.Kind, existing.GetNamespace(), controller.Name)
	case clusterOf(existing, wanted) != clusterOf(wanted, wanted):
		taken.Owner = clusterKind + " " + clusterOf(existing, wanted)
	case controller != nil && own != nil:
		taken.Owner, taken.Leftover = clusterKind+" "+clusterOf(existing, wanted), true
	default:
		return nil
	}
	return taken
}

// clusterOf is "namespace/name" of the StorageCluster that an object of the operator's belongs to. One that does not say is
// taken for that of the cluster in its namespace which wants the name.
func clusterOf(obj, wanted client.Object) string {
	if cluster := obj.GetAnnotations()[v1alpha1.AnnotationCluster]; cluster != "" {
		return cluster
	}
	name := obj.GetLabels()[v1alpha1.LabelCluster]
	if controller := metav1.GetControllerOf(obj); controller != nil {
		name = controller.Name
	}
	if name == "" {
		name = wanted.GetLabels()[v1alpha1.LabelCluster]
	}
	return obj.GetNamespace() + "/" + name
}

func isCluster(owner *metav1.OwnerReference) bool {
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && version.Group == v1alpha1.GroupVersion.Group && owner.Kind == clusterKind
}

// ownerOfUnlabelled says whose an object is that has neither a controller nor the operator's label. unmarked is true if
// nothing says.
func ownerOfUnlabelled(obj client.Object) (owner string, unmarked bool) {
	const label = manifest.LabelManagedBy + "=" + manifest.ManagedBy
	if owners := obj.GetOwnerReferences(); len(owners) > 0 {
		return fmt.Sprintf("%s %s/%s", owners[0].Kind, obj.GetNamespace(), owners[0].Name), false
	}
	if manager := obj.GetLabels()[manifest.LabelManagedBy]; manager != "" {
		return fmt.Sprintf("%s, by its label %s", manager, manifest.LabelManagedBy), false
	}
	return "somebody else, since it lacks the label " + label, true
}

// Find returns the object that has the name of like, if there is one. The cache shows only what the operator made, and that
// late: whether a name is free is asked past it.
func Find[T client.Object](ctx context.Context, c client.Client, live client.Reader, like T) (existing T, found bool, err error) {
	var none T
	kind, err := c.GroupVersionKindFor(like)
	if err != nil {
		return none, false, fmt.Errorf("find the kind of %T %s: %w", like, client.ObjectKeyFromObject(like), err)
	}
	for _, reader := range []client.Reader{c, live} {
		made, err := c.Scheme().New(kind)
		if err != nil {
			return none, false, fmt.Errorf("make an empty %s: %w", kind.Kind, err)
		}
		existing, ok := made.(T)
		if !ok {
			return none, false, fmt.Errorf("a %s is read as %T, not %T", kind.Kind, made, like)
		}
		err = reader.Get(ctx, client.ObjectKeyFromObject(like), existing)
		if err == nil {
			return existing, true, nil
		}
		if !apierrors.IsNotFound(err) {
			return none, false, fmt.Errorf("read %s %s: %w", kind.Kind, client.ObjectKeyFromObject(like), err)
		}
	}
	return none, false, nil
}

// Own is Find for an object that is about to be written: it fails with a TakenError for what is not the cluster's that like
// is of.
func Own[T client.Object](ctx context.Context, c client.Client, live client.Reader, like T) (existing T, found bool, err error) {
	var none T
	existing, found, err = Find(ctx, c, live, like)
	if err != nil || !found {
		return none, false, err
	}
	if taken := Taken(existing, like); taken != nil {
		return none, false, taken
	}
	return existing, true, nil
}

// Delete deletes the object that has the name of like, if it is the cluster's that like is of.
func Delete(ctx context.Context, c client.Client, live client.Reader, like client.Object) error {
	existing, found, err := Find(ctx, c, live, like)
	if err != nil || !found || Taken(existing, like) != nil {
		return err
	}
	if err := DeleteRead(ctx, c, existing); err != nil {
		return fmt.Errorf("delete %s: %w", describe(like), err)
	}
	return nil
}

// DeleteRead deletes an object that has been read. One that has come under its name since stays, and is a conflict.
func DeleteRead(ctx context.Context, c client.Client, obj client.Object, options ...client.DeleteOption) error {
	uid := obj.GetUID()
	return client.IgnoreNotFound(c.Delete(ctx, obj, append(options, client.Preconditions{UID: &uid})...))
}

// describe names an object whose kind is set.
func describe(obj client.Object) string {
	return fmt.Sprintf("%s %s", obj.GetObjectKind().GroupVersionKind().Kind, client.ObjectKeyFromObject(obj))
}
