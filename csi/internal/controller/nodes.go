package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/csi/handles"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// Nodes finds the nodes of the cluster, as client-go does.
type Nodes interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Node, error)
}

// judge judges a volume's handles by their nodes; where nobody knows nodes, all are left to the engines.
func (s *Server) judge(ctx context.Context, open []*managementv1.OpenHandle) (*handles.Judgement, error) {
	if s.nodes == nil {
		return &handles.Judgement{}, nil
	}
	nodes := handles.NewNodes(func(ctx context.Context, name string) (*corev1.Node, error) {
		return s.nodes.Get(ctx, name, metav1.GetOptions{})
	})
	return nodes.Judge(ctx, open)
}
