package pool

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/policy"
	"weir.dev/weir/operator/internal/status"
)

// reasonPoolLost says that the engines don't have the pool of this object any more.
const reasonPoolLost = "PoolLost"

func (r *Reconciler) report(ctx context.Context, pool *v1alpha1.Pool, c status.Condition) {
	r.reporter.Report(ctx, pool, &pool.Status.Conditions, c)
}

func (r *Reconciler) notReady(ctx context.Context, pool *v1alpha1.Pool, reason, message string) {
	r.report(ctx, pool, status.Of(v1alpha1.ConditionReady, false, reason, message))
}

// unreachable reports that no engine answers, or one that is needed does not. For a pool that exists that means unavailable data.
func (r *Reconciler) unreachable(ctx context.Context, pool *v1alpha1.Pool, err error) {
	if pool.Status.UUID == "" {
		r.notReady(ctx, pool, v1alpha1.ReasonClusterNotReady, fmt.Sprintf(
			"waiting for an engine of StorageCluster %s: %s", pool.Spec.ClusterRef.Name, management.Message(err)))
		return
	}
	pool.Status.Health, pool.Status.MayFail, pool.Status.Rebuild = "", nil, nil // nobody knows
	message := management.Unreachable(pool.Spec.ClusterRef.Name, err)
	r.notReady(ctx, pool, v1alpha1.ReasonEngineUnreachable, message)
	r.report(ctx, pool, status.Of(v1alpha1.ConditionDegraded, true, v1alpha1.ReasonEngineUnreachable, message))
}

// describe writes what the engines say of the pool into the status. accepted is false when the spec can't be met, which
// has been reported as the reason for not being ready.
func (r *Reconciler) describe(ctx context.Context, pool *v1alpha1.Pool, info *managementv1.PoolInfo, accepted bool) {
	pool.Status.UUID = info.GetUuid()
	pool.Status.Tenant = int64(info.GetTenant())
	pool.Status.ObjectClass = info.GetObjectClass()
	pool.Status.Containers = int32(info.GetContainers())
	pool.Status.Ranks = ranks(info.GetRanks())
	pool.Status.NewRanks = ranks(info.GetNewRanks())
	pool.Status.ServiceRanks = ranks(info.GetServiceRanks())
	pool.Status.Capacity = capacity(pool.Status.Capacity, info)
	degraded, usable := availability(info, pool.Spec.ClusterRef.Name)
	r.report(ctx, pool, degraded)
	r.describeHealth(ctx, pool, info)
	switch {
	case !accepted:
	case !usable:
		r.notReady(ctx, pool, degraded.Reason, degraded.Message)
	default:
		r.report(ctx, pool, status.Of(v1alpha1.ConditionReady, true, v1alpha1.ReasonAvailable,
			fmt.Sprintf("pool %s has %s on %d engines", info.GetLabel(), policy.Bytes(int64(info.GetSizeBytes())), len(pool.Status.Ranks))))
	}
}

// usedChangePermille is how much of a pool has to come into use, or out of it, before its status is written: metrics have the figures of
// each moment.
const usedChangePermille = 1

// capacity is what the status is to show of a pool's space: what it shows where that is near enough.
func capacity(shown *v1alpha1.Capacity, info *managementv1.PoolInfo) *v1alpha1.Capacity {
	current := &v1alpha1.Capacity{
		Total: policy.Quantity(int64(info.GetSizeBytes())),
		Used:  policy.Quantity(int64(info.GetUsedBytes())),
		Free:  policy.Quantity(int64(info.GetFreeBytes())),
	}
	near := func(a, b *resource.Quantity) bool {
		return a != nil && max(a.Value(), b.Value())-min(a.Value(), b.Value()) <= int64(info.GetSizeBytes())/1000*usedChangePermille
	}
	if shown != nil && shown.Total != nil && shown.Total.Equal(*current.Total) && near(shown.Used, current.Used) && near(shown.Free, current.Free) {
		return shown
	}
	return current
}

func ranks(wire []uint32) []int32 {
	out := make([]int32, 0, len(wire))
	for _, rank := range wire {
		out = append(out, int32(rank))
	}
	return slices.Clip(out)
}
