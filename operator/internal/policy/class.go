package policy

import (
	"fmt"
	"regexp"
	"strconv"
)

// Class is what an object class asks of a pool.
type Class struct {
	// Copies is the number of engines that one redundancy group needs, each in a failure domain of its own.
	Copies int
	// Lost is the number of those engines that may be lost at once without losing data.
	Lost int
}

var (
	shardedClass    = regexp.MustCompile(`^S([1-9][0-9]{0,3}|X)$`)
	replicatedClass = regexp.MustCompile(`^RP_([2-6])G([1-9][0-9]{0,3}|X)$`)
	erasureClass    = regexp.MustCompile(`^EC_(2|4|8|16)P([123])G([1-9][0-9]{0,3}|X)$`)
)

// KnownClasses describes the classes that ParseClass knows.
const KnownClasses = "S<n> and SX (no redundancy), RP_<copies>G<groups> and RP_<copies>GX (2 to 6 copies), " +
	"EC_<data>P<parity>G<groups> and EC_<data>P<parity>GX (data 2, 4, 8 or 16; parity 1 to 3)"

// ParseClass reads the name of an object class. ok is false when no such class exists.
func ParseClass(name string) (class Class, ok bool) {
	if shardedClass.MatchString(name) {
		return Class{Copies: 1}, true
	}
	if m := replicatedClass.FindStringSubmatch(name); m != nil {
		copies, err := strconv.Atoi(m[1])
		return Class{Copies: copies, Lost: copies - 1}, err == nil
	}
	if m := erasureClass.FindStringSubmatch(name); m != nil {
		data, errData := strconv.Atoi(m[1])
		parity, errParity := strconv.Atoi(m[2])
		return Class{Copies: data + parity, Lost: parity}, errData == nil && errParity == nil
	}
	return Class{}, false
}

// unknownClass is the message about a class that does not exist.
func unknownClass(object, class string) string {
	return fmt.Sprintf("%s: object class %q does not exist: set spec.objectClass to one of %s", object, class, KnownClasses)
}
