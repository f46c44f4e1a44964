package enforcement

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/assembly"
	"weir.dev/weir/operator/internal/fabric"
	"weir.dev/weir/operator/internal/fabric/namespaces"
	"weir.dev/weir/operator/internal/fabric/simulated"
	"weir.dev/weir/operator/internal/isolation"
	"weir.dev/weir/operator/internal/manifest"
)

// world is a cluster with a node, whose fabric is in memory.
type world struct {
	t      *testing.T
	client client.Client
	clock  *clocktesting.FakePassiveClock
	agent  *Agent

	services map[fabric.ID]fabric.Service
	admitted map[fabric.ID]fabric.Namespace
	busy     bool
	next     uint32
	config   simulated.Configuration
	spaces   map[uint64][]netip.Addr
	// open is true when the network keeps nothing apart, deaf when nobody answers.
	open, deaf bool
	mu         sync.Mutex
	tried      []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	scheme, err := assembly.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, clock: clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)),
		services: map[fabric.ID]fabric.Service{}, admitted: map[fabric.ID]fabric.Namespace{}, spaces: map[uint64][]netip.Addr{},
	}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.VNIAllocation{}, &v1alpha1.Tenant{}, &corev1.Pod{}).Build()
	keeper, err := fabric.NewKeeper(t.Context(), w, t.TempDir(), "boot", w.clock)
	if err != nil {
		t.Fatal(err)
	}
	w.agent = New(Config{
		Client: w.client, Shared: w.client, Clock: w.clock, Node: "here", Namespace: "weir-system", Keeper: keeper, Switch: w, Machine: w,
	})
	w.create(&v1alpha1.StorageCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "weir-system", Name: "weir"},
		Spec:       v1alpha1.StorageClusterSpec{Ports: v1alpha1.PortsSpec{Fabric: 31416}, Engines: v1alpha1.EnginesSpec{TargetsPerEngine: 2}},
	})
	w.create(&v1alpha1.FabricDomain{ObjectMeta: metav1.ObjectMeta{Name: "hsn"}, Spec: v1alpha1.FabricDomainSpec{EngineVNI: 1000}})
	w.pod("weir-system", "engine", "there", "10.0.9.1", manifest.EngineSelector("weir"))
	w.pod("weir-system", "mountd", "here", "10.0.0.9", map[string]string{v1alpha1.LabelAttaches: "true"})
	w.pod("elsewhere", "impostor", "here", "10.0.0.8", map[string]string{v1alpha1.LabelAttaches: "true"})
	return w
}

func (w *world) create(obj client.Object) {
	w.t.Helper()
	status, _ := obj.DeepCopyObject().(client.Object)
	if err := w.client.Create(w.t.Context(), obj); err != nil {
		w.t.Fatal(err)
	}
	status.SetResourceVersion(obj.GetResourceVersion())
	switch obj.(type) {
	case *corev1.Pod, *v1alpha1.Tenant, *v1alpha1.VNIAllocation:
		if err := w.client.Status().Update(w.t.Context(), status); err != nil {
			w.t.Fatal(err)
		}
	}
}

// tenant adds a tenant with a namespace and a VNI of its own.
func (w *world) tenant(name string, vni int32) {
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": name}}})
	w.create(&v1alpha1.Tenant{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1alpha1.TenantSpec{NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": name}}},
		Status:     v1alpha1.TenantStatus{VNIs: []int32{vni}},
	})
	w.create(&v1alpha1.VNIAllocation{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.VNIName(vni), Finalizers: []string{v1alpha1.Finalizer}},
		Spec:       v1alpha1.VNIAllocationSpec{VNI: vni, Owner: v1alpha1.VNIOwner{Name: name, UID: "uid-" + name}},
	})
}

func (w *world) pod(namespace, name, node, address string, labels map[string]string) {
	w.create(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: labels},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "192.0.2.1", PodIPs: []corev1.PodIP{{IP: address}}},
	})
	if node == "here" {
		w.spaces[uint64(4_000_000+len(w.spaces))] = []netip.Addr{netip.MustParseAddr(address)}
	}
}

