package controller

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// cluster has some nodes; others are not there.
type cluster map[string]*corev1.Node

func (c cluster) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
	if c == nil {
		return nil, errors.New("the API server is away")
	}
	if name == ".." {
		return nil, errors.New("invalid path") // as client-go says
	}
	node, there := c[name]
	if !there {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
	}
	return node, nil
}

func someNode(ready corev1.ConditionStatus, taints ...string) *corev1.Node {
	node := &corev1.Node{}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	for _, key := range taints {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key})
	}
	return node
}

func TestOnlyHandlesOfNodesThatKubernetesCallsGoneAreEvicted(t *testing.T) {
	nodes := cluster{
		"well":    someNode(corev1.ConditionTrue),
		"cut-off": someNode(corev1.ConditionUnknown, corev1.TaintNodeUnreachable),
		"down":    someNode(corev1.ConditionUnknown, corev1.TaintNodeUnreachable, corev1.TaintNodeOutOfService),
	}
	fresh := func(node string) *managementv1.OpenHandle {
		return &managementv1.OpenHandle{Handle: 7, Node: node, SilentSeconds: 50, Counts: true}
	}
	silent := func(node string) *managementv1.OpenHandle {
		return &managementv1.OpenHandle{Handle: 8, Node: node, SilentSeconds: 5000}
	}
	for name, test := range map[string]struct {
		nodes   Nodes
		handles []*managementv1.OpenHandle
		code    codes.Code
		says    []string
	}{
		"nobody":                         {nodes: nodes},
		"a node that was deleted":        {nodes: nodes, handles: []*managementv1.OpenHandle{fresh("deleted"), silent("deleted")}},
		"a node out of service":          {nodes: nodes, handles: []*managementv1.OpenHandle{fresh("down")}},
		"a node of a name that none has": {nodes: nodes, handles: []*managementv1.OpenHandle{fresh("..")}},
		"a node that is well":            {nodes: nodes, handles: []*managementv1.OpenHandle{fresh("well")}, code: codes.FailedPrecondition, says: []string{"open handles"}},
		"a client that died on its node": {nodes: nodes, handles: []*managementv1.OpenHandle{silent("well")}},
		"a node that nobody hears": {nodes: nodes, handles: []*managementv1.OpenHandle{silent("cut-off")},
			code: codes.FailedPrecondition, says: []string{"node cut-off", "lab/home", corev1.TaintNodeOutOfService}},
		"one of two": {nodes: nodes, handles: []*managementv1.OpenHandle{fresh("deleted"), silent("cut-off")},
			code: codes.FailedPrecondition, says: []string{"node cut-off"}},
		"a client of no node":        {nodes: nodes, handles: []*managementv1.OpenHandle{fresh("")}, code: codes.FailedPrecondition, says: []string{"open handles"}},
		"an API server that is away": {nodes: cluster(nil), handles: []*managementv1.OpenHandle{silent("well")}, code: codes.Unavailable, says: []string{"API server"}},
		"no API server":              {handles: []*managementv1.OpenHandle{fresh("deleted")}, code: codes.FailedPrecondition, says: []string{"open handles"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, system := start(t)
			s.nodes = test.nodes
			made := mustCreate(t, s, creation("pvc-1", func(r *csi.CreateVolumeRequest) {
				r.Parameters["csi.storage.k8s.io/pvc/name"], r.Parameters["csi.storage.k8s.io/pvc/namespace"] = "home", "lab"
			}))
			system.SetHandles("tank", "pvc-1", test.handles...)
			_, err := s.DeleteVolume(bounded(t), &csi.DeleteVolumeRequest{VolumeId: made.GetVolumeId()})
			wantStatus(t, err, test.code, test.says...)
		})
	}
}
