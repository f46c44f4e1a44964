package simulated_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"

	"weir.dev/weir/operator/internal/fabric"
	"weir.dev/weir/operator/internal/fabric/namespaces"
	"weir.dev/weir/operator/internal/fabric/nettest"
	"weir.dev/weir/operator/internal/fabric/simulated"
	"weir.dev/weir/operator/internal/isolation"
)

const (
	// port is one of the fabric's.
	port = 31416
	// patience is how long a test waits for what has to come, silence how long for what must not.
	patience = time.Minute
	silence  = 300 * time.Millisecond
)

// node is a node with pods and a fabric.
type node struct {
	*nettest.Node
	t      *testing.T
	fabric *simulated.Fabric
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Node: nettest.New(t), t: t}
	n.fabric = simulated.New(nftables.WithNetNSFd(n.Descriptor))
	n.configure(nil)
	return n
}

// in runs a function in a namespace.
func (n *node) in(found namespaces.Found, do func() error) {
	n.t.Helper()
	if err := found.Do(do); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) configure(peers map[uint16][]netip.Addr) {
	n.t.Helper()
	if err := n.fabric.Configure(n.t.Context(), simulated.Configuration{Ports: []uint16{port + 8, port, port}, Peers: peers}); err != nil {
		n.t.Fatal(err)
	}
}

// admit gives a pod a service.
func (n *node) admit(p nettest.Pod, vnis ...uint16) fabric.ID {
	n.t.Helper()
	id, err := n.fabric.Allocate(n.t.Context(), fabric.Request{Device: simulated.Device, VNIs: vnis})
	if err != nil {
		n.t.Fatal(err)
	}
	namespace := fabric.Namespace{Inode: p.Found.Inode, Addresses: []netip.Addr{p.Address}}
	for range 2 {
		if err := n.fabric.Admit(n.t.Context(), id, namespace); err != nil {
			n.t.Fatal(err)
		}
	}
	return id
}

func (n *node) denied() uint64 {
	n.t.Helper()
	count, err := n.fabric.Denied(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return count
}

// check fails the test unless what a pod sends to a port of an address arrives, or doesn't.
func (n *node) check(why string, from nettest.Pod, to netip.Addr, at uint16, want isolation.Outcome) {
	n.t.Helper()
	timeout := patience
	if want == isolation.Refused {
		timeout = silence
	}
	before := n.denied()
	var got isolation.Outcome
	n.in(from.Found, func() (err error) {
		got, err = isolation.Attempt(n.t.Context(), netip.AddrPortFrom(to, at), timeout)
		return err
	})
	if got != want {
		n.t.Errorf("%s: from %s to %s port %d: outcome %d, want %d", why, from.Name, to, at, got, want)
	}
	if dropped := n.denied() - before; (dropped > 0) != (want == isolation.Refused) {
		n.t.Errorf("%s: from %s to %s: %d packets are counted as dropped", why, from.Name, to, dropped)
	}
}

func TestOnlyPodsWithACommonVNIReachEachOther(t *testing.T) {
	n := newNode(t)
	a, b, c, engine := n.Pod("a"), n.Pod("b"), n.Pod("c"), n.Pod("engine")
	n.check("nobody is admitted", a, b.Address, port, isolation.Refused)
	n.check("another port is none of the fabric's", a, b.Address, port+1, isolation.Reached)
	first := n.admit(a, 1024)
	n.check("one is admitted", a, b.Address, port, isolation.Refused)
	n.admit(b, 1024)
	n.admit(c, 1025)
	n.admit(engine, 1024, 1025)
	n.check("the same VNI", a, b.Address, port, isolation.Reached)
	n.check("the same VNI", b, a.Address, port, isolation.Reached)
	n.check("the same VNI, another port of the fabric", a, b.Address, port+8, isolation.Reached)
	n.check("another VNI", a, c.Address, port, isolation.Refused)
	n.check("another VNI", c, b.Address, port, isolation.Refused)
	n.check("one of two VNIs", a, engine.Address, port, isolation.Reached)
	n.check("the other of two VNIs", c, engine.Address, port, isolation.Reached)
	n.check("one of two VNIs", engine, a.Address, port, isolation.Reached)
	router := a.Router
	n.check("the node is in no VNI", a, router, port, isolation.Refused)
	n.configure(map[uint16][]netip.Addr{1025: {router}})
	n.check("the node is in another VNI", a, router, port, isolation.Refused)
	n.check("the node is in the same VNI", c, router, port, isolation.Reached)
	services, err := n.fabric.List(t.Context())
	if err != nil || len(services) != 4 || services[0].ID != first || !slices.Equal(services[3].VNIs, []uint16{1024, 1025}) {
		t.Errorf("%+v %v", services, err)
	}
	for range 2 {
		if err := n.fabric.Destroy(t.Context(), first); err != nil {
			t.Error(err)
		}
	}
	n.check("the service is gone", a, b.Address, port, isolation.Refused)
	n.check("others have theirs", b, engine.Address, port, isolation.Reached)
	if err := n.fabric.Admit(t.Context(), first, fabric.Namespace{}); err == nil {
		t.Error("somebody is admitted to a service that is gone")
	}
}

func TestAConnectionEndsWithItsService(t *testing.T) {
	n := newNode(t)
	a, b := n.Pod("a"), n.Pod("b")
	n.admit(a, 7)
	id := n.admit(b, 7)
	var listener net.Listener
	n.in(b.Found, func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(context.WithoutCancel(t.Context()), "tcp", fmt.Sprintf("0.0.0.0:%d", port))
		return err
	})
	defer func() { _ = listener.Close() }()
	var connection net.Conn
	n.in(a.Found, func() (err error) {
		connection, err = net.DialTimeout("tcp", netip.AddrPortFrom(b.Address, port).String(), patience)
		return err
	})
	defer func() { _ = connection.Close() }()
	before := n.denied()
	if _, err := connection.Write([]byte("while there is a service")); err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = accepted.Close() }()
	if _, err := accepted.Read(make([]byte, 1)); err != nil || n.denied() != before {
		t.Fatalf("%v, %d packets were dropped", err, n.denied()-before)
	}
	if err := n.fabric.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := connection.Write([]byte("after it")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); n.denied() == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the connection goes on without a service")
		}
	}
}

