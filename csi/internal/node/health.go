package node

import (
	"context"
	"log/slog"
	"time"

	mountv1 "weir.dev/weir/client/fuse/proto/mount/v1"
	"weir.dev/weir/csi/internal/mounts"
)

// healthPeriod is how often the node plugin looks for volumes that wait for engines. Users are told of those that two looks in a row
// have found so: a restart of an engine is over before.
const healthPeriod = 15 * time.Second

// HealthReporter tells users about volumes that wait for engines.
type HealthReporter interface {
	// Degraded tells that a volume waits for engines, once until it serves again.
	Degraded(ctx context.Context, loss Loss)
	// Recovered tells that it serves again.
	Recovered(ctx context.Context, loss Loss)
}

// WatchHealth tells of volumes that wait for engines, until ctx ends.
func (s *Server) WatchHealth(ctx context.Context, logger *slog.Logger, reporter HealthReporter) error {
	return lookEvery(ctx, healthPeriod, func(known map[string]bool) map[string]bool {
		return s.lookAtHealth(ctx, logger, reporter, known)
	})
}

// lookAtHealth looks once. It returns the staging paths of mounts that wait for engines, with true for those that were told of; known are
// those of the look before.
func (s *Server) lookAtHealth(ctx context.Context, logger *slog.Logger, reporter HealthReporter, known map[string]bool) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, healthPeriod)
	defer cancel()
	list, err := s.daemon.List(ctx, &mountv1.ListRequest{})
	var entries []mounts.Mount
	if err == nil {
		entries, err = s.table.List()
	}
	if err != nil {
		// The readiness probe and weir_csi_mountd_up tell of a daemon that does not answer.
		logger.DebugContext(ctx, "health of volumes is not known", "error", err)
		return known
	}
	next := map[string]bool{}
	for _, mount := range list.GetMounts() {
		path := mount.GetTargetPath()
		told, before := known[path]
		loss := Loss{Volume: mount.GetVolume(), Reason: mount.GetMessage()}
		if staged, ok := mounts.At(entries, path); ok {
			loss.Targets = pathsOf(mountedElsewhere(entries, staged, path))
		}
		switch {
		case mount.GetVolume() == "":
		case mount.GetHealth() == mountv1.MountHealth_MOUNT_HEALTH_DEGRADED:
			if before && !told {
				reporter.Degraded(ctx, loss)
			}
			next[path] = before
		case mount.GetHealth() == mountv1.MountHealth_MOUNT_HEALTH_SERVING && told:
			reporter.Recovered(ctx, loss)
		}
	}
	return next
}
