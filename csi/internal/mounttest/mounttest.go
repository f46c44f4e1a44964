// Package mounttest is a node in the process of a test: a mount table in memory and a mount daemon that fills it. For
// tests of the node service that must run without privileges.
package mounttest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	mountv1 "weir.dev/weir/client/fuse/proto/mount/v1"
	"weir.dev/weir/csi/internal/mounts"
)

// Node is a mount table and what the daemon that mounts in it knows.
type Node struct {
	mu      sync.Mutex
	entries []mounts.Mount
	served  map[string]*mountv1.MountRequest
	dead    map[string]bool
	devices int
	hang    chan struct{}
	refuse  error
	// refuseMounts is what each request for a mount is answered with, if anything.
	refuseMounts error
	hidden       bool
	// degraded, when not empty, is what is wrong with every mount.
	degraded string
	groups   map[string]uint32
	// containers are mounts in the namespaces of running containers.
	containers []mounts.Mount
}

var _ mounts.Table = (*Node)(nil)

// New returns a node with nothing mounted.
func New() *Node {
	return &Node{served: map[string]*mountv1.MountRequest{}, dead: map[string]bool{}, groups: map[string]uint32{}}
}

// Listen runs the daemon's service until the test ends and returns its unix socket.
func (n *Node) Listen(t testing.TB) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "mountd.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	mountv1.RegisterMountsServer(server, daemon{node: n})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return socket
}

// Serve runs the daemon's service until the test ends and returns a client of it.
func (n *Node) Serve(t testing.TB) mountv1.MountsClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+n.Listen(t), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return mountv1.NewMountsClient(conn)
}

// Refuse makes the daemon answer every request with err; nil ends that.
func (n *Node) Refuse(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuse = err
}

// RefuseMounts makes the daemon answer every request for a mount with err; nil ends that.
func (n *Node) RefuseMounts(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuseMounts = err
}

// Kill makes every mount of the daemon answer ENOTCONN, as when it is killed.
func (n *Node) Kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, entry := range n.entries {
		n.dead[entry.Device] = true
	}
	clear(n.served)
}

// KillServer makes every mount answer ENOTCONN, as when the processes of mounts are killed: the daemon lists them as dead.
func (n *Node) KillServer() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, entry := range n.entries {
		n.dead[entry.Device] = true
	}
}

// Enter gives a running container a mount of its own of what is mounted at path.
func (n *Node) Enter(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	entry, _ := mounts.At(n.entries, path)
	n.containers = append(n.containers, entry)
}

// Containers returns the mounts that running containers have.
func (n *Node) Containers() []mounts.Mount {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.containers)
}

// Degrade makes the daemon report its mounts as degraded, for the reason given.
func (n *Node) Degrade(reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.degraded = reason
}

// Hide makes the daemon's new mounts invisible in the table, as when mounts do not propagate.
func (n *Node) Hide() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hidden = true
}

// Hang makes file systems not answer until the test ends.
func (n *Node) Hang(t testing.TB) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hang = make(chan struct{})
	t.Cleanup(func() { close(n.hang) })
}

// Add puts a foreign mount in the table.
func (n *Node) Add(entry mounts.Mount) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.entries = append(n.entries, entry)
}

// Served returns what the daemon was asked to mount at path; nil if it does not serve it.
func (n *Node) Served(path string) *mountv1.MountRequest {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.served[path]
}

// List returns the mount table.
func (n *Node) List() ([]mounts.Mount, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.entries), nil
}

// Bind shows what is mounted at source at target too.
func (n *Node) Bind(source, target string, readOnly bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	origin, ok := mounts.At(n.entries, source)
	if !ok {
		return fmt.Errorf("bind mount %s: %w", source, mounts.ErrNotMounted)
	}
	origin.Path, origin.ReadOnly = target, readOnly
	n.entries = append(n.entries, origin)
	return nil
}

// Restrict makes the topmost mount at path read-only.
func (n *Node) Restrict(path string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := len(n.entries) - 1; i >= 0; i-- {
		if n.entries[i].Path == path {
			n.entries[i].ReadOnly = true
			return nil
		}
	}
	return fmt.Errorf("make %s read-only: %w", path, mounts.ErrNotMounted)
}

// Unmount removes the topmost mount at path.
func (n *Node) Unmount(path string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.unmount(path)
}

func (n *Node) unmount(path string) error {
	for i, entry := range slices.Backward(n.entries) {
		if entry.Path == path {
			n.entries = slices.Delete(n.entries, i, i+1)
			return nil
		}
	}
	return fmt.Errorf("%s: %w", path, mounts.ErrNotMounted)
}

