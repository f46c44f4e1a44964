// Package node is the CSI node service: it has volumes mounted by the node's mount daemon and shows them to pods.
//
// It keeps no state: what is staged and published is read from the mount table, which the node plugin's restart does not
// change. A volume's staging mount and the bind mounts of its pods have the same device.
package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mountv1 "weir.dev/weir/client/fuse/proto/mount/v1"
	"weir.dev/weir/csi/internal/mounts"
	"weir.dev/weir/csi/internal/oplock"
	"weir.dev/weir/csi/volume"
)

// patience is how long an operation waits for another one on the same volume: pods of one node that start together are
// published one after the other, in milliseconds each, and see no error. A longer one waits for engines.
const patience = 5 * time.Second

// directoryMode is the mode of directories that a volume is mounted on. It is seen only while nothing is mounted.
const directoryMode = 0o750

// optionIntercept is the mount option by which programs may access files past the mount, and find the libraries for it on the mount.
const optionIntercept = "intercept"

// Server serves csi.Node.
type Server struct {
	csi.UnimplementedNodeServer

	name   string
	daemon mountv1.MountsClient
	table  mounts.Table
	locks  oplock.Locks
	stats  statistics
}

var _ csi.NodeServer = (*Server)(nil)

// New returns the node service of the node called name.
func New(name string, daemon mountv1.MountsClient, table mounts.Table) *Server {
	return &Server{name: name, daemon: daemon, table: table, stats: statistics{table: table}}
}

// NodeGetInfo names the node.
func (s *Server) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: s.name}, nil
}

// NodeGetCapabilities says what the service does.
func (s *Server) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}},
		})
	}
	return answer, nil
}

// NodeStageVolume mounts a volume at the staging path, for all pods of the node.
func (s *Server) NodeStageVolume(ctx context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	operation := "stage volume " + request.GetVolumeId()
	if err := absolute(request.GetStagingTargetPath(), "staging_target_path", operation); err != nil {
		return nil, err
	}
	if err := volume.CheckCapability(request.GetVolumeCapability()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%s: %v", operation, err)
	}
	id, err := volumeID(request.GetVolumeId(), "stage volume")
	if err != nil {
		return nil, err
	}
	own, err := credentials(request.GetSecrets())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%s: %v", operation, err)
	}
	release, err := s.locks.Acquire(ctx, request.GetVolumeId(), "NodeStageVolume", patience)
	if err != nil {
		return nil, err
	}
	defer release()
	mount, err := mountRequest(id, request.GetStagingTargetPath(), request)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%s: %v", operation, err)
	}
	mount.Credentials = own
	if _, err := s.stage(ctx, mount); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// stage has the daemon mount a volume, with credentials of its own if there are, and returns the mount as the node plugin sees it. A
// mount that is there and alive stays as it is; one whose server is gone is replaced, without credentials by one with those that the
// daemon keeps of it.
func (s *Server) stage(ctx context.Context, request *mountv1.MountRequest) (mounts.Mount, error) {
	id, path := request.GetVolume(), request.GetTargetPath()
	entries, err := s.table.List()
	if err != nil {
		return mounts.Mount{}, status.Error(codes.Internal, err.Error())
	}
	// What a mount lies on exists. It is not looked at: that may wait for engines for as long as the mount does.
	if _, mounted := mounts.At(entries, path); !mounted {
		if err := os.MkdirAll(path, directoryMode); err != nil {
			return mounts.Mount{}, status.Errorf(codes.Internal, "stage volume %s: make the staging directory: %v", id, err)
		}
	}
	if _, err := s.daemon.Mount(ctx, request); err != nil {
		return mounts.Mount{}, daemonFailed(err, "stage volume %s at %s", id, path)
	}
	if entries, err = s.table.List(); err != nil {
		return mounts.Mount{}, status.Error(codes.Internal, err.Error())
	}
	staged, ok := mounts.At(entries, path)
	if !ok {
		return mounts.Mount{}, status.Errorf(codes.Internal,
			"stage volume %s: weir-mountd has mounted it at %s, but the mount is not visible to the node plugin: both need the kubelet's folder with mountPropagation Bidirectional",
			id, path)
	}
	return staged, nil
}

// mountRequest returns what the daemon is asked for by a request to stage or publish. Asking again for the same gives the same request.
func mountRequest(id volume.ID, path string, asked interface {
	GetVolumeCapability() *csi.VolumeCapability
	GetVolumeContext() map[string]string
}) (*mountv1.MountRequest, error) {
	capability := asked.GetVolumeCapability()
	intercepts, err := volume.Intercepts(asked.GetVolumeContext())
	if err != nil {
		return nil, err
	}
	group, err := mountGroup(capability.GetMount().GetVolumeMountGroup())
	if err != nil {
		return nil, err
	}
	request := &mountv1.MountRequest{
		System: id.System, Pool: id.Pool, Container: id.Container, TargetPath: path,
		ReadOnly: volume.ReaderOnly(capability), FsGroup: group, Volume: id.String(),
	}
	for _, flag := range capability.GetMount().GetMountFlags() {
		switch flag {
		case "ro":
			request.ReadOnly = true
		case "rw":
		default:
			request.Options = append(request.Options, flag)
		}
	}
	if intercepts {
		request.Options = append(request.Options, optionIntercept)
	}
	slices.Sort(request.Options)
	request.Options = slices.Compact(request.Options)
	return request, nil
}

