package tenant

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"weir.dev/weir/operator/api/v1alpha1"
)

// number is the tenant's number for one attempt at one. It is made of the Tenant's UID, which no other object ever has: so the number
// of a deleted Tenant, and with it the key that its former clients may still have, is never another's. A VNI would not do, since
// that is given away again after its quarantine.
func number(tenant *v1alpha1.Tenant, attempt uint64) int64 {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64([]byte(tenant.UID), attempt))
	const span = v1alpha1.TenantNumberMax - v1alpha1.TenantNumberMin + 1
	return v1alpha1.TenantNumberMin + int64(binary.LittleEndian.Uint64(sum[:8])%span)
}

// numbered gives the tenant a number that none of the others has.
func (r *Reconciler) numbered(ctx context.Context, tenant *v1alpha1.Tenant) error {
	var all v1alpha1.TenantList
	if err := r.live.List(ctx, &all); err != nil {
		return fmt.Errorf("list Tenants: %w", err)
	}
	taken := map[int64]bool{}
	for i := range all.Items {
		other := &all.Items[i]
		switch {
		case other.UID != tenant.UID:
			taken[other.Status.Number] = true
		case other.Status.Number != 0: // the cache does not show it yet
			tenant.Status.Number = other.Status.Number
			return nil
		}
	}
	for attempt := uint64(0); ; attempt++ {
		if candidate := number(tenant, attempt); !taken[candidate] {
			tenant.Status.Number = candidate
			return nil
		}
	}
}
