// Package tenant gives Tenants what keeps them apart: a number, the VNIs that their specs ask for, and in each of their namespaces
// the Secrets that their clients attach with. It takes all of it back from Tenants that are deleted.
package tenant

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/apply"
	"weir.dev/weir/operator/internal/lifecycle"
	"weir.dev/weir/operator/internal/status"
	"weir.dev/weir/operator/internal/vni"
)

// again is when to go on after something was written down first.
const again = 10 * time.Millisecond

// +kubebuilder:rbac:groups=storage.weir.dev,resources=tenants,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=tenants/status,verbs=patch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=fabricdomains,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=vniallocations,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler gives Tenants their numbers, VNIs and Secrets.
type Reconciler struct {
	client   client.Client
	live     client.Reader
	engines  Connector
	reporter *status.Reporter
	clock    clock.PassiveClock
	// prober is the image of pods that try keys; empty means that nobody tries.
	prober string
	course lifecycle.Course[*v1alpha1.Tenant]
}

var _ reconcile.Reconciler = (*Reconciler)(nil)

// New makes a reconciler. live reads past the cache, for allocations and deletions. prober is the image, with the weir command line, of
// pods that try from each tenant what another tenant's key and containers are worth; empty means that nobody tries.
func New(c client.Client, live client.Reader, engines Connector, recorder status.Recorder, passive clock.PassiveClock, prober string) *Reconciler {
	r := &Reconciler{client: c, live: live, engines: engines, reporter: status.NewReporter(recorder, passive), clock: passive, prober: prober}
	r.course = lifecycle.Course[*v1alpha1.Tenant]{
		Client: c, Live: live, Reporter: r.reporter,
		New: func() *v1alpha1.Tenant { return &v1alpha1.Tenant{} },
		Status: func(t *v1alpha1.Tenant) lifecycle.Status {
			return lifecycle.Status{ObservedGeneration: &t.Status.ObservedGeneration, Conditions: &t.Status.Conditions}
		},
		Converge: r.converge, Blocker: r.blocker,
		BlockedInterval: blockedInterval,
	}
	return r
}

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("tenant").
		For(&v1alpha1.Tenant{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.FabricDomain{}, handler.EnqueueRequestsFromMapFunc(r.waiting)).
		Watches(&v1alpha1.VNIAllocation{}, handler.EnqueueRequestsFromMapFunc(ownerOf)).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&v1alpha1.StorageCluster{}, handler.EnqueueRequestsFromMapFunc(r.all),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.Tenant{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(tenantOfSecret)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up Tenant controller: %w", err)
	}
	return nil
}

// Reconcile moves one Tenant towards its spec.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	return r.course.Reconcile(ctx, request)
}

// converge gives the tenant its VNIs and its Secrets.
func (r *Reconciler) converge(ctx context.Context, tenant *v1alpha1.Tenant) (time.Duration, error) {
	r.report(ctx, tenant, status.Of(v1alpha1.ConditionDeletionBlocked, false, v1alpha1.ReasonNotDeleting, "the Tenant is not being deleted"))
	after, err := r.vnis(ctx, tenant)
	if err != nil || after == again {
		return after, err
	}
	after, err = r.credentials(ctx, tenant)
	if err != nil || after == again {
		return after, err
	}
	clusters, err := r.clusters(ctx, r.client)
	if err != nil {
		return 0, err
	}
	next, err := r.serve(ctx, tenant, clusters)
	if err != nil {
		return 0, err
	}
	if after == 0 || next < after {
		after = next
	}
	if next, err = r.limit(ctx, tenant, clusters); err != nil {
		return 0, err
	}
	after = min(after, next)
	if err := r.keys(ctx, tenant); err != nil {
		return 0, err
	}
	if err := r.fabric(ctx, tenant); err != nil {
		return 0, err
	}
	r.roll(ctx, tenant)
	return after, nil
}

