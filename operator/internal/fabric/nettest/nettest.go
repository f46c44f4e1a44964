// Package nettest makes nodes with pods for tests, of network namespaces that are routed as those of a cluster are. Its tests run as root.
package nettest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/operator/internal/fabric/namespaces"
)

// Node is a network namespace that routes between those of its pods.
type Node struct {
	// Found is the node's namespace, and Descriptor an open file of it until the test ends.
	Found      namespaces.Found
	Descriptor int
	// Folder has the namespaces of the node's pods, bound to files.
	Folder string

	t      *testing.T
	prefix string
	pods   int
}

// Pod is a network namespace with an address.
type Pod struct {
	Name    string
	Address netip.Addr
	// Router is the node's address towards the pod.
	Router netip.Addr
	Found  namespaces.Found
}

// folder is where the program ip binds network namespaces, those of other tests among them.
const folder = "/var/run/netns"

// IP runs the program ip.
func IP(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// nodes counts the nodes of the process, whose namespaces need different names.
var nodes atomic.Int32

// New makes a node.
func New(t *testing.T) *Node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	n := &Node{t: t, Folder: t.TempDir(), prefix: fmt.Sprintf("weir-%d-%d-", os.Getpid(), nodes.Add(1))}
	n.Found = n.namespace("node")
	handle, err := unix.Open(n.Found.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(handle) })
	n.Descriptor = handle
	// The thread's /proc/sys/net is that of its network namespace.
	if err := n.Found.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }); err != nil {
		t.Fatal(err)
	}
	return n
}

// Namespace is the name of the namespace of a pod, for IP.
func (n *Node) Namespace(pod string) string { return n.prefix + pod }

func (n *Node) namespace(name string) namespaces.Found {
	n.t.Helper()
	name = n.Namespace(name)
	IP(n.t, "netns", "add", name)
	n.t.Cleanup(func() { IP(n.t, "netns", "delete", name) })
	IP(n.t, "-n", name, "link", "set", "dev", "lo", "up")
	path := filepath.Join(folder, name)
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		n.t.Fatal(err)
	}
	return namespaces.Found{Inode: stat.Ino, Path: path}
}

// Pod adds a pod.
func (n *Node) Pod(name string) Pod {
	n.t.Helper()
	n.pods++
	p := Pod{
		Name: name, Found: n.namespace(name),
		Address: netip.AddrFrom4([4]byte{10, 77, byte(n.pods), 2}), Router: netip.AddrFrom4([4]byte{10, 77, byte(n.pods), 1}),
	}
	node, inside := n.Namespace("node"), n.Namespace(name)
	link := fmt.Sprintf("pod%d", n.pods)
	for _, args := range [][]string{
		{"-n", node, "link", "add", "name", link, "type", "veth", "peer", "name", "eth0", "netns", inside},
		{"-n", node, "address", "add", p.Router.String() + "/24", "dev", link},
		{"-n", node, "link", "set", "dev", link, "up"},
		{"-n", inside, "address", "add", p.Address.String() + "/24", "dev", "eth0"},
		{"-n", inside, "link", "set", "dev", "eth0", "up"},
		{"-n", inside, "route", "add", "default", "via", p.Router.String()},
	} {
		IP(n.t, args...)
	}
	n.bind(p)
	if addresses, err := p.Found.Addresses(); err != nil || !slices.Equal(addresses, []netip.Addr{p.Address}) {
		n.t.Fatalf("%v %v", addresses, err)
	}
	return p
}

// bind binds the namespace of a pod to a file in the node's folder.
func (n *Node) bind(p Pod) {
	n.t.Helper()
	file := filepath.Join(n.Folder, p.Name)
	err := os.WriteFile(file, nil, 0o600)
	if err == nil {
		err = unix.Mount(p.Found.Path, file, "", unix.MS_BIND, "")
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
			n.t.Error(err)
		}
	})
}
