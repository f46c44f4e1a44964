package pool

import (
	"context"
	"fmt"
	"slices"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/status"
)

// joining are the ranks of a cluster that are to join a pool with redundancy which is to be on every engine: those that are ready, and of
// which it is known in which failure domain they are. Data of other pools stays on the engines that they were made with.
func joining(pool *v1alpha1.Pool, cluster *v1alpha1.StorageCluster, known *managementv1.PoolInfo) []uint32 {
	if pool.Spec.RedundancyFactor == 0 || len(pool.Spec.Ranks) > 0 {
		return nil
	}
	var ranks []uint32
	for _, engine := range cluster.Status.Engines {
		rank := uint32(engine.Rank)
		if engine.Ready && engine.Node != "" && !slices.Contains(known.GetRanks(), rank) && !slices.Contains(cluster.Spec.Engines.Lost, engine.Rank) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// join has engines join a pool that were added to its cluster. It returns how the pool is then, and what the engines refuse; nil for nothing.
func (r *Reconciler) join(
	ctx context.Context, pool *v1alpha1.Pool, cluster *v1alpha1.StorageCluster, engines *management.Engines, known *managementv1.PoolInfo,
) (*managementv1.PoolInfo, *status.Condition, error) {
	ranks := joining(pool, cluster, known)
	if len(ranks) == 0 {
		return known, nil, nil
	}
	places, err := r.places(ctx, cluster)
	if err != nil {
		return nil, nil, err
	}
	request := &managementv1.PoolExtendRequest{Pool: pool.Status.UUID, Ranks: ranks}
	for _, place := range places {
		if slices.Contains(ranks, place.GetRank()) {
			request.Places = append(request.Places, place)
		}
	}
	answer, err := engines.Pools.Extend(ctx, request)
	switch {
	case err == nil:
		return answer.GetPool(), nil, nil
	case ctx.Err() != nil:
		return nil, nil, fmt.Errorf("interrupted: %w", ctx.Err())
	default:
		// What the engines don't do now changes nothing of how the pool is, which is told all the same.
		c := status.Of(v1alpha1.ConditionRebuilding, false, v1alpha1.ReasonNotJoined, fmt.Sprintf(
			"ranks %v can't join pool %s yet: %s", ranks, pool.EngineLabel(), management.Message(err)))
		return known, &c, nil
	}
}