// NodeUnstageVolume removes the mount at the staging path. Already removed is well.
func (s *Server) NodeUnstageVolume(ctx context.Context, request *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	// The id is not parsed: whatever is staged must be possible to remove.
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "unstage volume: the volume id is missing")
	}
	path := request.GetStagingTargetPath()
	if err := absolute(path, "staging_target_path", "unstage volume "+request.GetVolumeId()); err != nil {
		return nil, err
	}
	release, err := s.locks.Acquire(ctx, request.GetVolumeId(), "NodeUnstageVolume", patience)
	if err != nil {
		return nil, err
	}
	defer release()
	entries, err := s.table.List()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	staged, ok := mounts.At(entries, path)
	if ok {
		if targets := pathsOf(mountedElsewhere(entries, staged, path)); len(targets) > 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "unstage volume %s: it is still published at %s: unpublish it first",
				request.GetVolumeId(), strings.Join(targets, ", "))
		}
	}
	// The daemon is asked even if nothing is mounted: it may hold a mount of which the plugin sees nothing.
	if _, err := s.daemon.Unmount(ctx, &mountv1.UnmountRequest{TargetPath: path}); err != nil {
		if !ok || !s.removeDead(ctx, path) {
			return nil, daemonFailed(err, "unstage volume %s from %s", request.GetVolumeId(), path)
		}
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// removeDead removes the mount at path if its server is gone, so that a volume can be unstaged while no daemon runs.
func (s *Server) removeDead(ctx context.Context, path string) bool {
	_, err := s.stats.usage(ctx, path)
	return mounts.Dead(err) && s.table.Unmount(path) == nil
}

// NodePublishVolume shows a staged volume to a pod.
func (s *Server) NodePublishVolume(ctx context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	operation := "publish volume " + request.GetVolumeId()
	if err := absolute(request.GetTargetPath(), "target_path", operation); err != nil {
		return nil, err
	}
	if err := volume.CheckCapability(request.GetVolumeCapability()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%s: %v", operation, err)
	}
	if request.GetStagingTargetPath() == "" {
		return nil, status.Errorf(codes.FailedPrecondition, "%s: staging_target_path is missing: stage the volume first", operation)
	}
	if err := absolute(request.GetStagingTargetPath(), "staging_target_path", operation); err != nil {
		return nil, err
	}
	id, err := volumeID(request.GetVolumeId(), "publish volume")
	if err != nil {
		return nil, err
	}
	release, err := s.locks.Acquire(ctx, request.GetVolumeId(), "NodePublishVolume", patience)
	if err != nil {
		return nil, err
	}
	defer release()
	staged, err := s.staged(ctx, id, request)
	if err != nil {
		return nil, err
	}
	if err := s.giveGroup(ctx, staged, request); err != nil {
		return nil, err
	}
	if err := s.publish(ctx, staged, request); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// staged returns the staging mount of a volume. One that has been lost since it was made, as when the mount daemon was
// killed, is made again, so that new pods of the node find the volume working. One that lives stays as the first pod of
// the node has it: a later pod may have another fsGroup.
func (s *Server) staged(ctx context.Context, id volume.ID, request *csi.NodePublishVolumeRequest) (mounts.Mount, error) {
	path := request.GetStagingTargetPath()
	entries, err := s.table.List()
	if err != nil {
		return mounts.Mount{}, status.Error(codes.Internal, err.Error())
	}
	present, ok := mounts.At(entries, path)
	if ok {
		_, err := s.stats.usage(ctx, path)
		if err == nil {
			return present, nil
		}
		if !mounts.Dead(err) {
			return mounts.Mount{}, status.Errorf(codes.Unavailable, "publish volume %s: %s", id, status.Convert(err).Message())
		}
	}
	mount, err := mountRequest(id, path, request)
	if err != nil {
		return mounts.Mount{}, status.Errorf(codes.InvalidArgument, "publish volume %s: %v", id, err)
	}
	return s.stage(ctx, mount)
}

// publish binds the staging mount at the target path, unless it is there already.
func (s *Server) publish(ctx context.Context, staged mounts.Mount, request *csi.NodePublishVolumeRequest) error {
	target, operation := request.GetTargetPath(), "publish volume "+request.GetVolumeId()
	readOnly := request.GetReadonly() || volume.ReaderOnly(request.GetVolumeCapability()) || staged.ReadOnly
	entries, err := s.table.List()
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	others := otherPods(entries, staged, request)
	if volume.SinglePod(request.GetVolumeCapability()) && len(others) > 0 {
		return status.Errorf(codes.FailedPrecondition,
			"%s: its access mode allows one pod (ReadWriteOncePod), and it is already published at %s: delete the other pod, or use access mode ReadWriteOnce or ReadWriteMany",
			operation, strings.Join(others, ", "))
	}
	if present, ok := mounts.At(entries, target); ok {
		// A file system that hangs is not dead: the pod waits with it.
		switch _, err := s.stats.usage(ctx, target); {
		case mounts.Dead(err):
			if err := s.table.Unmount(target); err != nil {
				return status.Errorf(codes.Internal, "%s: remove the dead mount: %v", operation, err)
			}
		case present.Device != staged.Device:
			return status.Errorf(codes.AlreadyExists, "%s: something else is mounted at %s", operation, target)
		case readOnly && !present.ReadOnly:
			// The first of the two steps of an attempt that was cut off. One target belongs to one pod, which has the volume
			// read-only or not for as long as it lives.
			if err := s.table.Restrict(target); err != nil {
				return status.Errorf(codes.Internal, "%s: %v", operation, err)
			}
			return nil
		case present.ReadOnly != readOnly:
			return status.Errorf(codes.AlreadyExists, "%s: it is published at %s with readonly %t, not %t", operation, target, present.ReadOnly, readOnly)
		default:
			return nil
		}
	}
	if err := os.MkdirAll(target, directoryMode); err != nil {
		return status.Errorf(codes.Internal, "%s: make the target directory: %v", operation, err)
	}
	if err := s.table.Bind(request.GetStagingTargetPath(), target, readOnly); err != nil {
		return status.Errorf(codes.Internal, "%s: %v", operation, errors.Join(err, removeDirectory(target)))
	}
	return nil
}

// otherPods returns where pods other than the one of the request have the volume.
func otherPods(entries []mounts.Mount, staged mounts.Mount, request *csi.NodePublishVolumeRequest) []string {
	elsewhere := mountedElsewhere(entries, staged, request.GetStagingTargetPath())
	return pathsOf(slices.DeleteFunc(elsewhere, func(entry mounts.Mount) bool {
		// A subPath belongs to a pod that has the whole volume, too.
		return entry.Path == request.GetTargetPath() || entry.Root != "/"
	}))
}

// NodeUnpublishVolume takes a volume from a pod. Already taken is well.
func (s *Server) NodeUnpublishVolume(ctx context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "unpublish volume: the volume id is missing")
	}
	operation, target := "unpublish volume "+request.GetVolumeId(), request.GetTargetPath()
	if err := absolute(target, "target_path", operation); err != nil {
		return nil, err
	}
	release, err := s.locks.Acquire(ctx, request.GetVolumeId(), "NodeUnpublishVolume", patience)
	if err != nil {
		return nil, err
	}
	defer release()
	entries, err := s.table.List()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	// Mounts may lie on one another, when publishing was repeated after a crash between its steps.
	for _, entry := range entries {
		if entry.Path != target {
			continue
		}
		if err := s.table.Unmount(target); err != nil && !errors.Is(err, mounts.ErrNotMounted) {
			return nil, status.Errorf(codes.Internal, "%s: %v", operation, err)
		}
	}
	if err := removeDirectory(target); err != nil {
		return nil, status.Errorf(codes.Internal, "%s: remove the target directory: %v", operation, err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// removeDirectory removes an empty directory. It never removes a file, nor anything in the directory: were a mount still there,
// the volume's files would be lost.
func removeDirectory(path string) error {
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return &os.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}

// mountedElsewhere returns where the file system of a staging mount is mounted besides its staging path.
func mountedElsewhere(entries []mounts.Mount, staged mounts.Mount, stagingPath string) []mounts.Mount {
	return slices.DeleteFunc(slices.Clone(entries), func(entry mounts.Mount) bool {
		return entry.Device != staged.Device || entry.Path == stagingPath
	})
}

// pathsOf returns the paths of mounts, each once, in order.
func pathsOf(entries []mounts.Mount) []string {
	var paths []string
	for _, entry := range entries {
		paths = append(paths, entry.Path)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// volumeID reads the id of a volume that must exist.
func volumeID(text, operation string) (volume.ID, error) {
	if text == "" {
		return volume.ID{}, status.Errorf(codes.InvalidArgument, "%s: the volume id is missing", operation)
	}
	id, err := volume.ParseID(text)
	if err != nil {
		return volume.ID{}, status.Errorf(codes.NotFound, "%s: %v", operation, err)
	}
	return id, nil
}

// absolute checks a path of a request.
func absolute(path, field, operation string) error {
	switch {
	case path == "":
		return status.Errorf(codes.InvalidArgument, "%s: %s is missing", operation, field)
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return status.Errorf(codes.InvalidArgument, "%s: %s %q is not an absolute path without '..' and '//'", operation, field, path)
	default:
		return nil
	}
}

// daemonFailed returns the status of a call to the mount daemon that failed, with what it was made for.
func daemonFailed(err error, format string, arguments ...any) error {
	code, message := status.Code(err), status.Convert(err).Message()
	if code == codes.Unavailable || code == codes.DeadlineExceeded {
		message = "weir-mountd does not answer or cannot reach the engines: " + message
	}
	return status.Errorf(code, "%s: %s", fmt.Sprintf(format, arguments...), message)
}
