// Package controller is the CSI controller service: it makes, lists, expands and destroys volumes by the management
// protocol.
package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir.dev/weir/csi/handles"
	"weir.dev/weir/csi/internal/oplock"
	"weir.dev/weir/csi/volume"
	"weir.dev/weir/engine/proto/management/dial"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// Systems finds the systems that volumes live in. Errors are gRPC statuses.
type Systems interface {
	// Get returns the system of a name; the empty name means the only one.
	Get(name string) (*dial.System, error)
	// All returns every system.
	All() ([]*dial.System, error)
}

// anyUUID is as long as every UUID.
const anyUUID = "00000000-0000-0000-0000-000000000000"

// Server serves csi.Controller.
type Server struct {
	csi.UnimplementedControllerServer

	systems Systems
	nodes   Nodes
	tenants Tenants
	locks   oplock.Locks
}

var _ csi.ControllerServer = (*Server)(nil)

// New returns a controller service of the given systems. nodes tells which nodes are gone, and namespaces whose they are; nil when
// nobody knows.
func New(systems Systems, nodes Nodes, namespaces Tenants) *Server {
	return &Server{systems: systems, nodes: nodes, tenants: namespaces}
}

// ControllerGetCapabilities says what the service does.
func (s *Server) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}},
		})
	}
	return answer, nil
}

// CreateVolume makes a container in the pool that the StorageClass names, or returns the one made by an earlier call.
func (s *Server) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	plan, err := planOf(request)
	if errors.Is(err, volume.ErrCapacity) {
		return nil, status.Errorf(codes.OutOfRange, "create volume %q: %v", request.GetName(), err)
	}
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "create volume %q: %v", request.GetName(), err)
	}
	release, err := s.locks.Acquire(ctx, request.GetName(), "CreateVolume", 0)
	if err != nil {
		return nil, err
	}
	defer release()
	system, err := s.systems.Get(plan.parameters.Cluster)
	if status.Code(err) == codes.NotFound {
		return nil, status.Errorf(codes.InvalidArgument,
			"create volume %q: %s: correct the parameter %q of the StorageClass, or create the StorageCluster",
			plan.name, status.Convert(err).Message(), volume.ParameterCluster)
	}
	if err != nil {
		return nil, failed(err, "create volume %q", plan.name)
	}
	if id := (volume.ID{System: system.Attachment().System, Pool: anyUUID, Container: anyUUID}); len(id.String()) > volume.MaxIDBytes {
		return nil, status.Errorf(codes.InvalidArgument, "create volume %q: its id would have %d bytes, CSI allows %d: the cluster's name is too long",
			plan.name, len(id.String()), volume.MaxIDBytes)
	}
	pool, err := poolFor(ctx, system, plan)
	if err != nil {
		return nil, err
	}
	if err := s.admit(ctx, plan, pool); err != nil {
		return nil, err
	}
	answer, err := system.Containers().Create(ctx, plan.creation(pool))
	container := answer.GetContainer()
	if dial.Code(err) == codes.AlreadyExists || answer.GetExisted() {
		// That its properties are the same doesn't say whose it is: engines don't compare attributes.
		container, err = existing(ctx, system, plan, pool)
	}
	if err != nil {
		return nil, failed(err, "create volume %q in pool %s", plan.name, plan.parameters.Pool)
	}
	made := describe(system, container)
	if plan.parameters.Intercept {
		made.VolumeContext[volume.ParameterIntercept] = "true"
	}
	return &csi.CreateVolumeResponse{Volume: made}, nil
}

// plan is a CreateVolume request, checked.
type plan struct {
	name       string
	label      string
	size       uint64
	capacity   *csi.CapacityRange
	parameters *volume.Parameters
}

