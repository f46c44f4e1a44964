package managementtest

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"weir.dev/weir/engine/proto/management/dial"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

const targetsPerEngine = 2

// defaultRebuildDelay is how long engines wait for one that is away, in seconds.
const defaultRebuildDelay = 600

// state is what the engines of a test system agree on.
type state struct {
	mu      sync.Mutex
	up      []bool
	started int64
	// absent are engines that haven't been added yet.
	absent map[int]bool
	pools  []*pool
	// revoked are the tenants that are turned away.
	revoked map[uint64]bool
	// limits are what tenants may use.
	limits map[uint64]*managementv1.TenantLimits
}

type pool struct {
	info       *managementv1.PoolInfo
	containers []*managementv1.ContainerInfo
	// requests are the creation requests by label, to tell a repeated one from a conflicting one.
	request *managementv1.PoolCreateRequest
	// handles are those whose clients have said where they are, by the container's label.
	handles  map[string][]*managementv1.OpenHandle
	requests map[string]*managementv1.ContainerCreateRequest
	// excluded are the ranks that were taken out of the pool.
	excluded map[uint32]bool
}

func newState(engines int) *state {
	return &state{up: make([]bool, engines), absent: map[int]bool{}, started: 1_700_000_000}
}

func (s *state) setUp(rank int, up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up[rank] = up
	if up {
		delete(s.absent, rank)
	}
}

func (s *state) setUsed(poolName, containerName string, bytes uint64) error {
	return s.change(poolName, containerName, func(c *managementv1.ContainerInfo) { c.UsedBytes = bytes })
}

func (s *state) setOpenHandles(poolName, containerName string, handles uint32) error {
	return s.change(poolName, containerName, func(c *managementv1.ContainerInfo) { c.OpenHandles = handles })
}

func (s *state) setHandles(poolName, containerName string, handles []*managementv1.OpenHandle) error {
	counted := uint32(0)
	for _, handle := range handles {
		if handle.GetCounts() {
			counted++
		}
	}
	if err := s.setOpenHandles(poolName, containerName, counted); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.pool(poolName)
	if err != nil {
		return err
	}
	if p.handles == nil {
		p.handles = make(map[string][]*managementv1.OpenHandle)
	}
	p.handles[containerName] = handles
	return nil
}

func (s *state) change(poolName, containerName string, change func(*managementv1.ContainerInfo)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.pool(poolName)
	if err != nil {
		return err
	}
	c, err := p.container(containerName)
	if err != nil {
		return err
	}
	change(c)
	return nil
}

// pool finds a pool by label or UUID. Callers hold mu.
func (s *state) pool(name string) (*pool, error) {
	if name == "" {
		return nil, fail(codes.InvalidArgument, dial.DERInvalid, "pool", "the name is empty")
	}
	for _, p := range s.pools {
		if p.info.GetLabel() == name || p.info.GetUuid() == name {
			return p, nil
		}
	}
	return nil, fail(codes.NotFound, dial.DERNonexistent, "pool "+name, "does not exist")
}

func (p *pool) container(name string) (*managementv1.ContainerInfo, error) {
	if name == "" {
		return nil, fail(codes.InvalidArgument, dial.DERInvalid, "container", "the name is empty")
	}
	for _, c := range p.containers {
		if c.GetLabel() == name || c.GetUuid() == name {
			return c, nil
		}
	}
	return nil, fail(codes.NotFound, dial.DERNonexistent,
		fmt.Sprintf("container %s of pool %s", name, p.info.GetLabel()), "does not exist")
}

// describe returns the pool's state with what follows from its containers and from the engines that are up.
func (s *state) describe(p *pool) *managementv1.PoolInfo {
	info := proto.CloneOf(p.info)
	info.UsedBytes = 0
	for _, c := range p.containers {
		info.UsedBytes += c.GetUsedBytes()
	}
	info.FreeBytes = info.GetSizeBytes() - min(info.GetUsedBytes(), info.GetSizeBytes())
	info.Containers = uint32(len(p.containers))
	info.State = managementv1.PoolState_POOL_STATE_READY
	for _, rank := range info.GetRanks() {
		if !s.up[rank] {
			info.UnreachableRanks = append(info.UnreachableRanks, rank)
			info.State = managementv1.PoolState_POOL_STATE_DEGRADED
		}
	}
	info.Health = s.health(p)
	return info
}