// roll sums up the conditions of the tenant.
func (r *Reconciler) roll(ctx context.Context, tenant *v1alpha1.Tenant) {
	needed := []string{
		v1alpha1.ConditionIsolated, v1alpha1.ConditionCredentialsWritten, v1alpha1.ConditionEnginesServe, v1alpha1.ConditionQuotaEnforced,
	}
	if tenant.Spec.VNI.Mode != v1alpha1.VNINone {
		needed = []string{
			v1alpha1.ConditionIsolated, v1alpha1.ConditionVNIAllocated, v1alpha1.ConditionCredentialsWritten,
			v1alpha1.ConditionEnginesServe, v1alpha1.ConditionQuotaEnforced, v1alpha1.ConditionFabricEnforced,
		}
	}
	for _, kind := range needed {
		c := meta.FindStatusCondition(tenant.Status.Conditions, kind)
		if c != nil && c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.ReasonNoVNIWanted && c.Reason != v1alpha1.ReasonNoQuota {
			r.report(ctx, tenant, status.Of(v1alpha1.ConditionReady, false, c.Reason, c.Message))
			return
		}
	}
	r.report(ctx, tenant, status.Of(v1alpha1.ConditionReady, true, v1alpha1.ReasonTenantReady, fmt.Sprintf(
		"the tenant's clients attach as tenant %d", tenant.Status.Number)))
}

// vnis gives the tenant its VNIs. It writes down the domain before it takes a VNI from it: the deletion of a domain waits for the
// tenants that name it so.
func (r *Reconciler) vnis(ctx context.Context, tenant *v1alpha1.Tenant) (time.Duration, error) {
	if tenant.Spec.VNI.Mode == v1alpha1.VNINone {
		r.report(ctx, tenant, status.Of(v1alpha1.ConditionVNIAllocated, false, v1alpha1.ReasonNoVNIWanted, "spec.vni.mode is None: the tenant's key alone keeps it apart"))
		return 0, nil
	}
	known, err := list(ctx, r.client)
	if err != nil {
		return 0, err
	}
	// The cache shows an allocation late. For what it lacks, and for what is missing, the API server is asked.
	kept := vni.Kept(allocations(known), string(tenant.UID), tenant.Status.VNIs)
	if len(kept) == int(tenant.Spec.VNI.Count) && len(ofTenant(known, tenant)) == len(kept) {
		r.allocated(ctx, tenant)
		return 0, nil
	}
	domains, err := r.domains(ctx)
	if err != nil {
		return 0, err
	}
	domain, problem := choose(domains, tenant)
	if problem != "" {
		return 0, r.without(ctx, tenant, problem)
	}
	if tenant.Status.FabricDomain != domain.Name {
		tenant.Status.FabricDomain = domain.Name
		return again, nil
	}
	return r.allocate(ctx, tenant, domain, space(domain, domains))
}

// allocate takes numbers from a domain, or lets go of those that are too many.
func (r *Reconciler) allocate(ctx context.Context, tenant *v1alpha1.Tenant, domain *v1alpha1.FabricDomain, s vni.Space) (time.Duration, error) {
	before, count := tenant.Status.VNIs, int(tenant.Spec.VNI.Count)
	numbers, err := vni.Ensure(ctx, &store{client: r.client, live: r.live, tenant: tenant, domain: domain.Name}, s, string(tenant.UID), before, count)
	var none *vni.ExhaustedError
	switch {
	case errors.As(err, &none):
		tenant.Status.VNIs = numbers
		r.lacking(ctx, tenant, v1alpha1.ReasonRangeExhausted, fmt.Sprintf(
			"the tenant has %d of %d VNIs: of the %d that FabricDomain %s can give, none is left; %d come back when nodes have released them and their quarantine is over. Enlarge spec.vniRange of the FabricDomain, or delete Tenants that are not needed",
			none.Have, none.Want, s.Size(), domain.Name, none.Releasing))
		return 0, nil // a change of the FabricDomain, whose status counts the free numbers, starts the next look
	case err != nil:
		return 0, err
	}
	tenant.Status.VNIs = numbers
	r.allocated(ctx, tenant)
	if slices.Equal(numbers, before) {
		return 0, r.releaseSurplus(ctx, tenant)
	}
	return 0, nil
}

