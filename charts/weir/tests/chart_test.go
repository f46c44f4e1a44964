// Package tests renders the chart and compares it with what was reviewed.
package tests

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	chart = ".."
	// kubeVersion of the cluster that templates are rendered for.
	kubeVersion = "1.34.4"
)

var update = flag.Bool("update", false, "write the golden files anew")

// helm runs the helm program, which make setup installs.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program, err := exec.LookPath("helm")
	if err != nil {
		t.Fatalf("helm is not installed: run make setup, and put its directory on the PATH: %v", err)
	}
	var out, problems bytes.Buffer
	command := exec.CommandContext(t.Context(), program, args...)
	command.Stdout, command.Stderr = &out, &problems
	if err := command.Run(); err != nil {
		return problems.String() + out.String(), err
	}
	return out.String(), nil
}

func render(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return helm(t, append([]string{"template", "weir", chart, "--namespace", "weir-system", "--kube-version", kubeVersion}, args...)...)
}

// foreign matches what is copied into the rendered chart from files that have tests of their own.
var foreign = regexp.MustCompile(`(?ms)^# Source: weir/templates/(crds|observability)\.yaml\n.*?(^---\n|\z)`)

func TestSnapshots(t *testing.T) {
	cases, err := filepath.Glob("cases/*.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("cases: %v %v", cases, err)
	}
	for _, values := range cases {
		name := strings.TrimSuffix(filepath.Base(values), ".yaml")
		t.Run(name, func(t *testing.T) {
			out, err := render(t, "--values", values)
			if err != nil {
				t.Fatalf("helm template: %v\n%s", err, out)
			}
			got := foreign.ReplaceAllString(out, "")
			path := filepath.Join("golden", name+".yaml")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("%s (-want +got); if the change is meant, run the test with -update:\n%s", path, diff)
			}
		})
	}
}

func TestLint(t *testing.T) {
	if out, err := helm(t, "lint", "--strict", chart); err != nil {
		t.Errorf("helm lint --strict: %v\n%s", err, out)
	}
}

func TestSchemaNamesTheBadValue(t *testing.T) {
	tests := map[string]struct{ set, want string }{
		"a misspelt value":             {"operator.replica=1", "replica"},
		"an operator without workers":  {"operator.workers=0", "operator/workers"},
		"too many replicas":            {"operator.replicas=99", "operator/replicas"},
		"a list of clusters":           {"clusters={weir}", "clusters"},
		"a relative loop directory":    {"devices.loopDir=loops", "devices/loopDir"},
		"a relative journal directory": {"fabric.stateDir=fabric", "fabric/stateDir"},
		"a relative kubelet directory": {"csi.kubeletDir=kubelet", "csi/kubeletDir"},
		"an unknown kind of alerts":    {"alerts.kind=Email", "alerts/kind"},
		"a namespace with a slash":     {"agents.namespace=a/b", "agents/namespace"},
		"an unknown pull policy":       {"images.pullPolicy=Sometimes", "images/pullPolicy"},
		"a digest that is a tag":       {"images.engine.digest=v1", "images/engine/digest"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := render(t, "--set", tc.set)
			plain := strings.ReplaceAll(out, ".", "/")
			if err == nil || !strings.Contains(plain, tc.want) {
				t.Errorf("%s: %v\n%s", tc.set, err, out)
			}
		})
	}
}

func TestReleasesOfKubernetesBeforeTheOldestSupportedAreRefused(t *testing.T) {
	for version, refused := range map[string]bool{"1.33.9": true, "1.34.0": false, "1.34.4-gke.1": false, "1.37.2": false} {
		out, err := helm(t, "template", "weir", chart, "--namespace", "weir-system", "--kube-version", version)
		if (err != nil) != refused || (refused && !strings.Contains(out, "1.34.0")) {
			t.Errorf("%s: %v\n%.300s", version, err, out)
		}
	}
}

func TestCRDsAndObservabilityFilesAreRendered(t *testing.T) {
	out, err := render(t)
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, out)
	}
	for _, want := range []string{
		"name: storageclusters.storage.weir.dev", "name: pools.storage.weir.dev", "name: containers.storage.weir.dev",
		"name: nodedevices.storage.weir.dev",
		"grafana_dashboard: \"1\"", "name: weir-alerts-",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the rendered chart has no %q", want)
		}
	}
	if strings.Contains(out, "rule_files:") {
		t.Error("tests of alert rules are in the rendered chart")
	}
}
