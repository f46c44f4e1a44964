package sanity

import (
	"slices"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
)

func spec(name string, state types.SpecState) types.SpecReport {
	return types.SpecReport{LeafNodeType: types.NodeTypeIt, LeafNodeText: name, State: state}
}

func TestUnexplained(t *testing.T) {
	tests := map[string]struct {
		specs        []types.SpecReport
		explanations string
		want         []string
	}{
		"skips that are explained are well": {
			specs:        []types.SpecReport{spec("Snapshot works", types.SpecStateSkipped), spec("Volume works", types.SpecStatePassed)},
			explanations: "# why\n\nSnapshot: not served\n",
		},
		"a skip without explanation is a problem": {
			specs: []types.SpecReport{spec("Snapshot works", types.SpecStateSkipped), spec("Volume works", types.SpecStatePassed)},
			want:  []string{"skipped without explanation"},
		},
		"a case that is switched off needs an explanation too": {
			specs: []types.SpecReport{spec("Snapshot works", types.SpecStatePending), spec("Volume works", types.SpecStatePassed)},
			want:  []string{"skipped without explanation"},
		},
		"an explanation without reason is none": {
			specs:        []types.SpecReport{spec("Snapshot works", types.SpecStateSkipped), spec("Volume works", types.SpecStatePassed)},
			explanations: "Snapshot:  ",
			want:         []string{"skipped without explanation"},
		},
		"an explanation of what was not skipped is stale": {
			specs:        []types.SpecReport{spec("Volume works", types.SpecStatePassed)},
			explanations: "Snapshot: not served",
			want:         []string{"not skipped: Snapshot"},
		},
		"a run in which everything is skipped is no run": {
			specs:        []types.SpecReport{spec("Snapshot works", types.SpecStateSkipped)},
			explanations: "Snapshot: not served",
			want:         []string{"no case ran"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := unexplained(ginkgo.Report{SpecReports: tc.specs}, tc.explanations)
			if !slices.EqualFunc(got, tc.want, strings.Contains) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
