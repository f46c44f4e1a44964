package assembly

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/container"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/pool"
)

// destruction is what engines answer to every request to destroy something.
type destruction struct {
	missing bool
	err     error
}

func (d destruction) Connect(context.Context, types.NamespacedName) (*management.Engines, error) {
	return &management.Engines{Pools: pools{destruction: d}, Containers: containers{destruction: d}}, nil
}

type pools struct {
	managementv1.PoolsClient
	destruction
}

func (p pools) Destroy(context.Context, *managementv1.PoolDestroyRequest, ...grpc.CallOption) (*managementv1.PoolDestroyResponse, error) {
	return &managementv1.PoolDestroyResponse{Missing: p.missing}, p.err
}

type containers struct {
	managementv1.ContainersClient
	destruction
}

func (c containers) Query(context.Context, *managementv1.ContainerQueryRequest, ...grpc.CallOption) (*managementv1.ContainerQueryResponse, error) {
	if c.missing {
		return nil, status.Error(codes.NotFound, "does not exist")
	}
	return &managementv1.ContainerQueryResponse{Container: &managementv1.ContainerInfo{Uuid: "0a1b"}}, c.err
}

func (c containers) Destroy(context.Context, *managementv1.ContainerDestroyRequest, ...grpc.CallOption) (*managementv1.ContainerDestroyResponse, error) {
	return &managementv1.ContainerDestroyResponse{Missing: c.missing}, c.err
}

// heard are events: their reasons and notes.
type heard struct{ events []string }

func (h *heard) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	h.events = append(h.events, reason+": "+fmt.Sprintf(note, args...))
}

func TestAnEventSaysWhetherThereWasAnythingToDestroy(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(deletedAt().Time)
	lake := func(uuid string) *v1alpha1.Pool {
		spec := v1alpha1.PoolSpec{ClusterRef: v1alpha1.LocalReference{Name: "weir"}, DeletionPolicy: v1alpha1.DeletionDelete}
		return &v1alpha1.Pool{ObjectMeta: goes("lake"), Spec: spec, Status: v1alpha1.PoolStatus{UUID: uuid}}
	}
	box := func(uuid string) *v1alpha1.Container {
		spec := v1alpha1.ContainerSpec{PoolRef: v1alpha1.LocalReference{Name: "tank"}, DeletionPolicy: v1alpha1.DeletionDelete}
		return &v1alpha1.Container{ObjectMeta: goes("box"), Spec: spec, Status: v1alpha1.ContainerStatus{UUID: uuid}}
	}
	tank := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "tank"}, Status: v1alpha1.PoolStatus{UUID: "2c3d"}}
	there, missing := destruction{}, destruction{missing: true}
	unknown := destruction{err: status.Error(codes.NotFound, "does not exist")}
	tests := map[string]struct {
		object  client.Object
		engines destruction
		want    []string
	}{
		"a pool that was there":              {lake("0a1b"), there, []string{"Destroyed: pool lake and its data are destroyed"}},
		"a pool that was not":                {lake("0a1b"), missing, []string{"AlreadyGone: pool lake (0a1b) was not in the engines any more: there was nothing to destroy"}},
		"a pool that the engines don't know": {lake("0a1b"), unknown, []string{"AlreadyGone: pool lake (0a1b) was not in the engines any more: there was nothing to destroy"}},
		"a pool that was never made":         {lake(""), missing, nil},
		"a container that was there":         {box("0a1b"), there, []string{"Destroyed: container box is destroyed; its space comes back in the background"}},
		"a container that was not":           {box("0a1b"), missing, []string{"AlreadyGone: container box (0a1b) was not in pool tank any more: there was nothing to destroy"}},
		"a container the engines don't know": {box("0a1b"), unknown, []string{"AlreadyGone: container box (0a1b) was not in pool tank any more: there was nothing to destroy"}},
		"a container that was never made":    {box(""), missing, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := holding(t, tc.object, tank)
			var sent heard
			var r reconcile.Reconciler = pool.New(c, c, tc.engines, &sent, clock)
			if _, is := tc.object.(*v1alpha1.Container); is {
				r = container.New(c, c, tc.engines, &sent, clock)
			}
			key := client.ObjectKeyFromObject(tc.object)
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(sent.events, tc.want) {
				t.Errorf("events %q, want %q", sent.events, tc.want)
			}
			if err := c.Get(t.Context(), key, tc.object); !apierrors.IsNotFound(err) {
				t.Errorf("the object was not let go: %v", err)
			}
		})
	}
}