// health is how a pool with redundancy is: what was taken out is complete elsewhere at once.
func (s *state) health(p *pool) *managementv1.PoolHealth {
	factor := p.request.GetRedundancyFactor()
	if factor == 0 {
		return nil
	}
	missing, out := uint32(0), uint32(len(p.excluded))
	for _, rank := range p.info.GetRanks() {
		if !s.up[rank] && !p.excluded[rank] {
			missing++
		}
	}
	switch {
	case missing > factor:
		return &managementv1.PoolHealth{Condition: managementv1.PoolCondition_POOL_CONDITION_UNAVAILABLE}
	case missing > 0:
		return &managementv1.PoolHealth{Condition: managementv1.PoolCondition_POOL_CONDITION_DEGRADED, FailuresSurvived: factor - missing}
	case len(p.info.GetNewRanks()) > 0:
		return &managementv1.PoolHealth{
			Condition: managementv1.PoolCondition_POOL_CONDITION_REBUILDING, FailuresSurvived: factor,
			Rebuild: &managementv1.PoolRebuild{Targets: uint32(len(p.info.GetNewRanks())) * targetsPerEngine},
		}
	default:
		return &managementv1.PoolHealth{Condition: managementv1.PoolCondition_POOL_CONDITION_HEALTHY, FailuresSurvived: factor - min(out, factor)}
	}
}

// exclude takes a rank out of a pool, or lets it back in.
func (s *state) exclude(name string, rank uint32, out bool) (*managementv1.PoolInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.pool(name)
	if err != nil {
		return nil, err
	}
	if left := len(p.info.GetRanks()) - len(p.excluded) - 1; out && !p.excluded[rank] && left <= int(p.request.GetRedundancyFactor()) {
		return nil, fail(codes.FailedPrecondition, dial.DERBusy, "pool "+name, "no place is left for the data of rank %d", rank)
	}
	if p.excluded == nil {
		p.excluded = map[uint32]bool{}
	}
	if out {
		p.excluded[rank] = true
	} else {
		delete(p.excluded, rank)
	}
	return s.describe(p), nil
}

// extend has ranks join a pool, with as much room as the others have. They get their share until settle is called.
func (s *state) extend(request *managementv1.PoolExtendRequest) (*managementv1.PoolInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.pool(request.GetPool())
	if err != nil {
		return nil, err
	}
	object := "pool " + p.info.GetLabel()
	if p.request.GetRedundancyFactor() == 0 {
		return nil, fail(codes.Unimplemented, dial.DERInvalid, object, "has no redundancy")
	}
	ranks, err := s.choose(object, request.GetRanks())
	if err != nil {
		return nil, err
	}
	for _, rank := range ranks {
		if slices.Contains(p.info.GetRanks(), rank) {
			return nil, fail(codes.AlreadyExists, dial.DERExists, object, "rank %d holds it already", rank)
		}
	}
	share := p.info.GetSizeBytes() / uint64(len(p.info.GetRanks()))
	p.info.SizeBytes += share * uint64(len(ranks))
	p.info.Ranks = append(slices.Clone(p.info.GetRanks()), ranks...)
	p.info.NewRanks = append(p.info.GetNewRanks(), ranks...)
	p.info.Targets += uint32(len(ranks)) * targetsPerEngine
	return s.describe(p), nil
}

// settle has those that have joined a pool have their share.
func (s *state) settle(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.pool(name)
	if err != nil {
		return err
	}
	p.info.NewRanks = nil
	return nil
}

