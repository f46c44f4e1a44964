package tenant

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/policy"
	"weir.dev/weir/operator/internal/status"
)

// usedChangePermille is how much of the quota has to come into use, or out of it, before the status is written.
const usedChangePermille = 1

// answers are what engines said of a tenant's limits.
type answers struct {
	asked int
	// used are the bytes held in the cluster where most are.
	used int64
	// silent are clusters and pools that did not say what they hold, refused those that refuse the limits, with their reasons.
	silent, refused []string
}

// limit has the engines of all clusters go by the tenant's quota, and reports what they say. It returns when to ask again.
func (r *Reconciler) limit(ctx context.Context, tenant *v1alpha1.Tenant, clusters []*v1alpha1.StorageCluster) (time.Duration, error) {
	wanted := limits(tenant.Spec.Quota)
	var f answers
	for _, cluster := range clusters {
		if !everUp(cluster) || !cluster.DeletionTimestamp.IsZero() {
			continue
		}
		f.asked++
		name := client.ObjectKeyFromObject(cluster)
		pools, err := r.limitIn(ctx, name, tenant, wanted)
		switch {
		case ctx.Err() != nil:
			return 0, fmt.Errorf("interrupted: %w", ctx.Err())
		case grpcstatus.Code(err) == codes.Unimplemented && tenant.Spec.Quota == nil:
			continue // engines of an earlier release limit nobody
		case err != nil && management.IsRejected(err):
			f.refused = append(f.refused, fmt.Sprintf("StorageCluster %s (%s)", name, management.Message(err)))
		case err != nil:
			f.silent = append(f.silent, fmt.Sprintf("StorageCluster %s (%s)", name, management.Message(err)))
		}
		var used int64
		for _, pool := range pools {
			used += int64(pool.GetUsedBytes())
			if !pool.GetAnswered() && tenant.Spec.Quota != nil {
				f.silent = append(f.silent, fmt.Sprintf("pool %s of StorageCluster %s (%s)", pool.GetLabel(), name, pool.GetMessage()))
			}
		}
		f.used = max(f.used, used)
	}
	c, after := limited(wanted, f)
	switch {
	case tenant.Spec.Quota == nil && len(f.silent) == 0:
		tenant.Status.Quota = nil
	case f.asked > 0 && len(f.silent) == 0 && len(f.refused) == 0:
		tenant.Status.Quota = quotaStatus(tenant.Status.Quota, tenant.Spec.Quota, f.used)
	}
	r.report(ctx, tenant, c)
	return after, nil
}

// limitIn has the engines of a cluster go by limits, and returns what the tenant's pools use.
func (r *Reconciler) limitIn(
	ctx context.Context, cluster types.NamespacedName, tenant *v1alpha1.Tenant, wanted *managementv1.TenantLimits,
) ([]*managementv1.TenantPoolUse, error) {
	engines, err := r.engines.Connect(ctx, cluster)
	if err != nil {
		return nil, err
	}
	number := uint64(tenant.Status.Number)
	known, err := engines.Tenants.QueryLimits(ctx, &managementv1.TenantQueryLimitsRequest{Tenant: number})
	if err != nil {
		return nil, err
	}
	if same(known.GetLimits(), wanted) {
		return known.GetPools(), nil
	}
	set, err := engines.Tenants.SetLimits(ctx, &managementv1.TenantSetLimitsRequest{Tenant: number, Limits: wanted})
	return set.GetPools(), err
}

func same(a, b *managementv1.TenantLimits) bool {
	return a.GetBytes() == b.GetBytes() && a.GetOperationsPerSecond() == b.GetOperationsPerSecond() && a.GetBytesPerSecond() == b.GetBytesPerSecond()
}

// limits are those of a quota, as engines take them.
func limits(quota *v1alpha1.TenantQuota) *managementv1.TenantLimits {
	wanted := &managementv1.TenantLimits{}
	if quota == nil {
		return wanted
	}
	if quota.Bytes != nil {
		wanted.Bytes = uint64(quota.Bytes.Value())
	}
	if quota.IOPS != nil {
		wanted.OperationsPerSecond = uint64(*quota.IOPS)
	}
	if quota.Bandwidth != nil {
		wanted.BytesPerSecond = uint64(quota.Bandwidth.Value())
	}
	return wanted
}

// limited is what to say of the quota, and when to ask again.
func limited(wanted *managementv1.TenantLimits, f answers) (status.Condition, time.Duration) {
	none := same(wanted, &managementv1.TenantLimits{})
	lacking := func(state metav1.ConditionStatus, reason, message string, after time.Duration) (status.Condition, time.Duration) {
		return status.Condition{Type: v1alpha1.ConditionQuotaEnforced, Status: state, Reason: reason, Message: message}, after
	}
	switch {
	case f.asked == 0:
		return lacking(metav1.ConditionUnknown, v1alpha1.ReasonNoCluster, "no engine has been up yet", silentInterval)
	case len(f.refused) > 0:
		return lacking(metav1.ConditionFalse, v1alpha1.ReasonQuotaRefused, "the quota is refused by "+status.ListSome(f.refused, 3), servedInterval)
	case len(f.silent) > 0:
		return lacking(metav1.ConditionUnknown, v1alpha1.ReasonEnginesSilent, "no answer of "+status.ListSome(f.silent, 3), silentInterval)
	case none:
		return lacking(metav1.ConditionFalse, v1alpha1.ReasonNoQuota, "spec.quota is absent: the tenant's pools may use all that they have", servedInterval)
	case wanted.GetBytes() > 0 && uint64(f.used) > wanted.GetBytes():
		return lacking(metav1.ConditionTrue, v1alpha1.ReasonQuotaExceeded, fmt.Sprintf(
			"the tenant's pools hold %s, more than its quota of %s: engines store nothing more until less is held. Delete data, or raise spec.quota.bytes",
			policy.Bytes(f.used), policy.Bytes(int64(wanted.GetBytes()))), servedInterval)
	default:
		return lacking(metav1.ConditionTrue, v1alpha1.ReasonQuotaSet, "engines go by spec.quota", servedInterval)
	}
}

// quotaStatus is what the status is to show: bytes that it shows where those are near enough.
func quotaStatus(shown *v1alpha1.TenantQuotaStatus, quota *v1alpha1.TenantQuota, used int64) *v1alpha1.TenantQuotaStatus {
	current := &v1alpha1.TenantQuotaStatus{Used: policy.Quantity(used), Bytes: quota.Bytes, IOPS: quota.IOPS, Bandwidth: quota.Bandwidth}
	near := func(a, b, of *resource.Quantity) bool {
		return a != nil && of != nil && max(a.Value(), b.Value())-min(a.Value(), b.Value()) <= of.Value()/1000*usedChangePermille
	}
	if shown != nil && near(shown.Used, current.Used, quota.Bytes) {
		current.Used = shown.Used
	}
	return current
}
