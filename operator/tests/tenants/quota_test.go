package tenants

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
)

func TestAQuotaThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	for quota, taken := range map[string]bool{
		"{bytes: 10Ti}": true,
		"{bytes: 1Mi, iops: 100, bandwidth: 1Mi}": true,
		"{iops: 20000}":      true,
		"{}":                 false,
		"{bytes: 0}":         false,
		"{bytes: 1048575}":   false,
		"{bytes: -1Gi}":      false,
		"{bytes: 1.5}":       false,
		"{iops: 99}":         false,
		"{bandwidth: 100Ki}": false,
		"{files: 5}":         false,
	} {
		tenant := object(t, "Tenant", "quota", `{namespaceSelector: {matchLabels: {tenant: quota}}, vni: {mode: None}, quota: `+quota+`}`)
		err := admin.Create(t.Context(), tenant, fieldSet, client.DryRunAll)
		if refused := apierrors.IsInvalid(err) || apierrors.IsBadRequest(err); taken && err != nil || !taken && !refused {
			t.Errorf("%s: %v", quota, err)
		}
	}
}

func TestATenantWithAQuotaSaysWhetherEnginesGoByIt(t *testing.T) {
	t.Parallel()
	cluster(t)
	create(t, "Tenant", "limited", `{namespaceSelector: {matchLabels: {tenant: limited}}, vni: {mode: None}, quota: {bytes: 1Gi}}`)
	condition(t, &v1alpha1.Tenant{}, "limited", v1alpha1.ConditionQuotaEnforced, false, v1alpha1.ReasonNoCluster, "no engine")
	remove(t, &v1alpha1.Tenant{}, "limited")
}