func (s *state) createPool(request *managementv1.PoolCreateRequest) (info *managementv1.PoolInfo, existed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := "pool " + request.GetLabel()
	if request.GetLabel() == "" || request.GetSizeBytes() == 0 {
		return nil, false, fail(codes.InvalidArgument, dial.DERInvalid, object, "label and size_bytes must be set")
	}
	if p, err := s.pool(request.GetLabel()); err == nil {
		if p.info.GetUuid() == request.GetUuid() || proto.Equal(p.request, unnamed(request)) {
			return s.describe(p), true, nil
		}
		return nil, false, fail(codes.AlreadyExists, dial.DERExists, object, "exists with other properties")
	}
	ranks, err := s.choose(object, request.GetRanks())
	if err != nil {
		return nil, false, err
	}
	if request.GetSizeBytes() > uint64(len(ranks))*DefaultEngineBytes {
		return nil, false, fail(codes.ResourceExhausted, dial.DERNoSpace, object, "%d bytes are more than the engines have", request.GetSizeBytes())
	}
	made := &pool{
		request:  unnamed(request),
		requests: map[string]*managementv1.ContainerCreateRequest{},
		info: &managementv1.PoolInfo{
			Uuid: orDefault(request.GetUuid(), newUUID()), Label: request.GetLabel(), SizeBytes: request.GetSizeBytes(), Ranks: ranks,
			Targets: uint32(len(ranks)) * targetsPerEngine, MapVersion: 1, ServiceRanks: ranks[:1],
			ObjectClass: orDefault(request.GetObjectClass(), defaultClass(request.GetRedundancyFactor())), Tenant: request.GetTenant(),
		},
	}
	if request.GetRedundancyFactor() > 0 {
		made.info.RebuildDelaySeconds = new(uint32(defaultRebuildDelay))
	}
	s.pools = append(s.pools, made)
	return s.describe(made), false, nil
}

// defaultClass is the class of a pool that names none.
func defaultClass(redundancyFactor uint32) string {
	if redundancyFactor == 0 {
		return "SX"
	}
	return fmt.Sprintf("RP_%dGX", redundancyFactor+1)
}

// unnamed is a request without the UUID that its creator chose, and with the class that it gets.
func unnamed(request *managementv1.PoolCreateRequest) *managementv1.PoolCreateRequest {
	plain := proto.CloneOf(request)
	plain.Uuid = ""
	plain.ObjectClass = orDefault(request.GetObjectClass(), defaultClass(request.GetRedundancyFactor()))
	return plain
}

// choose returns the ranks to use: those asked for, or all that are up. Callers hold mu.
func (s *state) choose(object string, asked []uint32) ([]uint32, error) {
	ranks := slices.Clone(asked)
	if len(ranks) == 0 {
		for rank, up := range s.up {
			if up {
				ranks = append(ranks, uint32(rank))
			}
		}
	}
	for _, rank := range ranks {
		if int(rank) >= len(s.up) || !s.up[rank] {
			return nil, fail(codes.FailedPrecondition, dial.DERUnreachable, object, "rank %d is not up", rank)
		}
	}
	return ranks, nil
}

func (s *state) destroyPool(request *managementv1.PoolDestroyRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.pool(request.GetPool())
	if err != nil {
		return nil // Destroying an absent pool succeeds.
	}
	if len(p.containers) > 0 && !request.GetForce() {
		var labels []string
		for _, c := range p.containers {
			labels = append(labels, c.GetLabel())
		}
		return fail(codes.FailedPrecondition, dial.DERBusy, "pool "+p.info.GetLabel(), "still has containers: %s", strings.Join(labels, ", "))
	}
	s.pools = slices.DeleteFunc(s.pools, func(other *pool) bool { return other == p })
	return nil
}

