package management

import (
	"context"
	"fmt"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// Attributes by which the CSI driver tells whose volume a container is.
const (
	attributeClaimNamespace = "csi.weir.dev/pvc-namespace"
	attributeClaimName      = "csi.weir.dev/pvc-name"
)

// InUse names the containers of a pool that clients have open, with the claims that they were made for. A pool that the
// engines don't have is not in use.
func InUse(ctx context.Context, engines *Engines, pool string) ([]string, error) {
	answer, err := engines.Containers.List(ctx, &managementv1.ContainerListRequest{Pool: pool})
	if IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range answer.GetContainers() {
		if clients := c.GetOpenHandles(); clients > 0 {
			names = append(names, fmt.Sprintf("container %s%s (open at %d clients)",
				c.GetLabel(), OfClaim(ctx, engines, pool, c.GetUuid()), clients))
		}
	}
	return names, nil
}

// OfClaim names the claim that a container was made for, with the words that lead to it; "" for none. A listing does not tell.
func OfClaim(ctx context.Context, engines *Engines, pool, container string) string {
	answer, err := engines.Containers.Query(ctx, &managementv1.ContainerQueryRequest{Pool: pool, Container: container})
	attributes := answer.GetContainer().GetAttributes()
	if err != nil || attributes[attributeClaimName] == "" {
		return ""
	}
	return fmt.Sprintf(" of PersistentVolumeClaim %s/%s", attributes[attributeClaimNamespace], attributes[attributeClaimName])
}
