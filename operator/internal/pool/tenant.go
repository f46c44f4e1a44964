package pool

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/status"
)

// tenantNumber is the number of the tenant that the pool belongs to: the one that its spec names, else the one of its namespace,
// else 0 for the system. It returns what is in the way of knowing that, nil for nothing.
func (r *Reconciler) tenantNumber(ctx context.Context, pool *v1alpha1.Pool) (uint64, *status.Condition, error) {
	tenant, err := r.tenantOf(ctx, pool)
	problem := func(reason, message string) (uint64, *status.Condition, error) {
		c := status.Of(v1alpha1.ConditionReady, false, reason, message)
		return 0, &c, nil
	}
	switch {
	case apierrors.IsNotFound(err) && pool.Spec.TenantRef != nil:
		return problem(v1alpha1.ReasonTenantNotFound, fmt.Sprintf("Tenant %s does not exist: create it", pool.Spec.TenantRef.Name))
	case err != nil:
		return 0, nil, err
	case tenant == nil:
		return 0, nil, nil
	case !tenant.DeletionTimestamp.IsZero():
		return problem(v1alpha1.ReasonTenantNotReady, fmt.Sprintf("Tenant %s is being deleted: name another one in spec.tenantRef of a new Pool", tenant.Name))
	case tenant.Status.Number == 0:
		return problem(v1alpha1.ReasonTenantNotReady, fmt.Sprintf("Tenant %s has no number yet: the operator gives it one", tenant.Name))
	default:
		return uint64(tenant.Status.Number), nil, nil
	}
}

func (r *Reconciler) tenantOf(ctx context.Context, pool *v1alpha1.Pool) (*v1alpha1.Tenant, error) {
	if pool.Spec.TenantRef != nil {
		var tenant v1alpha1.Tenant
		if err := r.client.Get(ctx, client.ObjectKey{Name: pool.Spec.TenantRef.Name}, &tenant); err != nil {
			return nil, fmt.Errorf("read Tenant %s: %w", pool.Spec.TenantRef.Name, err)
		}
		return &tenant, nil
	}
	var tenants v1alpha1.TenantList
	if err := r.client.List(ctx, &tenants); err != nil {
		return nil, fmt.Errorf("list Tenants: %w", err)
	}
	if len(tenants.Items) == 0 {
		return nil, nil // the system's
	}
	var namespace corev1.Namespace
	if err := r.client.Get(ctx, client.ObjectKey{Name: pool.Namespace}, &namespace); err != nil {
		return nil, fmt.Errorf("read namespace %s: %w", pool.Namespace, err)
	}
	return v1alpha1.TenantOf(tenants.Items, namespace.Labels), nil
}

// poolsOfTenant are the pools that wait for a tenant.
func (r *Reconciler) poolsOfTenant(ctx context.Context, _ client.Object) []reconcile.Request {
	var pools v1alpha1.PoolList
	if err := r.client.List(ctx, &pools); err != nil {
		return nil // the pools' own periodic look finds the change
	}
	var requests []reconcile.Request
	for i := range pools.Items {
		if pools.Items[i].Status.UUID == "" {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pools.Items[i])})
		}
	}
	return requests
}

// numberChanged passes the changes of a Tenant that pools wait for.
type numberChanged struct{ predicate.Funcs }

// Update implements predicate.Predicate.
func (numberChanged) Update(e event.UpdateEvent) bool {
	before, okBefore := e.ObjectOld.(*v1alpha1.Tenant)
	after, okAfter := e.ObjectNew.(*v1alpha1.Tenant)
	return okBefore && okAfter && (before.Status.Number != after.Status.Number || before.Generation != after.Generation)
}
