package managementtest

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

type systemService struct {
	managementv1.UnimplementedSystemServer

	state  *state
	system *System
}

type poolsService struct {
	managementv1.UnimplementedPoolsServer

	state *state
}

type containersService struct {
	managementv1.UnimplementedContainersServer

	state *state
}

func (s systemService) Attach(context.Context, *managementv1.AttachRequest) (*managementv1.AttachResponse, error) {
	answer := &managementv1.AttachResponse{System: "weir", Provider: "tcp", ProtocolMin: 1, ProtocolMax: 1}
	for _, e := range s.system.engines {
		answer.Engines = append(answer.Engines, &managementv1.EngineAddress{
			Rank: e.rank, Host: "127.0.0.1", FabricPort: 10100, Targets: targetsPerEngine, Management: e.address,
		})
	}
	return answer, nil
}

func (s systemService) Query(context.Context, *managementv1.SystemQueryRequest) (*managementv1.SystemQueryResponse, error) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	answer := &managementv1.SystemQueryResponse{System: "weir"}
	for rank, up := range s.state.up {
		if s.state.absent[rank] {
			continue
		}
		described := &managementv1.EngineState{
			Rank: uint32(rank), Health: managementv1.EngineHealth_ENGINE_HEALTH_UP, Version: "test",
			Targets: targetsPerEngine, CapacityBytes: DefaultEngineBytes, FreeBytes: DefaultEngineBytes,
			StartedUnixSeconds: s.state.started,
		}
		if !up {
			described.Health = managementv1.EngineHealth_ENGINE_HEALTH_DOWN
			described.Message = fmt.Sprintf("rank %d does not answer", rank)
		}
		for _, p := range s.state.pools {
			described.FreeBytes -= min(described.GetFreeBytes(), p.info.GetSizeBytes()/uint64(len(p.info.GetRanks())))
		}
		answer.Engines = append(answer.Engines, described)
	}
	return answer, nil
}

func (s poolsService) Create(_ context.Context, request *managementv1.PoolCreateRequest) (*managementv1.PoolCreateResponse, error) {
	info, existed, err := s.state.createPool(request)
	return &managementv1.PoolCreateResponse{Pool: info, Existed: existed}, err
}

func (s poolsService) List(context.Context, *managementv1.PoolListRequest) (*managementv1.PoolListResponse, error) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	answer := &managementv1.PoolListResponse{}
	for _, p := range s.state.pools {
		answer.Pools = append(answer.Pools, s.state.describe(p))
	}
	return answer, nil
}

func (s poolsService) Query(_ context.Context, request *managementv1.PoolQueryRequest) (*managementv1.PoolQueryResponse, error) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	p, err := s.state.pool(request.GetPool())
	if err != nil {
		return nil, err
	}
	return &managementv1.PoolQueryResponse{Pool: s.state.describe(p)}, nil
}

func (s poolsService) Resize(_ context.Context, request *managementv1.PoolResizeRequest) (*managementv1.PoolResizeResponse, error) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	p, err := s.state.pool(request.GetPool())
	if err != nil {
		return nil, err
	}
	p.info.SizeBytes = max(p.info.GetSizeBytes(), request.GetSizeBytes())
	return &managementv1.PoolResizeResponse{Pool: s.state.describe(p)}, nil
}

func (s poolsService) Destroy(_ context.Context, request *managementv1.PoolDestroyRequest) (*managementv1.PoolDestroyResponse, error) {
	return &managementv1.PoolDestroyResponse{}, s.state.destroyPool(request)
}

func (s poolsService) Exclude(_ context.Context, request *managementv1.PoolExcludeRequest) (*managementv1.PoolExcludeResponse, error) {
	info, err := s.state.exclude(request.GetPool(), request.GetRank(), true)
	return &managementv1.PoolExcludeResponse{Pool: info}, err
}

func (s poolsService) Reintegrate(_ context.Context, request *managementv1.PoolReintegrateRequest) (*managementv1.PoolReintegrateResponse, error) {
	info, err := s.state.exclude(request.GetPool(), request.GetRank(), false)
	return &managementv1.PoolReintegrateResponse{Pool: info}, err
}

func (s poolsService) Extend(_ context.Context, request *managementv1.PoolExtendRequest) (*managementv1.PoolExtendResponse, error) {
	info, err := s.state.extend(request)
	return &managementv1.PoolExtendResponse{Pool: info}, err
}

func (s poolsService) SetProperties(_ context.Context, request *managementv1.PoolSetPropertiesRequest) (*managementv1.PoolSetPropertiesResponse, error) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	p, err := s.state.pool(request.GetPool())
	if err != nil {
		return nil, err
	}
	if request.RebuildDelaySeconds != nil {
		p.info.RebuildDelaySeconds = request.RebuildDelaySeconds
	}
	return &managementv1.PoolSetPropertiesResponse{Pool: s.state.describe(p)}, nil
}

func (s containersService) Create(_ context.Context, request *managementv1.ContainerCreateRequest) (*managementv1.ContainerCreateResponse, error) {
	info, existed, err := s.state.createContainer(request)
	return &managementv1.ContainerCreateResponse{Container: info, Existed: existed}, err
}

func (s containersService) List(_ context.Context, request *managementv1.ContainerListRequest) (*managementv1.ContainerListResponse, error) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	p, err := s.state.pool(request.GetPool())
	if err != nil {
		return nil, err
	}
	answer := &managementv1.ContainerListResponse{}
	for _, c := range p.containers {
		listed := proto.CloneOf(c)
		// Only Query shows attributes.
		listed.Attributes = nil
		answer.Containers = append(answer.Containers, listed)
	}
	return answer, nil
}

func (s containersService) Query(_ context.Context, request *managementv1.ContainerQueryRequest) (*managementv1.ContainerQueryResponse, error) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	p, err := s.state.pool(request.GetPool())
	if err != nil {
		return nil, err
	}
	c, err := p.container(request.GetContainer())
	if err != nil {
		return nil, err
	}
	return &managementv1.ContainerQueryResponse{Container: proto.CloneOf(c), Handles: p.handles[c.GetLabel()]}, nil
}

func (s containersService) SetQuota(_ context.Context, request *managementv1.ContainerSetQuotaRequest) (*managementv1.ContainerSetQuotaResponse, error) {
	info, err := s.state.setQuota(request)
	return &managementv1.ContainerSetQuotaResponse{Container: info}, err
}

func (s containersService) Destroy(_ context.Context, request *managementv1.ContainerDestroyRequest) (*managementv1.ContainerDestroyResponse, error) {
	return &managementv1.ContainerDestroyResponse{}, s.state.destroyContainer(request)
}
