package assembly

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/container"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/pool"
	"weir.dev/weir/operator/internal/storagecluster"
	"weir.dev/weir/operator/internal/tenant"
)

// calls are counted at an API server, or at a cache of it. listed are the objects that lists returned.
type calls struct{ gets, lists, listed, writes int }

// counting counts what is asked of a client.
func counting(c client.Client, n *calls) client.Client {
	wrote := func(err error) error { n.writes++; return err }
	return interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
			n.gets++
			return c.Get(ctx, key, obj, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			n.lists++
			err := c.List(ctx, list, options...)
			n.listed += listed(list)
			return err
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, options ...client.CreateOption) error {
			return wrote(c.Create(ctx, obj, options...))
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, options ...client.UpdateOption) error {
			return wrote(c.Update(ctx, obj, options...))
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, options ...client.PatchOption) error {
			return wrote(c.Patch(ctx, obj, patch, options...))
		},
		Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			return wrote(c.Apply(ctx, obj, options...))
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			return wrote(c.SubResource(sub).Patch(ctx, obj, patch, options...))
		},
	})
}

// listed is how many objects a list has.
func listed(list client.ObjectList) int {
	switch list := list.(type) {
	case *v1alpha1.ContainerList:
		return len(list.Items)
	case *v1alpha1.PoolList:
		return len(list.Items)
	default:
		return 0
	}
}

// asked are engines that have all that they are asked for, and count how often they are.
type asked struct {
	questions int
	silent    bool
}

func (a *asked) Connect(context.Context, types.NamespacedName) (*management.Engines, error) {
	return &management.Engines{System: askedSystem{asked: a}, Pools: askedPools{asked: a}, Containers: askedContainers{asked: a}}, nil
}

func (*asked) Forget(types.NamespacedName) {}

func (a *asked) answer() error {
	a.questions++
	if a.silent {
		return status.Error(codes.Unavailable, "no route")
	}
	return nil
}

type askedSystem struct {
	managementv1.SystemClient
	*asked
}

func (a askedSystem) Query(context.Context, *managementv1.SystemQueryRequest, ...grpc.CallOption) (*managementv1.SystemQueryResponse, error) {
	return &managementv1.SystemQueryResponse{Engines: []*managementv1.EngineState{
		{Health: managementv1.EngineHealth_ENGINE_HEALTH_UP, FreeBytes: 1 << 40, Targets: 1, Version: "1"},
	}}, a.answer()
}

type askedPools struct {
	managementv1.PoolsClient
	*asked
}

func (a askedPools) Query(_ context.Context, request *managementv1.PoolQueryRequest, _ ...grpc.CallOption) (*managementv1.PoolQueryResponse, error) {
	return &managementv1.PoolQueryResponse{Pool: &managementv1.PoolInfo{
		Uuid: "2c3d", Label: request.GetPool(), SizeBytes: 1 << 30, FreeBytes: 1 << 30, Ranks: []uint32{0}, ServiceRanks: []uint32{0}, ObjectClass: "SX",
	}}, a.answer()
}

type askedContainers struct {
	managementv1.ContainersClient
	*asked
}

func (a askedContainers) Query(_ context.Context, request *managementv1.ContainerQueryRequest, _ ...grpc.CallOption) (*managementv1.ContainerQueryResponse, error) {
	return &managementv1.ContainerQueryResponse{Container: &managementv1.ContainerInfo{
		Uuid: "4e5f", Label: request.GetContainer(), ObjectClass: "SX", ChunkSizeBytes: 1 << 20,
	}}, a.answer()
}

// among are objects of a kind beside which others are settled.
func among(n int) []client.Object {
	objects := []client.Object{
		&v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "weir"}},
		&v1alpha1.Pool{
			ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "tank"}, Status: v1alpha1.PoolStatus{UUID: "2c3d"},
			Spec: v1alpha1.PoolSpec{ClusterRef: v1alpha1.LocalReference{Name: "weir"}, ObjectClass: "SX"},
		},
	}
	for i := range n {
		meta := metav1.ObjectMeta{Namespace: "storage", Name: fmt.Sprintf("other-%d", i), UID: types.UID(fmt.Sprintf("other-%d", i))}
		objects = append(objects,
			&v1alpha1.Container{ObjectMeta: meta, Spec: v1alpha1.ContainerSpec{PoolRef: v1alpha1.LocalReference{Name: "tank"}}},
			&v1alpha1.Pool{ObjectMeta: meta, Spec: v1alpha1.PoolSpec{ClusterRef: v1alpha1.LocalReference{Name: "weir"}}})
	}
	return objects
}

