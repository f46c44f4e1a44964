package assembly

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/container"
	"weir.dev/weir/operator/internal/index"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/pool"
)

// silent engines never answer.
type silent struct{}

func (silent) Connect(context.Context, types.NamespacedName) (*management.Engines, error) {
	return nil, status.Error(codes.Unavailable, "no route")
}

// deaf takes events and forgets them.
type deaf struct{}

func (deaf) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

func deletedAt() metav1.Time { return metav1.NewTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)) }

// goes is the metadata of an object that is being deleted.
func goes(name string) metav1.ObjectMeta {
	deleted := deletedAt()
	return metav1.ObjectMeta{Namespace: "storage", Name: name, Finalizers: []string{v1alpha1.Finalizer}, DeletionTimestamp: &deleted}
}

// holding is an API server, or a cache of it, that holds an object with a status, and others.
func holding(t *testing.T, object client.Object, others ...client.Object) client.Client {
	t.Helper()
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).WithObjects(others...).WithStatusSubresource(object)
	for _, field := range index.Fields() {
		builder = builder.WithIndex(field.Object, field.Name, field.Values)
	}
	return builder.Build()
}

func TestADeletionDoesNotTrustTheCache(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(deletedAt().Time)
	poolSpec := func(policy v1alpha1.DeletionPolicy) v1alpha1.PoolSpec {
		return v1alpha1.PoolSpec{ClusterRef: v1alpha1.LocalReference{Name: "weir"}, DeletionPolicy: policy}
	}
	others := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "storage"}},
		&v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "weir"}},
		&v1alpha1.Pool{
			ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "tank"}, Spec: poolSpec(v1alpha1.DeletionDelete), Status: v1alpha1.PoolStatus{UUID: "2c3d"},
		},
	}
	tests := map[string]struct {
		// object is what is deleted by this policy, made in the engines under this UUID.
		object     func(policy v1alpha1.DeletionPolicy, uuid string) client.Object
		reconciler func(stale, live client.Client) reconcile.Reconciler
		conditions func(client.Object) []metav1.Condition
	}{
		"of a pool": {
			object: func(policy v1alpha1.DeletionPolicy, uuid string) client.Object {
				return &v1alpha1.Pool{ObjectMeta: goes("lake"), Spec: poolSpec(policy), Status: v1alpha1.PoolStatus{UUID: uuid}}
			},
			reconciler: func(stale, live client.Client) reconcile.Reconciler {
				return pool.New(stale, live, silent{}, deaf{}, clock)
			},
			conditions: func(obj client.Object) []metav1.Condition { return obj.(*v1alpha1.Pool).Status.Conditions },
		},
		"of a container": {
			object: func(policy v1alpha1.DeletionPolicy, uuid string) client.Object {
				spec := v1alpha1.ContainerSpec{PoolRef: v1alpha1.LocalReference{Name: "tank"}, DeletionPolicy: policy}
				return &v1alpha1.Container{ObjectMeta: goes("box"), Spec: spec, Status: v1alpha1.ContainerStatus{UUID: uuid}}
			},
			reconciler: func(stale, live client.Client) reconcile.Reconciler {
				return container.New(stale, live, silent{}, deaf{}, clock)
			},
			conditions: func(obj client.Object) []metav1.Condition { return obj.(*v1alpha1.Container).Status.Conditions },
		},
	}
	for name, tc := range tests {
		with := func(policy v1alpha1.DeletionPolicy, uuid string) client.Client {
			return holding(t, tc.object(policy, uuid), others...)
		}
		after := tc.object("", "")
		reconcileOnce := func(t *testing.T, stale, live client.Client) error {
			t.Helper()
			key := client.ObjectKeyFromObject(after)
			if _, err := tc.reconciler(stale, live).Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
				t.Fatal(err)
			}
			return stale.Get(t.Context(), key, after)
		}
		t.Run(name+" that was made", func(t *testing.T) {
			if err := reconcileOnce(t, with(v1alpha1.DeletionDelete, ""), with(v1alpha1.DeletionDelete, "0a1b")); err != nil {
				t.Fatalf("the object was let go, and what it stands for stays in the engines: %v", err)
			}
			c := meta.FindStatusCondition(tc.conditions(after), v1alpha1.ConditionDeletionBlocked)
			if c == nil || c.Reason != v1alpha1.ReasonEngineUnreachable {
				t.Errorf("conditions %+v", tc.conditions(after))
			}
		})
		t.Run(name+" that is to be kept by now", func(t *testing.T) {
			if err := reconcileOnce(t, with(v1alpha1.DeletionDelete, "0a1b"), with(v1alpha1.DeletionRetain, "0a1b")); !apierrors.IsNotFound(err) {
				t.Errorf("the engines were asked to destroy it: %v, conditions %+v", err, tc.conditions(after))
			}
		})
	}
}

