// Package usage finds who uses containers, and so keeps what stands for them from being deleted: engines say which handles are open,
// and Kubernetes which nodes are gone and which pods have volumes.
package usage

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/csi/handles"
	"weir.dev/weir/csi/volume"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/status"
)

// holdersMax is how many users of one container a message names, where it names several containers.
const holdersMax = 3

// Users are those of a container, or of the containers of a pool or cluster.
type Users struct {
	// Gone are handles of a container that may be evicted: Kubernetes says that their nodes are gone.
	Gone []uint64
	// Unheard are nodes of holders of which nobody knows whether they use the container.
	Unheard []string
	// Holders says what is in the way, in words.
	Holders []string
}

// Message says that something is in use, what to do about it, and by whom: in this order, because messages are cut where they are too long.
func (u *Users) Message(object, remedy string) string {
	message := fmt.Sprintf("%s is in use: %s.", object, remedy)
	if len(u.Unheard) > 0 {
		message += " " + handles.Advice(u.Unheard) + "."
	}
	return message + " Users: " + status.List(u.Holders)
}

// Observer looks who uses the containers of one system. It asks once about each thing: it is to be made anew for each
// look.
type Observer struct {
	live   client.Reader
	system string
	nodes  *handles.Nodes
	// persistent are the volumes of the Kubernetes cluster; nil before they are read.
	persistent *corev1.PersistentVolumeList
	// pods by namespace and claim, of namespaces that were asked about.
	pods map[string]map[string][]*corev1.Pod
}

// New makes an observer. live reads past the cache: what is destroyed nothing brings back.
func New(live client.Reader, system string) *Observer {
	find := func(ctx context.Context, name string) (*corev1.Node, error) {
		var node corev1.Node
		err := live.Get(ctx, types.NamespacedName{Name: name}, &node)
		return &node, err
	}
	return &Observer{live: live, system: system, nodes: handles.NewNodes(find), pods: map[string]map[string][]*corev1.Pod{}}
}

// Container says who uses a container. Pods that have it as a volume use it wherever they run, heard by engines or not: their mount is
// cut off, or still to come. Nobody uses a container that the engines don't have.
func (o *Observer) Container(ctx context.Context, engines *management.Engines, pool, container string) (*Users, error) {
	answer, err := engines.Containers.Query(ctx, &managementv1.ContainerQueryRequest{Pool: pool, Container: container})
	if management.IsNotFound(err) {
		return &Users{}, nil
	}
	if err != nil {
		return nil, err
	}
	info := answer.GetContainer()
	volumes, err := o.volumes(ctx, func(id volume.ID) bool { return isOf(id, info) })
	if err != nil {
		return nil, err
	}
	return o.users(ctx, answer, volumes)
}

// Pools names the containers of pools that are in use, each with its claim and its users. A pool that the engines don't have is not in
// use.
func (o *Observer) Pools(ctx context.Context, engines *management.Engines, pools ...string) (*Users, error) {
	all := &Users{}
	for _, pool := range pools {
		listed, err := engines.Containers.List(ctx, &managementv1.ContainerListRequest{Pool: pool})
		if management.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(listed.GetContainers()) == 0 {
			continue
		}
		one := listed.GetContainers()[0]
		volumes, err := o.volumes(ctx, func(id volume.ID) bool { return isIn(id, one) })
		if err != nil {
			return nil, err
		}
		for _, info := range listed.GetContainers() {
			if err := o.inPool(ctx, engines, info, volumes, all); err != nil {
				return nil, err
			}
		}
	}
	all.Unheard = handles.Distinct(all.Unheard)
	return all, nil
}

// inPool adds a container to those of pools that are in use. A listing doesn't tell of clients that engines don't hear.
func (o *Observer) inPool(ctx context.Context, engines *management.Engines, listed *managementv1.ContainerInfo, volumes volumes, all *Users) error {
	answer, err := engines.Containers.Query(ctx, &managementv1.ContainerQueryRequest{Pool: listed.GetPoolUuid(), Container: listed.GetUuid()})
	if management.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	users, err := o.users(ctx, answer, volumes)
	if err != nil || len(users.Holders) == 0 {
		return err
	}
	all.Holders = append(all.Holders, fmt.Sprintf("container %s%s in pool %s (%s)", listed.GetLabel(),
		management.OfClaim(answer.GetContainer()), listed.GetPoolLabel(), status.ListSome(users.Holders, holdersMax)))
	all.Unheard = append(all.Unheard, users.Unheard...)
	return nil
}

// users puts together what engines and Kubernetes say of a container.
func (o *Observer) users(ctx context.Context, answer *managementv1.ContainerQueryResponse, volumes volumes) (*Users, error) {
	judged, err := o.nodes.Judge(ctx, answer.GetHandles())
	if err != nil {
		return nil, err
	}
	users := &Users{Gone: judged.Gone, Unheard: judged.Unheard}
	named := map[string]bool{}
	for _, pod := range volumes.podsOf(answer.GetContainer()) {
		state, err := o.nodes.State(ctx, pod.Spec.NodeName)
		switch {
		case err != nil:
			return nil, err
		case state == handles.NodeGone:
			continue
		case state == handles.NodeUnheard:
			users.Unheard = append(users.Unheard, pod.Spec.NodeName)
		}
		named[pod.Spec.NodeName] = true
		users.Holders = append(users.Holders, fmt.Sprintf("pod %s/%s on node %s", pod.Namespace, pod.Name, pod.Spec.NodeName))
	}
	users.Unheard = handles.Distinct(users.Unheard)
	for _, node := range handles.Distinct(slices.Concat(judged.Unheard, judged.Ready)) {
		if !named[node] {
			users.Holders = append(users.Holders, "a client on node "+node)
		}
	}
	// Engines of an older release count handles and list none.
	nowhere := max(judged.Nowhere, int(answer.GetContainer().GetOpenHandles())-counted(answer.GetHandles()))
	switch {
	case nowhere == 1:
		users.Holders = append(users.Holders, "1 client that doesn't say where it is")
	case nowhere > 1:
		users.Holders = append(users.Holders, fmt.Sprintf("%d clients that don't say where they are", nowhere))
	}
	users.Holders = handles.Distinct(users.Holders)
	return users, nil
}

// counted is how many handles of clients that have said where they are count.
func counted(open []*managementv1.OpenHandle) int {
	count := 0
	for _, handle := range open {
		if handle.GetCounts() && handle.GetNode() != "" {
			count++
		}
	}
	return count
}
