// Package enforcement has a node admit the pods of tenants to their virtual networks (VNIs), writes down whom it has admitted, and
// tries whether the networks are kept apart. It runs on each node.
package enforcement

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/fabric"
	"weir.dev/weir/operator/internal/fabric/namespaces"
	"weir.dev/weir/operator/internal/fabric/simulated"
	"weir.dev/weir/operator/internal/isolation"
	"weir.dev/weir/operator/internal/manifest"
)

// What the agent of a node may do: see whose the pods are, and write into VNIAllocations what becomes of them on the node.
// +kubebuilder:rbac:groups=storage.weir.dev,resources=tenants;fabricdomains;storageclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=vniallocations,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=vniallocations/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods;namespaces,verbs=get;list;watch

const (
	// Interval between two looks when nothing has changed.
	Interval = 15 * time.Second
	// ProofInterval is how old a proof of isolation becomes before the attempts are made again.
	ProofInterval = 5 * time.Minute
	// attemptTimeout is how long an attempt waits for an answer: longer than any on a network of a data centre takes.
	attemptTimeout = time.Second
	// proofsPerLook bounds the proofs of one look, each of which takes attemptTimeout.
	proofsPerLook = 4
	fieldOwner    = "weir-fabric"
)

// Switch is what the simulated fabric can do beside what every fabric does.
type Switch interface {
	Configure(ctx context.Context, wanted simulated.Configuration) error
}

// Node is what the agent sees of the node.
type Node interface {
	// Namespaces are the network namespaces of the node's pods.
	Namespaces() ([]namespaces.Found, error)
	// Addresses of a namespace.
	Addresses(of namespaces.Found) ([]netip.Addr, error)
	// Attempt tries to reach somebody from a namespace.
	Attempt(ctx context.Context, from namespaces.Found, to netip.AddrPort) (isolation.Outcome, error)
}

// Agent keeps a node's fabric.
type Agent struct {
	// client writes, and reads from a cache that has this node's pods only.
	client client.Client
	// shared reads the pods that belong to all VNIs: engines, and those of the agents' namespace that attach.
	shared    client.Reader
	clock     clock.PassiveClock
	node      string
	namespace string
	keeper    *fabric.Keeper
	net       Switch
	machine   Node

	// addresses of network namespaces that were looked at before.
	addresses map[uint64][]netip.Addr
}

// Config is what an agent works with.
type Config struct {
	// Client reads from a cache with the node's pods only, Shared from one with those of SharedPods.
	Client client.Client
	Shared client.Reader
	Clock  clock.PassiveClock
	// Node is the name of the node, Namespace that of the release's pods on each node.
	Node, Namespace string
	Keeper          *fabric.Keeper
	Switch          Switch
	Machine         Node
}

// New makes an agent.
func New(c Config) *Agent {
	return &Agent{
		client: c.Client, shared: c.Shared, clock: c.Clock, node: c.Node, namespace: c.Namespace, keeper: c.Keeper, net: c.Switch,
		machine: c.Machine, addresses: map[uint64][]netip.Addr{},
	}
}

// Sync makes the node's fabric what it should be, and writes what came of it.
func (a *Agent) Sync(ctx context.Context) error {
	v, err := a.look(ctx)
	if err != nil {
		return err
	}
	if err := a.proveLoss(ctx, v); err != nil {
		return err
	}
	if err := a.keeper.Refresh(ctx); err != nil {
		return err
	}
	if err := a.net.Configure(ctx, simulated.Configuration{Ports: v.ports, Peers: v.peers(a.node)}); err != nil {
		return err
	}
	alive, err := a.inspect()
	if err != nil {
		return err
	}
	problems := []error{a.end(ctx, v, alive)}
	if err := a.announce(ctx, v); err != nil {
		return errors.Join(append(problems, err)...)
	}
	waiting := a.admit(ctx, v)
	a.prove(ctx, v)
	problems = append(problems, a.record(ctx, v, waiting))
	return errors.Join(problems...)
}

// inspect brings what is known of network namespaces up to date, and returns the inodes of all there are.
func (a *Agent) inspect() (map[uint64]bool, error) {
	found, err := a.machine.Namespaces()
	if err != nil {
		return nil, err
	}
	alive := map[uint64]bool{}
	for _, one := range found {
		alive[one.Inode] = true
	}
	for inode := range a.addresses {
		if !alive[inode] {
			delete(a.addresses, inode)
		}
	}
	return alive, nil
}