func (w *world) remove(namespace, name string) {
	w.t.Helper()
	if err := w.client.Delete(w.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) sync() {
	w.t.Helper()
	if err := w.agent.Sync(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// entry is what the node has written into an allocation; nil for nothing.
func (w *world) entry(vni int32) *v1alpha1.VNINode {
	w.t.Helper()
	var a v1alpha1.VNIAllocation
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: v1alpha1.VNIName(vni)}, &a); err != nil {
		w.t.Fatal(err)
	}
	return a.Node("here")
}

// in are the addresses that are admitted to a VNI on the node.
func (w *world) in(vni uint16) string {
	var list []string
	for id, namespace := range w.admitted {
		if slices.Contains(w.services[id].VNIs, vni) {
			list = append(list, fmt.Sprint(namespace.Addresses))
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func (w *world) Allocate(_ context.Context, wanted fabric.Request) (fabric.ID, error) {
	w.next++
	id := fabric.ID{Device: wanted.Device, Number: w.next}
	w.services[id] = fabric.Service{ID: id, VNIs: wanted.VNIs}
	return id, nil
}

func (w *world) Admit(_ context.Context, id fabric.ID, namespace fabric.Namespace) error {
	for _, vni := range w.services[id].VNIs {
		entry := w.entry(int32(vni))
		if entry == nil || entry.ReleasedAt != nil {
			w.t.Errorf("somebody is admitted to VNI %d, and it isn't written down", vni)
		}
	}
	w.admitted[id] = namespace
	return nil
}

func (w *world) Destroy(_ context.Context, id fabric.ID) error {
	if w.busy {
		return fabric.ErrBusy
	}
	delete(w.services, id)
	delete(w.admitted, id)
	return nil
}

func (w *world) List(context.Context) ([]fabric.Service, error) {
	var list []fabric.Service
	for _, s := range w.services {
		list = append(list, s)
	}
	return list, nil
}

func (w *world) Configure(_ context.Context, wanted simulated.Configuration) error {
	w.config = wanted
	return nil
}

func (w *world) Namespaces() ([]namespaces.Found, error) {
	var list []namespaces.Found
	for inode := range w.spaces {
		list = append(list, namespaces.Found{Inode: inode})
	}
	return list, nil
}

func (w *world) Addresses(of namespaces.Found) ([]netip.Addr, error) { return w.spaces[of.Inode], nil }

func (w *world) Attempt(_ context.Context, _ namespaces.Found, to netip.AddrPort) (isolation.Outcome, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tried = append(w.tried, to.String())
	if !w.deaf && (w.open || to.Addr() == netip.MustParseAddr("10.0.9.1")) {
		return isolation.Reached, nil
	}
	return isolation.Refused, nil
}

func TestNothingIsKeptApartWithoutAFabricDomain(t *testing.T) {
	w := newWorld(t)
	w.sync()
	if len(w.config.Ports) != 2 {
		t.Errorf("ports %v with a FabricDomain, want 2", w.config.Ports)
	}
	if err := w.client.Delete(t.Context(), &v1alpha1.FabricDomain{ObjectMeta: metav1.ObjectMeta{Name: "hsn"}}); err != nil {
		t.Fatal(err)
	}
	w.sync()
	if len(w.config.Ports) != 0 {
		t.Errorf("ports %v without a FabricDomain: engines are cut off from each other", w.config.Ports)
	}
}

func TestPodsOfATenantAreAdmittedToItsVNIAndNoOthers(t *testing.T) {
	w := newWorld(t)
	w.tenant("one", 1001)
	w.tenant("two", 1002)
	w.sync()
	if w.entry(1001) != nil || len(w.services) != 0 {
		t.Error("a node without pods of the tenant is listed")
	}
	w.pod("one", "first", "here", "10.0.0.1", nil)
	w.pod("one", "second", "here", "10.0.0.2", nil)
	w.pod("two", "other", "here", "10.0.0.3", nil)
	w.pod("one", "away", "there", "10.0.9.2", nil)
	w.pod("default", "nobodys", "here", "10.0.0.4", nil)
	w.create(&v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "one", Name: "own"}})
	for name, labels := range map[string]map[string]string{"false-engine": manifest.EngineSelector("own"), "false-mount": {v1alpha1.LabelAttaches: "true"}} {
		w.pod("one", name, "there", "10.0.9.7", labels)
	}
	w.sync()
	w.sync()
	if got := w.in(1001); got != "[10.0.0.1] [10.0.0.2]" {
		t.Errorf("VNI 1001: %s", got)
	}
	if got := w.in(1002); got != "[10.0.0.3]" {
		t.Errorf("VNI 1002: %s", got)
	}
	if entry := w.entry(1001); !slices.Equal(entry.Addresses, []string{"10.0.0.1", "10.0.0.2"}) || len(entry.Waiting) != 0 {
		t.Errorf("%+v", entry)
	}
	want := fmt.Sprint(map[uint16]string{1000: "[10.0.9.1 10.0.0.9]", 1001: "[10.0.9.1 10.0.0.9]", 1002: "[10.0.9.1 10.0.0.9]"})
	got := map[uint16]string{}
	for vni, addresses := range w.config.Peers {
		got[vni] = fmt.Sprint(addresses)
	}
	if fmt.Sprint(got) != want || !slices.Equal(w.config.Ports, []uint16{31416, 31417}) {
		t.Errorf("%v %v, want %s", got, w.config.Ports, want)
	}
	// What another node admits is a peer.
	var a v1alpha1.VNIAllocation
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "1001"}, &a); err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	a.Status.Nodes = append(a.Status.Nodes,
		v1alpha1.VNINode{Name: "there", Addresses: []string{"10.0.9.2", "nonsense"}}, v1alpha1.VNINode{Name: "gone", Addresses: []string{"10.0.7.1"}, ReleasedAt: &now})
	if err := w.client.Status().Update(t.Context(), &a); err != nil {
		t.Fatal(err)
	}
	w.sync()
	if got := fmt.Sprint(w.config.Peers[1001]); got != "[10.0.9.1 10.0.0.9 10.0.9.2]" {
		t.Error(got)
	}
}

