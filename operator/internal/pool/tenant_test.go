package pool

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"weir.dev/weir/operator/api/v1alpha1"
)

func TestAPoolBelongsToTheTenantThatItNamesOrToItsNamespaces(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	tenant := func(name string, number int64) *v1alpha1.Tenant {
		return &v1alpha1.Tenant{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.TenantSpec{NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": name}}},
			Status:     v1alpha1.TenantStatus{Number: number},
		}
	}
	namespace := func(name, team string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": team}}}
	}
	server := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		tenant("one", 70001), tenant("new", 0), namespace("lab", "one"), namespace("storage", "nobody")).Build()
	r := &Reconciler{client: server, live: server}
	for title, tc := range map[string]struct {
		namespace, ref string
		number         uint64
		reason         string
	}{
		"its namespace's":               {namespace: "lab", number: 70001},
		"the system's":                  {namespace: "storage"},
		"the one that it names":         {namespace: "storage", ref: "one", number: 70001},
		"one that is not there":         {namespace: "storage", ref: "absent", reason: v1alpha1.ReasonTenantNotFound},
		"one that has no number so far": {namespace: "storage", ref: "new", reason: v1alpha1.ReasonTenantNotReady},
	} {
		t.Run(title, func(t *testing.T) {
			pool := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Namespace: tc.namespace, Name: "tank"}}
			if tc.ref != "" {
				pool.Spec.TenantRef = &v1alpha1.ClusterReference{Name: tc.ref}
			}
			number, problem, err := r.tenantNumber(t.Context(), pool)
			if err != nil || number != tc.number || (problem != nil) != (tc.reason != "") || (problem != nil && problem.Reason != tc.reason) {
				t.Errorf("got %d, %+v, %v", number, problem, err)
			}
		})
	}
}