func TestAnAddressCountsOnlyWhereItBelongs(t *testing.T) {
	n := newNode(t)
	a, b, c := n.Pod("a"), n.Pod("b"), n.Pod("c")
	n.admit(a, 1)
	n.admit(b, 2)
	n.admit(c, 2)
	nettest.IP(t, "-n", n.Namespace("a"), "address", "add", c.Address.String()+"/32", "dev", "lo")
	before := n.denied()
	n.in(a.Found, func() error {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: c.Address.AsSlice()}, Timeout: silence}
		if connection, err := dialer.DialContext(t.Context(), "tcp", netip.AddrPortFrom(b.Address, port).String()); err == nil {
			t.Error("a pod gets into another VNI with another's address")
			return connection.Close()
		}
		return nil
	})
	if n.denied() == before {
		t.Error("what comes with a made up address is carried on")
	}
}

func TestWithoutTheTableNothingIsKeptApart(t *testing.T) {
	n := newNode(t)
	a, b := n.Pod("a"), n.Pod("b")
	n.admit(a, 1)
	n.admit(b, 2)
	n.check("another VNI", a, b.Address, port, isolation.Refused)
	if err := n.fabric.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.check("no table", a, b.Address, port, isolation.Reached)
	if services, err := n.fabric.List(t.Context()); err != nil || len(services) != 0 {
		t.Errorf("%v %v", services, err)
	}
	n.configure(nil)
	n.check("the table is back", a, b.Address, port, isolation.Refused)
}

func TestManyPods(t *testing.T) {
	n := newNode(t)
	peers := map[uint16][]netip.Addr{}
	for i := range 3000 {
		vni := uint16(1 + i%200)
		peers[vni] = append(peers[vni], netip.AddrFrom4([4]byte{10, 78, byte(i >> 8), byte(i)}))
		peers[vni] = append(peers[vni], netip.MustParseAddr(fmt.Sprintf("fd00::%x", i)))
	}
	n.configure(peers)
	a, b := n.Pod("a"), n.Pod("b")
	n.admit(a, 200)
	n.admit(b, 200)
	n.check("the same VNI of many", a, b.Address, port, isolation.Reached)
}
