// Package handles judges the open handles of a container by the nodes where their clients are: engines know whom they don't hear, and
// Kubernetes knows which nodes are gone.
package handles

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// NodeState is what Kubernetes says of a node.
type NodeState int

const (
	// NodeGone is that of a node whose object was deleted, or which is not ready and was put out of service: nothing runs there.
	NodeGone NodeState = iota
	// NodeUnheard is that of a node which may be cut off: its pods may run on.
	NodeUnheard
	// NodeReady is that of a node whose kubelet says that it is well.
	NodeReady
)

// Nodes knows the nodes of a Kubernetes cluster. It asks once about each: it is to be made anew for each look.
type Nodes struct {
	find   func(ctx context.Context, name string) (*corev1.Node, error)
	states map[string]NodeState
}

// NewNodes makes the nodes of a cluster. find reads a node as the API server has it, not from a cache that may lag behind.
func NewNodes(find func(ctx context.Context, name string) (*corev1.Node, error)) *Nodes {
	return &Nodes{find: find, states: map[string]NodeState{}}
}

// State says what Kubernetes knows of a node.
func (n *Nodes) State(ctx context.Context, name string) (NodeState, error) {
	if state, known := n.states[name]; known {
		return state, nil
	}
	if len(content.IsPathSegmentName(name)) > 0 {
		return NodeGone, nil // no node has such a name, and nobody can be asked about it
	}
	node, err := n.find(ctx, name)
	state := NodeUnheard
	switch {
	case apierrors.IsNotFound(err):
		state = NodeGone
	case err != nil:
		return NodeUnheard, fmt.Errorf("find out whether node %s is there: %w", name, err)
	case isReady(node):
		state = NodeReady
	case isOutOfService(node):
		state = NodeGone
	}
	n.states[name] = state
	return state, nil
}

// Judgement says of the handles of a container which are dead, and who may still use it.
type Judgement struct {
	// Gone are handles of nodes that Kubernetes says are gone: they may be evicted.
	Gone []uint64
	// Unheard are nodes of which nobody knows whether they use the container: engines don't hear them, or may not for much longer, and
	// Kubernetes doesn't either. They keep the container.
	Unheard []string
	// Ready are the nodes that are well and where engines hear a client. One that died there is the engines' to judge.
	Ready []string
	// Nowhere counts the clients that engines hear and that have not said where they are.
	Nowhere int
}

// Judge judges the handles of a container as engines list them.
func (n *Nodes) Judge(ctx context.Context, handles []*managementv1.OpenHandle) (*Judgement, error) {
	judged := &Judgement{}
	for _, handle := range handles {
		name := handle.GetNode()
		if name == "" {
			if handle.GetCounts() {
				judged.Nowhere++
			}
			continue
		}
		state, err := n.State(ctx, name)
		switch {
		case err != nil:
			return nil, err
		case state == NodeGone:
			judged.Gone = append(judged.Gone, handle.GetHandle())
		case state == NodeUnheard:
			judged.Unheard = append(judged.Unheard, name)
		case handle.GetCounts():
			judged.Ready = append(judged.Ready, name)
		}
	}
	judged.Unheard, judged.Ready = Distinct(judged.Unheard), Distinct(judged.Ready)
	return judged, nil
}

// Distinct sorts names and leaves each in once.
func Distinct(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// isReady tells whether the kubelet of a node says that it is well.
func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// isOutOfService tells whether somebody has made sure that nothing runs on a node any more, and has said so.
func isOutOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// maxNamed is how many nodes a message names.
const maxNamed = 5

// Advice says what to do about nodes that nobody hears.
func Advice(nodes []string) string {
	named, more := nodes, ""
	if len(nodes) > maxNamed {
		named, more = nodes[:maxNamed], fmt.Sprintf(" and %d more", len(nodes)-maxNamed)
	}
	return fmt.Sprintf("Kubernetes doesn't hear node %s%s, which may still use it: bring the node back, or, when it is shut down for good, delete the Node or taint it %s",
		strings.Join(named, ", "), more, corev1.TaintNodeOutOfService)
}
