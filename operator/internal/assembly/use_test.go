package assembly

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/container"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/manifest"
	"weir.dev/weir/operator/internal/pool"
	"weir.dev/weir/operator/internal/storagecluster"
)

// opened are engines with one container, that some have open.
type opened struct {
	managementv1.ContainersClient
	info    *managementv1.ContainerInfo
	handles []*managementv1.OpenHandle
	// evicted are the handles that a destruction was told to be gone; nil before one.
	evicted []uint64
}

// opening are engines' handles as they list them.
func opening(handles ...*managementv1.OpenHandle) *opened {
	counted := uint32(0)
	for _, handle := range handles {
		if handle.GetCounts() {
			counted++
		}
	}
	attributes := map[string]string{"csi.weir.dev/pvc-name": "data", "csi.weir.dev/pvc-namespace": "apps"}
	return &opened{handles: handles, info: &managementv1.ContainerInfo{
		Uuid: "4e5f", Label: "box", PoolUuid: "2c3d", PoolLabel: "tank", OpenHandles: counted, Attributes: attributes,
	}}
}

func (o *opened) Connect(context.Context, types.NamespacedName) (*management.Engines, error) {
	return &management.Engines{Pools: onePool{}, Containers: o}, nil
}

func (o *opened) Forget(types.NamespacedName) {}

type onePool struct{ managementv1.PoolsClient }

func (onePool) List(context.Context, *managementv1.PoolListRequest, ...grpc.CallOption) (*managementv1.PoolListResponse, error) {
	return &managementv1.PoolListResponse{Pools: []*managementv1.PoolInfo{{Uuid: "2c3d", Label: "tank"}}}, nil
}

func (o *opened) List(context.Context, *managementv1.ContainerListRequest, ...grpc.CallOption) (*managementv1.ContainerListResponse, error) {
	return &managementv1.ContainerListResponse{Containers: []*managementv1.ContainerInfo{o.info}}, nil
}

func (o *opened) Query(context.Context, *managementv1.ContainerQueryRequest, ...grpc.CallOption) (*managementv1.ContainerQueryResponse, error) {
	return &managementv1.ContainerQueryResponse{Container: o.info, Handles: o.handles}, nil
}

func (o *opened) Destroy(_ context.Context, request *managementv1.ContainerDestroyRequest, _ ...grpc.CallOption) (*managementv1.ContainerDestroyResponse, error) {
	o.evicted = append([]uint64{}, request.GetGoneHandles()...)
	return &managementv1.ContainerDestroyResponse{}, nil
}

func nodeOf(name string, ready corev1.ConditionStatus, taints ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	for _, key := range taints {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key})
	}
	return node
}

// bound is a PersistentVolume that the claim apps/data has, or had.
func bound(handle string, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "csi.weir.dev", VolumeHandle: handle}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "apps", Name: "data"}
	pv.Status.Phase = phase
	return pv
}

// podAt is the pod apps/web-0 with a claim.
func podAt(node, claim string, phase corev1.PodPhase) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "web-0"}}
	pod.Spec.NodeName, pod.Status.Phase = node, phase
	source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source}}
	return pod
}

// use says who uses a container, or may, and what is said of it: nothing where it isn't in use.
type use struct {
	handles []*managementv1.OpenHandle
	objects []client.Object
	says    []string
	evicted []uint64
}

