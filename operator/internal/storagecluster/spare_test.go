package storagecluster

import (
	"strings"
	"testing"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

func TestWhatIsInTheWayOfTakingAnEngineAway(t *testing.T) {
	const (
		healthy    = managementv1.PoolCondition_POOL_CONDITION_HEALTHY
		degraded   = managementv1.PoolCondition_POOL_CONDITION_DEGRADED
		rebuilding = managementv1.PoolCondition_POOL_CONDITION_REBUILDING
		beyond     = managementv1.PoolCondition_POOL_CONDITION_UNAVAILABLE
	)
	pool := func(condition managementv1.PoolCondition, survives uint32, service ...uint32) *managementv1.PoolInfo {
		return &managementv1.PoolInfo{
			Label: "tank", ObjectClass: "RP_2GX", ServiceRanks: service,
			Health: &managementv1.PoolHealth{Condition: condition, FailuresSurvived: survives},
		}
	}
	plain := &managementv1.PoolInfo{Label: "lake", ObjectClass: "SX", State: managementv1.PoolState_POOL_STATE_DEGRADED}
	whole := pool(healthy, 1, 0, 1, 2)
	for name, tc := range map[string]struct {
		pools          []*managementv1.PoolInfo
		restart, drain string
	}{
		"all is there": {[]*managementv1.PoolInfo{whole, plain}, "", ""},
		"a pool of two engines has none to spare": {[]*managementv1.PoolInfo{pool(healthy, 0, 0)}, "", ""},
		"a service that lost a replica":           {[]*managementv1.PoolInfo{pool(healthy, 0, 0, 1, 2)}, "", "can't do without another engine"},
		"a rebuild":                               {[]*managementv1.PoolInfo{whole, pool(rebuilding, 0, 0, 1, 2)}, "are being made", "are being made"},
		"a rebuild beside such a service":         {[]*managementv1.PoolInfo{pool(healthy, 0, 0, 1, 2), pool(rebuilding, 0, 0, 1, 2)}, "are being made", "are being made"},
		"copies missing":                          {[]*managementv1.PoolInfo{pool(degraded, 0, 0, 1, 2)}, "are missing", "are missing"},
		"more missing than the factor":            {[]*managementv1.PoolInfo{pool(beyond, 0, 0, 1, 2)}, "are missing", "are missing"},
		"a service that is silent":                {[]*managementv1.PoolInfo{{Label: "tank", ObjectClass: "RP_2GX"}}, "doesn't answer", "doesn't answer"},
	} {
		t.Run(name, func(t *testing.T) {
			restart, drain := inTheWay(tc.pools)
			for got, want := range map[string]string{restart: tc.restart, drain: tc.drain} {
				if (got == "") != (want == "") || !strings.Contains(got, want) {
					t.Errorf("in the way of a restart %q, of a drain %q", restart, drain)
				}
			}
			s := spare{drain: drain}
			if want := int32(1); (s.budget() == want) != (tc.drain == "") {
				t.Errorf("budget %d with %q in the way", s.budget(), drain)
			}
		})
	}
}