// What a reconciliation costs must not grow with the number of objects, and one that finds everything in place must not write.
func TestASettledObjectCostsFewReadsAndNoWrites(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(deletedAt().Time)
	box := &v1alpha1.Container{
		ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "box", UID: "4e5f"},
		Spec:       v1alpha1.ContainerSpec{PoolRef: v1alpha1.LocalReference{Name: "tank"}, Type: v1alpha1.ContainerPosix},
	}
	lake := &v1alpha1.Pool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "lake", UID: "2c3d"},
		Spec:       v1alpha1.PoolSpec{ClusterRef: v1alpha1.LocalReference{Name: "weir"}, ObjectClass: "SX"},
		Status:     v1alpha1.PoolStatus{UUID: "2c3d"},
	}
	store := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "store", UID: "c1"}}
	store.Spec.Storage.HostPath = &v1alpha1.HostPathStorage{Path: "/data"}
	store.Spec.Engines.Replicas = 1
	climate := &v1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{Name: "climate", UID: "7a1b"}, Spec: v1alpha1.TenantSpec{VNI: v1alpha1.TenantVNI{Mode: v1alpha1.VNINone}}}
	climate.Spec.NamespaceSelector.MatchLabels = map[string]string{"tenant": "climate"}
	for kind, tc := range map[string]struct {
		object client.Object
		make   func(c, live client.Client, engines *asked) reconcile.Reconciler
		// cache, past and questions are what one look may cost: reads of the cache and past it, and questions to the engines.
		cache     calls
		past      calls
		questions int
	}{
		"a Container": {box, func(c, live client.Client, engines *asked) reconcile.Reconciler {
			return container.New(c, live, engines, deaf{}, clock)
		}, calls{gets: 2, lists: 1, listed: 1}, calls{}, 1},
		"a Pool": {lake, func(c, live client.Client, engines *asked) reconcile.Reconciler {
			return pool.New(c, live, engines, deaf{}, clock)
		}, calls{gets: 2}, calls{}, 1},
		"a Tenant": {climate, func(c, live client.Client, engines *asked) reconcile.Reconciler {
			return tenant.New(c, live, engines, deaf{}, clock, "")
		}, calls{gets: 2, lists: 5}, calls{}, 0},
		"a StorageCluster": {store, func(c, live client.Client, engines *asked) reconcile.Reconciler {
			return storagecluster.New(c, live, engines, deaf{}, clock, storagecluster.Config{Namespace: "weir-system", EngineImage: "weir/engine:1"})
		}, calls{gets: 16, lists: 4}, calls{gets: 1}, 1}, // the Secret of all clusters, of which others write parts
	} {
		t.Run(kind, func(t *testing.T) {
			var cached, live calls
			api := holding(t, tc.object.DeepCopyObject().(client.Object), among(50)...)
			engines := &asked{}
			r := tc.make(counting(api, &cached), counting(api, &live), engines)
			for range 4 { // until all is made
				cached, live, engines.questions = calls{}, calls{}, 0
				if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tc.object)}); err != nil {
					t.Fatal(err)
				}
			}
			if cached.writes+live.writes > 0 || cached.gets > tc.cache.gets || cached.lists > tc.cache.lists || cached.listed > tc.cache.listed {
				t.Errorf("costs %+v, want no more than %+v", cached, tc.cache)
			}
			if live != tc.past || engines.questions > tc.questions {
				t.Errorf("costs %+v past the cache, and %d questions to the engines", live, engines.questions)
			}
		})
	}
}

// Where the engines of a pool don't answer the Pool tells, and nobody asks for each of its containers.
func TestContainersFollowTheirPoolWhereEnginesDoNotAnswer(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(deletedAt().Time)
	tank := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "tank"}, Spec: v1alpha1.PoolSpec{ClusterRef: v1alpha1.LocalReference{Name: "weir"}}}
	tank.Status = v1alpha1.PoolStatus{UUID: "2c3d", Conditions: []metav1.Condition{
		{Type: v1alpha1.ConditionDegraded, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonEngineUnreachable, Message: "no engine of weir answers"},
	}}
	box := &v1alpha1.Container{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "box"}, Status: v1alpha1.ContainerStatus{UUID: "4e5f"}}
	box.Spec.PoolRef.Name = "tank"
	api, engines := holding(t, box, tank), &asked{silent: true}
	r := container.New(api, api, engines, deaf{}, clock)
	for range 2 {
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(box)})
		if err != nil || result.RequeueAfter != 0 || engines.questions != 0 {
			t.Errorf("%v, again after %s, %d questions", err, result.RequeueAfter, engines.questions)
		}
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(box), box); err != nil {
		t.Fatal(err)
	}
	for _, c := range box.Status.Conditions {
		if c.Type == v1alpha1.ConditionReady && (c.Status != metav1.ConditionFalse || c.Message != "no engine of weir answers") {
			t.Errorf("condition %+v", c)
		}
	}
}
