package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Class is what an object class asks of a pool.
type Class struct {
	// Engines that one redundancy group needs, each in a failure domain of its own.
	Engines int
	// Survives is the number of engines that may be lost at once without losing an object.
	Survives int
}

// The registered classes: a protection and a number of groups. engine/layout has the same tables.
var (
	classGroups   = []string{"1", "2", "4", "6", "8", "12", "16", "32", "X"}
	classReplicas = []int{2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 128}
	// classCells are data and parity cells of erasure codes.
	classCells = [][2]int{{2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 3}, {8, 1}, {8, 2}, {8, 3}, {16, 1}, {16, 2}, {16, 3}}
)

// KnownClasses describes the classes that ParseClass knows.
const KnownClasses = "S1, S2, S4, S6, S8, S12, S16, S32 and SX (no redundancy), RP_<copies>G<groups> such as RP_2GX, " +
	"EC_<data>P<parity>G<groups> such as EC_4P2GX"

// ParseClass reads the name of an object class. ok is false when no such class is registered.
func ParseClass(name string) (class Class, ok bool) {
	if groups, sharded := strings.CutPrefix(name, "S"); sharded {
		return Class{Engines: 1}, slices.Contains(classGroups, groups)
	}
	cut := strings.LastIndexByte(name, 'G')
	if cut < 0 || !slices.Contains(classGroups, name[cut+1:]) {
		return Class{}, false
	}
	protection := name[:cut]
	for _, replicas := range classReplicas {
		if protection == "RP_"+strconv.Itoa(replicas) {
			return Class{Engines: replicas, Survives: replicas - 1}, true
		}
	}
	for _, cells := range classCells {
		if protection == fmt.Sprintf("EC_%dP%d", cells[0], cells[1]) {
			return Class{Engines: cells[0] + cells[1], Survives: cells[1]}, true
		}
	}
	return Class{}, false
}

// DefaultClass is the class of a pool that names none. engine/layout has the same rule.
func DefaultClass(redundancyFactor int32) string {
	if redundancyFactor == 0 {
		return "SX"
	}
	return fmt.Sprintf("RP_%dGX", redundancyFactor+1)
}

// weakClass is the message about a class that keeps less than the pool's redundancy factor says.
func weakClass(object, class string, survives int, redundancyFactor int32) string {
	return fmt.Sprintf("%s: objects of class %s survive the loss of %s at once, redundancyFactor %d asks for more: leave out spec.objectClass, or set it to a class such as %s",
		object, class, Plural(survives, "engine"), redundancyFactor, DefaultClass(redundancyFactor))
}

// unknownClass is the message about a class that does not exist.
func unknownClass(object, class string) string {
	return fmt.Sprintf("%s: object class %q does not exist: set spec.objectClass to one of %s", object, class, KnownClasses)
}
