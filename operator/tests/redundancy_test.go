package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
)

// budget waits until so many engines may be taken away.
func (i *installation) budget(engines int) {
	i.t.Helper()
	i.eventually(fmt.Sprintf("the budget admits %d", engines), func() string {
		var budget policyv1.PodDisruptionBudget
		if err := i.get(&budget, "weir-engines"); err != nil {
			return err.Error()
		}
		if got := budget.Spec.MaxUnavailable.IntValue(); got != engines {
			return fmt.Sprint(got)
		}
		return ""
	})
}

func TestAPoolWithRedundancyTellsWhatItMayLoseAndGivesUpARankThatIsLost(t *testing.T) {
	t.Parallel()
	i := running(t, 3)
	i.apply(object("Pool", "tank", `{clusterRef: {name: weir}, size: 6Gi, redundancyFactor: 1}`))
	var pool v1alpha1.Pool
	var cluster v1alpha1.StorageCluster
	shows := func(health v1alpha1.PoolHealth, mayFail int32, givenUp ...int32) {
		t.Helper()
		i.eventually("the Pool is "+string(health), func() string {
			if err := i.get(&pool, "tank"); err != nil {
				return err.Error()
			}
			s := pool.Status
			if s.Health != health || s.MayFail == nil || *s.MayFail != mayFail || !slices.Equal(s.GivenUpRanks, givenUp) {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
	}
	i.ready(&pool, "tank")
	shows(v1alpha1.PoolHealthy, 1)
	i.condition(&pool, "tank", v1alpha1.ConditionAtRisk, metav1.ConditionFalse, v1alpha1.ReasonLossSurvived)
	i.condition(&cluster, "weir", v1alpha1.ConditionDrainable, metav1.ConditionTrue, v1alpha1.ReasonNothingMissing)
	i.budget(1)

	i.engines.StopEngine(2)
	i.touch(&v1alpha1.Pool{}, "tank")
	shows(v1alpha1.PoolDegraded, 0)
	i.condition(&pool, "tank", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonAvailable)
	i.condition(&pool, "tank", v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonCopiesMissing, "copies on rank 2 are missing")
	i.condition(&pool, "tank", v1alpha1.ConditionAtRisk, metav1.ConditionTrue, v1alpha1.ReasonCopiesMissing, "spec.engines.lost of StorageCluster weir")
	i.condition(&cluster, "weir", v1alpha1.ConditionDrainable, metav1.ConditionFalse, v1alpha1.ReasonNoneToSpare, "rank 2 is not up")
	i.budget(0)

	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"engines": {"lost": [2]}}}`)
	shows(v1alpha1.PoolHealthy, 0, 2)
	i.condition(&pool, "tank", v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAllCopiesThere)
	i.condition(&cluster, "weir", v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonSettled)
	// A second one can't go: two copies need two places.
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"engines": {"lost": [1, 2]}}}`)
	i.condition(&pool, "tank", v1alpha1.ConditionRebuilding, metav1.ConditionFalse, v1alpha1.ReasonNotGivenUp, "rank 1 can't be taken out of pool tank yet: ", "no place is left")
	shows(v1alpha1.PoolHealthy, 0, 2)

	i.engines.StartEngine(2)
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"engines": {"lost": null}}}`)
	shows(v1alpha1.PoolHealthy, 1)
	i.condition(&pool, "tank", v1alpha1.ConditionAtRisk, metav1.ConditionFalse, v1alpha1.ReasonLossSurvived)
	i.budget(1)
}

func TestAPoolWithRedundancyGrowsWithItsCluster(t *testing.T) {
	t.Parallel()
	i := install(t, 3)
	threeNodes(i)
	i.engines.TakeEngineAway(2)
	i.apply(i.machines.cluster(2, ""))
	i.apply(object("Pool", "tank", `{clusterRef: {name: weir}, size: 4Gi, redundancyFactor: 1}`))
	i.apply(object("Pool", "named", `{clusterRef: {name: weir}, size: 4Gi, redundancyFactor: 1, ranks: [0, 1]}`))
	i.apply(object("Pool", "plain", `{clusterRef: {name: weir}, size: 4Gi}`))
	pools := []string{"tank", "named", "plain"}
	for _, name := range pools {
		i.ready(&v1alpha1.Pool{}, name)
	}

	i.engines.StartEngine(2)
	i.failing("Pools/Extend")
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"engines": {"replicas": 3}}}`)
	var pool v1alpha1.Pool
	i.condition(&pool, "tank", v1alpha1.ConditionRebuilding, metav1.ConditionFalse, v1alpha1.ReasonNotJoined, "ranks [2] can't join pool tank yet", "the index is broken")
	i.condition(&pool, "tank", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonAvailable)
	i.engines.Intercept(nil)
	i.touch(&v1alpha1.Pool{}, "tank")

	i.condition(&pool, "tank", v1alpha1.ConditionRebuilding, metav1.ConditionTrue, v1alpha1.ReasonEnginesJoin, "ranks [2] have joined pool tank")
	i.condition(&pool, "tank", v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAllCopiesThere, "move onto ranks [2]")
	if s := pool.Status; !slices.Equal(s.Ranks, []int32{0, 1, 2}) || !slices.Equal(s.NewRanks, []int32{2}) || s.Capacity.Total.String() != "6Gi" {
		t.Errorf("got %+v", s)
	}
	i.engines.Settle("tank")
	i.condition(&pool, "tank", v1alpha1.ConditionRebuilding, metav1.ConditionFalse, v1alpha1.ReasonNothingMoves)
	if len(pool.Status.NewRanks) > 0 {
		t.Errorf("got %+v", pool.Status)
	}
	// What is on engines that somebody has named, or has no copies, stays there.
	for _, name := range pools[1:] {
		i.touch(&v1alpha1.Pool{}, name)
		i.ready(&pool, name)
		if !slices.Equal(pool.Status.Ranks, []int32{0, 1}) {
			t.Errorf("pool %s is on %v", name, pool.Status.Ranks)
		}
	}
	if starts := i.machines.starts(); len(starts) != 3 {
		t.Errorf("engines were restarted: %v", starts)
	}
}

func TestHowLongAnEngineIsWaitedForFollowsTheSpec(t *testing.T) {
	t.Parallel()
	i := running(t, 2)
	i.apply(object("Pool", "tank", `{clusterRef: {name: weir}, size: 4Gi, redundancyFactor: 1, rebuildDelaySeconds: 60}`))
	i.ready(&v1alpha1.Pool{}, "tank")
	waits := func(seconds uint32) {
		t.Helper()
		i.eventually(fmt.Sprintf("the engines wait for %d s", seconds), func() string {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			answer, err := managementv1.NewPoolsClient(i.client()).Query(ctx, &managementv1.PoolQueryRequest{Pool: "tank"})
			if err != nil {
				return err.Error()
			}
			if got := answer.GetPool().GetRebuildDelaySeconds(); got != seconds {
				return fmt.Sprint(got)
			}
			return ""
		})
	}
	waits(60)
	i.patch(&v1alpha1.Pool{}, "tank", `{"spec": {"rebuildDelaySeconds": 0}}`)
	waits(0)
	// Nobody has said anything else.
	i.patch(&v1alpha1.Pool{}, "tank", `{"spec": {"rebuildDelaySeconds": null}}`)
	i.ready(&v1alpha1.Pool{}, "tank")
	waits(0)
}
