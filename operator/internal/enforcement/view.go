package enforcement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/fabric/namespaces"
)

// attemptsMax bounds the tenants that one proof tries to reach.
const attemptsMax = 12

// view is what Kubernetes says of the fabric.
type view struct {
	// pods of this node that belong to VNIs, by UID.
	pods        map[string]*pod
	allocations []v1alpha1.VNIAllocation
	// common are the addresses that belong to every VNI, and engineVNIs those that only they have.
	common     []netip.Addr
	engineVNIs []uint16
	// ports of the fabric. The first is one that engines listen on.
	ports []uint16
	// proofs that were made during this look, by VNI.
	proofs map[int32]*v1alpha1.IsolationProof
}

// pod is a pod of this node.
type pod struct {
	name      string
	addresses []netip.Addr
	host      netip.Addr
	vnis      []int32
	// obstacle is why it can't be admitted; nil for nothing.
	obstacle error
	found    *namespaces.Found
	admitted bool
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// look reads what the fabric of this node has to be.
func (a *Agent) look(ctx context.Context) (*view, error) {
	v := &view{pods: map[string]*pod{}, proofs: map[int32]*v1alpha1.IsolationProof{}}
	var tenants v1alpha1.TenantList
	var domains v1alpha1.FabricDomainList
	var clusters v1alpha1.StorageClusterList
	var allocations v1alpha1.VNIAllocationList
	var spaces corev1.NamespaceList
	var pods corev1.PodList
	for _, read := range []struct {
		what string
		list client.ObjectList
	}{
		{"Tenants", &tenants}, {"FabricDomains", &domains}, {"StorageClusters", &clusters}, {"VNIAllocations", &allocations},
		{"namespaces", &spaces}, {"pods", &pods},
	} {
		if err := a.client.List(ctx, read.list); err != nil {
			return nil, fmt.Errorf("list %s: %w", read.what, err)
		}
	}
	v.allocations = allocations.Items
	slices.SortFunc(v.allocations, func(x, y v1alpha1.VNIAllocation) int { return int(x.Spec.VNI - y.Spec.VNI) })
	for i := range domains.Items {
		v.engineVNIs = append(v.engineVNIs, uint16(domains.Items[i].Spec.EngineVNI))
	}
	// Without a FabricDomain nobody has a VNI, not even engines: nothing is kept apart then.
	for i := range clusters.Items {
		if len(domains.Items) == 0 {
			break
		}
		c := &clusters.Items[i].Spec
		for target := range c.Engines.TargetsPerEngine {
			v.ports = append(v.ports, uint16(c.Ports.Fabric+target))
		}
	}
	owners := map[string]*v1alpha1.Tenant{}
	for i := range spaces.Items {
		owners[spaces.Items[i].Name] = v1alpha1.TenantOf(tenants.Items, spaces.Items[i].Labels)
	}
	var err error
	if v.common, err = a.common(ctx, clusters.Items, func(namespace string) bool { return owners[namespace] != nil }); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		a.take(v, &pods.Items[i], owners[pods.Items[i].Namespace])
	}
	return v, nil
}

// take adds a pod to the view if it belongs to a tenant with VNIs, and has a network of its own.
func (a *Agent) take(v *view, p *corev1.Pod, tenant *v1alpha1.Tenant) {
	over := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	if p.Spec.NodeName != a.node || p.Spec.HostNetwork || over || len(p.Status.PodIPs) == 0 || tenant == nil || len(tenant.Status.VNIs) == 0 {
		return
	}
	one := &pod{name: p.Namespace + "/" + p.Name, vnis: slices.Sorted(slices.Values(tenant.Status.VNIs))}
	one.addresses, one.obstacle = addressesOf(p)
	if host, err := netip.ParseAddr(p.Status.HostIP); err == nil {
		one.host = host.Unmap()
	}
	for _, number := range one.vnis {
		if problem := v.usable(number, tenant); problem != nil && one.obstacle == nil {
			one.obstacle = problem
		}
	}
	v.pods[string(p.UID)] = one
}

