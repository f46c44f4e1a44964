package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir.dev/weir/csi/internal/mounts"
)

// told collects what a reporter is told.
type told struct {
	lost, restored, failed []Loss
	containers             int
}

func (r *told) Lost(_ context.Context, loss Loss) { r.lost = append(r.lost, loss) }
func (r *told) Restored(_ context.Context, loss Loss, containers int) {
	r.restored, r.containers = append(r.restored, loss), containers
}
func (r *told) Failed(_ context.Context, loss Loss, _ error) { r.failed = append(r.failed, loss) }

func (f *fixture) round(reporter Reporter, known map[string]bool) map[string]bool {
	return f.restoreAll(f.ctx(), slog.New(slog.DiscardHandler), reporter, known)
}

func TestALostMountIsMadeAgainWhereverPodsHaveIt(t *testing.T) {
	f := start(t)
	f.mustServe(capability(writeMany), "pod-1")
	want(t, f.publishAs("pod-2", capability(writeMany), true), codes.OK)
	f.node.Enter(f.path("pod-1"))
	reporter := &told{}
	if known := f.round(reporter, nil); len(known) != 0 || len(reporter.lost) != 0 {
		t.Fatalf("a living mount was taken for a lost one: %+v", reporter)
	}
	f.node.KillServer()
	f.round(reporter, nil)
	if len(reporter.lost) != 1 || len(reporter.restored) != 1 || len(reporter.failed) != 0 || reporter.containers != 1 {
		t.Fatalf("told %+v, want one loss, restored in one container", reporter)
	}
	if targets := []string{f.path("pod-1"), f.path("pod-2")}; !slices.Equal(reporter.lost[0].Targets, targets) {
		t.Errorf("targets %v, want %v", reporter.lost[0].Targets, targets)
	}
	entries, _ := f.node.List()
	for _, path := range []string{stagingName, "pod-1", "pod-2"} {
		entry, ok := mounts.At(entries, f.path(path))
		if _, err := f.node.Usage(f.path(path)); !ok || err != nil || entry.Device == ownDevices {
			t.Errorf("%s: %+v, %v; want the new mount", path, entry, err)
		}
		if entry.ReadOnly != (path == "pod-2") {
			t.Errorf("%s: read-only %t", path, entry.ReadOnly)
		}
	}
	if containers := f.node.Containers(); containers[0].Device == ownDevices {
		t.Error("the running container keeps the dead mount")
	}
	f.round(reporter, nil)
	if len(reporter.lost) != 1 || len(reporter.restored) != 1 {
		t.Errorf("told again: %+v", reporter)
	}
}

func TestALossIsToldOnceHoweverLongItLasts(t *testing.T) {
	f := start(t)
	f.mustServe(capability(writeMany), "pod")
	f.node.KillServer()
	reporter := &told{}
	f.node.RefuseMounts(status.Error(codes.Unavailable, "engines are away"))
	known := f.round(reporter, nil)
	known = f.round(reporter, known)
	if len(reporter.lost) != 1 || len(reporter.failed) != 2 {
		t.Fatalf("told %+v, want one loss and two failures", reporter)
	}
	f.node.RefuseMounts(nil)
	if known = f.round(reporter, known); len(known) != 0 || len(reporter.restored) != 1 {
		t.Errorf("told %+v, want it restored", reporter)
	}
}

func TestASecondPodsGroup(t *testing.T) {
	f := start(t)
	grouped := func(group string) error {
		asked := capability(writeMany)
		asked.GetMount().VolumeMountGroup = group
		return f.publishAs("pod-"+group, asked, false)
	}
	f.mustServe(capability(writeMany), "pod-without")
	want(t, grouped("2000"), codes.OK)
	if group, _ := f.node.Group(f.path(stagingName)); group != 2000 {
		t.Errorf("the root has group %d, want 2000", group)
	}
	want(t, grouped("2000"), codes.OK)
	want(t, grouped("3000"), codes.FailedPrecondition, "fsGroup 3000", "group 2000", f.path("pod-2000"))
	want(t, f.unpublish("pod-2000"), codes.OK)
	want(t, f.unpublish("pod-without"), codes.OK)
	want(t, grouped("3000"), codes.OK)
	if group, _ := f.node.Group(f.path(stagingName)); group != 3000 {
		t.Errorf("the root has group %d, want 3000", group)
	}
	if errors.Is(grouped("wheel"), nil) {
		t.Error("a group that is no number is accepted")
	}
}
