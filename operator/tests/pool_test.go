package tests

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
)

// running installs an operator and waits for a cluster of engines.
func running(t *testing.T, engines int) *installation {
	t.Helper()
	i := install(t, engines)
	for _, name := range []string{"a", "b", "c"}[:engines] {
		i.machines.node(name)
	}
	i.apply(i.machines.cluster(engines, ""))
	i.ready(&v1alpha1.StorageCluster{}, "weir")
	return i
}

const createPool = "/weir.management.v1.Pools/Create"

func TestPoolLifeFromCreationToDestruction(t *testing.T) {
	t.Parallel()
	i := running(t, 3)
	i.apply(object("Pool", "tank", `{clusterRef: {name: weir}, size: 6Gi, deletionPolicy: Delete}`))
	var pool v1alpha1.Pool
	i.ready(&pool, "tank")
	i.condition(&pool, "tank", v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAllRanksReachable)
	if pool.Status.UUID == "" || len(pool.Status.Ranks) != 3 || len(pool.Status.ServiceRanks) != 1 || pool.Status.Capacity.Total.String() != "6Gi" {
		t.Errorf("status: %+v", pool.Status)
	}
	i.event("tank", v1alpha1.ReasonAvailable, "6Gi on 3 engines")

	i.patch(&v1alpha1.Pool{}, "tank", `{"spec": {"size": "9Gi"}}`)
	i.eventually("the pool grows", func() string {
		_ = i.get(&pool, "tank")
		if got := pool.Status.Capacity.Total.String(); got != "9Gi" {
			return got
		}
		return ""
	})

	i.engines.StopEngine(1)
	i.touch(&v1alpha1.Pool{}, "tank")
	i.condition(&pool, "tank", v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonRanksUnreachable, "[1]", "nothing is lost")
	i.condition(&pool, "tank", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRanksUnreachable)
	i.engines.StartEngine(1)
	i.touch(&v1alpha1.Pool{}, "tank")
	i.ready(&pool, "tank")

	i.remove(&v1alpha1.Pool{}, "tank")
	i.gone(&pool, "tank")
	i.event("tank", "Destroyed", "pool tank and its data are destroyed")
	if calls := i.engines.Calls(createPool); calls != 1 {
		t.Errorf("the pool was created %d times", calls)
	}
}

// touch changes something in the spec that means nothing, so that the operator looks at once.
func (i *installation) touch(pool *v1alpha1.Pool, name string) {
	i.t.Helper()
	if err := i.get(pool, name); err != nil {
		i.t.Fatal(err)
	}
	policy := v1alpha1.DeletionDelete
	if pool.Spec.DeletionPolicy == policy {
		policy = v1alpha1.DeletionRetain
	}
	i.patch(&v1alpha1.Pool{}, name, `{"spec": {"deletionPolicy": "`+string(policy)+`"}}`)
}

