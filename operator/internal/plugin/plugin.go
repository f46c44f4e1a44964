// Package plugin offers the drives of a node to its kubelet, by the device plugin API v1beta1. There is one resource for each
// engine that has drives on the node, because the kubelet doesn't say which pod a request is for: so no engine is ever given a
// drive of another.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"weir.dev/weir/operator/internal/drive"
	"weir.dev/weir/operator/internal/inventory"
)

const (
	// kubeletSocket is where the kubelet takes registrations, in its directory for device plugins.
	kubeletSocket = "kubelet.sock"
	// socketPrefix begins the names of this plugin's own sockets there.
	socketPrefix = "weir-nvme-"
	// callTimeout is what the kubelet may take for a registration.
	callTimeout = 10 * time.Second
	// retryPause is how long it takes until an attempt to serve is repeated.
	retryPause = time.Second
)

// HandOut makes what a container needs for a drive, or says why it can't have it.
type HandOut func(ctx context.Context, name string) (*pluginapi.DeviceSpec, error)

// Plugin offers the drives of a node.
type Plugin struct {
	folder  string
	handOut HandOut

	mu      sync.Mutex
	servers map[string]*server
}

// New makes a plugin that meets the kubelet in a folder.
func New(folder string, handOut HandOut) *Plugin {
	return &Plugin{folder: folder, handOut: handOut, servers: map[string]*server{}}
}

// Offer tells the kubelet of the drives that the node has now. A resource that had drives stays, with none.
func (p *Plugin) Offer(ctx context.Context, drives []inventory.Seen) {
	lists := map[string][]*pluginapi.Device{}
	for i := range drives {
		seen := &drives[i]
		if seen.Assignment == nil {
			continue
		}
		resource := drive.Resource(seen.Assignment.Namespace, seen.Assignment.Cluster, seen.Assignment.Rank)
		lists[resource] = append(lists[resource], device(seen))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for resource, devices := range lists {
		if p.servers[resource] == nil {
			p.servers[resource] = newServer(resource, p.folder, p.handOut)
			go p.servers[resource].run(ctx)
		}
		p.servers[resource].set(devices)
	}
	for resource, s := range p.servers {
		if lists[resource] == nil {
			s.set(nil)
		}
	}
}

// device is a drive as the kubelet sees it.
func device(seen *inventory.Seen) *pluginapi.Device {
	d := &pluginapi.Device{ID: seen.Name, Health: pluginapi.Healthy}
	if len(seen.Obstacles) > 0 {
		d.Health = pluginapi.Unhealthy
	}
	if node := seen.Drive.NUMANode; node != nil {
		d.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(*node)}}}
	}
	return d
}

// server offers one resource.
type server struct {
	pluginapi.UnimplementedDevicePluginServer
	resource, folder, socket string
	handOut                  HandOut

	mu      sync.Mutex
	devices []*pluginapi.Device
	// changed is closed when devices are others.
	changed chan struct{}
}

var _ pluginapi.DevicePluginServer = (*server)(nil)

func newServer(resource, folder string, handOut HandOut) *server {
	_, name, _ := strings.Cut(resource, "/")
	return &server{
		resource: resource, folder: folder, socket: filepath.Join(folder, socketPrefix+name+".sock"), handOut: handOut,
		changed: make(chan struct{}),
	}
}

func (s *server) set(devices []*pluginapi.Device) {
	slices.SortFunc(devices, func(a, b *pluginapi.Device) int { return strings.Compare(a.GetID(), b.GetID()) })
	s.mu.Lock()
	defer s.mu.Unlock()
	same := func(a, b *pluginapi.Device) bool {
		return a.GetID() == b.GetID() && a.GetHealth() == b.GetHealth()
	}
	if slices.EqualFunc(s.devices, devices, same) {
		return
	}
	s.devices = devices
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *server) list() ([]*pluginapi.Device, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.devices, s.changed
}