// releaseSurplus lets go of numbers that were allocated for the tenant and that it never got to know of.
func (r *Reconciler) releaseSurplus(ctx context.Context, tenant *v1alpha1.Tenant) error {
	objects, err := list(ctx, r.live)
	if err != nil {
		return err
	}
	var now v1alpha1.Tenant
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(tenant), &now); err != nil || now.UID != tenant.UID {
		return client.IgnoreNotFound(err)
	}
	surplus := vni.Surplus(allocations(objects), string(tenant.UID), now.Status.VNIs, int(now.Spec.VNI.Count))
	for _, o := range ofTenant(objects, tenant) {
		if slices.Contains(surplus, o.Spec.VNI) {
			if err := apply.DeleteRead(ctx, r.client, o); err != nil {
				return fmt.Errorf("release VNIAllocation %s: %w", o.Name, err)
			}
		}
	}
	return nil
}

func (r *Reconciler) domains(ctx context.Context) ([]v1alpha1.FabricDomain, error) {
	var domains v1alpha1.FabricDomainList
	if err := r.live.List(ctx, &domains); err != nil {
		return nil, fmt.Errorf("list FabricDomains: %w", err)
	}
	return domains.Items, nil
}

// choose returns the domain that a tenant takes its numbers from, or why there is none and what to do.
func choose(domains []v1alpha1.FabricDomain, tenant *v1alpha1.Tenant) (domain *v1alpha1.FabricDomain, problem string) {
	wanted := tenant.Status.FabricDomain
	if tenant.Spec.FabricDomainRef != nil {
		wanted = tenant.Spec.FabricDomainRef.Name
	}
	var names []string
	for i := range domains {
		d := &domains[i]
		going := !d.DeletionTimestamp.IsZero()
		if d.Name == wanted && going {
			return nil, fmt.Sprintf("FabricDomain %s is being deleted: create another one and a Tenant that takes its VNIs from that", d.Name)
		}
		if d.Name == wanted {
			return d, ""
		}
		if !going {
			domain, names = d, append(names, d.Name)
		}
	}
	switch {
	case wanted != "":
		return nil, fmt.Sprintf("FabricDomain %s does not exist: create it", wanted)
	case len(names) == 0:
		return nil, "there is no FabricDomain: create one, with the VNIs that the fabric's administrator has set aside for this cluster"
	case len(names) > 1:
		return nil, fmt.Sprintf("there are the FabricDomains %s: name one of them in spec.fabricDomainRef", status.List(names))
	default:
		return domain, ""
	}
}

// space is what may be given away of a domain. What any domain keeps back is kept back by all of them, since ranges may overlap.
func space(domain *v1alpha1.FabricDomain, domains []v1alpha1.FabricDomain) vni.Space {
	s := vni.Space{First: domain.Spec.VNIRange.First, Last: domain.Spec.VNIRange.Last, Excluded: map[int32]bool{}}
	for i := range domains {
		s.Excluded[domains[i].Spec.EngineVNI] = true
		for _, number := range domains[i].Spec.Reserved {
			s.Excluded[number] = true
		}
	}
	return s
}

// without says why the tenant has no domain. One that has no number of a domain lets go of it.
func (r *Reconciler) without(ctx context.Context, tenant *v1alpha1.Tenant, problem string) error {
	objects, err := list(ctx, r.live)
	if err != nil {
		return err
	}
	tenant.Status.VNIs = vni.Kept(allocations(objects), string(tenant.UID), tenant.Status.VNIs)
	if len(ofTenant(objects, tenant)) == 0 {
		tenant.Status.FabricDomain = ""
	}
	r.lacking(ctx, tenant, v1alpha1.ReasonNoFabricDomain, problem)
	return nil
}

