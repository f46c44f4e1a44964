package controller

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir.dev/weir/csi/internal/tenants"
	"weir.dev/weir/csi/volume"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// Tenants tells which tenant a namespace belongs to.
type Tenants interface {
	// Of returns the tenant of a namespace; the zero Tenant if it belongs to none.
	Of(ctx context.Context, namespace string) (tenants.Tenant, error)
}

// admit refuses a volume of a tenant's pool to a claim of anybody else. A pool of the system is everybody's.
func (s *Server) admit(ctx context.Context, p *plan, pool *managementv1.PoolInfo) error {
	if pool.GetTenant() == 0 || s.tenants == nil {
		return nil
	}
	namespace := p.parameters.Attributes[volume.AttributeClaimNamespace]
	if namespace == "" {
		return status.Errorf(codes.FailedPrecondition,
			"create volume %q: pool %s belongs to a tenant, and it is not known whose the claim is: run the provisioner with --extra-create-metadata",
			p.name, pool.GetLabel())
	}
	owner, err := s.tenants.Of(ctx, namespace)
	if err != nil {
		return status.Errorf(codes.Unavailable, "create volume %q: find the tenant of namespace %s: %v", p.name, namespace, err)
	}
	if owner.Number == pool.GetTenant() {
		return nil
	}
	whose := "no Tenant"
	if owner.Name != "" {
		whose = fmt.Sprintf("Tenant %s, number %d", owner.Name, owner.Number)
	}
	return status.Errorf(codes.PermissionDenied,
		"create volume %q: pool %s belongs to tenant number %d, and namespace %s to %s: use a StorageClass of a pool of the namespace's own tenant",
		p.name, pool.GetLabel(), pool.GetTenant(), namespace, whose)
}
