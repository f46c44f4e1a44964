package node

import (
	"context"
	"log/slog"
	"slices"
	"testing"
)

// health collects what is told of volumes that wait for engines.
type health struct{ degraded, recovered []Loss }

func (h *health) Degraded(_ context.Context, loss Loss)  { h.degraded = append(h.degraded, loss) }
func (h *health) Recovered(_ context.Context, loss Loss) { h.recovered = append(h.recovered, loss) }

func TestAVolumeThatWaitsForEnginesIsToldOnceAndWhenItServesAgain(t *testing.T) {
	f := start(t)
	f.mustServe(capability(writeMany), "pod")
	reporter := &health{}
	var known map[string]bool
	for step, tc := range []struct {
		reason              string
		degraded, recovered int
	}{
		{"", 0, 0},
		{"engine 1 is away", 0, 0}, // it may be restarting
		{"", 0, 0},
		{"engine 1 is away", 0, 0},
		{"engine 1 is away", 1, 0},
		{"engine 1 is away", 1, 0},
		{"", 1, 1},
		{"", 1, 1},
	} {
		f.node.Degrade(tc.reason)
		known = f.lookAtHealth(f.ctx(), slog.New(slog.DiscardHandler), reporter, known)
		if len(reporter.degraded) != tc.degraded || len(reporter.recovered) != tc.recovered {
			t.Fatalf("step %d: told %+v, want %d and %d", step, reporter, tc.degraded, tc.recovered)
		}
	}
	loss := reporter.degraded[0]
	if loss.Reason != "engine 1 is away" || loss.Volume == "" || !slices.Equal(loss.Targets, []string{f.path("pod")}) {
		t.Errorf("told %+v", loss)
	}
}
