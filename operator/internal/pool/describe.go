package pool

import (
	"context"
	"fmt"
	"slices"
	"strings"

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
	message := management.Unreachable(pool.Spec.ClusterRef.Name, err)
	r.notReady(ctx, pool, v1alpha1.ReasonEngineUnreachable, message)
	r.report(ctx, pool, status.Of(v1alpha1.ConditionDegraded, true, v1alpha1.ReasonEngineUnreachable, message))
}

// describe writes what the engines say of the pool into the status. accepted is false when the spec can't be met, which
// has been reported as the reason for not being ready.
func (r *Reconciler) describe(ctx context.Context, pool *v1alpha1.Pool, info *managementv1.PoolInfo, accepted bool) {
	pool.Status.UUID = info.GetUuid()
	pool.Status.Tenant = int64(info.GetTenant())
	pool.Status.Containers = int32(info.GetContainers())
	pool.Status.Ranks = ranks(info.GetRanks())
	pool.Status.ServiceRanks = ranks(info.GetServiceRanks())
	pool.Status.Capacity = &v1alpha1.Capacity{
		Total: policy.Quantity(int64(info.GetSizeBytes())),
		Used:  policy.Quantity(int64(info.GetUsedBytes())),
		Free:  policy.Quantity(int64(info.GetFreeBytes())),
	}
	degraded, usable := availability(info, pool.Spec.ClusterRef.Name)
	r.report(ctx, pool, degraded)
	switch {
	case !accepted:
	case !usable:
		r.notReady(ctx, pool, degraded.Reason, degraded.Message)
	default:
		r.report(ctx, pool, status.Of(v1alpha1.ConditionReady, true, v1alpha1.ReasonAvailable,
			fmt.Sprintf("pool %s has %s on %d engines", info.GetLabel(), policy.Bytes(int64(info.GetSizeBytes())), len(pool.Status.Ranks))))
	}
}

// availability says whether part of the pool's data can't be reached, and whether the pool can be used all the same: it can
// while devices are faulty, since new objects are laid out on others.
func availability(info *managementv1.PoolInfo, cluster string) (degraded status.Condition, usable bool) {
	lost, down := ranks(info.GetUnreachableRanks()), info.GetDownTargets()
	switch {
	case len(lost) > 0 || (len(down) == 0 && info.GetState() == managementv1.PoolState_POOL_STATE_DEGRADED):
		return status.Of(v1alpha1.ConditionDegraded, true, v1alpha1.ReasonRanksUnreachable, fmt.Sprintf(
			"engines of rank %v don't answer: their part of pool %s is unavailable until they are back, nothing is lost. See StorageCluster %s",
			lost, info.GetLabel(), cluster)), false
	case len(down) > 0:
		names := make([]string, 0, len(down))
		for _, target := range down {
			names = append(names, fmt.Sprintf("target %d of rank %d", target.GetTarget(), target.GetRank()))
		}
		return status.Of(v1alpha1.ConditionDegraded, true, v1alpha1.ReasonTargetsOutOfService, fmt.Sprintf(
			"devices are faulty, or what was on them is lost: what pool %s has on %s is unavailable. weir system query says what is wrong with each. Repair or replace them, say so with weir system clear-device, and restart their engines. See StorageCluster %s",
			info.GetLabel(), strings.Join(names, ", "), cluster)), true
	default:
		return status.Of(v1alpha1.ConditionDegraded, false, v1alpha1.ReasonAllRanksReachable,
			fmt.Sprintf("all %d engines of pool %s answer", len(info.GetRanks()), info.GetLabel())), true
	}
}

func ranks(wire []uint32) []int32 {
	out := make([]int32, 0, len(wire))
	for _, rank := range wire {
		out = append(out, int32(rank))
	}
	return slices.Clip(out)
}