// usable says why a tenant's pods can't be admitted to a number; nil for nothing.
func (v *view) usable(number int32, tenant *v1alpha1.Tenant) error {
	i := slices.IndexFunc(v.allocations, func(a v1alpha1.VNIAllocation) bool { return a.Spec.VNI == number })
	switch {
	case i < 0:
		return fmt.Errorf("VNI %d is not allocated", number)
	case v.allocations[i].Spec.Owner.UID != string(tenant.UID):
		return fmt.Errorf("VNI %d is allocated to Tenant %s", number, v.allocations[i].Spec.Owner.Name)
	case !v.allocations[i].DeletionTimestamp.IsZero():
		return errors.New("its Tenant is being deleted: stop the pod")
	default:
		return nil
	}
}

func addressesOf(p *corev1.Pod) ([]netip.Addr, error) {
	addresses := make([]netip.Addr, 0, len(p.Status.PodIPs))
	for _, ip := range p.Status.PodIPs {
		address, err := netip.ParseAddr(ip.IP)
		if err != nil {
			return nil, fmt.Errorf("pod %s/%s has an address that is none: %w", p.Namespace, p.Name, err)
		}
		addresses = append(addresses, address.Unmap())
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return addresses, nil
}

// peers are the members of each VNI that this node has no service for: engines, and pods of other nodes as those say.
func (v *view) peers(node string) map[uint16][]netip.Addr {
	peers := map[uint16][]netip.Addr{}
	for _, number := range v.engineVNIs {
		peers[number] = slices.Clone(v.common)
	}
	for i := range v.allocations {
		number := uint16(v.allocations[i].Spec.VNI)
		peers[number] = append(peers[number], v.common...)
		for _, entry := range v.allocations[i].Status.Nodes {
			if entry.Name != node && entry.ReleasedAt == nil {
				peers[number] = append(peers[number], parsed(entry.Addresses)...)
			}
		}
	}
	return peers
}

// parsed are the addresses that agents wrote. What is none is left out: it lets nobody in.
func parsed(texts []string) []netip.Addr {
	var addresses []netip.Addr
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, address.Unmap())
		}
	}
	return addresses
}

// anyOf is an admitted pod of this node with a VNI; nil if there is none.
func (v *view) anyOf(number int32) *pod {
	for _, uid := range sortedKeys(v.pods) {
		if one := v.pods[uid]; one.admitted && slices.Contains(one.vnis, number) {
			return one
		}
	}
	return nil
}

// targets are whom a pod has to reach inside its VNI, one of them at least, and whom it must not reach outside: a pod of each other
// tenant, and the node itself, which is in no VNI.
func (v *view) targets(allocation *v1alpha1.VNIAllocation, from *pod) (inside, outside []target) {
	if len(v.ports) == 0 {
		return nil, nil
	}
	at := func(address netip.Addr) netip.AddrPort { return netip.AddrPortFrom(address, v.ports[0]) }
	for _, address := range v.common {
		inside = append(inside, target{"an engine", at(address)})
	}
	for i := range v.allocations {
		other := &v.allocations[i]
		addresses := v.addressesIn(other)
		if other.Spec.Owner.UID == allocation.Spec.Owner.UID {
			for _, address := range addresses {
				if other.Spec.VNI == allocation.Spec.VNI && !slices.Contains(from.addresses, address) {
					inside = append(inside, target{"the tenant's own VNI", at(address)})
				}
			}
			continue
		}
		if len(addresses) > 0 && len(outside) < attemptsMax {
			outside = append(outside, target{fmt.Sprintf("VNI %s of another tenant (%s)", other.Name, addresses[0]), at(addresses[0])})
		}
	}
	if from.host.IsValid() {
		outside = append(outside, target{fmt.Sprintf("an address in no VNI (%s)", from.host), at(from.host)})
	}
	return inside, outside
}

// addressesIn are the pods of all nodes that are admitted to a number.
func (v *view) addressesIn(allocation *v1alpha1.VNIAllocation) []netip.Addr {
	var addresses []netip.Addr
	for _, entry := range allocation.Status.Nodes {
		if entry.ReleasedAt == nil {
			addresses = append(addresses, parsed(entry.Addresses)...)
		}
	}
	return addresses
}
