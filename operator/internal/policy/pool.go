package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir.dev/weir/operator/api/v1alpha1"
)

// Engine is what a pool needs to know of an engine.
type Engine struct {
	Rank int32
	Up   bool
	// Free bytes that no pool has taken.
	Free int64
	// Targets that share what the engine gives to a pool.
	Targets int32
	// Domain is the failure domain that it is in; empty means that it is one of its own.
	Domain string
}

// MinShareBytes is the least that a pool takes of a target: its log, index and some data. engine/pool has the same bound.
const MinShareBytes = 32 << 20

// Pool is what is known when a pool is to be made or grown.
type Pool struct {
	// Label of the pool in the engines.
	Label string
	// Cluster is the name of the StorageCluster.
	Cluster string
	// Twin is the name of an older Pool object for the same label, if there is one.
	Twin string
	// Size that the pool should have over all its engines, in bytes.
	Size int64
	// Current size of the pool in the engines, in bytes; 0 when it does not exist yet.
	Current int64
	// Ranks that should hold the pool; empty means every engine.
	Ranks []int32
	// ObjectClass; empty means the one of RedundancyFactor.
	ObjectClass      string
	RedundancyFactor int32
	// Engines of the cluster.
	Engines []Engine
}

// PoolAcceptable finds the pools that can't be made, or grown, before the engines are asked.
var PoolAcceptable = Chain[Pool]{
	poolLabelUnique,     // one object speaks for one pool
	poolClassKnown,      // the class has a meaning
	poolClassKeeps,      // the class keeps data as the redundancy factor says
	poolRanksKnown,      // each rank is an engine of the cluster
	poolEnginesSuffice,  // each copy has an engine of its own
	poolDomainsSuffice,  // each copy has a failure domain of its own
	poolSharesSuffice,   // each target has enough of the pool to work with
	poolEnginesUp,       // a pool made now would leave out engines that are away
	poolCapacitySuffice, // each engine has room for its share
}

// members are the engines that hold, or would hold, the pool.
func (p Pool) members() []Engine {
	if len(p.Ranks) == 0 {
		return p.Engines
	}
	var members []Engine
	for _, e := range p.Engines {
		if slices.Contains(p.Ranks, e.Rank) {
			members = append(members, e)
		}
	}
	return members
}

func poolLabelUnique(p Pool) (string, string, bool) {
	if p.Twin == "" {
		return "", "", false
	}
	return v1alpha1.ReasonLabelInUse, fmt.Sprintf(
		"pool %s of StorageCluster %s is already managed by Pool %s: delete this object, or give it another spec.label",
		p.Label, p.Cluster, p.Twin), true
}

func poolClassKnown(p Pool) (string, string, bool) {
	if _, ok := ParseClass(p.class()); ok {
		return "", "", false
	}
	return v1alpha1.ReasonUnknownObjectClass, unknownClass("pool "+p.Label, p.ObjectClass), true
}

// class of new containers.
func (p Pool) class() string {
	return cmp.Or(p.ObjectClass, DefaultClass(p.RedundancyFactor))
}

func poolClassKeeps(p Pool) (string, string, bool) {
	class, _ := ParseClass(p.class())
	if class.Survives >= int(p.RedundancyFactor) {
		return "", "", false
	}
	return v1alpha1.ReasonWeakObjectClass, weakClass("pool "+p.Label, p.ObjectClass, class.Survives, p.RedundancyFactor), true
}

func poolRanksKnown(p Pool) (string, string, bool) {
	var unknown []int32
	for _, rank := range p.Ranks {
		if !slices.ContainsFunc(p.Engines, func(e Engine) bool { return e.Rank == rank }) {
			unknown = append(unknown, rank)
		}
	}
	if len(unknown) == 0 {
		return "", "", false
	}
	return v1alpha1.ReasonUnknownRank, fmt.Sprintf(
		"pool %s: spec.ranks names %s, StorageCluster %s has ranks 0 to %d: make a Pool with ranks that exist, or raise spec.engines.replicas of the cluster",
		p.Label, rankList(unknown), p.Cluster, len(p.Engines)-1), true
}

