package tenants

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
)

func tenant(name, created, project string, number int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "storage.weir.dev/v1alpha1", "kind": "Tenant",
		"metadata": map[string]any{"name": name, "creationTimestamp": created},
		"spec":     map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"project": project}}},
		"status":   map[string]any{"number": number},
	}}
}

func TestANamespaceBelongsToTheOldestTenantThatSelectsIt(t *testing.T) {
	namespace := func(name string, labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	core := fake.NewClientset(
		namespace("weather", map[string]string{"project": "climate"}), namespace("genes", map[string]string{"project": "biology"}), namespace("kube-system", nil),
	).CoreV1().Namespaces()
	kinds := map[schema.GroupVersionResource]string{{Group: "storage.weir.dev", Version: "v1alpha1", Resource: "tenants"}: "TenantList"}
	api := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds,
		tenant("later", "2026-02-01T00:00:00Z", "climate", 90002),
		tenant("climate", "2026-01-01T00:00:00Z", "climate", 90001),
		tenant("biology", "2026-01-01T00:00:00Z", "biology", 90003))
	all := New(core, api)
	for name, want := range map[string]Tenant{
		"weather": {Name: "climate", Number: 90001}, "genes": {Name: "biology", Number: 90003}, "kube-system": {},
	} {
		got, err := all.Of(t.Context(), name)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, want)
		}
	}
	if _, err := all.Of(t.Context(), "absent"); err == nil {
		t.Error("a namespace that is not there has a tenant")
	}
}
