package policy

import (
	"fmt"

	"weir.dev/weir/operator/api/v1alpha1"
)

// Container is what is known when a container is to be made.
type Container struct {
	// Label of the container in its pool.
	Label string
	// Pool is the name of the Pool object.
	Pool string
	// Twin is the name of an older Container object for the same label in the same pool, if there is one.
	Twin string
	// Quota in bytes; 0 means none.
	Quota int64
	// PoolSize in bytes.
	PoolSize int64
	// PoolRanks is the number of engines of the pool.
	PoolRanks int
	// ObjectClass; empty means the pool's.
	ObjectClass string
	// RedundancyFactor of the pool.
	RedundancyFactor int32
}

// ContainerAcceptable finds the containers that can't be made before the engines are asked.
var ContainerAcceptable = Chain[Container]{
	containerLabelUnique,    // one object speaks for one container
	containerClassKnown,     // the class has a meaning
	containerClassKeeps,     // the class keeps data as the pool's redundancy factor says
	containerEnginesSuffice, // each copy has an engine of its own
	containerQuotaFits,      // the quota can be reached
}

func containerLabelUnique(c Container) (string, string, bool) {
	if c.Twin == "" {
		return "", "", false
	}
	return v1alpha1.ReasonLabelInUse, fmt.Sprintf(
		"container %s of pool %s is already managed by Container %s: delete this object, or give it another spec.label",
		c.Label, c.Pool, c.Twin), true
}

func containerClassKnown(c Container) (string, string, bool) {
	if c.ObjectClass == "" {
		return "", "", false
	}
	if _, ok := ParseClass(c.ObjectClass); ok {
		return "", "", false
	}
	return v1alpha1.ReasonUnknownObjectClass, unknownClass("container "+c.Label, c.ObjectClass), true
}

func containerClassKeeps(c Container) (string, string, bool) {
	class, ok := ParseClass(c.ObjectClass)
	if !ok || class.Survives >= int(c.RedundancyFactor) {
		return "", "", false
	}
	return v1alpha1.ReasonWeakObjectClass, weakClass("container "+c.Label+" of pool "+c.Pool, c.ObjectClass, class.Survives, c.RedundancyFactor), true
}

func containerEnginesSuffice(c Container) (string, string, bool) {
	class, ok := ParseClass(c.ObjectClass)
	if !ok || class.Engines <= c.PoolRanks {
		return "", "", false
	}
	return v1alpha1.ReasonTooFewEngines, fmt.Sprintf(
		"container %s: object class %s needs %s, pool %s has %d: choose a class with fewer copies, or a pool on more engines",
		c.Label, c.ObjectClass, Plural(class.Engines, "engine"), c.Pool, c.PoolRanks), true
}

func containerQuotaFits(c Container) (string, string, bool) {
	if c.Quota <= c.PoolSize {
		return "", "", false
	}
	return v1alpha1.ReasonQuotaTooLarge, fmt.Sprintf(
		"container %s: a quota of %s is more than pool %s has (%s): lower spec.quota, or raise spec.size of the pool",
		c.Label, Bytes(c.Quota), c.Pool, Bytes(c.PoolSize)), true
}
