package lifecycle

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

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

// A deletion that comes while the engines make a pool finds its UUID, without which nothing is destroyed.
func TestWhatIsMadeForAnObjectThatIsDeletedMeanwhileIsRemembered(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Namespace: "here", Name: "tank", Finalizers: []string{v1alpha1.Finalizer}}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(pool).WithObjects(pool).Build()
	course := Course[*v1alpha1.Pool]{
		Client: c, Live: c,
		New: func() *v1alpha1.Pool { return &v1alpha1.Pool{} },
		Status: func(p *v1alpha1.Pool) Status {
			return Status{ObservedGeneration: &p.Status.ObservedGeneration, Conditions: &p.Status.Conditions, UUID: &p.Status.UUID}
		},
		Converge: func(ctx context.Context, p *v1alpha1.Pool) (time.Duration, error) {
			p.Status.UUID = "0a1b"
			return 0, c.Delete(ctx, p.DeepCopy())
		},
	}
	key := client.ObjectKeyFromObject(pool)
	if _, err := course.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); !apierrors.IsConflict(err) {
		t.Errorf("the older copy was written: %v", err)
	}
	got := &v1alpha1.Pool{}
	if err := c.Get(t.Context(), key, got); err != nil || got.Status.UUID != "0a1b" || got.DeletionTimestamp.IsZero() {
		t.Errorf("%v, the pool has UUID %q and is deleted %v", err, got.Status.UUID, got.DeletionTimestamp)
	}
}
