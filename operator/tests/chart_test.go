package tests

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const (
	chart   = "../../charts/weir"
	samples = "../../charts/weir/samples/"
)

// helm runs the helm program, which make setup installs.
func helm(t *testing.T, args ...string) string {
	t.Helper()
	program, err := exec.LookPath("helm")
	if err != nil {
		t.Fatalf("helm is not installed: run make setup, and put its directory on the PATH: %v", err)
	}
	var out, problems bytes.Buffer
	command := exec.CommandContext(t.Context(), program, args...)
	command.Stdout, command.Stderr = &out, &problems
	if err := command.Run(); err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, problems.String())
	}
	return out.String()
}

// TestChartIsAcceptedByTheAPIServer creates every object of the rendered chart and of the sample, without persisting
// it, under strict validation: an unknown or misplaced field is an error.
func TestChartIsAcceptedByTheAPIServer(t *testing.T) {
	makeNamespace(t, "weir-system")
	makeNamespace(t, "weir-agents")
	makeNamespace(t, "storage")
	template := []string{"template", "weir", chart, "--namespace", "weir-system", "--kube-version", "1.34.4"}
	manifests := map[string]string{
		"default values": helm(t, template...),
		"agents apart":   helm(t, append(template, "--values", chart+"/tests/cases/agents.yaml", "--set", "namespace.create=false")...),
		"other values":   helm(t, append(template, "--values", chart+"/tests/cases/restricted.yaml", "--set", "alerts.kind=ConfigMap", "--set", "namespace.create=false")...),
	}
	files, err := os.ReadDir(samples)
	if err != nil || len(files) == 0 {
		t.Fatalf("samples: %v %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(samples + file.Name())
		if err != nil {
			t.Fatal(err)
		}
		// The namespace of the release exists in this test.
		manifests[file.Name()] = strings.ReplaceAll(string(text), "name: weir-system\n  labels", "name: weir-sample\n  labels")
	}
	for name, text := range manifests {
		t.Run(name, func(t *testing.T) {
			objects := parse(t, text)
			if len(objects) == 0 {
				t.Fatal("no objects")
			}
			for _, obj := range objects {
				if obj.GetKind() == "CustomResourceDefinition" {
					continue // installed already
				}
				if err := admin.Create(t.Context(), obj, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
					t.Errorf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
				}
			}
		})
	}
}

func makeNamespace(t *testing.T, name string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := admin.Create(t.Context(), namespace); client.IgnoreAlreadyExists(err) != nil {
		t.Fatalf("create namespace %s: %v", name, err)
	}
}

func TestNotesTellTheNextCommand(t *testing.T) {
	user, err := environment.AddUser(envtest.User{Name: "installer", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	out := helm(t, "install", "weir", chart, "--namespace", "notes", "--dry-run=client", "--kubeconfig", path, "--set", "crds.install=false")
	for _, want := range []string{"kubectl apply -f charts/weir/samples/quickstart.yaml", "kubectl -n notes wait", "pod-security.kubernetes.io/enforce=privileged"} {
		if !strings.Contains(out, want) {
			t.Errorf("the notes do not say %q:\n%s", want, out[max(0, len(out)-1500):])
		}
	}
}

// The controllers are tested on the oldest release of Kubernetes that the chart admits: it lacks most.
func TestTheAPIServerIsTheOldestThatTheChartAdmits(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../charts/weir/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	client, err := discovery.NewDiscoveryClientForConfig(adminConfig)
	if err != nil {
		t.Fatal(err)
	}
	version, err := client.ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf(`kubeVersion: ">=%s.%s.0-0"`, version.Major, version.Minor); !strings.Contains(string(text), want) {
		t.Errorf("the API server is %s, and the chart has not %s", version, want)
	}
}
