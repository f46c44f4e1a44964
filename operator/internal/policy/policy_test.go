package policy

import (
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/operator/api/v1alpha1"
)

const gi = 1 << 30

func TestParseClass(t *testing.T) {
	tests := map[string]struct {
		engines int
		ok      bool
	}{
		"S1": {1, true}, "S32": {1, true}, "SX": {1, true}, "S3": {0, false}, "S": {0, false}, "S01": {0, false}, "SXX": {0, false},
		"RP_2G1": {2, true}, "RP_3GX": {3, true}, "RP_128G32": {128, true}, "RP_7GX": {0, false}, "RP_2": {0, false}, "RP_2G3": {0, false},
		"EC_2P1GX": {3, true}, "EC_16P3G1": {19, true}, "EC_3P1GX": {0, false}, "EC_2P3GX": {0, false}, "EC_2P1": {0, false},
		"": {0, false}, "G": {0, false}, "GX": {0, false}, "s1": {0, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			class, ok := ParseClass(name)
			if ok != tc.ok || (ok && class.Engines != tc.engines) {
				t.Errorf("ParseClass(%q) = %+v, %v; want %d engines, %v", name, class, ok, tc.engines, tc.ok)
			}
		})
	}
}

// share puts all engines into one failure domain.
func (p *Pool) share(domain string) {
	p.Engines = slices.Clone(p.Engines)
	for i := range p.Engines {
		p.Engines[i].Domain = domain
	}
}

func TestPoolAcceptable(t *testing.T) {
	engines := []Engine{
		{Rank: 0, Up: true, Free: 10 * gi, Targets: 2}, {Rank: 1, Up: true, Free: 4 * gi, Targets: 2}, {Rank: 2, Up: true, Free: 10 * gi, Targets: 2},
	}
	away := []Engine{engines[0], {Rank: 1}, {Rank: 2}}
	good := Pool{Label: "tank", Cluster: "weir", Size: 12 * gi, ObjectClass: "SX", Engines: engines}
	tests := map[string]struct {
		change func(*Pool)
		reason string
		words  string
	}{
		"a pool that fits is accepted":                          {func(*Pool) {}, "", ""},
		"a pool on some ranks is accepted":                      {func(p *Pool) { p.Ranks = []int32{0, 2} }, "", ""},
		"the tightest engine bounds the size":                   {func(p *Pool) { p.Size = 13 * gi }, v1alpha1.ReasonInsufficientCapacity, "engine 1 has 4Gi free: lower spec.size to at most 12Gi"},
		"other ranks have more room":                            {func(p *Pool) { p.Size = 13 * gi; p.Ranks = []int32{0, 2} }, "", ""},
		"growth needs room for the difference only":             {func(p *Pool) { p.Current = 30 * gi; p.Size = 40 * gi }, "", ""},
		"growth beyond the room says how far it may go":         {func(p *Pool) { p.Current = 30 * gi; p.Size = 60 * gi }, v1alpha1.ReasonInsufficientCapacity, "at most 42Gi"},
		"a pool that exists and does not grow needs no room":    {func(p *Pool) { p.Current = 90 * gi; p.Size = 90 * gi }, "", ""},
		"a class that needs every engine is accepted":           {func(p *Pool) { p.ObjectClass = "RP_3GX" }, "", ""},
		"a class that needs more engines is refused":            {func(p *Pool) { p.ObjectClass = "EC_2P2GX" }, v1alpha1.ReasonTooFewEngines, "EC_2P2GX needs 4 engines, the pool has 3"},
		"a class counts the pool's ranks, not the cluster's":    {func(p *Pool) { p.ObjectClass = "RP_3GX"; p.Ranks = []int32{0, 2} }, v1alpha1.ReasonTooFewEngines, "the pool has 2"},
		"losing three of three engines can't be survived":       {func(p *Pool) { p.RedundancyFactor = 3; p.ObjectClass = "" }, v1alpha1.ReasonTooFewEngines, "redundancyFactor 3 needs 4 engines"},
		"copies need a domain each":                             {func(p *Pool) { p.RedundancyFactor = 1; p.ObjectClass = ""; p.share("rack-1") }, v1alpha1.ReasonTooFewFailureDomains, "class RP_2GX keeps 2 copies, its engines are in 1 failure domain (ranks 0, 1 and 2 are in rack-1)"},
		"engines of one rack without copies":                    {func(p *Pool) { p.share("rack-1") }, "", ""},
		"losing two of three can":                               {func(p *Pool) { p.RedundancyFactor = 2; p.ObjectClass = "" }, "", ""},
		"an unknown class comes before everything it would ask": {func(p *Pool) { p.ObjectClass = "RP_9GX"; p.Size = 99 * gi }, v1alpha1.ReasonUnknownObjectClass, `"RP_9GX" does not exist`},
		"unknown ranks are all named":                           {func(p *Pool) { p.Ranks = []int32{9, 0, 7, 8} }, v1alpha1.ReasonUnknownRank, "names 7, 8 and 9, StorageCluster weir has ranks 0 to 2"},
		"engines that are away are waited for":                  {func(p *Pool) { p.Engines = away }, v1alpha1.ReasonClusterNotReady, "waits for engines of rank 1 and 2"},
		"engines of other ranks are not":                        {func(p *Pool) { p.Engines = away; p.Ranks = []int32{0}; p.Size = gi }, "", ""},
		"nor are they for a pool that is there":                 {func(p *Pool) { p.Engines = away; p.Current = p.Size }, "", ""},
		"a pool without room for each target's log is refused":  {func(p *Pool) { p.Size = 100 << 20 }, v1alpha1.ReasonPoolTooSmall, "100Mi are too little for the 6 targets that share it, each needs 32Mi: make a Pool of at least 192Mi"},
		"fewer engines need less":                               {func(p *Pool) { p.Size = 100 << 20; p.Ranks = []int32{1} }, "", ""},
		"a pool without a class has that of its factor":         {func(p *Pool) { p.ObjectClass = ""; p.RedundancyFactor = 1 }, "", ""},
		"or the one of every target":                            {func(p *Pool) { p.ObjectClass = "" }, "", ""},
		"a class that keeps less than the factor is refused":    {func(p *Pool) { p.RedundancyFactor = 1 }, v1alpha1.ReasonWeakObjectClass, "class SX survive the loss of 0 engines at once, redundancyFactor 1 asks for more: leave out spec.objectClass, or set it to a class such as RP_2GX"},
		"one that keeps more is accepted":                       {func(p *Pool) { p.RedundancyFactor = 1; p.ObjectClass = "RP_3GX" }, "", ""},
		"a twin comes first of all":                             {func(p *Pool) { p.Twin = "older"; p.ObjectClass = "?" }, v1alpha1.ReasonLabelInUse, "Pool older"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pool := good
			tc.change(&pool)
			reason, message, failed := PoolAcceptable.Evaluate(pool)
			checkVerdict(t, reason, message, failed, tc.reason, tc.words)
		})
	}
}

