package tenant

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/management"
)

// engines of a cluster that keep limits.
type engines struct {
	managementv1.TenantsClient
	limits *managementv1.TenantLimits
	pools  []*managementv1.TenantPoolUse
	sets   int
	err    error
}

func (e *engines) Connect(context.Context, types.NamespacedName) (*management.Engines, error) {
	return &management.Engines{Tenants: e}, nil
}

func (e *engines) QueryLimits(context.Context, *managementv1.TenantQueryLimitsRequest, ...grpc.CallOption) (*managementv1.TenantQueryLimitsResponse, error) {
	if e.err != nil {
		return nil, e.err
	}
	return &managementv1.TenantQueryLimitsResponse{Limits: e.limits, Pools: e.pools}, nil
}

func (e *engines) SetLimits(_ context.Context, request *managementv1.TenantSetLimitsRequest, _ ...grpc.CallOption) (*managementv1.TenantSetLimitsResponse, error) {
	e.sets++
	e.limits = request.GetLimits()
	return &managementv1.TenantSetLimitsResponse{Limits: e.limits, Pools: e.pools}, nil
}

func quantity(text string) *resource.Quantity {
	q := resource.MustParse(text)
	return &q
}

func TestEnginesAreToldOfAQuotaOnceAndItsUseIsShown(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cluster := &v1alpha1.StorageCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "weir", Namespace: "storage"},
		Status:     v1alpha1.StorageClusterStatus{Engines: []v1alpha1.EngineStatus{{Version: "1"}}},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster).Build()
	e := &engines{pools: []*managementv1.TenantPoolUse{{Label: "tank", Answered: true, UsedBytes: 3 << 30}}}
	r := New(c, c, e, deaf{}, clock.RealClock{}, "")
	tenant := &v1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{Name: "climate"}, Status: v1alpha1.TenantStatus{Number: 70_000}}
	look := func(reason string, truth metav1.ConditionStatus) {
		t.Helper()
		if _, err := r.limit(t.Context(), tenant, []*v1alpha1.StorageCluster{cluster}); err != nil {
			t.Fatal(err)
		}
		got := meta.FindStatusCondition(tenant.Status.Conditions, v1alpha1.ConditionQuotaEnforced)
		if got == nil || got.Reason != reason || got.Status != truth {
			t.Fatalf("got %+v, want %s %s", got, truth, reason)
		}
	}
	look(v1alpha1.ReasonNoQuota, metav1.ConditionFalse)
	if e.sets != 0 || tenant.Status.Quota != nil {
		t.Errorf("told %d times without a quota, status %+v", e.sets, tenant.Status.Quota)
	}
	tenant.Spec.Quota = &v1alpha1.TenantQuota{Bytes: quantity("10Gi"), IOPS: new(int64(500)), Bandwidth: quantity("1Gi")}
	for range 2 {
		look(v1alpha1.ReasonQuotaSet, metav1.ConditionTrue)
	}
	if e.sets != 1 || e.limits.GetBytes() != 10<<30 || e.limits.GetOperationsPerSecond() != 500 || e.limits.GetBytesPerSecond() != 1<<30 {
		t.Errorf("told %d times of %v", e.sets, e.limits)
	}
	if q := tenant.Status.Quota; q == nil || q.Used.String() != "3Gi" || q.Bytes.String() != "10Gi" || *q.IOPS != 500 {
		t.Errorf("status %+v", q)
	}
	tenant.Spec.Quota = &v1alpha1.TenantQuota{Bytes: quantity("1Gi")}
	look(v1alpha1.ReasonQuotaExceeded, metav1.ConditionTrue)
	e.pools[0].Answered = false
	look(v1alpha1.ReasonEnginesSilent, metav1.ConditionUnknown)
	e.err = grpcstatus.Error(codes.InvalidArgument, "too small")
	look(v1alpha1.ReasonQuotaRefused, metav1.ConditionFalse)
	if got := meta.FindStatusCondition(tenant.Status.Conditions, v1alpha1.ConditionQuotaEnforced); !strings.Contains(got.Message, "too small") {
		t.Errorf("the message is not the engines': %s", got.Message)
	}
	e.err, e.pools[0].Answered = nil, true
	tenant.Spec.Quota = nil
	look(v1alpha1.ReasonNoQuota, metav1.ConditionFalse)
	if !same(e.limits, &managementv1.TenantLimits{}) || tenant.Status.Quota != nil {
		t.Errorf("what is left without a quota: %v, status %+v", e.limits, tenant.Status.Quota)
	}
	// Engines of an earlier release know no limits: that matters to who has a quota.
	e.err = grpcstatus.Error(codes.Unimplemented, "there is no method")
	look(v1alpha1.ReasonNoQuota, metav1.ConditionFalse)
	tenant.Spec.Quota = &v1alpha1.TenantQuota{Bytes: quantity("1Gi")}
	look(v1alpha1.ReasonQuotaRefused, metav1.ConditionFalse)
}