// Usage answers for what is mounted at path.
func (n *Node) Usage(path string) (mounts.Usage, error) {
	n.mu.Lock()
	hang := n.hang
	entry, ok := mounts.At(n.entries, path)
	dead := n.dead[entry.Device]
	n.mu.Unlock()
	if hang != nil {
		<-hang
	}
	switch {
	case !ok:
		return mounts.Usage{}, fmt.Errorf("statfs %s: %w", path, unix.ENOENT)
	case dead:
		return mounts.Usage{}, fmt.Errorf("statfs %s: %w", path, unix.ENOTCONN)
	default:
		return mounts.Usage{
			TotalBytes: 1 << 30, FreeBytes: 1 << 29, UsedBytes: 1 << 29,
			TotalInodes: 1000, FreeInodes: 990, UsedInodes: 10,
		}, nil
	}
}

// Group returns the group that was given to what is mounted at path.
func (n *Node) Group(path string) (uint32, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	entry, _ := mounts.At(n.entries, path)
	return n.groups[entry.Device], nil
}

// SetGroup gives what is mounted at path to a group.
func (n *Node) SetGroup(path string, group uint32) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	entry, _ := mounts.At(n.entries, path)
	n.groups[entry.Device] = group
	return nil
}

// Pin does nothing: device numbers are not used twice here.
func (n *Node) Pin(string) (release func(), err error) { return func() {}, nil }

// Replace changes the mounts of running containers.
func (n *Node) Replace(device, source string) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var replaced int
	origin, _ := mounts.At(n.entries, source)
	for i := range n.containers {
		if n.containers[i].Device == device {
			n.containers[i].Device = origin.Device
			replaced++
		}
	}
	return replaced, nil
}

// daemon serves the mount protocol on a Node.
type daemon struct {
	mountv1.UnimplementedMountsServer

	node *Node
}

// Mount mounts a container.
func (d daemon) Mount(_ context.Context, request *mountv1.MountRequest) (*mountv1.MountResponse, error) {
	n := d.node
	n.mu.Lock()
	defer n.mu.Unlock()
	path := request.GetTargetPath()
	if err := cmp.Or(n.refuse, n.refuseMounts); err != nil {
		return nil, err
	}
	for _, option := range request.GetOptions() {
		if !slices.Contains([]string{"noatime", "nodev", "nosuid", "noexec", "intercept", "cache=none", "cache=close-to-open"}, option) {
			return nil, status.Errorf(codes.InvalidArgument, "mount option %q is unknown", option)
		}
	}
	entry, mounted := mounts.At(n.entries, path)
	if present, ok := n.served[path]; ok && (!mounted || !n.dead[entry.Device]) {
		if !proto.Equal(present, request) {
			return nil, status.Errorf(codes.AlreadyExists, "%s is a mount of container %s with other options", path, present.GetContainer())
		}
		return &mountv1.MountResponse{Mount: info(present)}, nil
	}
	if mounted {
		if !n.dead[entry.Device] {
			return nil, status.Errorf(codes.FailedPrecondition, "something foreign is mounted at %s", path)
		}
		_ = n.unmount(path)
	}
	n.served[path] = request
	if !n.hidden {
		n.devices++
		n.groups[fmt.Sprintf("0:%d", 100+n.devices)] = request.GetFsGroup()
		n.entries = append(n.entries, mounts.Mount{
			Path: path, Device: fmt.Sprintf("0:%d", 100+n.devices), Root: "/", FSType: "fuse.weir", ReadOnly: request.GetReadOnly(),
		})
	}
	return &mountv1.MountResponse{Mount: info(request)}, nil
}

// Unmount removes a mount of the daemon.
func (d daemon) Unmount(_ context.Context, request *mountv1.UnmountRequest) (*mountv1.UnmountResponse, error) {
	n := d.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refuse != nil {
		return nil, n.refuse
	}
	delete(n.served, request.GetTargetPath())
	_ = n.unmount(request.GetTargetPath())
	return &mountv1.UnmountResponse{}, nil
}

// List lists the mounts of the daemon.
func (d daemon) List(context.Context, *mountv1.ListRequest) (*mountv1.ListResponse, error) {
	n := d.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refuse != nil {
		return nil, n.refuse
	}
	answer := &mountv1.ListResponse{}
	for _, path := range slices.Sorted(maps.Keys(n.served)) {
		described := info(n.served[path])
		if entry, ok := mounts.At(n.entries, path); ok && n.dead[entry.Device] {
			described.Health, described.Message = mountv1.MountHealth_MOUNT_HEALTH_DEAD, "its process has ended"
		} else if n.degraded != "" {
			described.Health, described.Message = mountv1.MountHealth_MOUNT_HEALTH_DEGRADED, n.degraded
		}
		answer.Mounts = append(answer.Mounts, described)
	}
	return answer, nil
}

func info(request *mountv1.MountRequest) *mountv1.MountInfo {
	return &mountv1.MountInfo{
		TargetPath: request.GetTargetPath(), System: request.GetSystem(), Pool: request.GetPool(), Container: request.GetContainer(),
		ReadOnly: request.GetReadOnly(), FsGroup: request.GetFsGroup(), Options: request.GetOptions(), Volume: request.GetVolume(),
		Health: mountv1.MountHealth_MOUNT_HEALTH_SERVING,
	}
}
