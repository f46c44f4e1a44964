package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// Nodes finds the nodes of the cluster, as client-go does.
type Nodes interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Node, error)
}

// departed says which of a volume's handles are of nodes that Kubernetes says are gone, and of which nodes nobody knows whether they
// use the volume: engines don't hear them, or may not for much longer, and Kubernetes doesn't either. Handles of clients that have not
// said where they are, and those of nodes that are well, are the engines' to judge.
func (s *Server) departed(ctx context.Context, handles []*managementv1.OpenHandle) (gone []uint64, unknown []string, err error) {
	if s.nodes == nil {
		return nil, nil, nil
	}
	for _, handle := range handles {
		if handle.GetNode() == "" {
			continue
		}
		node, err := s.nodes.Get(ctx, handle.GetNode(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			gone = append(gone, handle.GetHandle())
		case err != nil:
			return nil, nil, fmt.Errorf("find out whether node %s is there: %w", handle.GetNode(), err)
		case isReady(node):
		case isOutOfService(node):
			gone = append(gone, handle.GetHandle())
		default:
			unknown = append(unknown, handle.GetNode())
		}
	}
	slices.Sort(unknown)
	return gone, slices.Compact(unknown), nil
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

// unreachable says what to do about nodes that nobody hears.
func unreachable(nodes []string) string {
	return fmt.Sprintf("it is open at node %s, which Kubernetes doesn't hear and which may still use it: bring the node back, or, when it is shut down for good, delete the Node or taint it %s",
		strings.Join(nodes, ", "), corev1.TaintNodeOutOfService)
}
