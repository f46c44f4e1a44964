package status

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Older tells which of two objects for the same thing was there first, and so owns it.
func Older(a, b metav1.Object) bool {
	ta, tb := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	if ta.Equal(&tb) {
		return a.GetName() < b.GetName()
	}
	return ta.Before(&tb)
}