func uses() map[string]use {
	const running = corev1.PodRunning
	heard := func(node string) *managementv1.OpenHandle {
		return &managementv1.OpenHandle{Handle: 7, Node: node, SilentSeconds: 50, Counts: true}
	}
	silent := func(node string) *managementv1.OpenHandle {
		return &managementv1.OpenHandle{Handle: 8, Node: node, SilentSeconds: 5000}
	}
	handles := func(open ...*managementv1.OpenHandle) []*managementv1.OpenHandle { return open }
	objects := func(all ...client.Object) []client.Object { return all }
	const byID, byLabel = "weir/2c3d/4e5f", "weir/tank/box"
	return map[string]use{
		"nobody":                                 {evicted: []uint64{}},
		"a client on a node that was deleted":    {handles: handles(heard("deleted"), silent("deleted")), evicted: []uint64{7, 8}},
		"a client on a node out of service":      {handles: handles(heard("down")), evicted: []uint64{7}},
		"a client on a node that is well":        {handles: handles(heard("well")), says: []string{"a client on node well"}},
		"a client that died on its node":         {handles: handles(silent("well")), evicted: []uint64{}},
		"a client that doesn't say where it is":  {handles: handles(heard("")), says: []string{"1 client that doesn't say where it is"}},
		"a client on a node that nobody hears":   {handles: handles(silent("cut-off")), says: []string{"a client on node cut-off", "bring the node back", corev1.TaintNodeOutOfService}},
		"one that is gone and one not heard":     {handles: handles(heard("deleted"), silent("cut-off")), says: []string{"doesn't hear node cut-off,"}},
		"a pod on a node that nobody hears":      {handles: handles(silent("cut-off")), objects: objects(bound(byID, corev1.VolumeBound), podAt("cut-off", "data", running)), says: []string{"Users: ", "pod apps/web-0 on node cut-off", "bring the node back"}},
		"a pod whose mount engines don't hear":   {handles: handles(silent("well")), objects: objects(bound(byID, corev1.VolumeBound), podAt("well", "data", running)), says: []string{"pod apps/web-0 on node well"}},
		"a pod of a volume by labels":            {objects: objects(bound(byLabel, corev1.VolumeBound), podAt("well", "data", corev1.PodPending)), says: []string{"pod apps/web-0 on node well"}},
		"a pod on a node that is gone":           {objects: objects(bound(byID, corev1.VolumeBound), podAt("down", "data", running)), evicted: []uint64{}},
		"a pod that is done":                     {objects: objects(bound(byID, corev1.VolumeBound), podAt("well", "data", corev1.PodSucceeded)), evicted: []uint64{}},
		"a pod that runs nowhere":                {objects: objects(bound(byID, corev1.VolumeBound), podAt("", "data", corev1.PodPending)), evicted: []uint64{}},
		"a pod with another claim":               {objects: objects(bound(byID, corev1.VolumeBound), podAt("well", "other", running)), evicted: []uint64{}},
		"a pod of a later claim of the name":     {objects: objects(bound(byID, corev1.VolumeReleased), podAt("well", "data", running)), evicted: []uint64{}},
		"a pod of a volume of another container": {objects: objects(bound("weir/2c3d/9999", corev1.VolumeBound), podAt("well", "data", running)), evicted: []uint64{}},
		"a pod of a volume of another cluster":   {objects: objects(bound("other/tank/box", corev1.VolumeBound), podAt("well", "data", running)), evicted: []uint64{}},
	}
}

// Deleting a Container destroys nothing that a pod may use, nor waits for nodes that are gone. A retained Pool and StorageCluster wait for
// the same users.
func TestADeletionGoesByTheNodesOfThoseWhoUseTheContainer(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(deletedAt().Time)
	stays := metav1.ObjectMeta{Namespace: "storage", Name: "tank"}
	inCluster := v1alpha1.PoolSpec{ClusterRef: v1alpha1.LocalReference{Name: "weir"}}
	deleted := map[string]struct {
		object     func() client.Object
		others     []client.Object
		reconciler func(c client.Client, engines *opened) reconcile.Reconciler
		conditions func(client.Object) []metav1.Condition
	}{
		"Container": {
			object: func() client.Object {
				spec := v1alpha1.ContainerSpec{PoolRef: v1alpha1.LocalReference{Name: "tank"}, DeletionPolicy: v1alpha1.DeletionDelete}
				return &v1alpha1.Container{ObjectMeta: goes("box"), Spec: spec, Status: v1alpha1.ContainerStatus{UUID: "4e5f"}}
			},
			others: []client.Object{&v1alpha1.Pool{ObjectMeta: stays, Spec: inCluster, Status: v1alpha1.PoolStatus{UUID: "2c3d"}}},
			reconciler: func(c client.Client, engines *opened) reconcile.Reconciler {
				return container.New(c, c, engines, deaf{}, clock)
			},
			conditions: func(obj client.Object) []metav1.Condition { return obj.(*v1alpha1.Container).Status.Conditions },
		},
		"Pool": {
			object: func() client.Object {
				return &v1alpha1.Pool{ObjectMeta: goes("tank"), Spec: inCluster, Status: v1alpha1.PoolStatus{UUID: "2c3d"}}
			},
			reconciler: func(c client.Client, engines *opened) reconcile.Reconciler {
				return pool.New(c, c, engines, deaf{}, clock)
			},
			conditions: func(obj client.Object) []metav1.Condition { return obj.(*v1alpha1.Pool).Status.Conditions },
		},
		"StorageCluster": {
			object: func() client.Object {
				cluster := &v1alpha1.StorageCluster{ObjectMeta: goes("weir")}
				cluster.UID = "c1"
				cluster.Spec.Storage.HostPath = &v1alpha1.HostPathStorage{}
				return cluster
			},
			others: serving(),
			reconciler: func(c client.Client, engines *opened) reconcile.Reconciler {
				return storagecluster.New(c, c, engines, deaf{}, clock, storagecluster.Config{Namespace: "storage"})
			},
			conditions: func(obj client.Object) []metav1.Condition { return obj.(*v1alpha1.StorageCluster).Status.Conditions },
		},
	}
	for kind, d := range deleted {
		for name, tc := range uses() {
			t.Run(kind+": "+name, func(t *testing.T) {
				object, engines := d.object(), opening(tc.handles...)
				others := slices.Concat(d.others, tc.objects, []client.Object{
					nodeOf("well", corev1.ConditionTrue), nodeOf("cut-off", corev1.ConditionUnknown, corev1.TaintNodeUnreachable),
					nodeOf("down", corev1.ConditionUnknown, corev1.TaintNodeOutOfService),
				})
				c := holding(t, object, others...)
				key := client.ObjectKeyFromObject(object)
				if _, err := d.reconciler(c, engines).Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
					t.Fatal(err)
				}
				err := c.Get(t.Context(), key, object)
				if len(tc.says) == 0 {
					if !apierrors.IsNotFound(err) {
						t.Errorf("it was not let go: %v, %+v", err, d.conditions(object))
					}
					if kind == "Container" && !slices.Equal(engines.evicted, tc.evicted) {
						t.Errorf("evicted %v, want %v", engines.evicted, tc.evicted)
					}
					return
				}
				if err != nil || engines.evicted != nil {
					t.Fatalf("it was let go: %v, destroyed without %v", err, engines.evicted)
				}
				blocked := meta.FindStatusCondition(d.conditions(object), v1alpha1.ConditionDeletionBlocked)
				for _, want := range append(tc.says, "is in use: stop the pods") {
					if blocked == nil || blocked.Reason != v1alpha1.ReasonOpenHandles || !strings.Contains(blocked.Message, want) {
						t.Errorf("the condition doesn't say %q: %+v", want, blocked)
					}
				}
			})
		}
	}
}