func poolEnginesSuffice(p Pool) (string, string, bool) {
	class, _ := ParseClass(p.class())
	have := len(p.members())
	need, asks := int(p.RedundancyFactor)+1, fmt.Sprintf("redundancyFactor %d", p.RedundancyFactor)
	if class.Engines > need {
		need, asks = class.Engines, "object class "+p.ObjectClass
	}
	if need <= have {
		return "", "", false
	}
	return v1alpha1.ReasonTooFewEngines, fmt.Sprintf(
		"pool %s: %s needs %s, the pool has %d: raise spec.engines.replicas of StorageCluster %s to %d, or make a Pool with less redundancy",
		p.Label, asks, Plural(need, "engine"), have, p.Cluster, need), true
}

func poolDomainsSuffice(p Pool) (string, string, bool) {
	if p.Current > 0 {
		return "", "", false // it keeps the domains that it was made with
	}
	domains, alone := map[string][]int32{}, 0
	for _, e := range p.members() {
		if e.Domain == "" {
			alone++
			continue
		}
		domains[e.Domain] = append(domains[e.Domain], e.Rank)
	}
	class, _ := ParseClass(p.class())
	have, need := len(domains)+alone, max(int(p.RedundancyFactor)+1, class.Engines)
	if need <= have {
		return "", "", false
	}
	var shared []string
	for _, domain := range slices.Sorted(maps.Keys(domains)) {
		if ranks := domains[domain]; len(ranks) > 1 {
			shared = append(shared, fmt.Sprintf("ranks %s are in %s", rankList(ranks), domain))
		}
	}
	return v1alpha1.ReasonTooFewFailureDomains, fmt.Sprintf(
		"pool %s: class %s keeps %d copies, its engines are in %s (%s): spread the engines of StorageCluster %s over more nodes, see spec.engines.failureDomains, or make a Pool with less redundancy",
		p.Label, p.class(), need, Plural(have, "failure domain"), strings.Join(shared, "; "), p.Cluster), true
}

func poolSharesSuffice(p Pool) (string, string, bool) {
	var targets int64
	for _, e := range p.members() {
		targets += int64(e.Targets)
	}
	if p.Current > 0 || p.Size >= targets*MinShareBytes {
		return "", "", false
	}
	return v1alpha1.ReasonPoolTooSmall, fmt.Sprintf(
		"pool %s: %s are too little for the %d targets that share it, each needs %s: make a Pool of at least %s, or name fewer engines in spec.ranks",
		p.Label, Bytes(p.Size), targets, Bytes(MinShareBytes), Bytes(targets*MinShareBytes)), true
}

func poolEnginesUp(p Pool) (string, string, bool) {
	if p.Size <= p.Current {
		return "", "", false
	}
	var away []int32
	for _, e := range p.members() {
		if !e.Up {
			away = append(away, e.Rank)
		}
	}
	if len(away) == 0 {
		return "", "", false
	}
	return v1alpha1.ReasonClusterNotReady, fmt.Sprintf(
		"pool %s waits for engines of rank %s: see the conditions of StorageCluster %s, or name other ranks in spec.ranks of a new Pool",
		p.Label, rankList(away), p.Cluster), true
}

func poolCapacitySuffice(p Pool) (string, string, bool) {
	members := p.members()
	if len(members) == 0 || p.Size <= p.Current {
		return "", "", false
	}
	share := (p.Size - p.Current) / int64(len(members))
	tightest := members[0]
	for _, e := range members {
		if e.Free < tightest.Free {
			tightest = e
		}
	}
	if share <= tightest.Free {
		return "", "", false
	}
	most := p.Current + tightest.Free*int64(len(members))
	return v1alpha1.ReasonInsufficientCapacity, fmt.Sprintf(
		"pool %s: not enough capacity: %s over %s needs %s on each, engine %d has %s free: lower spec.size to at most %s, delete a pool, or add engines",
		p.Label, Bytes(p.Size), Plural(len(members), "engine"), Bytes(p.Size/int64(len(members))), tightest.Rank,
		Bytes(tightest.Free), Bytes(most)), true
}