func TestImpossiblePoolsSayWhyAndWhatToDo(t *testing.T) {
	t.Parallel()
	i := running(t, 2)
	tests := map[string]struct {
		spec, reason string
		words        []string
	}{
		"a class with more copies than engines": {
			`{clusterRef: {name: weir}, size: 1Gi, objectClass: RP_3GX}`, v1alpha1.ReasonTooFewEngines,
			[]string{"RP_3GX needs 3 engines, the pool has 2", "raise spec.engines.replicas of StorageCluster weir to 3"},
		},
		"more redundancy than engines": {
			`{clusterRef: {name: weir}, size: 1Gi, redundancyFactor: 2}`, v1alpha1.ReasonTooFewEngines,
			[]string{"redundancyFactor 2 needs 3 engines, the pool has 2"},
		},
		"more than the engines hold": {
			`{clusterRef: {name: weir}, size: 900Ti}`, v1alpha1.ReasonInsufficientCapacity,
			[]string{"not enough capacity", "900Ti over 2 engines needs 450Ti on each", "has 64Gi free", "lower spec.size to at most 128Gi"},
		},
		"less than its targets need": {
			`{clusterRef: {name: weir}, size: 100Mi}`, v1alpha1.ReasonPoolTooSmall,
			[]string{"100Mi are too little for the 4 targets that share it", "make a Pool of at least 128Mi"},
		},
		"a class that does not exist": {
			`{clusterRef: {name: weir}, size: 1Gi, objectClass: S99Z}`, v1alpha1.ReasonUnknownObjectClass,
			[]string{`object class "S99Z" does not exist`, "SX"},
		},
		"a class that keeps less than the factor": {
			`{clusterRef: {name: weir}, size: 1Gi, objectClass: SX, redundancyFactor: 1}`, v1alpha1.ReasonWeakObjectClass,
			[]string{"class SX survive the loss of 0 engines", "such as RP_2GX"},
		},
		"a rank that does not exist": {
			`{clusterRef: {name: weir}, size: 1Gi, ranks: [0, 77]}`, v1alpha1.ReasonUnknownRank,
			[]string{"names 77", "ranks 0 to 1"},
		},
		"a cluster that does not exist": {
			`{clusterRef: {name: nowhere}, size: 1Gi}`, v1alpha1.ReasonClusterNotFound,
			[]string{"StorageCluster nowhere does not exist in namespace " + i.namespace},
		},
	}
	for title, tc := range tests {
		t.Run(title, func(t *testing.T) {
			name := strings.ReplaceAll(title, " ", "-")
			i := i.in(t)
			i.apply(object("Pool", name, tc.spec))
			i.condition(&v1alpha1.Pool{}, name, v1alpha1.ConditionReady, metav1.ConditionFalse, tc.reason, tc.words...)
			i.event(name, tc.reason, tc.words[0])
			i.remove(&v1alpha1.Pool{}, name)
			i.gone(&v1alpha1.Pool{}, name)
		})
	}
	if calls := i.engines.Calls(createPool); calls != 0 {
		t.Errorf("the engines were asked for an impossible pool %d times", calls)
	}
}

// in is the installation as seen by a subtest.
func (i *installation) in(t *testing.T) *installation {
	sub := *i
	sub.t = t
	return &sub
}

func TestPoolWaitsForItsCluster(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.apply(object("Pool", "tank", goodPool))
	var pool v1alpha1.Pool
	i.condition(&pool, "tank", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonClusterNotFound)
	i.unreachable.set(true)
	i.machines.node("a")
	i.apply(i.machines.cluster(1, ""))
	i.condition(&pool, "tank", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonClusterNotReady, "waiting for an engine")
	i.unreachable.set(false)
	i.ready(&pool, "tank")
}

func TestPoolsAreAdoptedByLabel(t *testing.T) {
	t.Parallel()
	i := running(t, 2)
	i.apply(object("Pool", "first", `{clusterRef: {name: weir}, size: 2Gi, label: tank}`))
	var first, again v1alpha1.Pool
	i.ready(&first, "first")
	// A second object for the same label is refused while the first is there …
	i.apply(object("Pool", "second", `{clusterRef: {name: weir}, size: 2Gi, label: tank}`))
	i.condition(&v1alpha1.Pool{}, "second", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonLabelInUse, "Pool first")
	// … and takes over what the first leaves behind.
	i.remove(&v1alpha1.Pool{}, "first")
	i.gone(&v1alpha1.Pool{}, "first")
	i.patch(&v1alpha1.Pool{}, "second", `{"spec": {"deletionPolicy": "Delete"}}`)
	i.ready(&again, "second")
	if again.Status.UUID != first.Status.UUID {
		t.Errorf("second is pool %s, first was %s", again.Status.UUID, first.Status.UUID)
	}
	// Another size is another pool: the engines refuse.
	i.patch(&v1alpha1.Pool{}, "second", `{"spec": {"deletionPolicy": "Retain"}}`)
	i.remove(&v1alpha1.Pool{}, "second")
	i.gone(&v1alpha1.Pool{}, "second")
	i.apply(object("Pool", "third", `{clusterRef: {name: weir}, size: 3Gi, label: tank}`))
	i.condition(&v1alpha1.Pool{}, "third", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRejected, "exists with other properties")
}