// serving are objects of an engine that runs.
func serving() []client.Object {
	owner := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "weir", UID: "c1"}}
	set := &appsv1.StatefulSet{ObjectMeta: manifest.Meta(owner, manifest.EngineName("weir", 0))}
	set.Labels = manifest.EngineSelector("weir")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: manifest.PodName("weir", 0), Labels: set.Labels}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return []client.Object{set, pod}
}

// What can't be found out keeps the container; pods of namespaces that the operator doesn't serve can't be asked for.
func TestADeletionWaitsUntilItIsKnownWhoUsesTheContainer(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(deletedAt().Time)
	pods := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		// fails is the error of reading objects of a kind.
		fails func(object any) error
		goes  bool
	}{
		"nodes can't be read":         {fails: failsFor[*corev1.Node](errors.New("the API server is away"))},
		"volumes can't be read":       {fails: failsFor[*corev1.PersistentVolumeList](errors.New("the API server is away"))},
		"pods can't be read":          {fails: failsFor[*corev1.PodList](errors.New("the API server is away"))},
		"pods are not for us to read": {fails: failsFor[*corev1.PodList](apierrors.NewForbidden(pods, "", nil)), goes: true},
	} {
		t.Run(name, func(t *testing.T) {
			spec := v1alpha1.ContainerSpec{PoolRef: v1alpha1.LocalReference{Name: "tank"}, DeletionPolicy: v1alpha1.DeletionDelete}
			box := &v1alpha1.Container{ObjectMeta: goes("box"), Spec: spec, Status: v1alpha1.ContainerStatus{UUID: "4e5f"}}
			tank := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "tank"}, Status: v1alpha1.PoolStatus{UUID: "2c3d"}}
			tank.Spec.ClusterRef.Name = "weir"
			c := holding(t, box, tank, bound("weir/2c3d/4e5f", corev1.VolumeBound))
			live := interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
					if err := tc.fails(obj); err != nil {
						return err
					}
					return c.Get(ctx, key, obj, options...)
				},
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if err := tc.fails(list); err != nil {
						return err
					}
					return c.List(ctx, list, options...)
				},
			})
			engines := opening(&managementv1.OpenHandle{Handle: 7, Node: "deleted", Counts: true})
			r := container.New(c, live, engines, deaf{}, clock)
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(box)})
			if (err == nil) != tc.goes || (engines.evicted != nil) != tc.goes {
				t.Errorf("%v, destroyed without %v", err, engines.evicted)
			}
		})
	}
}

// failsFor is an error of reading one kind of object.
func failsFor[T any](err error) func(any) error {
	return func(object any) error {
		if _, is := object.(T); is {
			return err
		}
		return nil
	}
}
