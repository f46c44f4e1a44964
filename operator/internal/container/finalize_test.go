package container

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/management"
)

// silent engines never answer.
type silent struct{}

func (silent) Connect(context.Context, types.NamespacedName) (*management.Engines, error) {
	return nil, status.Error(codes.Unavailable, "no route")
}

// deaf takes events and forgets them.
type deaf struct{}

func (deaf) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

func TestADeletionDoesNotTrustACacheThatKnowsOfNoContainer(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	deleted := metav1.NewTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	object := func(uuid string) *v1alpha1.Container {
		return &v1alpha1.Container{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "storage", Name: "box", Finalizers: []string{v1alpha1.Finalizer}, DeletionTimestamp: &deleted,
			},
			Spec:   v1alpha1.ContainerSpec{PoolRef: v1alpha1.LocalReference{Name: "tank"}, DeletionPolicy: v1alpha1.DeletionDelete},
			Status: v1alpha1.ContainerStatus{UUID: uuid},
		}
	}
	others := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "storage"}},
		&v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "weir"}},
		&v1alpha1.Pool{
			ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "tank"},
			Spec:       v1alpha1.PoolSpec{ClusterRef: v1alpha1.LocalReference{Name: "weir"}}, Status: v1alpha1.PoolStatus{UUID: "2c3d"},
		},
	}
	with := func(uuid string) client.Client {
		return fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(others, object(uuid))...).
			WithStatusSubresource(&v1alpha1.Container{}).Build()
	}
	stale, live := with(""), with("0a1b")
	r := New(stale, live, silent{}, deaf{}, clocktesting.NewFakePassiveClock(deleted.Time))
	key := types.NamespacedName{Namespace: "storage", Name: "box"}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	var after v1alpha1.Container
	if err := stale.Get(t.Context(), key, &after); err != nil {
		t.Fatalf("the object was let go, and what it stands for stays in the engines: %v", err)
	}
	c := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionDeletionBlocked)
	if c == nil || c.Reason != v1alpha1.ReasonEngineUnreachable {
		t.Errorf("conditions %+v", after.Status.Conditions)
	}
}
