package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"weir.dev/weir/csi/volume"
	"weir.dev/weir/engine/proto/management/dial"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// found is a volume with the pool that holds it.
type found struct {
	volume *csi.Volume
	pool   *managementv1.PoolInfo
}

// ListVolumes lists what can be mounted: every POSIX container of every pool, also those that the driver has not made, in
// order of id.
func (s *Server) ListVolumes(ctx context.Context, request *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	page, next, err := s.page(ctx, request.GetStartingToken(), request.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	answer := &csi.ListVolumesResponse{NextToken: next}
	for _, entry := range page {
		answer.Entries = append(answer.Entries, &csi.ListVolumesResponse_Entry{Volume: entry.volume})
	}
	return answer, nil
}

// ControllerGetVolume describes a volume.
func (s *Server) ControllerGetVolume(ctx context.Context, request *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	id, err := requiredID(request.GetVolumeId(), "get volume")
	if err != nil {
		return nil, err
	}
	system, container, err := s.find(ctx, id)
	if err != nil {
		return nil, err
	}
	described := describe(system, container)
	// A static volume is described by the id that the caller knows it by.
	described.VolumeId = request.GetVolumeId()
	return &csi.ControllerGetVolumeResponse{Volume: described, Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}, nil
}

// ControllerGetVolumeHealth says what is wrong with a volume, as its pool's engines see it.
func (s *Server) ControllerGetVolumeHealth(ctx context.Context, request *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	id, err := requiredID(request.GetVolumeId(), "get volume health")
	if err != nil {
		return nil, err
	}
	system, _, err := s.find(ctx, id)
	if err != nil {
		return nil, err
	}
	pool, err := system.Pools().Query(ctx, &managementv1.PoolQueryRequest{Pool: id.Pool})
	if err != nil {
		return nil, failed(err, "get health of volume %s: query its pool", id)
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: health(request.GetVolumeId(), pool.GetPool())}, nil
}

// ControllerListVolumeHealth lists the volumes that something is wrong with.
func (s *Server) ControllerListVolumeHealth(ctx context.Context, request *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	page, next, err := s.page(ctx, request.GetStartingToken(), request.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	answer := &csi.ControllerListVolumeHealthResponse{NextToken: next}
	for _, entry := range page {
		if state := health(entry.volume.GetVolumeId(), entry.pool); len(state.GetHealthStatuses()) > 0 {
			answer.Entries = append(answer.Entries, state)
		}
	}
	return answer, nil
}

// health derives a volume's health from its pool's state. Without redundancy a lost engine makes its share of the data
// unavailable until it is back.
func health(id string, pool *managementv1.PoolInfo) *csi.VolumeHealth {
	state := &csi.VolumeHealth{VolumeId: id}
	lost, all := len(pool.GetUnreachableRanks()), len(pool.GetRanks())
	entry := &csi.VolumeHealth_VolumeHealthEntry{
		Message: fmt.Sprintf("%d of %d engines of pool %s do not answer (ranks %v)", lost, all, pool.GetLabel(), pool.GetUnreachableRanks()),
	}
	switch lost {
	case 0:
		return state
	case all:
		entry.Status, entry.Reason = csi.VolumeHealthErrorType_INACCESSIBLE, "AllEnginesUnreachable"
	default:
		entry.Status, entry.Reason = csi.VolumeHealthErrorType_DEGRADED, "EnginesUnreachable"
	}
	state.HealthStatuses = append(state.HealthStatuses, entry)
	return state
}

// GetCapacity returns what is free in the pool that the parameters name, or in all pools.
func (s *Server) GetCapacity(ctx context.Context, request *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if capabilities := request.GetVolumeCapabilities(); len(capabilities) > 0 && volume.CheckCapabilities(capabilities) != nil {
		// No storage serves such a volume.
		return &csi.GetCapacityResponse{}, nil
	}
	parameters, err := volume.ParseParameters(request.GetParameters())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "get capacity: %v", err)
	}
	systems, err := s.chosen(parameters.Cluster)
	if err != nil {
		return nil, err
	}
	var free, largest uint64
	for _, system := range systems {
		pools, err := system.Pools().List(ctx, &managementv1.PoolListRequest{})
		if err != nil {
			return nil, failed(err, "get capacity: list pools of cluster %s", system.Attachment().System)
		}
		for _, pool := range pools.GetPools() {
			if parameters.Pool == "" || parameters.Pool == pool.GetLabel() {
				free += pool.GetFreeBytes()
				largest = max(largest, pool.GetSizeBytes())
			}
		}
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: volume.Bytes(free),
		MaximumVolumeSize: wrapperspb.Int64(volume.Bytes(largest)),
	}, nil
}

func (s *Server) chosen(cluster string) ([]*dial.System, error) {
	if cluster == "" {
		return s.systems.All()
	}
	system, err := s.systems.Get(cluster)
	return []*dial.System{system}, err
}

// page returns at most limit volumes (0: all) after the one that token names, and the token of the next page. A token is
// the id of the last volume returned, so that volumes that come and go between pages disturb nothing.
func (s *Server) page(ctx context.Context, token string, limit int32) (page []found, next string, err error) {
	if limit < 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "list volumes: max_entries is %d", limit)
	}
	if token != "" {
		if _, err := volume.ParseID(token); err != nil {
			return nil, "", status.Errorf(codes.Aborted, "list volumes: starting_token %q is invalid: start from the first page again", token)
		}
	}
	all, err := s.volumes(ctx)
	if err != nil {
		return nil, "", err
	}
	first, exact := slices.BinarySearchFunc(all, token, func(entry found, id string) int {
		return strings.Compare(entry.volume.GetVolumeId(), id)
	})
	if exact {
		first++
	}
	all = all[first:]
	if limit > 0 && len(all) > int(limit) {
		all = all[:limit]
		next = all[limit-1].volume.GetVolumeId()
	}
	return all, next, nil
}

// volumes returns the POSIX containers of all pools, in order of id.
func (s *Server) volumes(ctx context.Context) ([]found, error) {
	systems, err := s.systems.All()
	if err != nil {
		return nil, err
	}
	var all []found
	for _, system := range systems {
		pools, err := system.Pools().List(ctx, &managementv1.PoolListRequest{})
		if err != nil {
			return nil, failed(err, "list volumes: list pools of cluster %s", system.Attachment().System)
		}
		for _, pool := range pools.GetPools() {
			containers, err := system.Containers().List(ctx, &managementv1.ContainerListRequest{Pool: pool.GetUuid()})
			if dial.Code(err) == codes.NotFound {
				// Destroyed since the pools were listed.
				continue
			}
			if err != nil {
				return nil, failed(err, "list volumes: list containers of pool %s", pool.GetLabel())
			}
			for _, container := range containers.GetContainers() {
				if container.GetType() == managementv1.ContainerType_CONTAINER_TYPE_POSIX {
					all = append(all, found{volume: describe(system, container), pool: pool})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.volume.GetVolumeId(), b.volume.GetVolumeId()) })
	return all, nil
}
