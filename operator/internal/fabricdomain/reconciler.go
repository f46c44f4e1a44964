// Package fabricdomain counts the numbers of FabricDomains and keeps a FabricDomain while tenants have numbers of it.
package fabricdomain

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/lifecycle"
	"weir.dev/weir/operator/internal/status"
)

// +kubebuilder:rbac:groups=storage.weir.dev,resources=fabricdomains,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=fabricdomains/status,verbs=patch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=tenants;vniallocations,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler keeps the status of FabricDomains.
type Reconciler struct {
	client   client.Client
	live     client.Reader
	reporter *status.Reporter
	course   lifecycle.Course[*v1alpha1.FabricDomain]
}

var _ reconcile.Reconciler = (*Reconciler)(nil)

// New makes a reconciler. live reads past the cache, for deletions.
func New(c client.Client, live client.Reader, recorder status.Recorder, passive clock.PassiveClock) *Reconciler {
	r := &Reconciler{client: c, live: live, reporter: status.NewReporter(recorder, passive)}
	r.course = lifecycle.Course[*v1alpha1.FabricDomain]{
		Client: c, Live: live, Reporter: r.reporter,
		New: func() *v1alpha1.FabricDomain { return &v1alpha1.FabricDomain{} },
		Status: func(d *v1alpha1.FabricDomain) lifecycle.Status {
			return lifecycle.Status{ObservedGeneration: &d.Status.ObservedGeneration, Conditions: &d.Status.Conditions}
		},
		Converge: r.converge, Blocker: r.blocker,
	}
	return r
}

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("fabricdomain").
		For(&v1alpha1.FabricDomain{}).
		Watches(&v1alpha1.Tenant{}, handler.EnqueueRequestsFromMapFunc(domainOfTenant)).
		Watches(&v1alpha1.VNIAllocation{}, handler.EnqueueRequestsFromMapFunc(r.domainsOfAllocation)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up FabricDomain controller: %w", err)
	}
	return nil
}

// Reconcile moves one FabricDomain towards its spec.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	return r.course.Reconcile(ctx, request)
}

// converge counts the domain's numbers.
func (r *Reconciler) converge(ctx context.Context, domain *v1alpha1.FabricDomain) (time.Duration, error) {
	report := func(c status.Condition) { r.reporter.Report(ctx, domain, &domain.Status.Conditions, c) }
	report(status.Of(v1alpha1.ConditionDeletionBlocked, false, v1alpha1.ReasonNotDeleting, "the FabricDomain is not being deleted"))
	var allocations v1alpha1.VNIAllocationList
	if err := r.client.List(ctx, &allocations); err != nil {
		return 0, fmt.Errorf("list VNIAllocations: %w", err)
	}
	var domains v1alpha1.FabricDomainList
	if err := r.client.List(ctx, &domains); err != nil {
		return 0, fmt.Errorf("list FabricDomains: %w", err)
	}
	count(domain, domains.Items, allocations.Items)
	s := domain.Status
	if s.Free == 0 {
		report(status.Of(v1alpha1.ConditionReady, false, v1alpha1.ReasonRangeExhausted, fmt.Sprintf(
			"no number is left: tenants have %d, and %d are being released. Enlarge spec.vniRange, or delete Tenants that are not needed", s.Allocated, s.Releasing)))
		return 0, nil
	}
	report(status.Of(v1alpha1.ConditionReady, true, v1alpha1.ReasonNumbersFree, fmt.Sprintf(
		"tenants have %d numbers, %d are being released, %d are free", s.Allocated, s.Releasing, s.Free)))
	return 0, nil
}

// count writes into the status of a domain how many of its numbers are allocated, being released and free.
func count(domain *v1alpha1.FabricDomain, domains []v1alpha1.FabricDomain, allocations []v1alpha1.VNIAllocation) {
	inside := func(number int32) bool {
		return number >= domain.Spec.VNIRange.First && number <= domain.Spec.VNIRange.Last
	}
	unavailable := map[int32]bool{}
	for i := range domains {
		for _, number := range append([]int32{domains[i].Spec.EngineVNI}, domains[i].Spec.Reserved...) {
			unavailable[number] = inside(number)
		}
	}
	domain.Status.Allocated, domain.Status.Releasing = 0, 0
	for i := range allocations {
		a := &allocations[i]
		unavailable[a.Spec.VNI] = inside(a.Spec.VNI)
		switch {
		case a.Spec.FabricDomainRef.Name != domain.Name:
		case a.DeletionTimestamp.IsZero():
			domain.Status.Allocated++
		default:
			domain.Status.Releasing++
		}
	}
	domain.Status.Free = domain.Spec.VNIRange.Last - domain.Spec.VNIRange.First + 1
	for _, within := range unavailable {
		if within {
			domain.Status.Free--
		}
	}
}

// blocker keeps the domain while tenants have numbers of it, or numbers of it are on their way back: the quarantine of those is
// the domain's.
func (r *Reconciler) blocker(ctx context.Context, domain *v1alpha1.FabricDomain) (*status.Condition, error) {
	var tenants v1alpha1.TenantList
	if err := r.live.List(ctx, &tenants); err != nil {
		return nil, fmt.Errorf("list Tenants: %w", err)
	}
	var allocations v1alpha1.VNIAllocationList
	if err := r.live.List(ctx, &allocations); err != nil {
		return nil, fmt.Errorf("list VNIAllocations: %w", err)
	}
	count(domain, []v1alpha1.FabricDomain{*domain}, allocations.Items)
	var names []string
	for i := range tenants.Items {
		if tenants.Items[i].Status.FabricDomain == domain.Name {
			names = append(names, "Tenant "+tenants.Items[i].Name)
		}
	}
	var numbers []string
	for i := range allocations.Items {
		if allocations.Items[i].Spec.FabricDomainRef.Name == domain.Name {
			numbers = append(numbers, "VNIAllocation "+allocations.Items[i].Name)
		}
	}
	var c status.Condition
	switch {
	case len(names) > 0:
		c = status.Of(v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonDependentsExist, fmt.Sprintf(
			"FabricDomain %s is used by %s: delete them first", domain.Name, status.List(names)))
	case len(numbers) > 0:
		c = status.Of(v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonQuarantined, fmt.Sprintf(
			"numbers of FabricDomain %s are on their way back: %s. Wait for the end of their quarantine, or shorten spec.quarantineSeconds", domain.Name, status.List(numbers)))
	default:
		return nil, nil // nothing blocks
	}
	return &c, nil
}

func domainOfTenant(_ context.Context, obj client.Object) []reconcile.Request {
	tenant, ok := obj.(*v1alpha1.Tenant)
	if !ok || tenant.Status.FabricDomain == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: tenant.Status.FabricDomain}}}
}

// domainsOfAllocation are the domains that count an allocation: those whose ranges it is in, and its own.
func (r *Reconciler) domainsOfAllocation(ctx context.Context, obj client.Object) []reconcile.Request {
	allocation, ok := obj.(*v1alpha1.VNIAllocation)
	if !ok {
		return nil
	}
	var domains v1alpha1.FabricDomainList
	if err := r.client.List(ctx, &domains); err != nil {
		return nil // the cache is going; the next operator looks at every domain
	}
	var requests []reconcile.Request
	for i := range domains.Items {
		d, number := &domains.Items[i], allocation.Spec.VNI
		if d.Name == allocation.Spec.FabricDomainRef.Name || (number >= d.Spec.VNIRange.First && number <= d.Spec.VNIRange.Last) {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: d.Name}})
		}
	}
	return requests
}
