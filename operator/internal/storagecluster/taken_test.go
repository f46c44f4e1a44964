package storagecluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
)

// byHand is the metadata of what somebody made who knows nothing of the operator.
func byHand(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "7"}
}

// untouched fails the test unless the objects are there as they were made.
func untouched(t *testing.T, server client.Client, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		got := object.DeepCopyObject().(client.Object)
		if err := server.Get(t.Context(), client.ObjectKeyFromObject(object), got); err != nil || got.GetResourceVersion() != "7" {
			t.Errorf("%T %s was touched: %+v, %v", object, object.GetName(), got, err)
		}
	}
}

func TestARecordThatIsSomethingElseIsToldApart(t *testing.T) {
	cluster := inDirectories()
	other := &corev1.ConfigMap{ObjectMeta: byHand("data", "weir-placement"), Data: map[string]string{"seats": "12"}}
	all := holding(t, cluster, other)
	got := again(t, reconciler(all, all))
	c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionReady)
	if c.Reason != v1alpha1.ReasonNameTaken || !strings.Contains(c.Message, "ConfigMap data/weir-placement belongs to somebody else") {
		t.Errorf("condition %+v", c)
	}
	untouched(t, all, other)
}
