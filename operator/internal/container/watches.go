package container

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/index"
)

// SetupWithManager registers the controller, and the poll of pools that tells it what nobody can watch.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("container").
		For(&v1alpha1.Container{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.Pool{}, handler.EnqueueRequestsFromMapFunc(r.containersOfPool), builder.WithPredicates(readinessChanged{})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.deleting), builder.WithPredicates(nodeChanged{})).
		WatchesRawSource(source.Channel(r.poll.changed, &handler.TypedEnqueueRequestForObject[*v1alpha1.Container]{})).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up Container controller: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("containers-of-pool").
		For(&v1alpha1.Pool{}, builder.WithPredicates(readinessChanged{})).
		Complete(r.poll)
	if err != nil {
		return fmt.Errorf("set up the poll of containers: %w", err)
	}
	return nil
}

// containersOfPool are the Containers of a Pool.
func (r *Reconciler) containersOfPool(ctx context.Context, obj client.Object) []reconcile.Request {
	containers, err := ofPool(ctx, r.client, client.ObjectKeyFromObject(obj))
	if err != nil {
		return nil // the poll of the pool finds those that are not ready
	}
	return requests(containers)
}

// deleting are the Containers that are being deleted, which may wait for a node.
func (r *Reconciler) deleting(ctx context.Context, _ client.Object) []reconcile.Request {
	var containers v1alpha1.ContainerList
	if err := r.client.List(ctx, &containers, client.MatchingFields{index.ContainerDeleting: index.Yes}); err != nil {
		return nil // the next look at each of them sees the node
	}
	return requests(containers.Items)
}

// ofPool reads the Containers of a Pool from the cache.
func ofPool(ctx context.Context, reader client.Reader, pool client.ObjectKey) ([]v1alpha1.Container, error) {
	var containers v1alpha1.ContainerList
	err := reader.List(ctx, &containers, client.InNamespace(pool.Namespace), client.MatchingFields{index.ContainerPool: pool.Name})
	if err != nil {
		return nil, fmt.Errorf("list Containers of Pool %s: %w", pool, err)
	}
	return containers.Items, nil
}

func requests(containers []v1alpha1.Container) []reconcile.Request {
	all := make([]reconcile.Request, 0, len(containers))
	for i := range containers {
		all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&containers[i])})
	}
	return all
}

// readinessChanged passes the changes of a Pool that matter to its containers.
type readinessChanged struct{ predicate.Funcs }

// Update implements predicate.Predicate.
func (readinessChanged) Update(e event.UpdateEvent) bool {
	before, okBefore := e.ObjectOld.(*v1alpha1.Pool)
	after, okAfter := e.ObjectNew.(*v1alpha1.Pool)
	return okBefore && okAfter && (before.Status.UUID != after.Status.UUID ||
		degraded(before) != degraded(after) || (silence(before) == nil) != (silence(after) == nil) || before.Generation != after.Generation)
}

func degraded(pool *v1alpha1.Pool) bool {
	return meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionDegraded)
}

// silence is the condition by which the engines of a pool don't answer; nil while they do.
func silence(pool *v1alpha1.Pool) *metav1.Condition {
	c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionDegraded)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonEngineUnreachable {
		return nil
	}
	return c
}

// nodeChanged passes what changes the judgement of who uses a container: nodes that go, and those that stop answering, come back or
// are taken out of service.
type nodeChanged struct{ predicate.Funcs }

// Create implements predicate.Predicate: a node that comes leaves none gone.
func (nodeChanged) Create(event.CreateEvent) bool { return false }

// Update implements predicate.Predicate.
func (nodeChanged) Update(e event.UpdateEvent) bool {
	before, okBefore := e.ObjectOld.(*corev1.Node)
	after, okAfter := e.ObjectNew.(*corev1.Node)
	return okBefore && okAfter && (ready(before) != ready(after) || !equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints))
}

// ready is the state of a node's Ready condition; "" where it has none.
func ready(node *corev1.Node) corev1.ConditionStatus {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == corev1.NodeReady {
			return node.Status.Conditions[i].Status
		}
	}
	return ""
}