func TestContainerAcceptable(t *testing.T) {
	good := Container{Label: "box", Pool: "tank", Quota: gi, PoolSize: 4 * gi, PoolRanks: 2}
	tests := map[string]struct {
		change func(*Container)
		reason string
		words  string
	}{
		"a container that fits is accepted":      {func(*Container) {}, "", ""},
		"no quota is accepted":                   {func(c *Container) { c.Quota = 0 }, "", ""},
		"a quota of the whole pool is accepted":  {func(c *Container) { c.Quota = 4 * gi }, "", ""},
		"a quota above the pool is refused":      {func(c *Container) { c.Quota = 4*gi + 1 }, v1alpha1.ReasonQuotaTooLarge, "pool tank has (4Gi)"},
		"two copies on two engines are accepted": {func(c *Container) { c.ObjectClass = "RP_2GX" }, "", ""},
		"three copies on two engines are not":    {func(c *Container) { c.ObjectClass = "RP_3GX" }, v1alpha1.ReasonTooFewEngines, "needs 3 engines, pool tank has 2"},
		"an unknown class is refused":            {func(c *Container) { c.ObjectClass = "S5" }, v1alpha1.ReasonUnknownObjectClass, `"S5" does not exist`},
		"a class that keeps less than the pool":  {func(c *Container) { c.ObjectClass = "S1"; c.RedundancyFactor = 1 }, v1alpha1.ReasonWeakObjectClass, "box of pool tank: objects of class S1 survive the loss of 0 engines"},
		"the pool's own class is accepted":       {func(c *Container) { c.RedundancyFactor = 1 }, "", ""},
		"a twin is refused":                      {func(c *Container) { c.Twin = "older" }, v1alpha1.ReasonLabelInUse, "Container older"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			container := good
			tc.change(&container)
			reason, message, failed := ContainerAcceptable.Evaluate(container)
			checkVerdict(t, reason, message, failed, tc.reason, tc.words)
		})
	}
}

