package pool

import (
	"math"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
)

const (
	healthy     = managementv1.PoolCondition_POOL_CONDITION_HEALTHY
	degraded    = managementv1.PoolCondition_POOL_CONDITION_DEGRADED
	moving      = managementv1.PoolCondition_POOL_CONDITION_REBUILDING
	unavailable = managementv1.PoolCondition_POOL_CONDITION_UNAVAILABLE
)

func TestWhatIsAtRisk(t *testing.T) {
	for name, tc := range map[string]struct {
		health       *managementv1.PoolHealth
		risk         bool
		reason, says string
	}{
		"a loss is survived":          {&managementv1.PoolHealth{Condition: healthy, FailuresSurvived: 1}, false, v1alpha1.ReasonLossSurvived, "survives the loss of 1 failure domain more"},
		"a rebuild with one to spare": {&managementv1.PoolHealth{Condition: moving, FailuresSurvived: 1}, false, v1alpha1.ReasonLossSurvived, "1 failure domain"},
		"a rebuild":                   {&managementv1.PoolHealth{Condition: moving}, true, v1alpha1.ReasonCopiesBeingMade, "restart no engine and drain no storage node"},
		"an engine away":              {&managementv1.PoolHealth{Condition: degraded}, true, v1alpha1.ReasonCopiesMissing, "bring rank 2 back"},
		"two engines left of three":   {&managementv1.PoolHealth{Condition: healthy}, true, v1alpha1.ReasonNoServiceToSpare, "its service, on engines of rank [0 1 2], has none to spare"},
		"two engines away":            {&managementv1.PoolHealth{Condition: unavailable}, true, v1alpha1.ReasonBeyondRedundancy, "Bring rank 2 back"},
		"a service that is silent":    {nil, true, v1alpha1.ReasonRanksUnreachable, "doesn't answer"},
	} {
		t.Run(name, func(t *testing.T) {
			info := &managementv1.PoolInfo{Label: "tank", UnreachableRanks: []uint32{2}, ServiceRanks: []uint32{0, 1, 2}, Health: tc.health}
			c := atRisk(info, "weir")
			if (c.Status == metav1.ConditionTrue) != tc.risk || c.Reason != tc.reason || !strings.Contains(c.Message, tc.says) {
				t.Errorf("got %+v", c)
			}
		})
	}
}

func TestARebuildShowsWhatIsKnownOfIt(t *testing.T) {
	number := func(n uint64) *uint64 { return &n }
	for name, tc := range map[string]struct {
		said    *managementv1.PoolRebuild
		percent int32 // -1: not known
		says    string
	}{
		"all is known": {
			&managementv1.PoolRebuild{Targets: 2, PartsDone: number(3), Parts: number(8), BytesPerSecond: number(3 << 20), SecondsLeft: number(90)},
			37, "2 targets to fill, 37 % done, 3Mi/s, 1m30s left",
		},
		"nothing is known":              {&managementv1.PoolRebuild{Targets: 1}, -1, "1 target to fill"},
		"no part is none of none":       {&managementv1.PoolRebuild{Targets: 1, PartsDone: number(0), Parts: number(0)}, -1, "1 target to fill"},
		"nearly done isn't done":        {&managementv1.PoolRebuild{Targets: 1, PartsDone: number(999), Parts: number(1000)}, 99, "99 % done"},
		"an engine that says too much":  {&managementv1.PoolRebuild{Targets: 1, PartsDone: number(9), Parts: number(3)}, 100, "100 % done"},
		"an engine that says too many":  {&managementv1.PoolRebuild{Targets: math.MaxUint32, Bytes: math.MaxUint64, BytesPerSecond: number(math.MaxUint64)}, -1, "targets to fill"},
		"an engine that never gets on":  {&managementv1.PoolRebuild{Targets: 1, SecondsLeft: number(math.MaxUint64)}, -1, "87600h0m0s left"},
		"an engine with the most parts": {&managementv1.PoolRebuild{Targets: 1, PartsDone: number(math.MaxUint64 / 2), Parts: number(math.MaxUint64)}, 50, "50 % done"},
	} {
		t.Run(name, func(t *testing.T) {
			shown := rebuild(tc.said)
			percent := int32(-1)
			if shown.Percent != nil {
				percent = *shown.Percent
			}
			if percent != tc.percent || shown.Targets < 0 || shown.Moved.Sign() < 0 || !strings.Contains(progress(shown), tc.says) {
				t.Errorf("got %+v: %s", shown, progress(shown))
			}
		})
	}
	if rebuild(nil) != nil {
		t.Error("nothing moves, and something is shown")
	}
}

func TestHealthOfPoolsWithoutRedundancyFollowsFromTheirState(t *testing.T) {
	for state, want := range map[managementv1.PoolState]v1alpha1.PoolHealth{
		managementv1.PoolState_POOL_STATE_READY:    v1alpha1.PoolHealthy,
		managementv1.PoolState_POOL_STATE_DEGRADED: v1alpha1.PoolUnavailable,
	} {
		if got := health(&managementv1.PoolInfo{State: state}); got != want {
			t.Errorf("%s is %s", state, got)
		}
	}
}
