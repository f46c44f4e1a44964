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
