package managementtest

import (
	"context"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// tenantsService serves Tenants.
type tenantsService struct {
	managementv1.UnimplementedTenantsServer

	state *state
}

// describeTenant is what each engine says of a tenant. Those that are down say nothing.
func (s *state) describeTenant(number uint64) []*managementv1.TenantEngine {
	s.mu.Lock()
	defer s.mu.Unlock()
	var engines []*managementv1.TenantEngine
	for rank, up := range s.up {
		engine := &managementv1.TenantEngine{Rank: uint32(rank), Answered: up, Revoked: up && s.revoked[number]}
		if !up {
			engine.Message = "it is down"
		}
		engines = append(engines, engine)
	}
	return engines
}

func (s *state) setRevoked(number uint64, revoked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revoked == nil {
		s.revoked = map[uint64]bool{}
	}
	s.revoked[number] = revoked
}

// Query tells whether engines serve a tenant.
func (t tenantsService) Query(_ context.Context, request *managementv1.TenantQueryRequest) (*managementv1.TenantQueryResponse, error) {
	return &managementv1.TenantQueryResponse{Tenant: request.GetTenant(), Engines: t.state.describeTenant(request.GetTenant())}, nil
}

// Revoke turns a tenant away.
func (t tenantsService) Revoke(_ context.Context, request *managementv1.TenantRevokeRequest) (*managementv1.TenantRevokeResponse, error) {
	t.state.setRevoked(request.GetTenant(), true)
	return &managementv1.TenantRevokeResponse{Tenant: request.GetTenant(), Engines: t.state.describeTenant(request.GetTenant())}, nil
}

// Admit serves a tenant again.
func (t tenantsService) Admit(_ context.Context, request *managementv1.TenantAdmitRequest) (*managementv1.TenantAdmitResponse, error) {
	t.state.setRevoked(request.GetTenant(), false)
	return &managementv1.TenantAdmitResponse{Tenant: request.GetTenant(), Engines: t.state.describeTenant(request.GetTenant())}, nil
}

// describeUse is what the pools of a tenant hold, and may hold.
func (s *state) describeUse(number uint64) (*managementv1.TenantLimits, []*managementv1.TenantPoolUse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limits := s.limits[number]
	if limits == nil {
		limits = &managementv1.TenantLimits{}
	}
	var uses []*managementv1.TenantPoolUse
	for _, p := range s.pools {
		if p.info.GetTenant() != number {
			continue
		}
		use := &managementv1.TenantPoolUse{Uuid: p.info.GetUuid(), Label: p.info.GetLabel(), Answered: true}
		for _, c := range p.containers {
			use.UsedBytes += c.GetUsedBytes()
		}
		uses = append(uses, use)
	}
	return limits, uses
}

// SetLimits sets what a tenant may use.
func (t tenantsService) SetLimits(_ context.Context, request *managementv1.TenantSetLimitsRequest) (*managementv1.TenantSetLimitsResponse, error) {
	limits := request.GetLimits()
	if limits == nil {
		limits = &managementv1.TenantLimits{}
	}
	t.state.mu.Lock()
	if t.state.limits == nil {
		t.state.limits = map[uint64]*managementv1.TenantLimits{}
	}
	t.state.limits[request.GetTenant()] = limits
	t.state.mu.Unlock()
	set, uses := t.state.describeUse(request.GetTenant())
	return &managementv1.TenantSetLimitsResponse{Tenant: request.GetTenant(), Limits: set, Pools: uses}, nil
}

// QueryLimits tells what a tenant may use, and uses.
func (t tenantsService) QueryLimits(_ context.Context, request *managementv1.TenantQueryLimitsRequest) (*managementv1.TenantQueryLimitsResponse, error) {
	limits, uses := t.state.describeUse(request.GetTenant())
	return &managementv1.TenantQueryLimitsResponse{Tenant: request.GetTenant(), Limits: limits, Pools: uses}, nil
}
