package pool

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
)

func TestAvailability(t *testing.T) {
	t.Parallel()
	down := []*managementv1.TargetName{{Rank: 1, Target: 3}, {Rank: 2, Target: 0}}
	for name, tt := range map[string]struct {
		info     *managementv1.PoolInfo
		degraded bool
		usable   bool
		reason   string
		says     string
	}{
		"a whole pool is usable and not degraded": {
			info:   &managementv1.PoolInfo{Label: "tank", Ranks: []uint32{0, 1}, State: managementv1.PoolState_POOL_STATE_READY},
			usable: true, reason: v1alpha1.ReasonAllRanksReachable, says: "all 2 engines of pool tank answer",
		},
		"a pool with an engine away is degraded and not usable": {
			info: &managementv1.PoolInfo{
				Label: "tank", UnreachableRanks: []uint32{1}, DownTargets: down, State: managementv1.PoolState_POOL_STATE_DEGRADED,
			},
			degraded: true, reason: v1alpha1.ReasonRanksUnreachable, says: "engines of rank [1] don't answer",
		},
		"a pool with copies missing is degraded and usable, and what is away is named": {
			info: &managementv1.PoolInfo{
				Label: "tank", UnreachableRanks: []uint32{1}, DownTargets: down, State: managementv1.PoolState_POOL_STATE_DEGRADED,
				Health: &managementv1.PoolHealth{Condition: managementv1.PoolCondition_POOL_CONDITION_DEGRADED},
			},
			degraded: true, usable: true, reason: v1alpha1.ReasonCopiesMissing,
			says: "copies on rank 1, target 0 of rank 2 are missing: pool tank serves from the others, nothing is lost, and 0 failure domains more may be lost",
		},
		"a pool whose copies are being made is degraded and usable": {
			info: &managementv1.PoolInfo{
				Label: "tank", Health: &managementv1.PoolHealth{Condition: managementv1.PoolCondition_POOL_CONDITION_REBUILDING, FailuresSurvived: 1},
			},
			degraded: true, usable: true, reason: v1alpha1.ReasonCopiesBeingMade, says: "1 failure domain more may be lost",
		},
		"a pool that goes on without an engine is whole": {
			info: &managementv1.PoolInfo{
				Label: "tank", UnreachableRanks: []uint32{1}, DownTargets: down[:1], State: managementv1.PoolState_POOL_STATE_DEGRADED,
				Health: &managementv1.PoolHealth{Condition: managementv1.PoolCondition_POOL_CONDITION_HEALTHY},
			},
			usable: true, reason: v1alpha1.ReasonAllCopiesThere, says: "all data of pool tank has all its copies",
		},
		"a pool that has lost more than it survives is not usable": {
			info: &managementv1.PoolInfo{
				Label: "tank", UnreachableRanks: []uint32{0, 1}, State: managementv1.PoolState_POOL_STATE_DEGRADED,
				Health: &managementv1.PoolHealth{Condition: managementv1.PoolCondition_POOL_CONDITION_UNAVAILABLE},
			},
			degraded: true, reason: v1alpha1.ReasonBeyondRedundancy, says: "what needs rank 0, rank 1 waits",
		},
		"a pool with faulty devices is degraded and usable, and the targets are named": {
			info: &managementv1.PoolInfo{
				Label: "tank", DownTargets: down, State: managementv1.PoolState_POOL_STATE_DEGRADED,
			},
			degraded: true, usable: true, reason: v1alpha1.ReasonTargetsOutOfService,
			says: "what pool tank has on target 3 of rank 1, target 0 of rank 2 is unavailable",
		},
		"a pool whose service does not answer is degraded and not usable": {
			info:     &managementv1.PoolInfo{Label: "tank", State: managementv1.PoolState_POOL_STATE_DEGRADED},
			degraded: true, reason: v1alpha1.ReasonRanksUnreachable, says: "unavailable until they are back",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			condition, usable := availability(tt.info, "weir")
			if usable != tt.usable || (condition.Status == metav1.ConditionTrue) != tt.degraded || condition.Reason != tt.reason {
				t.Errorf("got %+v, usable %v", condition, usable)
			}
			if !strings.Contains(condition.Message, tt.says) {
				t.Errorf("message %q does not say %q", condition.Message, tt.says)
			}
		})
	}
}
