package container

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/index"
	"weir.dev/weir/operator/internal/management"
)

// shelf are engines that list the containers of one pool.
type shelf struct {
	managementv1.ContainersClient
	infos []*managementv1.ContainerInfo
	err   error
	// lists counts the listings. Any other call panics: the poll makes none.
	lists int
}

func (s *shelf) Connect(context.Context, types.NamespacedName) (*management.Engines, error) {
	return &management.Engines{Containers: s}, nil
}

func (s *shelf) List(context.Context, *managementv1.ContainerListRequest, ...grpc.CallOption) (*managementv1.ContainerListResponse, error) {
	s.lists++
	return &managementv1.ContainerListResponse{Containers: s.infos}, s.err
}

// settled is a Container of Pool tank that is as the engines have it: 1 GiB, nobody has it open.
func settled(n int) (*v1alpha1.Container, *managementv1.ContainerInfo) {
	used := resource.NewQuantity(1<<30, resource.BinarySI)
	uuid := fmt.Sprintf("0a1b-%d", n)
	container := &v1alpha1.Container{
		ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: fmt.Sprintf("box-%03d", n), UID: types.UID(uuid)},
		Spec:       v1alpha1.ContainerSpec{PoolRef: v1alpha1.LocalReference{Name: "tank"}},
		Status: v1alpha1.ContainerStatus{
			UUID: uuid, Used: used, Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}},
		},
	}
	return container, &managementv1.ContainerInfo{Uuid: uuid, Label: container.Name, UsedBytes: 1 << 30}
}

func pollOf(t *testing.T, engines Connector, objects ...client.Object) *poll {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	tank := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "tank"}, Status: v1alpha1.PoolStatus{UUID: "2c3d"}}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(tank).WithObjects(objects...)
	for _, field := range index.Fields() {
		builder = builder.WithIndex(field.Object, field.Name, field.Values)
	}
	return newPoll(builder.Build(), engines)
}

// look has the poll look once, and returns which Containers it has looked at, and when it looks again.
func look(t *testing.T, p *poll) ([]string, time.Duration) {
	t.Helper()
	var names []string
	done := make(chan struct{})
	collected := make(chan struct{})
	go func() {
		defer close(collected)
		for {
			select {
			case e := <-p.changed:
				names = append(names, e.Object.Name)
			case <-done:
				return
			}
		}
	}()
	result, err := p.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "storage", Name: "tank"}})
	close(done)
	<-collected
	if err != nil {
		t.Fatal(err)
	}
	return names, result.RequeueAfter
}

func TestOneListingTellsWhichOfManyContainersToLookAt(t *testing.T) {
	const many = 200
	for title, tc := range map[string]struct {
		change func(*v1alpha1.Container, *managementv1.ContainerInfo)
		looks  bool
	}{
		"nothing":                  {func(*v1alpha1.Container, *managementv1.ContainerInfo) {}, false},
		"a little space":           {func(_ *v1alpha1.Container, i *managementv1.ContainerInfo) { i.UsedBytes += 1 << 20 }, false},
		"much space":               {func(_ *v1alpha1.Container, i *managementv1.ContainerInfo) { i.UsedBytes += 1 << 28 }, true},
		"a client came":            {func(_ *v1alpha1.Container, i *managementv1.ContainerInfo) { i.OpenHandles = 1 }, true},
		"another's quota":          {func(_ *v1alpha1.Container, i *managementv1.ContainerInfo) { i.QuotaBytes = 1 << 30 }, true},
		"another container":        {func(_ *v1alpha1.Container, i *managementv1.ContainerInfo) { i.Uuid = "ffff" }, true},
		"a Container not ready":    {func(c *v1alpha1.Container, _ *managementv1.ContainerInfo) { c.Status.Conditions = nil }, true},
		"one that was never shown": {func(c *v1alpha1.Container, _ *managementv1.ContainerInfo) { c.Status.Used = nil }, true},
	} {
		t.Run(title, func(t *testing.T) {
			engines := &shelf{}
			var objects []client.Object
			for n := range many {
				container, info := settled(n)
				if n == 7 {
					tc.change(container, info)
				}
				objects, engines.infos = append(objects, container), append(engines.infos, info)
			}
			names, after := look(t, pollOf(t, engines, objects...))
			if want := map[bool][]string{true: {"box-007"}}[tc.looks]; !slices.Equal(names, want) {
				t.Errorf("looked at %v, want %v", names, want)
			}
			if engines.lists != 1 || after != settledInterval {
				t.Errorf("%d listings, and again after %s", engines.lists, after)
			}
		})
	}
}

func TestUsageIsWrittenInTurns(t *testing.T) {
	engines := &shelf{}
	var objects []client.Object
	burst := usageLimiter(DefaultUsageRate).Burst()
	for n := range 3 * burst {
		container, info := settled(n)
		info.UsedBytes = 0
		objects, engines.infos = append(objects, container), append(engines.infos, info)
	}
	p := pollOf(t, engines, objects...)
	p.usage.SetLimit(0) // a burst, and nothing after it
	first, _ := look(t, p)
	none, _ := look(t, p)
	p.usage.SetLimit(1e9)
	second, _ := look(t, p)
	if len(first) != burst || len(none) != 0 || len(second) == 0 || second[0] <= first[len(first)-1] {
		t.Errorf("looked at %v, then %v, then %v", first, none, second)
	}
}

func TestADeletionIsLookedAtWhenHandlesAreOpenedOrClosed(t *testing.T) {
	container, info := settled(0)
	container.Finalizers, info.OpenHandles = []string{v1alpha1.Finalizer}, 2
	engines := &shelf{infos: []*managementv1.ContainerInfo{info}}
	p := pollOf(t, engines, container)
	if err := p.client.Delete(t.Context(), container.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		handles uint32
		looks   int
	}{{2, 1}, {2, 0}, {1, 1}, {1, 0}, {0, 1}, {0, 0}} {
		info.OpenHandles = step.handles
		names, after := look(t, p)
		if len(names) != step.looks || after != closingInterval {
			t.Errorf("with %d handles: looked at %v, again after %s", step.handles, names, after)
		}
	}
}

func TestEnginesThatDoNotAnswerAreAskedOnceForAPool(t *testing.T) {
	engines := &shelf{err: grpcstatus.Error(codes.Unavailable, "no route")}
	var objects []client.Object
	for n := range 100 {
		container, _ := settled(n)
		objects = append(objects, container)
	}
	names, after := look(t, pollOf(t, engines, objects...))
	if len(names) != 0 || engines.lists != 1 || after != settledInterval {
		t.Errorf("looked at %v, asked %d times, again after %s", names, engines.lists, after)
	}
}
