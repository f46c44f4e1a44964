package placement

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
)

var controlPlane = corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}

func node(name string, changes ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"disk": "nvme"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, change := range changes {
		change(&n)
	}
	return n
}

func tainted(taint corev1.Taint) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, taint) }
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func notReady(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }

func unlabelled(n *corev1.Node) { n.Labels = nil }

func TestAssign(t *testing.T) {
	three := []corev1.Node{node("c"), node("a"), node("b")}
	tests := map[string]struct {
		held  Assignment
		spec  v1alpha1.EnginesSpec
		nodes []corev1.Node
		want  Assignment
		lacks func(node string) string
		// shortage has these words; none means that every rank has a node.
		shortage []string
	}{
		"ranks take nodes in order of name": {
			spec: v1alpha1.EnginesSpec{Replicas: 3}, nodes: three, want: Assignment{0: "a", 1: "b", 2: "c"},
		},
		"a rank keeps its node although others sort before it": {
			held: Assignment{0: "c"}, spec: v1alpha1.EnginesSpec{Replicas: 2}, nodes: three, want: Assignment{0: "c", 1: "a"},
		},
		"a rank keeps a node that is gone": {
			held: Assignment{0: "gone"}, spec: v1alpha1.EnginesSpec{Replicas: 1}, nodes: three, want: Assignment{0: "gone"},
		},
		"a rank keeps a node that is cordoned": {
			held: Assignment{0: "a"}, spec: v1alpha1.EnginesSpec{Replicas: 1}, nodes: []corev1.Node{node("a", cordoned), node("b")}, want: Assignment{0: "a"},
		},
		"two engines never share a node when spread is required": {
			spec: v1alpha1.EnginesSpec{Replicas: 2}, nodes: []corev1.Node{node("a")}, want: Assignment{0: "a"},
			shortage: []string{"1 of 2 engines have no node", "1 suitable"},
		},
		"they do when it is preferred": {
			spec:  v1alpha1.EnginesSpec{Replicas: 3, Spread: v1alpha1.SpreadPreferred},
			nodes: []corev1.Node{node("a"), node("b")}, want: Assignment{0: "a", 1: "b", 2: "a"},
		},
		"unsuitable nodes are named with why": {
			spec: v1alpha1.EnginesSpec{Replicas: 1, NodeSelector: map[string]string{"disk": "nvme"}},
			nodes: []corev1.Node{
				node("w", cordoned), node("x", tainted(controlPlane)), node("y", notReady), node("z", unlabelled),
			},
			want: Assignment{},
			shortage: []string{
				"w: cordoned", "x: taint node-role.kubernetes.io/control-plane:NoSchedule", "y: not Ready",
				"1 nodes without the labels of spec.engines.nodeSelector",
			},
		},
		"a tolerated taint is no obstacle": {
			spec: v1alpha1.EnginesSpec{Replicas: 1, Tolerations: []corev1.Toleration{
				{Key: controlPlane.Key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
			}},
			nodes: []corev1.Node{node("x", tainted(controlPlane))}, want: Assignment{0: "x"},
		},
		"a taint that only prefers is no obstacle": {
			spec:  v1alpha1.EnginesSpec{Replicas: 1},
			nodes: []corev1.Node{node("x", tainted(corev1.Taint{Key: "k", Effect: corev1.TaintEffectPreferNoSchedule}))}, want: Assignment{0: "x"},
		},
		"a node that lacks something takes no new engine, and keeps its own": {
			held: Assignment{0: "b"}, spec: v1alpha1.EnginesSpec{Replicas: 3}, nodes: three, want: Assignment{0: "b", 1: "c"},
			lacks: func(node string) string {
				return map[string]string{"a": "2 drives needed", "b": "2 drives needed"}[node]
			},
			shortage: []string{"a: 2 drives needed"},
		},
		"many unsuitable nodes don't make a long message": {
			spec: v1alpha1.EnginesSpec{Replicas: 1}, want: Assignment{},
			nodes: []corev1.Node{
				node("1", cordoned), node("2", cordoned), node("3", cordoned), node("4", cordoned), node("5", cordoned), node("6", cordoned), node("7", cordoned),
			},
			shortage: []string{"5: cordoned; and 2 more"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, shortage := Assign(tc.held, tc.spec, tc.nodes, tc.lacks)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("assignment (-want +got):\n%s", diff)
			}
			if (len(tc.shortage) > 0) != (shortage != "") {
				t.Errorf("shortage: %q", shortage)
			}
			for _, words := range tc.shortage {
				if !strings.Contains(shortage, words) {
					t.Errorf("shortage %q does not say %q", shortage, words)
				}
			}
		})
	}
}

func TestALostRankGetsAnotherNodeWhenItsOwnIsGone(t *testing.T) {
	held := Assignment{0: "a", 1: "gone", 2: "c"}
	for name, tc := range map[string]struct {
		lost  []int32
		nodes []corev1.Node
		want  Assignment
	}{
		"nobody says that it is lost": {nil, []corev1.Node{node("a"), node("b"), node("c")}, held},
		"its node is there":           {[]int32{2}, []corev1.Node{node("a"), node("b"), node("c")}, held},
		"there is another node":       {[]int32{1}, []corev1.Node{node("a"), node("b"), node("c")}, Assignment{0: "a", 1: "b", 2: "c"}},
		"there is none":               {[]int32{1}, []corev1.Node{node("a"), node("c")}, held},
	} {
		t.Run(name, func(t *testing.T) {
			engines := v1alpha1.EnginesSpec{Replicas: 3, Lost: tc.lost}
			got, _ := Assign(Release(held, engines, tc.nodes, nil), engines, tc.nodes, nil)
			if !maps.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