// end destroys the services of pods that are not there any more, and of network namespaces that are gone.
func (a *Agent) end(ctx context.Context, v *view, alive map[uint64]bool) error {
	problems := []error{a.keeper.Retry(ctx)}
	for _, entry := range a.keeper.Entries() {
		if _, wanted := v.pods[entry.Owner]; !wanted {
			problems = append(problems, a.keeper.End(ctx, entry.Owner))
		}
	}
	problems = append(problems, a.keeper.Collect(ctx, alive))
	for _, problem := range problems {
		if problem != nil && !errors.Is(problem, fabric.ErrBusy) {
			return problem
		}
	}
	return nil // those that are in use are shown, and tried again at the next look
}

// admit lets the pods of the node use their VNIs. It returns why some can't yet, by VNI.
func (a *Agent) admit(ctx context.Context, v *view) map[int32][]string {
	waiting := map[int32][]string{}
	for _, uid := range sortedKeys(v.pods) {
		pod := v.pods[uid]
		err := pod.obstacle
		if err == nil {
			err = a.admitPod(ctx, uid, pod)
		}
		if err == nil {
			continue
		}
		log.FromContext(ctx).Info("A pod is not admitted to its VNIs, which is tried again", "pod", pod.name, "reason", err.Error())
		for _, number := range pod.vnis {
			waiting[number] = append(waiting[number], fmt.Sprintf("pod %s: %v", pod.name, err))
		}
	}
	for _, entry := range a.keeper.Entries() {
		if entry.State != fabric.StateDestroying {
			continue
		}
		for _, number := range entry.Request.VNIs {
			since := "it is ended"
			if entry.BusySince != nil {
				since = "it is in use, first seen at " + entry.BusySince.UTC().Format(time.RFC3339)
			}
			waiting[int32(number)] = append(waiting[int32(number)], fmt.Sprintf("service %d of %s can't be destroyed: %s", entry.ID.Number, entry.ID.Device, since))
		}
	}
	return waiting
}

func (a *Agent) admitPod(ctx context.Context, uid string, pod *pod) error {
	found, err := a.namespaceOf(pod.addresses)
	if err != nil {
		return err
	}
	pod.found = found
	request := fabric.Request{Device: simulated.Device}
	for _, number := range pod.vnis {
		request.VNIs = append(request.VNIs, uint16(number))
	}
	if _, err := a.keeper.Ensure(ctx, uid, request); err != nil {
		return err
	}
	if err := a.keeper.Admit(ctx, uid, fabric.Namespace{Inode: found.Inode, Addresses: pod.addresses}); err != nil {
		return err
	}
	pod.admitted = true
	return nil
}

// namespaceOf finds the network namespace that has exactly the addresses that Kubernetes gave a pod. Two that have one of them are
// suspicious: a pod that may change its interfaces can take another's address.
func (a *Agent) namespaceOf(addresses []netip.Addr) (*namespaces.Found, error) {
	all, err := a.machine.Namespaces()
	if err != nil {
		return nil, err
	}
	var holder *namespaces.Found
	for i := range all {
		known, seen := a.addresses[all[i].Inode]
		if !seen {
			if known, err = a.machine.Addresses(all[i]); err != nil {
				continue // it is gone, or going
			}
			if len(known) > 0 {
				a.addresses[all[i].Inode] = known
			}
		}
		if !slices.ContainsFunc(addresses, func(one netip.Addr) bool { return slices.Contains(known, one) }) {
			continue
		}
		if holder != nil {
			return nil, fmt.Errorf("network namespaces %d and %d both have one of its addresses", holder.Inode, all[i].Inode)
		}
		holder = &all[i]
	}
	if holder == nil {
		return nil, errors.New("no network namespace of the node has its address yet")
	}
	for _, one := range addresses {
		if !slices.Contains(a.addresses[holder.Inode], one) {
			return nil, fmt.Errorf("network namespace %d lacks its address %s", holder.Inode, one)
		}
	}
	return holder, nil
}

// proveLoss tries at once whether networks are still kept apart when services are gone that the agent keeps, before it puts them back:
// somebody may have removed what enforces them.
func (a *Agent) proveLoss(ctx context.Context, v *view) error {
	lost, err := a.keeper.Lost(ctx)
	if err != nil || !lost {
		return err
	}
	log.FromContext(ctx).Info("Services of the fabric are gone, which somebody else has ended: they are put back")
	for _, entry := range a.keeper.Entries() {
		one := v.pods[entry.Owner]
		if one == nil || entry.State != fabric.StateAdmitted {
			continue
		}
		if one.found, err = a.namespaceOf(one.addresses); err == nil {
			one.admitted = true
		}
	}
	for i := range v.allocations {
		a.proveOne(ctx, v, &v.allocations[i])
	}
	for _, one := range v.pods {
		one.admitted = false // until it is again
	}
	return nil
}