// run serves until ctx ends. A kubelet that starts forgets all plugins and removes their sockets: each registers anew then.
func (s *server) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.serve(ctx); err != nil {
			log.FromContext(ctx).Info("Drives can't be offered to the kubelet, which is tried again", "resource", s.resource, "reason", err.Error())
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

// errKubelet says that the kubelet was started anew.
var errKubelet = errors.New("the kubelet was started anew")

// serve offers the resource until the kubelet is started anew, or ctx ends.
func (s *server) serve(ctx context.Context) error {
	if err := os.Remove(s.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove an earlier socket: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for the kubelet: %w", err)
	}
	defer func() { _ = watcher.Close() }() // nothing can be lost of it
	if err := watcher.Add(s.folder); err != nil {
		return fmt.Errorf("watch %s for the kubelet: %w", s.folder, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", s.socket)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.socket, err)
	}
	served := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(served, s)
	ended := make(chan error, 1)
	go func() { ended <- served.Serve(listener) }()
	defer served.Stop()
	if err := s.register(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return fmt.Errorf("serve %s: %w", s.socket, err)
		case event := <-watcher.Events:
			restarted := event.Name == filepath.Join(s.folder, kubeletSocket) && event.Has(fsnotify.Create)
			if restarted || (event.Name == s.socket && event.Has(fsnotify.Remove)) {
				return errKubelet
			}
		case err := <-watcher.Errors:
			return fmt.Errorf("watch %s for the kubelet: %w", s.folder, err)
		}
	}
}

// register tells the kubelet of the resource.
func (s *server) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+filepath.Join(s.folder, kubeletSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("reach the kubelet: %w", err)
	}
	defer func() { _ = connection.Close() }() // the call is over
	_, err = pluginapi.NewRegistrationClient(connection).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: filepath.Base(s.socket), ResourceName: s.resource, Options: options(),
	})
	if err != nil {
		return fmt.Errorf("register %s with the kubelet: %w", s.resource, err)
	}
	log.FromContext(ctx).Info("Drives are offered to the kubelet", "resource", s.resource)
	return nil
}

func options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions implements pluginapi.DevicePluginServer.
func (s *server) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return options(), nil
}

// ListAndWatch implements pluginapi.DevicePluginServer.
func (s *server) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		devices, changed := s.list()
		if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-changed:
		}
	}
}

// GetPreferredAllocation implements pluginapi.DevicePluginServer. Where an engine has more drives than it asks for, because one of
// them is being replaced, it gets those that are all of one NUMA node, if there are enough.
func (s *server) GetPreferredAllocation(_ context.Context, request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	devices, _ := s.list()
	response := &pluginapi.PreferredAllocationResponse{}
	for _, r := range request.GetContainerRequests() {
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{
			DeviceIDs: preferred(devices, r.GetAvailableDeviceIDs(), r.GetMustIncludeDeviceIDs(), int(r.GetAllocationSize())),
		})
	}
	return response, nil
}

// preferred chooses among the available drives: those that must be in it, then those of the NUMA node with the most of them.
func preferred(devices []*pluginapi.Device, available, must []string, size int) []string {
	numa := map[string]int64{}
	for _, d := range devices {
		if nodes := d.GetTopology().GetNodes(); len(nodes) > 0 {
			numa[d.GetID()] = nodes[0].GetID() + 1 // 0 is for drives that are nowhere in particular
		}
	}
	count := map[int64]int{}
	for _, id := range available {
		count[numa[id]]++
	}
	rest := slices.DeleteFunc(slices.Clone(available), func(id string) bool { return slices.Contains(must, id) })
	slices.SortFunc(rest, func(a, b string) int {
		if more := count[numa[b]] - count[numa[a]]; more != 0 {
			return more
		}
		if numa[a] != numa[b] {
			return int(numa[a] - numa[b])
		}
		return strings.Compare(a, b)
	})
	chosen := append(slices.Clone(must), rest...)
	return chosen[:max(0, min(size, len(chosen)))]
}

// Allocate implements pluginapi.DevicePluginServer.
func (s *server) Allocate(ctx context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	devices, _ := s.list()
	response := &pluginapi.AllocateResponse{}
	for _, r := range request.GetContainerRequests() {
		container := &pluginapi.ContainerAllocateResponse{}
		for _, id := range r.GetDevicesIds() {
			if !slices.ContainsFunc(devices, func(d *pluginapi.Device) bool { return d.GetID() == id }) {
				return nil, fmt.Errorf("drive %s is not of resource %s", id, s.resource)
			}
			spec, err := s.handOut(ctx, id)
			if err != nil {
				return nil, err
			}
			container.Devices = append(container.Devices, spec)
		}
		response.ContainerResponses = append(response.ContainerResponses, container)
	}
	return response, nil
}
