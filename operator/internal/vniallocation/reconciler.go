// Package vniallocation keeps a released VNI until every node has confirmed the release, and for its quarantine after that.
package vniallocation

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/apply"
	"weir.dev/weir/operator/internal/lifecycle"
	"weir.dev/weir/operator/internal/status"
	"weir.dev/weir/operator/internal/vni"
)

// +kubebuilder:rbac:groups=storage.weir.dev,resources=vniallocations,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=storage.weir.dev,resources=vniallocations/status,verbs=patch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=tenants;fabricdomains,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler leads VNIAllocations to their end.
type Reconciler struct {
	client   client.Client
	live     client.Reader
	clock    clock.PassiveClock
	reporter *status.Reporter
	course   lifecycle.Course[*v1alpha1.VNIAllocation]
}

var _ reconcile.Reconciler = (*Reconciler)(nil)

// New makes a reconciler. live reads past the cache, for deletions.
func New(c client.Client, live client.Reader, recorder status.Recorder, passive clock.PassiveClock) *Reconciler {
	r := &Reconciler{client: c, live: live, clock: passive, reporter: status.NewReporter(recorder, passive)}
	r.course = lifecycle.Course[*v1alpha1.VNIAllocation]{
		Client: c, Live: live, Reporter: r.reporter,
		New: func() *v1alpha1.VNIAllocation { return &v1alpha1.VNIAllocation{} },
		Status: func(a *v1alpha1.VNIAllocation) lifecycle.Status {
			return lifecycle.Status{ObservedGeneration: &a.Status.ObservedGeneration, Conditions: &a.Status.Conditions}
		},
		Converge: r.converge, Blocker: r.blocker, BlockedFor: r.blockedFor,
	}
	return r
}

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("vniallocation").
		For(&v1alpha1.VNIAllocation{}).
		Watches(&v1alpha1.FabricDomain{}, handler.EnqueueRequestsFromMapFunc(r.resting)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up VNIAllocation controller: %w", err)
	}
	return nil
}

// Reconcile moves one VNIAllocation towards its end.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	return r.course.Reconcile(ctx, request)
}

// converge releases a number whose owner is gone, which an allocator leaves that was slower than the deletion of the owner.
func (r *Reconciler) converge(ctx context.Context, a *v1alpha1.VNIAllocation) (time.Duration, error) {
	r.report(ctx, a, status.Of(v1alpha1.ConditionDeletionBlocked, false, v1alpha1.ReasonNotDeleting, "the VNIAllocation is not being deleted"))
	var owner v1alpha1.Tenant
	err := r.live.Get(ctx, client.ObjectKey{Name: a.Spec.Owner.Name}, &owner)
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("read Tenant %s: %w", a.Spec.Owner.Name, err)
	}
	if err != nil || string(owner.UID) != a.Spec.Owner.UID {
		if err := apply.DeleteRead(ctx, r.client, a); err != nil {
			return 0, fmt.Errorf("release VNIAllocation %s, whose Tenant %s is gone: %w", a.Name, a.Spec.Owner.Name, err)
		}
		return 0, nil
	}
	r.report(ctx, a, status.Of(v1alpha1.ConditionReady, true, v1alpha1.ReasonAllocated, "Tenant "+owner.Name+" has the number"))
	return 0, nil
}

// blocker keeps a number that nodes use, and then for its quarantine.
func (r *Reconciler) blocker(ctx context.Context, a *v1alpha1.VNIAllocation) (*status.Condition, error) {
	if nodes := a.HoldingNodes(); len(nodes) > 0 {
		c := status.Of(v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonNodesHoldVNI, fmt.Sprintf(
			"waiting for %s to confirm that nobody there uses VNI %s: stop the pods of Tenant %s there; of a node that is gone for good, take the entry out of status.nodes",
			status.List(nodes), a.Name, a.Spec.Owner.Name))
		return &c, nil
	}
	if a.Status.ReleasedAt == nil {
		a.Status.ReleasedAt = &metav1.Time{Time: vni.ReleasedAt(r.clock.Now())}
	} else {
		rest, err := r.rest(ctx, a)
		if err != nil || rest <= 0 {
			return nil, err
		}
	}
	c := status.Of(v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonQuarantined, fmt.Sprintf(
		"every node has released VNI %s: it rests for the quarantine of FabricDomain %s", a.Name, a.Spec.FabricDomainRef.Name))
	return &c, nil
}

// rest is how long a released number still rests. It asks the API server, so that a quarantine made longer counts at once.
func (r *Reconciler) rest(ctx context.Context, a *v1alpha1.VNIAllocation) (time.Duration, error) {
	quarantine := v1alpha1.DefaultQuarantine
	var domain v1alpha1.FabricDomain
	err := r.live.Get(ctx, client.ObjectKey{Name: a.Spec.FabricDomainRef.Name}, &domain)
	switch {
	case err == nil:
		quarantine = domain.Quarantine()
	case !apierrors.IsNotFound(err):
		return 0, fmt.Errorf("read FabricDomain %s: %w", a.Spec.FabricDomainRef.Name, err)
	}
	return vni.Rest(a.Status.ReleasedAt.Time, quarantine, r.clock.Now()), nil
}

// blockedFor is when to look again at a number that is on its way back; 0 while nodes use it, whose confirmation is watched.
func (r *Reconciler) blockedFor(ctx context.Context, a *v1alpha1.VNIAllocation) (time.Duration, error) {
	if a.Status.ReleasedAt == nil {
		return 0, nil
	}
	rest, err := r.rest(ctx, a)
	return max(rest, time.Second), err
}

func (r *Reconciler) report(ctx context.Context, a *v1alpha1.VNIAllocation, c status.Condition) {
	r.reporter.Report(ctx, a, &a.Status.Conditions, c)
}

// resting are the released numbers of a FabricDomain, whose quarantine may have changed.
func (r *Reconciler) resting(ctx context.Context, obj client.Object) []reconcile.Request {
	var all v1alpha1.VNIAllocationList
	if err := r.client.List(ctx, &all); err != nil {
		return nil // the cache is going; the next operator looks at every allocation
	}
	var requests []reconcile.Request
	for i := range all.Items {
		a := &all.Items[i]
		if a.Spec.FabricDomainRef.Name == obj.GetName() && !a.DeletionTimestamp.IsZero() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(a)})
		}
	}
	return requests
}
