package pool

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/policy"
	"weir.dev/weir/operator/internal/status"
)

// maxSeconds bounds the time left that an engine may claim: ten years.
const maxSeconds = 10 * 365 * 24 * 60 * 60

// describeHealth writes what the engines say of the copies of the pool's data into the status, and reports what follows for the next loss.
func (r *Reconciler) describeHealth(ctx context.Context, pool *v1alpha1.Pool, info *managementv1.PoolInfo) {
	said := info.GetHealth()
	pool.Status.Health, pool.Status.MayFail, pool.Status.Rebuild = health(info), nil, rebuild(said.GetRebuild())
	if pool.Spec.RedundancyFactor == 0 {
		return
	}
	if said != nil {
		pool.Status.MayFail = new(int32(min(said.GetFailuresSurvived(), uint32(len(info.GetRanks())))))
	}
	r.report(ctx, pool, rebuilding(pool.EngineLabel(), pool.Status.Rebuild, ranks(info.GetNewRanks())))
	r.report(ctx, pool, atRisk(info, pool.Spec.ClusterRef.Name))
}

// health is how the engines say that the pool's data is. Of a pool without redundancy they don't say it: all of its data is there, or a
// part of it isn't.
func health(info *managementv1.PoolInfo) v1alpha1.PoolHealth {
	switch info.GetHealth().GetCondition() {
	case managementv1.PoolCondition_POOL_CONDITION_HEALTHY:
		return v1alpha1.PoolHealthy
	case managementv1.PoolCondition_POOL_CONDITION_DEGRADED:
		return v1alpha1.PoolDegraded
	case managementv1.PoolCondition_POOL_CONDITION_REBUILDING:
		return v1alpha1.PoolRebuilding
	case managementv1.PoolCondition_POOL_CONDITION_UNAVAILABLE:
		return v1alpha1.PoolUnavailable
	default:
		if info.GetState() == managementv1.PoolState_POOL_STATE_DEGRADED {
			return v1alpha1.PoolUnavailable
		}
		return v1alpha1.PoolHealthy
	}
}

// rebuild is what the status shows of data that moves; nil while none does.
func rebuild(said *managementv1.PoolRebuild) *v1alpha1.PoolRebuild {
	if said == nil {
		return nil
	}
	shown := &v1alpha1.PoolRebuild{Targets: int32(min(said.GetTargets(), 1<<30)), Moved: quantity(said.GetBytes())}
	if parts := said.GetParts(); said.PartsDone != nil && parts > 0 {
		done := float64(said.GetPartsDone()) / float64(parts)
		// What is not done is never shown as done.
		shown.Percent = new(int32(min(100*done, 100)))
	}
	if said.BytesPerSecond != nil {
		shown.Rate = quantity(said.GetBytesPerSecond())
	}
	if said.SecondsLeft != nil {
		shown.TimeLeft = (time.Duration(min(said.GetSecondsLeft(), maxSeconds)) * time.Second).String()
	}
	return shown
}

// progress says in words how far copies are.
func progress(shown *v1alpha1.PoolRebuild) string {
	words := []string{fmt.Sprintf("%s to fill", policy.Plural(int(shown.Targets), "target"))}
	if shown.Percent != nil {
		words = append(words, fmt.Sprintf("%d %% done", *shown.Percent))
	}
	if shown.Rate != nil {
		words = append(words, policy.Bytes(shown.Rate.Value())+"/s")
	}
	if shown.TimeLeft != "" {
		words = append(words, shown.TimeLeft+" left")
	}
	return strings.Join(words, ", ")
}

func rebuilding(label string, shown *v1alpha1.PoolRebuild, joined []int32) status.Condition {
	if len(joined) > 0 {
		how := "they wait for engines that are away"
		if shown != nil {
			how = progress(shown)
		}
		return status.Of(v1alpha1.ConditionRebuilding, true, v1alpha1.ReasonEnginesJoin, fmt.Sprintf(
			"ranks %v have joined pool %s and get their share of its data: %s", joined, label, how))
	}
	if shown == nil {
		return status.Of(v1alpha1.ConditionRebuilding, false, v1alpha1.ReasonNothingMoves, fmt.Sprintf("no copies of pool %s are being made", label))
	}
	return status.Of(v1alpha1.ConditionRebuilding, true, v1alpha1.ReasonCopiesBeingMade, fmt.Sprintf(
		"copies of pool %s are being made: %s. Keep the other engines running until it is healthy", label, progress(shown)))
}