func planOf(request *csi.CreateVolumeRequest) (*plan, error) {
	if request.GetName() == "" {
		return nil, errors.New("the name is missing")
	}
	if err := volume.CheckCapabilities(request.GetVolumeCapabilities()); err != nil {
		return nil, err
	}
	if request.GetVolumeContentSource() != nil {
		return nil, errors.New("a volume cannot be made from a snapshot or another volume: remove dataSource from the claim")
	}
	if len(request.GetMutableParameters()) > 0 {
		return nil, errors.New("no parameter is mutable: remove volumeAttributesClassName from the claim")
	}
	parameters, err := volume.ParseParameters(request.GetParameters())
	if err != nil {
		return nil, err
	}
	if parameters.Pool == "" {
		return nil, fmt.Errorf("the StorageClass lacks the parameter %q: set it to the name of a Pool", volume.ParameterPool)
	}
	size, err := volume.Size(request.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	return &plan{
		name:       request.GetName(),
		label:      volume.Label(request.GetName()),
		size:       size,
		capacity:   request.GetCapacityRange(),
		parameters: parameters,
	}, nil
}

// poolFor returns the pool of a plan if it can hold the volume.
func poolFor(ctx context.Context, system *dial.System, p *plan) (*managementv1.PoolInfo, error) {
	answer, err := system.Pools().Query(ctx, &managementv1.PoolQueryRequest{Pool: p.parameters.Pool})
	if dial.Code(err) == codes.NotFound {
		return nil, status.Errorf(codes.InvalidArgument,
			"create volume %q: pool %q does not exist in cluster %q: create the Pool, or correct the parameter %q of the StorageClass",
			p.name, p.parameters.Pool, system.Attachment().System, volume.ParameterPool)
	}
	if err != nil {
		return nil, failed(err, "create volume %q: query pool %s", p.name, p.parameters.Pool)
	}
	pool := answer.GetPool()
	if p.size > pool.GetSizeBytes() {
		return nil, status.Errorf(codes.OutOfRange,
			"create volume %q: %s is more than the %s of pool %s: ask for less, or enlarge the Pool",
			p.name, volume.SizeText(p.size), volume.SizeText(pool.GetSizeBytes()), pool.GetLabel())
	}
	return pool, nil
}

func (p *plan) creation(pool *managementv1.PoolInfo) *managementv1.ContainerCreateRequest {
	attributes := maps.Clone(p.parameters.Attributes)
	attributes[volume.AttributeName] = p.name
	return &managementv1.ContainerCreateRequest{
		Pool:           pool.GetUuid(),
		Label:          p.label,
		Type:           managementv1.ContainerType_CONTAINER_TYPE_POSIX,
		QuotaBytes:     p.size,
		ObjectClass:    p.parameters.ObjectClass,
		ChunkSizeBytes: p.parameters.ChunkSizeBytes,
		Attributes:     attributes,
		Uid:            p.parameters.UID,
		Gid:            p.parameters.GID,
		Mode:           p.parameters.Mode,
	}
}

// existing returns the container that has the plan's label if it is the volume that the plan asks for. It may differ
// from what would be made now: an expansion since then has changed its quota.
func existing(ctx context.Context, system *dial.System, p *plan, pool *managementv1.PoolInfo) (*managementv1.ContainerInfo, error) {
	answer, err := system.Containers().Query(ctx, &managementv1.ContainerQueryRequest{Pool: pool.GetUuid(), Container: p.label})
	if err != nil {
		return nil, err
	}
	found := answer.GetContainer()
	var differs string
	switch {
	case found.GetAttributes()[volume.AttributeName] != p.name:
		differs = "it was not made for this volume"
	case !volume.Fits(found.GetQuotaBytes(), p.capacity):
		differs = fmt.Sprintf("its size is %d bytes", found.GetQuotaBytes())
	case p.parameters.ObjectClass != "" && found.GetObjectClass() != p.parameters.ObjectClass:
		differs = "its object class is " + found.GetObjectClass()
	case p.parameters.ChunkSizeBytes != 0 && found.GetChunkSizeBytes() != p.parameters.ChunkSizeBytes:
		differs = fmt.Sprintf("its chunk size is %d bytes", found.GetChunkSizeBytes())
	default:
		return found, nil
	}
	return nil, status.Errorf(codes.AlreadyExists, "container %s exists in pool %s, but %s: use another name", p.label, pool.GetLabel(), differs)
}

// DeleteVolume destroys the container of a volume. The engines reclaim its space in the background, so that the time it
// takes does not depend on what the volume holds. A volume that does not exist is deleted already.
func (s *Server) DeleteVolume(ctx context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "delete volume: the volume id is missing")
	}
	id, err := volume.ParseID(request.GetVolumeId())
	if err != nil {
		return &csi.DeleteVolumeResponse{}, nil // No volume ever had such an id.
	}
	release, err := s.locks.Acquire(ctx, request.GetVolumeId(), "DeleteVolume", 0)
	if err != nil {
		return nil, err
	}
	defer release()
	system, err := s.systems.Get(id.System)
	if status.Code(err) == codes.NotFound {
		// Nobody can be asked whether the volume is there: calling it deleted would leave its data behind unnoticed.
		return nil, status.Errorf(codes.Unavailable,
			"delete volume %s: %s: if the StorageCluster is gone with its data, set the reclaim policy of the PersistentVolume to Retain and delete it",
			id, status.Convert(err).Message())
	}
	if err != nil {
		return nil, err
	}
	answer, err := system.Containers().Query(ctx, &managementv1.ContainerQueryRequest{Pool: id.Pool, Container: id.Container})
	if dial.Code(err) == codes.NotFound {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if err != nil {
		return nil, failed(err, "find volume %s", id)
	}
	container := answer.GetContainer()
	if _, dynamic := container.GetAttributes()[volume.AttributeName]; !dynamic {
		return nil, status.Errorf(codes.FailedPrecondition,
			"delete volume %s: the driver did not make container %s of pool %s and does not destroy it: delete the Container, or set the reclaim policy of the PersistentVolume to Retain",
			id, container.GetLabel(), container.GetPoolLabel())
	}
	claim := container.GetAttributes()[volume.AttributeClaimNamespace] + "/" + container.GetAttributes()[volume.AttributeClaimName]
	judged, err := s.judge(ctx, answer.GetHandles())
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "delete volume %s of PersistentVolumeClaim %s: %v", id, claim, err)
	}
	if len(judged.Unheard) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "delete volume %s of PersistentVolumeClaim %s: %s", id, claim, handles.Advice(judged.Unheard))
	}
	// Never by force: engines know who still uses it, and Kubernetes whose nodes are gone.
	_, err = system.Containers().Destroy(ctx, &managementv1.ContainerDestroyRequest{Pool: id.Pool, Container: id.Container, GoneHandles: judged.Gone})
	if dial.Code(err) == codes.FailedPrecondition {
		return nil, failed(err, "delete volume %s of PersistentVolumeClaim %s (it is tried again until nobody has it open)", id, claim)
	}
	if err != nil && dial.Code(err) != codes.NotFound {
		return nil, failed(err, "delete volume %s", id)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities confirms capabilities that a volume serves.
func (s *Server) ValidateVolumeCapabilities(ctx context.Context, request *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if len(request.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "validate volume capabilities: the capabilities are missing")
	}
	id, err := requiredID(request.GetVolumeId(), "validate volume capabilities")
	if err != nil {
		return nil, err
	}
	if _, _, err := s.find(ctx, id); err != nil {
		return nil, err
	}
	if err := volume.CheckCapabilities(request.GetVolumeCapabilities()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	if _, err := volume.ParseParameters(request.GetParameters()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext:      request.GetVolumeContext(),
			VolumeCapabilities: request.GetVolumeCapabilities(),
			Parameters:         request.GetParameters(),
		},
	}, nil
}