func TestPoolLostInTheEnginesIsNotMadeAnew(t *testing.T) {
	t.Parallel()
	i := running(t, 1)
	i.apply(object("Pool", "tank", goodPool))
	var pool v1alpha1.Pool
	i.ready(&pool, "tank")
	destroy(i, pool.Status.UUID)
	i.touch(&v1alpha1.Pool{}, "tank")
	i.condition(&pool, "tank", v1alpha1.ConditionReady, metav1.ConditionFalse, "PoolLost", "not in the engines any more")
	if calls := i.engines.Calls(createPool); calls != 1 {
		t.Errorf("the pool was created %d times", calls)
	}
}

func TestPoolDeletionWaitsForContainers(t *testing.T) {
	t.Parallel()
	i := running(t, 1)
	i.apply(object("Pool", "tank", `{clusterRef: {name: weir}, size: 1Gi, deletionPolicy: Delete}`))
	i.ready(&v1alpha1.Pool{}, "tank")
	i.apply(object("Container", "box", `{poolRef: {name: tank}, deletionPolicy: Delete}`))
	i.ready(&v1alpha1.Container{}, "box")
	volume(i, "tank", "pvc-1")
	i.remove(&v1alpha1.Pool{}, "tank")
	i.condition(&v1alpha1.Pool{}, "tank", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonDependentsExist,
		"Container "+i.namespace+"/box")
	i.event("tank", v1alpha1.ReasonDependentsExist, "box")
	i.remove(&v1alpha1.Container{}, "box")
	i.gone(&v1alpha1.Container{}, "box")
	// What is left was made for a claim: no object, so the engines tell of it.
	i.condition(&v1alpha1.Pool{}, "tank", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonContainersExist,
		"container pvc-1 of PersistentVolumeClaim apps/data", "set spec.deletionPolicy of the Pool to Retain")
	i.patch(&v1alpha1.Pool{}, "tank", `{"spec": {"deletionPolicy": "Retain"}}`)
	i.gone(&v1alpha1.Pool{}, "tank")
}

func TestPoolDeletionSaysThatNoEngineAnswers(t *testing.T) {
	t.Parallel()
	i := running(t, 1)
	i.apply(object("Pool", "tank", `{clusterRef: {name: weir}, size: 1Gi, deletionPolicy: Delete}`))
	i.ready(&v1alpha1.Pool{}, "tank")
	i.unreachable.set(true)
	i.engines.StopEngine(0)
	i.remove(&v1alpha1.Pool{}, "tank")
	i.condition(&v1alpha1.Pool{}, "tank", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonEngineUnreachable,
		"no engine of StorageCluster weir answers", "set spec.deletionPolicy to Retain")
	i.engines.StartEngine(0)
	i.unreachable.set(false)
	i.gone(&v1alpha1.Pool{}, "tank")
}

func TestMetricsTellOfConditions(t *testing.T) {
	t.Parallel()
	i := running(t, 1)
	i.apply(object("Pool", "tank", goodPool) + "---\n" + object("Pool", "huge", `{clusterRef: {name: weir}, size: 900Ti}`))
	i.ready(&v1alpha1.Pool{}, "tank")
	i.condition(&v1alpha1.Pool{}, "huge", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonInsufficientCapacity)
	want := map[string]float64{"StorageCluster/weir": 1, "Pool/tank": 1, "Pool/huge": 0, "desired/weir": 1, "ready/weir": 1}
	i.eventually("metrics", func() string {
		families, err := i.registry.Gather()
		if err != nil {
			return err.Error()
		}
		got := map[string]float64{}
		for _, family := range families {
			if family.GetName() != "weir_operator_resource_ready" && family.GetName() != "weir_operator_engines" {
				continue
			}
			for _, m := range family.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				got[labels["kind"]+labels["state"]+"/"+labels["name"]] = m.GetGauge().GetValue()
			}
		}
		for name, value := range want {
			if v, ok := got[name]; !ok || v != value {
				return name
			}
		}
		return ""
	})
}