func TestANumberIsReleasedOnceNobodyOnTheNodeUsesIt(t *testing.T) {
	w := newWorld(t)
	w.tenant("one", 1001)
	w.pod("one", "first", "here", "10.0.0.1", nil)
	w.sync()
	w.remove("one", "first")
	w.busy = true
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	w.sync()
	if entry := w.entry(1001); entry.ReleasedAt != nil || len(entry.Waiting) != 1 || !strings.Contains(entry.Waiting[0], "in use, first seen at 2026-11-01T12:01:00Z") {
		t.Errorf("%+v", entry)
	}
	w.busy = false
	w.sync()
	if entry := w.entry(1001); entry.ReleasedAt == nil || len(entry.Waiting) != 0 || len(entry.Addresses) != 0 || len(w.services) != 0 {
		t.Errorf("%+v %v", entry, w.services)
	}
	w.pod("one", "next", "here", "10.0.0.5", nil)
	w.sync()
	if entry := w.entry(1001); entry.ReleasedAt != nil || w.in(1001) != "[10.0.0.5]" {
		t.Errorf("%+v %s", entry, w.in(1001))
	}
}

func TestAPodThatCannotBeAdmittedSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.tenant("one", 1001)
	w.pod("one", "first", "here", "10.0.0.1", nil)
	w.pod("one", "early", "here", "10.0.0.2", nil)
	for inode, addresses := range w.spaces {
		if addresses[0] == netip.MustParseAddr("10.0.0.2") {
			delete(w.spaces, inode)
		}
	}
	w.sync()
	if entry := w.entry(1001); len(entry.Waiting) != 1 || !strings.Contains(entry.Waiting[0], "pod one/early: no network namespace") {
		t.Errorf("%+v", entry)
	}
	w.spaces[1] = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	w.sync()
	if entry := w.entry(1001); len(entry.Waiting) != 2 || !strings.Contains(strings.Join(entry.Waiting, "\n"), "pod one/first: network namespaces") {
		t.Errorf("%+v", entry)
	}
	// A pod of a tenant that goes is admitted to nothing new.
	delete(w.spaces, 1)
	if err := w.client.Delete(t.Context(), &v1alpha1.VNIAllocation{ObjectMeta: metav1.ObjectMeta{Name: "1001"}}); err != nil {
		t.Fatal(err)
	}
	w.pod("one", "late", "here", "10.0.0.6", nil)
	w.sync()
	if entry := w.entry(1001); !strings.Contains(strings.Join(entry.Waiting, "\n"), "pod one/late: its Tenant is being deleted") || strings.Contains(w.in(1001), "10.0.0.6") {
		t.Errorf("%+v %s", entry, w.in(1001))
	}
}

