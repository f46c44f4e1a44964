package oplock

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestOperationsOnOneVolumeTakeTurns(t *testing.T) {
	var (
		locks   Locks
		workers sync.WaitGroup
		inside  int
	)
	for range 20 {
		workers.Go(func() {
			release, err := locks.Acquire(t.Context(), "a", "Publish", time.Minute)
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			// The race detector and the sum tell if two are inside at once.
			inside++
		})
	}
	workers.Wait()
	if inside != 20 {
		t.Errorf("%d operations had their turn, want 20", inside)
	}
}

func TestAVolumeDoesNotWaitForAnother(t *testing.T) {
	var locks Locks
	if _, err := locks.Acquire(t.Context(), "a", "Stage", 0); err != nil {
		t.Fatal(err)
	}
	release, err := locks.Acquire(t.Context(), "b", "Stage", 0)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

func TestWaitingEnds(t *testing.T) {
	var locks Locks
	release, err := locks.Acquire(t.Context(), "a", "NodeStageVolume", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.Acquire(t.Context(), "a", "NodePublishVolume", time.Millisecond); status.Code(err) != codes.Aborted ||
		!strings.Contains(err.Error(), "NodeStageVolume is still under way") {
		t.Errorf("got %v, want Aborted naming the other operation", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := locks.Acquire(ctx, "a", "NodePublishVolume", time.Minute); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
	release()
	if _, err := locks.Acquire(t.Context(), "a", "NodePublishVolume", 0); err != nil {
		t.Errorf("after the release: %v", err)
	}
}
