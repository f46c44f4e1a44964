package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	mountv1 "weir.dev/weir/client/fuse/proto/mount/v1"
	"weir.dev/weir/csi/internal/mounts"
)

const (
	// restorePeriod is how often the node plugin looks for mounts whose process has ended.
	restorePeriod = 5 * time.Second
	// restoreTimeout bounds one round: a mount that cannot be made now is tried again in the next one.
	restoreTimeout = time.Minute
)

// Loss is a mount whose process has ended: everything that uses it gets "Transport endpoint is not connected".
type Loss struct {
	// Volume is its id.
	Volume string
	// Targets are the paths at which pods of the node have it.
	Targets []string
	// Reason is what the mount daemon says of it.
	Reason string
}

// Reporter tells users about lost mounts.
type Reporter interface {
	// Lost tells that a mount was lost, once for each loss.
	Lost(ctx context.Context, loss Loss)
	// Restored tells that it has been made again, in so many running containers.
	Restored(ctx context.Context, loss Loss, containers int)
	// Failed tells that it could not be made again, at each attempt.
	Failed(ctx context.Context, loss Loss, err error)
}

// Restore makes mounts again whose process has ended, until ctx ends. Pods that run get the new mount in the place of the old
// one; what they have open stays lost.
func (s *Server) Restore(ctx context.Context, logger *slog.Logger, reporter Reporter) error {
	return lookEvery(ctx, restorePeriod, func(known map[string]bool) map[string]bool {
		return s.restoreAll(ctx, logger, reporter, known)
	})
}

// lookEvery looks once in a period, until ctx ends. Each look gets what the one before has returned.
func lookEvery(ctx context.Context, period time.Duration, look func(known map[string]bool) map[string]bool) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	known := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			known = look(known)
		}
	}
}

// restoreAll looks once. It returns the staging paths of what stays lost; those in known have been told of.
func (s *Server) restoreAll(ctx context.Context, logger *slog.Logger, reporter Reporter, known map[string]bool) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	list, err := s.daemon.List(ctx, &mountv1.ListRequest{})
	if err != nil {
		// The readiness probe and weir_csi_mountd_up tell of a daemon that does not answer.
		logger.DebugContext(ctx, "no list of mounts", "error", err)
		return known
	}
	left := map[string]bool{}
	for _, mount := range list.GetMounts() {
		if mount.GetHealth() != mountv1.MountHealth_MOUNT_HEALTH_DEAD || mount.GetVolume() == "" {
			continue
		}
		path := mount.GetTargetPath()
		loss, containers, err := s.restore(ctx, mount, func(loss Loss) {
			if !known[path] {
				reporter.Lost(ctx, loss)
			}
		})
		switch {
		case errors.Is(err, errNotLost):
		case err != nil:
			left[path] = true
			reporter.Failed(ctx, loss, err)
		default:
			reporter.Restored(ctx, loss, containers)
		}
	}
	return left
}

// errNotLost says that a mount lives after all, or is no more.
var errNotLost = errors.New("not lost")

// restore makes one mount again: at its staging path, at the paths of pods, and in the containers that run. Before it changes
// anything it tells of the loss.
func (s *Server) restore(ctx context.Context, lost *mountv1.MountInfo, tell func(Loss)) (loss Loss, containers int, err error) {
	path := lost.GetTargetPath()
	loss = Loss{Volume: lost.GetVolume(), Reason: lost.GetMessage()}
	release, err := s.locks.Acquire(ctx, lost.GetVolume(), "restoring the mount", patience)
	if err != nil {
		return loss, 0, err
	}
	defer release()
	entries, err := s.table.List()
	if err != nil {
		return loss, 0, err
	}
	dead, ok := mounts.At(entries, path)
	if !ok {
		return loss, 0, errNotLost
	}
	if _, err := s.stats.usage(ctx, path); !mounts.Dead(err) {
		return loss, 0, errNotLost
	}
	places := mountedElsewhere(entries, dead, path)
	loss.Targets = pathsOf(places)
	tell(loss)
	unpin, err := s.table.Pin(path)
	if err != nil {
		return loss, 0, err
	}
	defer unpin()
	if _, err := s.daemon.Mount(ctx, again(lost)); err != nil {
		return loss, 0, daemonFailed(err, "make the mount of volume %s at %s again", lost.GetVolume(), path)
	}
	var failures []error
	for _, place := range places {
		failures = append(failures, s.rebind(path, place))
	}
	containers, err = s.table.Replace(dead.Device, path)
	return loss, containers, errors.Join(append(failures, err)...)
}

// rebind shows the new mount at path where the dead one is shown. A subPath is only taken away: the kubelet makes it again with
// the next container.
func (s *Server) rebind(path string, place mounts.Mount) error {
	if err := s.table.Unmount(place.Path); err != nil {
		return fmt.Errorf("remove the dead mount at %s: %w", place.Path, err)
	}
	if place.Root != "/" {
		return nil
	}
	if err := s.table.Bind(path, place.Path, place.ReadOnly); err != nil {
		return fmt.Errorf("show the volume at %s again: %w", place.Path, err)
	}
	return nil
}

// again is the request that a mount was made by.
func again(mount *mountv1.MountInfo) *mountv1.MountRequest {
	return &mountv1.MountRequest{
		System: mount.GetSystem(), Pool: mount.GetPool(), Container: mount.GetContainer(), TargetPath: mount.GetTargetPath(),
		ReadOnly: mount.GetReadOnly(), FsGroup: mount.GetFsGroup(), Options: mount.GetOptions(), Volume: mount.GetVolume(),
	}
}