func TestIsolationIsProvenByAttempts(t *testing.T) {
	w := newWorld(t)
	w.tenant("one", 1001)
	w.tenant("two", 1002)
	w.pod("one", "first", "here", "10.0.0.1", nil)
	w.pod("two", "other", "here", "10.0.0.3", nil)
	w.deaf = true
	w.sync()
	w.sync()
	if entry := w.entry(1001); entry.Proof != nil {
		t.Errorf("where nobody answers inside either, nothing is proven: %+v", entry.Proof)
	}
	w.deaf = false
	w.sync()
	proof := w.entry(1001).Proof
	if proof == nil || len(proof.Reached) != 0 || len(proof.Refused) != 2 || !strings.Contains(proof.Refused[0], "VNI 1002 of another tenant (10.0.0.3)") || !strings.Contains(proof.Refused[1], "no VNI (192.0.2.1)") {
		t.Fatalf("%+v, tried %v", proof, w.tried)
	}
	w.open = true
	w.clock.SetTime(w.clock.Now().Add(ProofInterval / 2))
	w.sync()
	if !w.entry(1001).Proof.Time.Equal(&proof.Time) {
		t.Error("the attempts are made again at once")
	}
	w.clock.SetTime(w.clock.Now().Add(ProofInterval))
	w.sync()
	if proof := w.entry(1001).Proof; len(proof.Reached) != 2 || len(proof.Refused) != 0 {
		t.Errorf("%+v", proof)
	}
	// Somebody removes what enforces it: the attempts are made at once, before it is put back.
	w.open = false
	w.clock.SetTime(w.clock.Now().Add(ProofInterval))
	w.sync()
	if proof := w.entry(1001).Proof; len(proof.Reached) != 0 {
		t.Fatalf("%+v", proof)
	}
	w.services, w.admitted, w.open = map[fabric.ID]fabric.Service{}, map[fabric.ID]fabric.Namespace{}, true
	w.clock.SetTime(w.clock.Now().Add(time.Second))
	w.sync()
	if proof := w.entry(1001).Proof; len(proof.Reached) != 2 || w.in(1001) != "[10.0.0.1]" {
		t.Errorf("%+v %s", proof, w.in(1001))
	}
	w.remove("one", "first")
	w.sync()
	if entry := w.entry(1001); entry.Proof != nil || entry.ReleasedAt == nil {
		t.Errorf("%+v", entry)
	}
}

func TestWhatCannotBeWrittenDownIsNotAdmitted(t *testing.T) {
	w := newWorld(t)
	w.tenant("one", 1001)
	w.pod("one", "first", "here", "10.0.0.1", nil)
	w.agent.client = refusing{w.client}
	if err := w.agent.Sync(t.Context()); err == nil || len(w.services) != 0 {
		t.Errorf("%v %v", err, w.services)
	}
}

// refusing is an API server that takes no status.
type refusing struct{ client.Client }

func (refusing) Status() client.SubResourceWriter { return refusingWriter{} }

type refusingWriter struct{ client.SubResourceWriter }

func (refusingWriter) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return errors.New("conflict")
}
