package node

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mountv1 "weir.dev/weir/client/fuse/proto/mount/v1"
	"weir.dev/weir/csi/internal/mounts"
	"weir.dev/weir/csi/volume"
)

// statfsTimeout bounds how long a call waits for statfs. The mount daemon answers it from memory, in microseconds; a
// daemon that needs this long hangs.
const statfsTimeout = 5 * time.Second

// mountGroup reads the group of a volume: the decimal number that Kubernetes gives, 0 for none.
func mountGroup(text string) (uint32, error) {
	if text == "" {
		return 0, nil
	}
	group, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("volume_mount_group %q is not a numeric group id", text)
	}
	return uint32(group), nil
}

// statistics asks file systems for their usage, with a bound on the time and on the threads that wait.
type statistics struct {
	table mounts.Table

	mu      sync.Mutex
	waiting map[string]bool
}

// usage asks the file system at path for its usage.
func (s *statistics) usage(ctx context.Context, path string) (mounts.Usage, error) {
	return ask(ctx, s, path, s.table.Usage)
}

// answered is what a file system says.
type answered[T any] struct {
	answer T
	err    error
}

// ask asks the file system at path. A thread that waits for a file system that hangs cannot be called back: while one
// waits for a path no second one joins it.
func ask[T any](ctx context.Context, s *statistics, path string, question func(path string) (T, error)) (T, error) {
	var none T
	s.mu.Lock()
	if s.waiting[path] {
		s.mu.Unlock()
		return none, status.Errorf(codes.Unavailable, "the file system at %s has not answered an earlier question: see the log of weir-mountd on this node", path)
	}
	if s.waiting == nil {
		s.waiting = map[string]bool{}
	}
	s.waiting[path] = true
	s.mu.Unlock()
	answers := make(chan answered[T], 1)
	go func() {
		answer, err := question(path)
		s.mu.Lock()
		delete(s.waiting, path)
		s.mu.Unlock()
		answers <- answered[T]{answer: answer, err: err}
	}()
	ctx, cancel := context.WithTimeout(ctx, statfsTimeout)
	defer cancel()
	select {
	case got := <-answers:
		return got.answer, got.err
	case <-ctx.Done():
		return none, status.Errorf(codes.DeadlineExceeded, "the file system at %s does not answer: see the log of weir-mountd on this node", path)
	}
}

// NodeGetVolumeStats returns a volume's usage, as statfs gives it. No file is looked at, so the time it takes does not
// depend on how many there are.
func (s *Server) NodeGetVolumeStats(ctx context.Context, request *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	operation, path := "get stats of volume "+request.GetVolumeId(), request.GetVolumePath()
	if path == "" {
		return nil, status.Errorf(codes.InvalidArgument, "%s: volume_path is missing", operation)
	}
	if _, err := volumeID(request.GetVolumeId(), "get volume stats"); err != nil {
		return nil, err
	}
	entries, err := s.table.List()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if _, ok := mounts.At(entries, path); !ok {
		return nil, status.Errorf(codes.NotFound, "%s: nothing is mounted at %s", operation, path)
	}
	usage, err := s.stats.usage(ctx, path)
	if err != nil {
		code := status.Code(err)
		if code == codes.Unknown {
			code = codes.Internal
		}
		return nil, status.Errorf(code, "%s: %s", operation, status.Convert(err).Message())
	}
	answer := &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{
		Unit: csi.VolumeUsage_BYTES, Total: volume.Bytes(usage.TotalBytes),
		Available: volume.Bytes(usage.FreeBytes), Used: volume.Bytes(usage.UsedBytes),
	}}}
	if usage.TotalInodes > 0 {
		answer.Usage = append(answer.Usage, &csi.VolumeUsage{
			Unit: csi.VolumeUsage_INODES, Total: volume.Bytes(usage.TotalInodes),
			Available: volume.Bytes(usage.FreeInodes), Used: volume.Bytes(usage.UsedInodes),
		})
	}
	return answer, nil
}

// NodeGetVolumeHealth says what is wrong with a volume on this node, as the mount daemon sees it.
func (s *Server) NodeGetVolumeHealth(ctx context.Context, request *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	id, err := volumeID(request.GetVolumeId(), "get volume health")
	if err != nil {
		return nil, err
	}
	list, err := s.daemon.List(ctx, &mountv1.ListRequest{})
	if err != nil {
		return nil, daemonFailed(err, "get health of volume %s", id)
	}
	state := &csi.VolumeHealth{VolumeId: request.GetVolumeId()}
	for _, mount := range list.GetMounts() {
		if mount.GetVolume() != id.String() {
			continue
		}
		entry := &csi.VolumeHealth_VolumeHealthEntry{Message: mount.GetMessage()}
		switch mount.GetHealth() {
		case mountv1.MountHealth_MOUNT_HEALTH_DEGRADED:
			entry.Status, entry.Reason = csi.VolumeHealthErrorType_DEGRADED, "EnginesUnreachable"
		case mountv1.MountHealth_MOUNT_HEALTH_DEAD:
			entry.Status, entry.Reason = csi.VolumeHealthErrorType_INACCESSIBLE, "MountDead"
		default:
			continue
		}
		state.HealthStatuses = append(state.HealthStatuses, entry)
		break
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: state}, nil
}

// NodeGetStorageHealth says whether the node's mount daemon serves.
func (s *Server) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	answer := &csi.NodeGetStorageHealthResponse{}
	if _, err := s.daemon.List(ctx, &mountv1.ListRequest{}); err != nil {
		answer.BackendHealth = append(answer.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: csi.StorageHealthErrorType_STORAGE_UNREACHABLE, Reason: "MountDaemonUnavailable",
			Message: daemonFailed(err, "list mounts").Error(),
		})
	}
	return answer, nil
}
