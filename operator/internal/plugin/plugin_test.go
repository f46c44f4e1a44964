package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/drive"
	"weir.dev/weir/operator/internal/inventory"
)

// patience is how long a test waits for what has to come.
const patience = time.Minute

// kubelet takes registrations, as far as plugins see of it.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	t        *testing.T
	folder   string
	requests chan *pluginapi.RegisterRequest
	server   *grpc.Server
}

func startKubelet(t *testing.T) *kubelet {
	t.Helper()
	folder, err := os.MkdirTemp("", "kubelet") //nolint:usetesting // paths of sockets have to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	k := &kubelet{t: t, folder: folder, requests: make(chan *pluginapi.RegisterRequest, 8)}
	k.start()
	return k
}

// start forgets all plugins and removes their sockets, as the kubelet does.
func (k *kubelet) start() {
	k.t.Helper()
	if k.server != nil {
		k.server.Stop()
	}
	entries, err := os.ReadDir(k.folder)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(k.folder, entry.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			k.t.Fatal(err)
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(k.t.Context(), "unix", filepath.Join(k.folder, kubeletSocket))
	if err != nil {
		k.t.Fatal(err)
	}
	k.server = grpc.NewServer()
	pluginapi.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(listener) }() // ends with Stop
	k.t.Cleanup(k.server.Stop)
}

func (k *kubelet) Register(_ context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	k.requests <- r
	return &pluginapi.Empty{}, nil
}

// registered waits for a registration, and connects to the plugin as the kubelet does.
func (k *kubelet) registered(resource string) pluginapi.DevicePluginClient {
	k.t.Helper()
	select {
	case r := <-k.requests:
		if r.GetResourceName() != resource || r.GetVersion() != pluginapi.Version || !r.GetOptions().GetGetPreferredAllocationAvailable() {
			k.t.Fatalf("registered: %v", r)
		}
		connection, err := grpc.NewClient("unix://"+filepath.Join(k.folder, r.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			k.t.Fatal(err)
		}
		k.t.Cleanup(func() { _ = connection.Close() })
		return pluginapi.NewDevicePluginClient(connection)
	case <-time.After(patience):
		k.t.Fatal("nothing was registered")
		return nil
	}
}

// watch follows the drives of a plugin.
func watch(t *testing.T, c pluginapi.DevicePluginClient) func() map[string]string {
	t.Helper()
	stream, err := c.ListAndWatch(t.Context(), &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	return func() map[string]string {
		t.Helper()
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for _, d := range response.GetDevices() {
			found[d.GetID()] = d.GetHealth()
		}
		return found
	}
}

func seen(name string, rank, target int32, obstacles ...drive.Finding) inventory.Seen {
	return inventory.Seen{
		Name: name, Drive: drive.Drive{NUMANode: new(target)}, Obstacles: obstacles,
		Assignment: &v1alpha1.DeviceAssignment{Namespace: "storage", Cluster: "weir", Rank: rank, Target: target},
	}
}

func handOut(_ context.Context, name string) (*pluginapi.DeviceSpec, error) {
	if name == "refused" {
		return nil, errors.New("holds an ext4 file system")
	}
	return &pluginapi.DeviceSpec{HostPath: "/state/" + name, ContainerPath: "/dev/weir/target-0", Permissions: "rw"}, nil
}

func TestDrivesAreOfferedToTheirEngineOnly(t *testing.T) {
	k := startKubelet(t)
	p := New(k.folder, handOut)
	p.Offer(t.Context(), []inventory.Seen{seen("b", 1, 1), seen("a", 1, 0), {Name: "nobodys"}})
	resource := drive.Resource("storage", "weir", 1)
	c := k.registered(resource)
	next := watch(t, c)
	if got := next(); len(got) != 2 || got["a"] != pluginapi.Healthy || got["b"] != pluginapi.Healthy {
		t.Errorf("%v", got)
	}
	p.Offer(t.Context(), []inventory.Seen{seen("a", 1, 0), seen("b", 1, 1, drive.Finding{Reason: v1alpha1.ReasonControllerDown})})
	if got := next(); got["b"] != pluginapi.Unhealthy {
		t.Errorf("a drive that fails: %v", got)
	}
	p.Offer(t.Context(), nil)
	if got := next(); len(got) != 0 {
		t.Errorf("none is left: %v", got)
	}
}

func TestARestartOfTheKubeletIsNoticed(t *testing.T) {
	k := startKubelet(t)
	p := New(k.folder, handOut)
	p.Offer(t.Context(), []inventory.Seen{seen("a", 1, 0)})
	resource := drive.Resource("storage", "weir", 1)
	k.registered(resource)
	for range 2 {
		k.start()
		if got := watch(t, k.registered(resource))(); got["a"] != pluginapi.Healthy {
			t.Errorf("%v", got)
		}
	}
}

func TestAllocationGivesDeviceFilesOrSaysWhyNot(t *testing.T) {
	k := startKubelet(t)
	p := New(k.folder, handOut)
	p.Offer(t.Context(), []inventory.Seen{seen("a", 1, 0), seen("refused", 1, 1)})
	c := k.registered(drive.Resource("storage", "weir", 1))
	allocate := func(ids ...string) (*pluginapi.AllocateResponse, error) {
		return c.Allocate(t.Context(), &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	}
	response, err := allocate("a")
	if err != nil {
		t.Fatal(err)
	}
	if devices := response.GetContainerResponses()[0].GetDevices(); len(devices) != 1 || devices[0].GetHostPath() != "/state/a" {
		t.Errorf("%v", devices)
	}
	for id, want := range map[string]string{"refused": "ext4", "others": "is not of resource"} {
		if _, err := allocate(id); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestDrivesOfOneNUMANodeArePreferred(t *testing.T) {
	device := func(id string, node int64) *pluginapi.Device {
		return &pluginapi.Device{ID: id, Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: node}}}}
	}
	devices := []*pluginapi.Device{device("a", 0), device("b", 1), device("c", 1), device("d", 0), {ID: "e"}, device("f", 1)}
	all := []string{"a", "b", "c", "d", "e", "f"}
	tests := []struct {
		available, must []string
		size            int
		want            []string
	}{
		{all, nil, 2, []string{"b", "c"}},
		{all, []string{"e"}, 3, []string{"e", "b", "c"}},
		{all, nil, 4, []string{"b", "c", "f", "a"}},
		{[]string{"a", "d", "b"}, nil, 2, []string{"a", "d"}},
		{all, nil, 99, []string{"b", "c", "f", "a", "d", "e"}},
		{all, nil, -1, nil},
	}
	for _, tc := range tests {
		if got := preferred(devices, tc.available, tc.must, tc.size); !slices.Equal(got, tc.want) {
			t.Errorf("%d of %v with %v: %v, want %v", tc.size, tc.available, tc.must, got, tc.want)
		}
	}
}