// What a deletion waits for, or is let go without, was made or deleted a moment ago.
func TestADeletionSeesOthersPastTheCache(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(deletedAt().Time)
	stays := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "storage", Name: name} }
	destroyed := v1alpha1.PoolSpec{ClusterRef: v1alpha1.LocalReference{Name: "weir"}, DeletionPolicy: v1alpha1.DeletionDelete}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "storage"}}
	weir := &v1alpha1.StorageCluster{ObjectMeta: stays("weir")}
	tank := &v1alpha1.Pool{ObjectMeta: stays("tank"), Spec: destroyed, Status: v1alpha1.PoolStatus{UUID: "2c3d"}}
	lake := &v1alpha1.Pool{ObjectMeta: goes("lake"), Spec: destroyed, Status: v1alpha1.PoolStatus{UUID: "0a1b"}}
	boxIn := func(pool string, meta metav1.ObjectMeta) *v1alpha1.Container {
		spec := v1alpha1.ContainerSpec{PoolRef: v1alpha1.LocalReference{Name: pool}, DeletionPolicy: v1alpha1.DeletionDelete}
		return &v1alpha1.Container{ObjectMeta: meta, Spec: spec, Status: v1alpha1.ContainerStatus{UUID: "4e5f"}}
	}
	box := boxIn("tank", goes("box"))
	tests := map[string]struct {
		object client.Object
		// unseen is what the cache does not show yet, seen what it shows.
		seen, unseen []client.Object
		reason       string
	}{
		"a Container of the pool":          {lake, []client.Object{namespace, weir}, []client.Object{boxIn("lake", stays("box"))}, v1alpha1.ReasonDependentsExist},
		"the Pool of the container":        {box, []client.Object{namespace, weir}, []client.Object{tank}, v1alpha1.ReasonEngineUnreachable},
		"the StorageCluster of the pool":   {lake, []client.Object{namespace}, []client.Object{weir}, v1alpha1.ReasonEngineUnreachable},
		"that of the container's":          {box, []client.Object{namespace, tank}, []client.Object{weir}, v1alpha1.ReasonEngineUnreachable},
		"nothing, and all is in the cache": {lake, []client.Object{namespace, weir}, nil, v1alpha1.ReasonEngineUnreachable},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			stale, live := holding(t, tc.object, tc.seen...), holding(t, tc.object, append(tc.seen, tc.unseen...)...)
			var r reconcile.Reconciler = pool.New(stale, live, silent{}, deaf{}, clock)
			if _, is := tc.object.(*v1alpha1.Container); is {
				r = container.New(stale, live, silent{}, deaf{}, clock)
			}
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tc.object)}); err != nil {
				t.Fatal(err)
			}
			after := tc.object.DeepCopyObject().(client.Object)
			if err := stale.Get(t.Context(), client.ObjectKeyFromObject(tc.object), after); err != nil {
				t.Fatalf("it was let go: %v", err)
			}
			var conditions []metav1.Condition
			switch after := after.(type) {
			case *v1alpha1.Pool:
				conditions = after.Status.Conditions
			case *v1alpha1.Container:
				conditions = after.Status.Conditions
			}
			if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionDeletionBlocked); c == nil || c.Reason != tc.reason {
				t.Errorf("conditions %+v", conditions)
			}
		})
	}
}