func (s *state) createContainer(request *managementv1.ContainerCreateRequest) (info *managementv1.ContainerInfo, existed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.pool(request.GetPool())
	if err != nil {
		return nil, false, err
	}
	object := fmt.Sprintf("container %s of pool %s", request.GetLabel(), p.info.GetLabel())
	if request.GetLabel() == "" {
		return nil, false, fail(codes.InvalidArgument, dial.DERInvalid, object, "label must be set")
	}
	if class := request.GetObjectClass(); class != "" && !slices.Contains([]string{"S1", "S2", "S4", "SX"}, class) {
		return nil, false, fail(codes.InvalidArgument, dial.DERInvalid, object, "object class %q is unknown; known: S1, S2, S4, SX", class)
	}
	if c, err := p.container(request.GetLabel()); err == nil {
		if sameProperties(c, p.requests[request.GetLabel()], request, p.info.GetObjectClass()) {
			return proto.CloneOf(c), true, nil
		}
		return nil, false, fail(codes.AlreadyExists, dial.DERExists, object, "exists with other properties")
	}
	if request.GetQuotaBytes() > p.info.GetSizeBytes() {
		return nil, false, fail(codes.ResourceExhausted, dial.DERNoSpace, object, "a quota of %d bytes is more than the pool's %d", request.GetQuotaBytes(), p.info.GetSizeBytes())
	}
	made := &managementv1.ContainerInfo{
		Uuid: orDefault(request.GetUuid(), newUUID()), Label: request.GetLabel(), PoolUuid: p.info.GetUuid(), PoolLabel: p.info.GetLabel(),
		Type: request.GetType(), QuotaBytes: request.GetQuotaBytes(), Attributes: request.GetAttributes(),
		ObjectClass:        orDefault(request.GetObjectClass(), p.info.GetObjectClass()),
		ChunkSizeBytes:     orDefault(request.GetChunkSizeBytes(), 1<<20),
		CreatedUnixSeconds: s.started,
	}
	p.containers = append(p.containers, made)
	p.requests[request.GetLabel()] = proto.CloneOf(request)
	return proto.CloneOf(made), false, nil
}

// sameProperties tells whether a container has what a request to create one asks for, as engines compare it: attributes don't
// count. first is the request that it was made by.
func sameProperties(made *managementv1.ContainerInfo, first, request *managementv1.ContainerCreateRequest, class string) bool {
	const mode = 0o755
	return made.GetType() == request.GetType() && made.GetQuotaBytes() == request.GetQuotaBytes() &&
		made.GetObjectClass() == orDefault(request.GetObjectClass(), class) &&
		made.GetChunkSizeBytes() == orDefault(request.GetChunkSizeBytes(), 1<<20) &&
		first.GetUid() == request.GetUid() && first.GetGid() == request.GetGid() &&
		orDefault(first.GetMode(), mode) == orDefault(request.GetMode(), mode)
}

func (s *state) setQuota(request *managementv1.ContainerSetQuotaRequest) (*managementv1.ContainerInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.pool(request.GetPool())
	if err != nil {
		return nil, err
	}
	c, err := p.container(request.GetContainer())
	if err != nil {
		return nil, err
	}
	object := fmt.Sprintf("container %s of pool %s", c.GetLabel(), p.info.GetLabel())
	switch {
	case request.GetQuotaBytes() > p.info.GetSizeBytes():
		return nil, fail(codes.ResourceExhausted, dial.DERNoSpace, object, "a quota of %d bytes is more than the pool's %d", request.GetQuotaBytes(), p.info.GetSizeBytes())
	case request.GetQuotaBytes() != 0 && request.GetQuotaBytes() < c.GetUsedBytes():
		return nil, fail(codes.FailedPrecondition, dial.DERInvalid, object, "%d bytes are in use", c.GetUsedBytes())
	}
	c.QuotaBytes = request.GetQuotaBytes()
	return proto.CloneOf(c), nil
}

func (s *state) destroyContainer(request *managementv1.ContainerDestroyRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.pool(request.GetPool())
	if err != nil {
		return nil // A container of an absent pool is absent.
	}
	c, err := p.container(request.GetContainer())
	if err != nil {
		return nil // Destroying an absent container succeeds.
	}
	open := c.GetOpenHandles()
	for _, handle := range p.handles[c.GetLabel()] {
		if handle.GetCounts() && slices.Contains(request.GetGoneHandles(), handle.GetHandle()) {
			open--
		}
	}
	if open > 0 && !request.GetForce() {
		return fail(codes.FailedPrecondition, dial.DERBusy,
			fmt.Sprintf("container %s of pool %s", c.GetLabel(), p.info.GetLabel()), "has %d open handles", open)
	}
	delete(p.requests, c.GetLabel())
	p.containers = slices.DeleteFunc(p.containers, func(other *managementv1.ContainerInfo) bool { return other == c })
	return nil
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// newUUID returns a random UUID as text.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // It never fails.
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
