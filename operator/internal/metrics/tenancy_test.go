package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"weir.dev/weir/operator/api/v1alpha1"
)

func TestTenancyTellsNumbers(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	server := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&v1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{Name: "climate"}, Status: v1alpha1.TenantStatus{
			Number: 70001, Quota: &v1alpha1.TenantQuotaStatus{Used: resource.NewQuantity(3000, resource.BinarySI), Bytes: resource.NewQuantity(1<<20, resource.BinarySI)},
		}},
		&v1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{Name: "new"}},
		&v1alpha1.FabricDomain{ObjectMeta: metav1.ObjectMeta{Name: "hsn"}, Status: v1alpha1.FabricDomainStatus{Allocated: 3, Releasing: 1, Free: 6}},
	).Build()
	want := `
# HELP weir_operator_tenant_info Always 1; the labels tell the number of a Tenant.
# TYPE weir_operator_tenant_info gauge
weir_operator_tenant_info{name="climate",tenant="70001"} 1
# HELP weir_operator_tenant_quota_bytes Bytes that the pools of a Tenant may hold.
# TYPE weir_operator_tenant_quota_bytes gauge
weir_operator_tenant_quota_bytes{name="climate"} 1.048576e+06
# HELP weir_operator_tenant_used_bytes Bytes that the pools of a Tenant with a quota hold.
# TYPE weir_operator_tenant_used_bytes gauge
weir_operator_tenant_used_bytes{name="climate"} 3000
# HELP weir_operator_vnis Numbers of a FabricDomain: allocated, releasing and free.
# TYPE weir_operator_vnis gauge
weir_operator_vnis{name="hsn",state="allocated"} 3
weir_operator_vnis{name="hsn",state="free"} 6
weir_operator_vnis{name="hsn",state="releasing"} 1
`
	if err := testutil.CollectAndCompare(NewTenancy(server), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