func TestClusterChains(t *testing.T) {
	up := ClusterEngine{Rank: 0, Ready: true, Started: true}
	fresh := ClusterEngine{Rank: 1, Message: "the pod is starting"}
	lost := ClusterEngine{Rank: 2, Started: true, Message: "exited with code 1: disk full"}
	old := ClusterEngine{Rank: 3, Ready: true, Started: true, Outdated: true}
	with := func(engines ...ClusterEngine) Cluster {
		return Cluster{Name: "weir", TargetBytes: gi, ClientSecret: "sys/weir-client", Engines: engines}
	}
	tests := map[string]struct {
		chain  Chain[Cluster]
		facts  Cluster
		reason string
		words  string
	}{
		"ready when every engine is":                {ClusterReady, with(up, old), "", ""},
		"an engine that never was up is waited for": {ClusterReady, with(up, fresh), v1alpha1.ReasonEnginesNotReady, "1 of 2 engines ready; rank 1: the pod is starting"},
		"an engine that is down is named with why":  {ClusterReady, with(up, lost), v1alpha1.ReasonEnginesNotReady, "rank 2: exited with code 1: disk full"},
		"a shortage of nodes comes before engines":  {ClusterReady, Cluster{TargetBytes: gi, Shortage: "no nodes", Engines: []ClusterEngine{fresh}}, v1alpha1.ReasonTooFewNodes, "no nodes"},
		"storage that is too small comes first":     {ClusterReady, Cluster{Name: "weir", TargetBytes: 1 << 20, Shortage: "no nodes"}, v1alpha1.ReasonStorageTooSmall, "gives each target 1Mi, it needs 64Mi"},
		"another cluster's client Secret is named": {ClusterReady, func() Cluster {
			c := with(up)
			c.ClientSecretOwner = "StorageCluster other/weir"
			return c
		}(), v1alpha1.ReasonClientSecretTaken, "sys/weir-client belongs to StorageCluster other/weir"},
		"settled when all are up and current":  {ClusterSettled, with(up), "", ""},
		"a lost engine is no progress":         {ClusterSettled, with(up, lost), "", ""},
		"starting until each has been up":      {ClusterSettled, with(up, fresh, old), v1alpha1.ReasonStarting, "rank 1"},
		"rolling out while one is outdated":    {ClusterSettled, with(up, old), v1alpha1.ReasonRollingOut, "rank 3"},
		"healthy while engines start":          {ClusterHealthy, with(up, fresh), "", ""},
		"not healthy when an engine goes away": {ClusterHealthy, with(up, lost), v1alpha1.ReasonEnginesNotReady, "data on rank 2 is unavailable"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			reason, message, failed := tc.chain.Evaluate(tc.facts)
			checkVerdict(t, reason, message, failed, tc.reason, tc.words)
		})
	}
}

func checkVerdict(t *testing.T, reason, message string, failed bool, wantReason, words string) {
	t.Helper()
	if failed != (wantReason != "") || reason != wantReason {
		t.Fatalf("got %q (%s), want %q", reason, message, wantReason)
	}
	if !strings.Contains(message, words) {
		t.Errorf("message %q does not say %q", message, words)
	}
}

func TestQuantity(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 302: "302", 65535: "65535", 70000: "68Ki", 6 << 30: "6Gi", 975069184: "929Mi", 4<<40 + 1: "4Ti"} {
		if got := Quantity(n).String(); got != want {
			t.Errorf("Quantity(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestBytes(t *testing.T) {
	for want, n := range map[string]int64{
		"0": 0, "1023": 1023, "1Ki": 1 << 10, "1.5Mi": 3 << 19, "10Gi": 10 << 30, "3.9Ti": 4<<40 - 1, "8192Ti": 8 << 50,
	} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %s, want %s", n, got, want)
		}
	}
}
