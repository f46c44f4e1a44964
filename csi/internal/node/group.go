package node

import (
	"context"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir.dev/weir/csi/internal/mounts"
)

// giveGroup gives the root of a staged volume to the group that a pod asks for (its fsGroup). Pods of a node share the mount,
// and a root has one group: a pod that asks for another one than the pods beside it is refused, which its events tell. A
// volume that is mounted read-only keeps its group.
func (s *Server) giveGroup(ctx context.Context, staged mounts.Mount, request *csi.NodePublishVolumeRequest) error {
	operation := "publish volume " + request.GetVolumeId()
	wanted, err := mountGroup(request.GetVolumeCapability().GetMount().GetVolumeMountGroup())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "%s: %v", operation, err)
	}
	if wanted == 0 || staged.ReadOnly {
		return nil
	}
	path := request.GetStagingTargetPath()
	present, err := ask(ctx, &s.stats, path, s.table.Group)
	if err != nil {
		return status.Errorf(codes.Unavailable, "%s: find the volume's group: %s", operation, status.Convert(err).Message())
	}
	if present == wanted {
		return nil
	}
	entries, err := s.table.List()
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if others := otherPods(entries, staged, request); present != 0 && len(others) > 0 {
		return status.Errorf(codes.FailedPrecondition,
			"%s: the pod asks for fsGroup %d, but the volume belongs to group %d for pods of this node that have it at %s: give all of them the same fsGroup, or run them on different nodes",
			operation, wanted, present, strings.Join(others, ", "))
	}
	give := func(path string) (struct{}, error) { return struct{}{}, s.table.SetGroup(path, wanted) }
	if _, err := ask(ctx, &s.stats, path, give); err != nil {
		return status.Errorf(codes.Unavailable, "%s: give the volume to group %d: %s", operation, wanted, status.Convert(err).Message())
	}
	return nil
}
