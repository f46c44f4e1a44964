package tenant

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/status"
)

const (
	// servedInterval is how often engines are asked whether they serve a tenant at rest.
	servedInterval = time.Minute
	// silentInterval is how often engines are asked that did not answer, or that have to be told.
	silentInterval = 5 * time.Second
)

// blockedInterval is how often to look at what blocks the deletion of a tenant.
func blockedInterval(reason string) time.Duration {
	if reason == v1alpha1.ReasonNodesHoldVNI {
		return 0 // VNIAllocations are watched
	}
	return silentInterval
}

// Connector reaches the engines of a StorageCluster.
type Connector interface {
	Connect(ctx context.Context, cluster types.NamespacedName) (*management.Engines, error)
}

// everUp tells whether an engine of a cluster was ever up: before that there is nobody to ask, and nobody to turn away.
func everUp(cluster *v1alpha1.StorageCluster) bool {
	return slices.ContainsFunc(cluster.Status.Engines, func(e v1alpha1.EngineStatus) bool { return e.Version != "" })
}

// serve asks the engines whether they serve the tenant, and reports what they say. It returns when to ask again.
func (r *Reconciler) serve(ctx context.Context, tenant *v1alpha1.Tenant, clusters []*v1alpha1.StorageCluster) (time.Duration, error) {
	var asked int
	var silent, revoked, outside []string
	for _, cluster := range clusters {
		if !everUp(cluster) || !cluster.DeletionTimestamp.IsZero() {
			continue
		}
		asked++
		name := client.ObjectKeyFromObject(cluster).String()
		answer, err := r.ask(ctx, cluster, tenant)
		if err != nil {
			if ctx.Err() != nil {
				return 0, fmt.Errorf("interrupted: %w", ctx.Err())
			}
			silent = append(silent, fmt.Sprintf("StorageCluster %s (%s)", name, management.Message(err)))
			continue
		}
		for _, e := range answer.GetEngines() {
			switch engine := fmt.Sprintf("engine %d of StorageCluster %s", e.GetRank(), name); {
			case !e.GetAnswered():
				silent = append(silent, fmt.Sprintf("%s (%s)", engine, e.GetMessage()))
			case e.GetRevoked():
				revoked = append(revoked, engine)
			}
		}
		if vnis := unserved(cluster, tenant); len(vnis) > 0 {
			outside = append(outside, fmt.Sprintf("VNI %s by StorageCluster %s", status.List(vnis), name))
		}
	}
	c, after := served(asked, silent, revoked, outside)
	r.report(ctx, tenant, c)
	return after, nil
}

// ask asks the engines of a cluster about the tenant.
func (r *Reconciler) ask(ctx context.Context, cluster *v1alpha1.StorageCluster, tenant *v1alpha1.Tenant) (*managementv1.TenantQueryResponse, error) {
	engines, err := r.engines.Connect(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return nil, err
	}
	return engines.Tenants.Query(ctx, &managementv1.TenantQueryRequest{Tenant: uint64(tenant.Status.Number)})
}

// unserved are the tenant's VNIs outside the block that the engines of a cluster serve. Where the provider has no VNIs, or engines
// have no block, the tenant's key stands in.
func unserved(cluster *v1alpha1.StorageCluster, tenant *v1alpha1.Tenant) []string {
	block := cluster.Spec.Fabric.VNIBlock
	if block == nil || !cluster.Spec.Fabric.HasVNIs() {
		return nil
	}
	var vnis []string
	for _, number := range tenant.Status.VNIs {
		if number < block.First || number > block.Last {
			vnis = append(vnis, v1alpha1.VNIName(number))
		}
	}
	return vnis
}

