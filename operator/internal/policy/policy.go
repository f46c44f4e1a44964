// Package policy decides, from facts alone, what is wrong with an object. Each check looks at one thing; a chain asks
// its checks in order and the first that fails gives the reason and message of a condition.
package policy

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Check looks at one thing of the facts in. When it fails it gives a condition reason, and a message that says what
// is wrong, of which object, and what to do.
type Check[In any] func(in In) (reason, message string, failed bool)

// Chain is an ordered list of checks.
type Chain[In any] []Check[In]

// Evaluate returns what the first failing check says, or failed false when all pass.
func (c Chain[In]) Evaluate(in In) (reason, message string, failed bool) {
	for _, check := range c {
		if reason, message, failed := check(in); failed {
			return reason, message, true
		}
	}
	return "", "", false
}

// Bytes writes a number of bytes as people write it in a manifest, rounded down to three digits.
func Bytes(n int64) string {
	for _, unit := range []struct {
		name string
		size int64
	}{{"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}} {
		if n >= unit.size {
			if n%unit.size == 0 {
				return fmt.Sprintf("%d%s", n/unit.size, unit.name)
			}
			return fmt.Sprintf("%d.%d%s", n/unit.size, n%unit.size*10/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%d", n)
}

// exactBelow is the number of units below which a rounded quantity would lose its second digit.
const exactBelow = 64

// Quantity is n bytes as a quantity that people can read: large amounts are rounded down to whole Mi, then Ki.
func Quantity(n int64) *resource.Quantity {
	for _, unit := range []int64{1 << 20, 1 << 10} {
		if n >= exactBelow*unit {
			n = n / unit * unit
			break
		}
	}
	return resource.NewQuantity(n, resource.BinarySI)
}

// rankList writes ranks as "0, 2 and 5".
func rankList(ranks []int32) string {
	sorted := slices.Clone(ranks)
	slices.Sort(sorted)
	words := make([]string, 0, len(sorted))
	for _, r := range sorted {
		words = append(words, fmt.Sprintf("%d", r))
	}
	switch len(words) {
	case 0:
		return "none"
	case 1:
		return words[0]
	default:
		return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
	}
}

// Plural adds an s to a noun unless n is one.
func Plural(n int, noun string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
