package status

import (
	"fmt"
	"slices"
	"strings"
)

// MaxListed is how many dependents a message names.
const MaxListed = 10

// List sorts names and joins them, not more than a message can hold.
func List(names []string) string { return ListSome(names, MaxListed) }

// ListSome sorts names and joins a number of them at most.
func ListSome(names []string, most int) string {
	slices.Sort(names)
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
