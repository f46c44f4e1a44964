package tests

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"weir.dev/weir/charts/podsecurity"
)

// Rules of the level "restricted", as Pod Security admission names them.
const (
	escalation     = "allowPrivilegeEscalation != false"
	capabilities   = "unrestricted capabilities"
	hostNamespaces = "host namespaces"
	privileged     = "privileged"
	root           = "runAsUser=0"
	mayBeRoot      = "runAsNonRoot != true"
	seccomp        = "seccompProfile"
	volumeTypes    = "restricted volume types"
)

// Everything that belongs to the node is root's, and comes into a pod by volumes that the level does not admit.
var nodesFiles = []string{volumeTypes, mayBeRoot, root}

// isPrivileged is what a privileged container breaks, which has all capabilities and no seccomp profile whatever it says.
var isPrivileged = append([]string{privileged, escalation, capabilities}, nodesFiles...)

// exceptions are the pods of the chart that a namespace of the level "restricted" does not admit, and exactly the rules that they break.
// Pods that are not named here break none. docs/explanation/security.md says the same.
var exceptions = map[string][]string{
	// It makes folders and sockets in the kubelet's directory, and gives volumes to the groups of pods (CHOWN, FOWNER, FSETID).
	"weir-csi-node": append([]string{capabilities}, nodesFiles...),
	// Its socket, the state of its mounts and the mounts themselves are on the node.
	"weir-mountd": nodesFiles,
	// It mounts for other pods, and finds the mount namespaces of containers in the node's /proc.
	"weir-mount-broker": append([]string{hostNamespaces, seccomp}, isPrivileged...),
	// It writes the nftables of the node's network, and enters the network namespaces of pods (NET_ADMIN, SYS_ADMIN).
	"weir-fabric": append([]string{hostNamespaces, escalation, capabilities}, nodesFiles...),
	// It opens drives that nobody gave it, and makes device files.
	"weir-drives": append([]string{seccomp}, isPrivileged...),
}

// withoutBroker are the exceptions where nobody mounts for the CSI node plugin and the mount daemon.
var withoutBroker = map[string][]string{
	"weir-csi-node": append([]string{hostNamespaces}, isPrivileged...),
	"weir-mountd":   isPrivileged,
}

// workloads returns the pods of the Deployments, DaemonSets, StatefulSets and Jobs among rendered objects, each with its namespace, by name.
func workloads(t *testing.T, rendered string) map[string]corev1.PodTemplateSpec {
	t.Helper()
	found := map[string]corev1.PodTemplateSpec{}
	for document := range strings.SplitSeq(rendered, "\n---\n") {
		var object struct {
			metav1.TypeMeta `json:",inline"`
			Metadata        metav1.ObjectMeta `json:"metadata"`
			Spec            struct {
				Template corev1.PodTemplateSpec `json:"template"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		switch object.Kind {
		case "Deployment", "DaemonSet", "StatefulSet", "Job":
		case "Pod", "CronJob", "ReplicaSet":
			t.Fatalf("this test does not know where the pod of a %s is", object.Kind)
		default:
			continue
		}
		object.Spec.Template.Namespace = object.Metadata.Namespace
		found[object.Metadata.Name] = object.Spec.Template
	}
	return found
}

func TestPodsAreRestrictedButForThoseNamed(t *testing.T) {
	cases, err := filepath.Glob("cases/*.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("cases: %v %v", cases, err)
	}
	met := map[string]bool{}
	for _, values := range cases {
		out, err := render(t, "--values", values)
		if err != nil {
			t.Fatalf("helm template: %v\n%s", err, out)
		}
		pods := workloads(t, out)
		_, broker := pods["weir-mount-broker"]
		for name, pod := range pods {
			met[name] = true
			breaches, err := podsecurity.Breaches(&pod)
			if err != nil {
				t.Fatal(err)
			}
			want := exceptions[name]
			if other, is := withoutBroker[name]; is && !broker {
				want = other
			}
			if diff := cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(maps.Keys(breaches))); diff != "" {
				t.Errorf("%s of %s (-excepted +broken): %s\nsays Pod Security: %v", name, values, diff, breaches)
			}
		}
	}
	for name := range exceptions {
		if !met[name] {
			t.Errorf("no case has a pod %s: delete its exception", name)
		}
	}
}

func TestAgentsLeaveTheReleasesNamespaceRestricted(t *testing.T) {
	out, err := render(t, "--values", "cases/agents.yaml")
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, out)
	}
	for name, pod := range workloads(t, out) {
		want := "weir-system"
		if _, excepted := exceptions[name]; excepted {
			want = "weir-agents"
		}
		if pod.Namespace != want {
			t.Errorf("%s is in namespace %s, want %s", name, pod.Namespace, want)
		}
	}
}