// atRisk says whether the next loss takes something away, and what to do about that.
func atRisk(info *managementv1.PoolInfo, cluster string) status.Condition {
	at := func(reason, format string, args ...any) status.Condition {
		return status.Of(v1alpha1.ConditionAtRisk, true, reason, fmt.Sprintf(format, args...))
	}
	label, said := info.GetLabel(), info.GetHealth()
	switch {
	case said == nil:
		return at(v1alpha1.ReasonRanksUnreachable,
			"the service of pool %s doesn't answer: nobody knows what it may lose. Bring engines of StorageCluster %s back", label, cluster)
	case said.GetCondition() == managementv1.PoolCondition_POOL_CONDITION_UNAVAILABLE:
		return at(v1alpha1.ReasonBeyondRedundancy,
			"more of pool %s is away than its redundancyFactor allows: what needs it waits, and nothing that is there is hidden. Bring %s back", label, away(info))
	case said.GetFailuresSurvived() > 0:
		return status.Of(v1alpha1.ConditionAtRisk, false, v1alpha1.ReasonLossSurvived, fmt.Sprintf(
			"pool %s survives the loss of %s more", label, policy.Plural(int(said.GetFailuresSurvived()), "failure domain")))
	case said.GetCondition() == managementv1.PoolCondition_POOL_CONDITION_REBUILDING:
		return at(v1alpha1.ReasonCopiesBeingMade,
			"until all copies are made the loss of another engine may make data of pool %s unavailable: restart no engine and drain no storage node before", label)
	case said.GetCondition() == managementv1.PoolCondition_POOL_CONDITION_DEGRADED:
		return at(v1alpha1.ReasonCopiesMissing,
			"copies of pool %s are missing, and the loss of another engine may make data unavailable: bring %s back, or, if that can't be, name the rank in spec.engines.lost of StorageCluster %s, so that others get its data",
			label, away(info), cluster)
	default:
		return at(v1alpha1.ReasonNoServiceToSpare,
			"all copies of pool %s are there, but its service, on engines of rank %v, has none to spare: data that is open stays available when the next engine is lost, and nothing can be opened or repaired. Bring the missing engine back, or use three engines or more",
			label, ranks(info.GetServiceRanks()))
	}
}

// nothingKnown is what a pool misses of which all engines answer, and no target is out of service.
const nothingKnown = "engines that start again"

// away names what a pool misses: engines that don't answer, and targets out of service of others.
func away(info *managementv1.PoolInfo) string {
	var names []string
	for _, rank := range info.GetUnreachableRanks() {
		names = append(names, fmt.Sprintf("rank %d", rank))
	}
	for _, target := range info.GetDownTargets() {
		if !slices.Contains(info.GetUnreachableRanks(), target.GetRank()) {
			names = append(names, fmt.Sprintf("target %d of rank %d", target.GetTarget(), target.GetRank()))
		}
	}
	if len(names) == 0 {
		return nothingKnown
	}
	return status.List(names)
}

// availability says whether part of the pool's data can't be reached, or has a copy less, and whether the pool can be used all the
// same: with redundancy as the engines say; without it while devices are faulty, since new objects are laid out on others.
func availability(info *managementv1.PoolInfo, cluster string) (degraded status.Condition, usable bool) {
	if info.GetHealth() != nil {
		return ofRedundantPool(info, cluster)
	}
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

// ofRedundantPool says whether a pool with redundancy, of which the engines know how it is, lacks copies, and whether it can be used.
func ofRedundantPool(info *managementv1.PoolInfo, cluster string) (degraded status.Condition, usable bool) {
	label, said := info.GetLabel(), info.GetHealth()
	survives := policy.Plural(int(said.GetFailuresSurvived()), "failure domain")
	switch said.GetCondition() {
	case managementv1.PoolCondition_POOL_CONDITION_UNAVAILABLE:
		return status.Of(v1alpha1.ConditionDegraded, true, v1alpha1.ReasonBeyondRedundancy, fmt.Sprintf(
			"more of pool %s is away than its redundancyFactor allows: what needs %s waits until they are back, nothing is lost. See StorageCluster %s",
			label, away(info), cluster)), false
	case managementv1.PoolCondition_POOL_CONDITION_REBUILDING:
		if grows := len(info.GetNewRanks()) > 0; grows && away(info) == nothingKnown && said.GetFailuresSurvived() > 0 {
			return status.Of(v1alpha1.ConditionDegraded, false, v1alpha1.ReasonAllCopiesThere, fmt.Sprintf(
				"all data of pool %s has all its copies, some of which move onto ranks %v", label, ranks(info.GetNewRanks()))), true
		}
		return status.Of(v1alpha1.ConditionDegraded, true, v1alpha1.ReasonCopiesBeingMade, fmt.Sprintf(
			"copies of pool %s are being made: it serves from the others, nothing is lost, and %s more may be lost. The condition Rebuilding says how far they are",
			label, survives)), true
	case managementv1.PoolCondition_POOL_CONDITION_DEGRADED:
		return status.Of(v1alpha1.ConditionDegraded, true, v1alpha1.ReasonCopiesMissing, fmt.Sprintf(
			"copies on %s are missing: pool %s serves from the others, nothing is lost, and %s more may be lost. See StorageCluster %s",
			away(info), label, survives, cluster)), true
	default:
		return status.Of(v1alpha1.ConditionDegraded, false, v1alpha1.ReasonAllCopiesThere,
			fmt.Sprintf("all data of pool %s has all its copies", label)), true
	}
}

func quantity(bytes uint64) *resource.Quantity {
	return policy.Quantity(int64(min(bytes, math.MaxInt64)))
}