// prove tries to get out of each VNI that has a pod here, if the last proof is old.
func (a *Agent) prove(ctx context.Context, v *view) {
	for i := range v.allocations {
		allocation := &v.allocations[i]
		if len(v.proofs) >= proofsPerLook {
			return // the others' turn is at the next looks, so that pods that start don't wait
		}
		entry := allocation.Node(a.node)
		old := entry != nil && (entry.Proof == nil || a.clock.Since(entry.Proof.Time.Time) >= ProofInterval)
		if old && v.proofs[allocation.Spec.VNI] == nil {
			a.proveOne(ctx, v, allocation)
		}
	}
}

// proveOne tries to get out of one VNI, if it has a pod here.
func (a *Agent) proveOne(ctx context.Context, v *view, allocation *v1alpha1.VNIAllocation) {
	from := v.anyOf(allocation.Spec.VNI)
	if from == nil {
		return
	}
	proof, err := a.attempt(ctx, v, allocation, from)
	if err != nil {
		log.FromContext(ctx).Info("Isolation could not be proven, which is tried again", "vni", allocation.Name, "reason", err.Error())
		return
	}
	v.proofs[allocation.Spec.VNI] = proof
}

// target is somebody whom a pod tries to reach.
type target struct {
	what    string
	address netip.AddrPort
}

// attempt tries to get out of a VNI. It fails when nothing is proven by that, because nobody is reached inside it either.
func (a *Agent) attempt(ctx context.Context, v *view, allocation *v1alpha1.VNIAllocation, from *pod) (*v1alpha1.IsolationProof, error) {
	inside, outside := v.targets(allocation, from)
	if len(outside) == 0 {
		return nil, errors.New("there is nobody outside the VNI")
	}
	if !slices.ContainsFunc(inside, func(t target) bool {
		outcome, err := a.machine.Attempt(ctx, *from.found, t.address)
		return err == nil && outcome == isolation.Reached
	}) {
		return nil, fmt.Errorf("pod %s reaches nobody inside the VNI either", from.name)
	}
	proof := &v1alpha1.IsolationProof{}
	outcomes, problems := make([]isolation.Outcome, len(outside)), make([]error, len(outside))
	var all sync.WaitGroup
	for i, t := range outside { // what is refused takes as long as the timeout
		all.Go(func() { outcomes[i], problems[i] = a.machine.Attempt(ctx, *from.found, t.address) })
	}
	all.Wait()
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	for i, t := range outside {
		if outcomes[i] == isolation.Reached {
			proof.Reached = append(proof.Reached, t.what)
		} else {
			proof.Refused = append(proof.Refused, t.what)
		}
	}
	proof.Time.Time = a.clock.Now()
	if len(proof.Reached) > 0 {
		log.FromContext(ctx).Error(nil, "Virtual networks are not kept apart", "vni", allocation.Name, "pod", from.name, "reached", proof.Reached)
	}
	return proof, nil
}

// SharedPods are the pods that a cache for Config.Shared has to hold.
func SharedPods() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: labels.SelectorFromSet(manifest.AllPods())}}
}

// common are the addresses that belong to every VNI: those of engines, and of the release's pods on each node that attach as any tenant. Labels
// alone don't make an engine, since whoever makes a pod writes them: it has to be in the namespace of its StorageCluster, which is no
// tenant's.
func (a *Agent) common(ctx context.Context, clusters []v1alpha1.StorageCluster, owned func(namespace string) bool) ([]netip.Addr, error) {
	var pods corev1.PodList
	if err := a.shared.List(ctx, &pods); err != nil {
		return nil, fmt.Errorf("list the pods of engines: %w", err)
	}
	var common []netip.Addr
	for i := range pods.Items {
		p := &pods.Items[i]
		isEngine := slices.ContainsFunc(clusters, func(c v1alpha1.StorageCluster) bool {
			return c.Namespace == p.Namespace && labels.SelectorFromSet(manifest.EngineSelector(c.Name)).Matches(labels.Set(p.Labels))
		})
		attaches := p.Namespace == a.namespace && p.Labels[v1alpha1.LabelAttaches] == "true"
		if (!isEngine && !attaches) || owned(p.Namespace) || p.Spec.HostNetwork {
			continue
		}
		addresses, err := addressesOf(p)
		if err != nil {
			return nil, err
		}
		common = append(common, addresses...)
	}
	return common, nil
}
