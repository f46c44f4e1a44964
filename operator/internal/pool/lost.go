package pool

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/event"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/status"
)

// giveUp takes the ranks out of a pool with redundancy that its cluster calls lost, so that others get their data, and lets back in those that
// it doesn't call so any more. It returns how the pool is then, and what the engines refuse; nil for nothing.
func (r *Reconciler) giveUp(
	ctx context.Context, pool *v1alpha1.Pool, lost []int32, engines *management.Engines, known *managementv1.PoolInfo,
) (*managementv1.PoolInfo, *status.Condition, error) {
	if pool.Spec.RedundancyFactor == 0 {
		return known, nil, nil
	}
	var refused *status.Condition
	// What the engines don't do now changes nothing of how the pool is, which is told all the same.
	note := func(rank int32, what string, err error) error {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", ctx.Err())
		}
		c := status.Of(v1alpha1.ConditionRebuilding, false, v1alpha1.ReasonNotGivenUp, fmt.Sprintf(
			"rank %d can't be %s pool %s yet: %s", rank, what, pool.EngineLabel(), management.Message(err)))
		refused = &c
		return nil
	}
	for _, wire := range known.GetRanks() {
		rank := int32(wire)
		isLost, isOut := slices.Contains(lost, rank), slices.Contains(pool.Status.GivenUpRanks, rank)
		var err error
		switch {
		case isLost && !isOut:
			var answer *managementv1.PoolExcludeResponse
			if answer, err = engines.Pools.Exclude(ctx, &managementv1.PoolExcludeRequest{Pool: pool.Status.UUID, Rank: wire}); err == nil {
				known, pool.Status.GivenUpRanks = answer.GetPool(), append(pool.Status.GivenUpRanks, rank)
				continue
			}
			err = note(rank, "taken out of", err)
		case isOut && !isLost:
			var answer *managementv1.PoolReintegrateResponse
			if answer, err = engines.Pools.Reintegrate(ctx, &managementv1.PoolReintegrateRequest{Pool: pool.Status.UUID, Rank: wire}); err == nil {
				known = answer.GetPool()
				pool.Status.GivenUpRanks = slices.DeleteFunc(pool.Status.GivenUpRanks, func(out int32) bool { return out == rank })
				continue
			}
			err = note(rank, "let back into", err)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return known, refused, nil
}

// setDelay has the engines wait for engines that are away for as long as the spec says, before others get their data. known is how the pool is.
func setDelay(
	ctx context.Context, pool *v1alpha1.Pool, engines *management.Engines, known *managementv1.PoolInfo,
) (*managementv1.PoolInfo, error) {
	wanted := pool.Spec.RebuildDelaySeconds
	if wanted == nil || known.RebuildDelaySeconds == nil || known.GetRebuildDelaySeconds() == uint32(*wanted) {
		return known, nil
	}
	answer, err := engines.Pools.SetProperties(ctx, &managementv1.PoolSetPropertiesRequest{
		Pool: known.GetUuid(), RebuildDelaySeconds: new(uint32(*wanted)),
	})
	if err != nil {
		return nil, err
	}
	return answer.GetPool(), nil
}

// lostChanged passes the changes of a StorageCluster by which its pools give ranks up.
type lostChanged struct{ engineCountChanged }

// Update implements predicate.Predicate.
func (lostChanged) Update(e event.UpdateEvent) bool {
	before, okBefore := e.ObjectOld.(*v1alpha1.StorageCluster)
	after, okAfter := e.ObjectNew.(*v1alpha1.StorageCluster)
	return okBefore && okAfter && !slices.Equal(before.Spec.Engines.Lost, after.Spec.Engines.Lost)
}