// ControllerExpandVolume raises a volume's quota. Mounted clients see the new size at once: the node has nothing to do.
func (s *Server) ControllerExpandVolume(ctx context.Context, request *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	id, err := requiredID(request.GetVolumeId(), "expand volume")
	if err != nil {
		return nil, err
	}
	if request.GetCapacityRange() == nil {
		return nil, status.Errorf(codes.InvalidArgument, "expand volume %s: the capacity range is missing", id)
	}
	size, err := volume.Size(request.GetCapacityRange())
	if err != nil {
		return nil, status.Errorf(codes.OutOfRange, "expand volume %s: %v", id, err)
	}
	if request.GetVolumeCapability().GetBlock() != nil {
		return nil, status.Errorf(codes.InvalidArgument, "expand volume %s: %v", id, volume.ErrBlockAccess)
	}
	release, err := s.locks.Acquire(ctx, request.GetVolumeId(), "ControllerExpandVolume", 0)
	if err != nil {
		return nil, err
	}
	defer release()
	system, container, err := s.find(ctx, id)
	if err != nil {
		return nil, err
	}
	// A volume only grows here: shrinking is not part of CSI, and a repeated older request must not undo a newer one.
	if quota := container.GetQuotaBytes(); quota == 0 || quota >= size {
		return &csi.ControllerExpandVolumeResponse{CapacityBytes: volume.Bytes(max(quota, size))}, nil
	}
	pool, err := system.Pools().Query(ctx, &managementv1.PoolQueryRequest{Pool: id.Pool})
	if err != nil {
		return nil, failed(err, "expand volume %s: query its pool", id)
	}
	if total := pool.GetPool().GetSizeBytes(); size > total {
		return nil, status.Errorf(codes.OutOfRange, "expand volume %s: %s is more than the %s of pool %s: ask for less, or enlarge the Pool",
			id, volume.SizeText(size), volume.SizeText(total), pool.GetPool().GetLabel())
	}
	if _, err := system.Containers().SetQuota(ctx, &managementv1.ContainerSetQuotaRequest{Pool: id.Pool, Container: id.Container, QuotaBytes: size}); err != nil {
		return nil, failed(err, "expand volume %s to %d bytes", id, size)
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: volume.Bytes(size)}, nil
}