// served is what to say of the engines, and when to ask them again.
func served(asked int, silent, revoked, outside []string) (status.Condition, time.Duration) {
	lacking := func(reason, message string, after time.Duration) (status.Condition, time.Duration) {
		return status.Of(v1alpha1.ConditionEnginesServe, false, reason, message), after
	}
	switch {
	case len(revoked) > 0:
		return lacking(v1alpha1.ReasonAccessRevoked, fmt.Sprintf(
			"clients of the tenant are turned away by %s: `weir system admit-tenant` lets them in again", status.ListSome(revoked, 3)), servedInterval)
	case len(outside) > 0:
		return lacking(v1alpha1.ReasonVNIOutsideBlock, fmt.Sprintf(
			"not served: %s. Enlarge spec.fabric.vniBlock of the StorageCluster, which restarts its engines one after the other", status.ListSome(outside, 3)), servedInterval)
	case len(silent) > 0:
		c := status.Condition{
			Type: v1alpha1.ConditionEnginesServe, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonEnginesSilent,
			Message: "no answer of " + status.ListSome(silent, 3),
		}
		return c, silentInterval
	case asked == 0:
		c := status.Condition{
			Type: v1alpha1.ConditionEnginesServe, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNoCluster, Message: "no engine has been up yet",
		}
		return c, silentInterval
	default:
		return status.Of(v1alpha1.ConditionEnginesServe, true, v1alpha1.ReasonAllEnginesServe, "every engine serves the tenant"), servedInterval
	}
}

// turnAway has the engines of every cluster turn the tenant's clients away. It returns why that is not done.
func (r *Reconciler) turnAway(ctx context.Context, tenant *v1alpha1.Tenant) (*status.Condition, error) {
	if tenant.Status.Number == 0 {
		return nil, nil // it never had clients
	}
	clusters, err := r.clusters(ctx, r.live)
	if err != nil {
		return nil, err
	}
	var waits []string
	for _, cluster := range clusters {
		if !everUp(cluster) {
			continue
		}
		told, err := r.tell(ctx, cluster, tenant)
		name := client.ObjectKeyFromObject(cluster).String()
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("interrupted: %w", ctx.Err())
		case err != nil:
			waits = append(waits, fmt.Sprintf("StorageCluster %s (%s)", name, management.Message(err)))
		case !told:
			waits = append(waits, fmt.Sprintf("StorageCluster %s (no engine has taken note)", name))
		}
	}
	if len(waits) == 0 {
		return nil, nil // every cluster turns it away
	}
	c := status.Of(v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonEnginesSilent, fmt.Sprintf(
		"engines have to turn the tenant's clients away, and don't answer: %s. Bring them back, or delete the StorageCluster", status.ListSome(waits, 3)))
	return &c, nil
}

// tell has the engines of a cluster turn the tenant away. Those that are away learn it from the others once they are back, so that one
// that has taken note is enough.
func (r *Reconciler) tell(ctx context.Context, cluster *v1alpha1.StorageCluster, tenant *v1alpha1.Tenant) (bool, error) {
	engines, err := r.engines.Connect(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return false, err
	}
	answer, err := engines.Tenants.Revoke(ctx, &managementv1.TenantRevokeRequest{Tenant: uint64(tenant.Status.Number)})
	if err != nil {
		return false, err
	}
	// Nobody would lift the limits of a tenant that is gone.
	if tenant.Status.Quota != nil {
		if _, err := engines.Tenants.SetLimits(ctx, &managementv1.TenantSetLimitsRequest{Tenant: uint64(tenant.Status.Number)}); err != nil {
			return false, err
		}
	}
	return slices.ContainsFunc(answer.GetEngines(), func(e *managementv1.TenantEngine) bool { return e.GetRevoked() }), nil
}

func (r *Reconciler) clusters(ctx context.Context, reader client.Reader) ([]*v1alpha1.StorageCluster, error) {
	var list v1alpha1.StorageClusterList
	if err := reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list StorageClusters: %w", err)
	}
	clusters := make([]*v1alpha1.StorageCluster, 0, len(list.Items))
	for i := range list.Items {
		clusters = append(clusters, &list.Items[i])
	}
	return clusters, nil
}