// blocker has the engines turn the tenant's clients away, deletes its Secrets, releases its VNIs and waits for the nodes that
// use them. It does not wait for their quarantine.
func (r *Reconciler) blocker(ctx context.Context, tenant *v1alpha1.Tenant) (*status.Condition, error) {
	if blocked, err := r.turnAway(ctx, tenant); blocked != nil || err != nil {
		return blocked, err
	}
	f, err := r.look(ctx, tenant)
	if err != nil {
		return nil, err
	}
	f.namespaces = nil
	if tenant.Status.Namespaces, err = r.removeSecrets(ctx, tenant, f); err != nil {
		return nil, err
	}
	objects, err := list(ctx, r.live)
	if err != nil {
		return nil, err
	}
	var waits []string
	for _, o := range ofTenant(objects, tenant) {
		if o.DeletionTimestamp.IsZero() {
			if err := apply.DeleteRead(ctx, r.client, o); err != nil {
				return nil, fmt.Errorf("release VNIAllocation %s: %w", o.Name, err)
			}
		}
		if nodes := o.HoldingNodes(); len(nodes) > 0 {
			waits = append(waits, fmt.Sprintf("VNI %d on %s", o.Spec.VNI, status.ListSome(nodes, 3)))
		}
	}
	if len(waits) == 0 {
		return nil, nil // nothing blocks: the numbers rest without their tenant
	}
	c := status.Of(v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonNodesHoldVNI, fmt.Sprintf(
		"nodes still use the tenant's VNIs: %s. Stop the tenant's pods there; of a node that is gone for good, take the entry out of status.nodes of the VNIAllocation",
		status.List(waits)))
	return &c, nil
}

func (r *Reconciler) report(ctx context.Context, tenant *v1alpha1.Tenant, c status.Condition) {
	r.reporter.Report(ctx, tenant, &tenant.Status.Conditions, c)
}

func (r *Reconciler) lacking(ctx context.Context, tenant *v1alpha1.Tenant, reason, message string) {
	r.report(ctx, tenant, status.Of(v1alpha1.ConditionVNIAllocated, false, reason, message))
}

func (r *Reconciler) allocated(ctx context.Context, tenant *v1alpha1.Tenant) {
	var names []string
	for _, number := range tenant.Status.VNIs {
		names = append(names, v1alpha1.VNIName(number))
	}
	message := fmt.Sprintf("the tenant has VNI %s of FabricDomain %s", strings.Join(names, ", "), tenant.Status.FabricDomain)
	r.report(ctx, tenant, status.Of(v1alpha1.ConditionVNIAllocated, true, v1alpha1.ReasonAllocated, message))
}

// waiting are the tenants that a change of a FabricDomain may help.
func (r *Reconciler) waiting(ctx context.Context, _ client.Object) []reconcile.Request {
	var tenants v1alpha1.TenantList
	if err := r.client.List(ctx, &tenants); err != nil {
		return nil // the cache is going; the next operator looks at every tenant
	}
	var requests []reconcile.Request
	for i := range tenants.Items {
		if !meta.IsStatusConditionTrue(tenants.Items[i].Status.Conditions, v1alpha1.ConditionVNIAllocated) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&tenants.Items[i])})
		}
	}
	return requests
}

// all are the tenants: any may have, or lose, a namespace or a cluster.
func (r *Reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var tenants v1alpha1.TenantList
	if err := r.client.List(ctx, &tenants); err != nil {
		return nil // the cache is going; the next operator looks at every tenant
	}
	requests := make([]reconcile.Request, 0, len(tenants.Items))
	for i := range tenants.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&tenants.Items[i])})
	}
	return requests
}

func tenantOfSecret(_ context.Context, obj client.Object) []reconcile.Request {
	name := obj.GetAnnotations()[v1alpha1.AnnotationTenant]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
}

func ownerOf(_ context.Context, obj client.Object) []reconcile.Request {
	allocation, ok := obj.(*v1alpha1.VNIAllocation)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: allocation.Spec.Owner.Name}}}
}