// find returns the system and the container of a volume. The error is a gRPC status.
func (s *Server) find(ctx context.Context, id volume.ID) (*dial.System, *managementv1.ContainerInfo, error) {
	system, err := s.systems.Get(id.System)
	if err != nil {
		return nil, nil, err
	}
	container, err := query(ctx, system, id)
	return system, container, err
}

// query returns the container of a volume. The error is a gRPC status.
func query(ctx context.Context, system *dial.System, id volume.ID) (*managementv1.ContainerInfo, error) {
	answer, err := system.Containers().Query(ctx, &managementv1.ContainerQueryRequest{Pool: id.Pool, Container: id.Container})
	if err != nil {
		return nil, failed(err, "find volume %s", id)
	}
	return answer.GetContainer(), nil
}

// requiredID reads the id of a volume that must exist: one that is malformed names no volume.
func requiredID(text, operation string) (volume.ID, error) {
	if text == "" {
		return volume.ID{}, status.Errorf(codes.InvalidArgument, "%s: the volume id is missing", operation)
	}
	id, err := volume.ParseID(text)
	if err != nil {
		return volume.ID{}, status.Errorf(codes.NotFound, "%s: %v", operation, err)
	}
	return id, nil
}

// describe returns a container as CSI sees it.
func describe(system *dial.System, container *managementv1.ContainerInfo) *csi.Volume {
	name := system.Attachment().System
	id := volume.ID{System: name, Pool: container.GetPoolUuid(), Container: container.GetUuid()}
	return &csi.Volume{
		VolumeId:      id.String(),
		CapacityBytes: volume.Bytes(container.GetQuotaBytes()),
		VolumeContext: map[string]string{
			"cluster":   name,
			"pool":      container.GetPoolLabel(),
			"container": container.GetLabel(),
		},
	}
}

// failed returns the status of a management call that failed, with what it was made for.
func failed(err error, format string, arguments ...any) error {
	code := dial.Code(err)
	if code == codes.Unknown {
		code = codes.Internal
	}
	return status.Errorf(code, "%s: %s", fmt.Sprintf(format, arguments...), status.Convert(err).Message())
}
