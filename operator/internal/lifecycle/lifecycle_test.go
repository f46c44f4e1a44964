package lifecycle

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"weir.dev/weir/operator/api/v1alpha1"
)

// Caches lag behind: what was written since an object was read must not be undone.
func TestAStatusFromAnOlderCopyDoesNotUndoANewerOne(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cluster := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "here", Name: "weir"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(cluster).WithObjects(cluster).Build()
	read := func() *v1alpha1.StorageCluster {
		got := &v1alpha1.StorageCluster{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(cluster), got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	write := func(base *v1alpha1.StorageCluster, engines ...v1alpha1.EngineStatus) error {
		obj := base.DeepCopy()
		obj.Status.Engines = engines
		return patchStatus(t.Context(), c, obj, base)
	}

	older := read()
	if err := write(older, v1alpha1.EngineStatus{Rank: 0, Version: "1.0"}, v1alpha1.EngineStatus{Rank: 1, Version: "1.0"}); err != nil {
		t.Fatal(err)
	}
	if err := write(older, v1alpha1.EngineStatus{Rank: 0, Version: "1.0"}); !apierrors.IsConflict(err) {
		t.Errorf("an older copy was written: %v", err)
	}
	if engines := read().Status.Engines; len(engines) != 2 {
		t.Errorf("engines are %+v", engines)
	}
	if err := write(read(), v1alpha1.EngineStatus{Rank: 0, Version: "1.1"}); err != nil {
		t.Errorf("what was read just now was refused: %v", err)
	}
}
