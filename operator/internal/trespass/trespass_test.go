package trespass

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/charts/podsecurity"
	"weir.dev/weir/operator/api/v1alpha1"
)

func job(t *testing.T) (container []string, breaches map[string]string, other int64) {
	t.Helper()
	tenant := &v1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{Name: "climate", UID: "u"}}
	j := Job("weir/client:1", tenant, "weather", Target{Cluster: "weir", Pool: "p", Container: "c", Tenant: 70001})
	breaches, err := podsecurity.Breaches(&j.Spec.Template)
	if err != nil {
		t.Fatal(err)
	}
	if other, err = Other(j); err != nil {
		t.Fatal(err)
	}
	return j.Spec.Template.Spec.Containers[0].Command, breaches, other
}

func TestThePodFitsARestrictedNamespaceAndSaysWhomItTries(t *testing.T) {
	_, breaches, other := job(t)
	if len(breaches) > 0 || other != 70001 {
		t.Errorf("tries %d, breaks %v", other, breaches)
	}
}

func TestWhatTheAnswersProve(t *testing.T) {
	const key, number = "a container of Tenant genome with the key", "a container of Tenant genome under its number"
	for name, tc := range map[string]struct {
		message          string
		refused, reached []string
		problem          string
	}{
		"both refused":                       {"own -1005\nkey -1001\nnumber -1001\n", []string{key, number}, nil, ""},
		"the key opens the other's pool":     {"own -1005\nkey 0\nnumber -1001\n", []string{number}, []string{key}, ""},
		"the number is believed":             {"own -1005\nkey -1001\nnumber -1005\n", []string{key}, []string{number}, ""},
		"the number opens the pool":          {"own -1005\nkey -1001\nnumber 0\n", []string{key}, []string{number}, ""},
		"reached, though the rest is silent": {"own -1005\nkey 0\nnumber -1011\n", nil, []string{key}, ""},
		"nobody answers":                     {"own -1011\nkey -1011\nnumber -1011\n", nil, nil, "answer -1011"},
		"the tenant's own key is refused":    {"own -1001\nkey -1001\nnumber -1001\n", nil, nil, "its own key"},
		"the pool is gone":                   {"own -1005\nkey -1005\nnumber -1001\n", nil, nil, "-1005, which proves nothing"},
		"the second answer is missing":       {"own -1005\nkey -1001\nnumber \n", nil, nil, "not made"},
		"the pod could not run":              {"", nil, nil, "not made"},
	} {
		refused, reached, err := Read(tc.message, "Tenant genome")
		if (err == nil) != (tc.problem == "") || (err != nil && !strings.Contains(err.Error(), tc.problem)) {
			t.Errorf("%s: error %v, want %q", name, err, tc.problem)
			continue
		}
		begins := func(text, with string) bool { return strings.HasPrefix(text, with) }
		if err == nil && (!slices.EqualFunc(refused, tc.refused, begins) || !slices.EqualFunc(reached, tc.reached, begins)) {
			t.Errorf("%s: refused %q, reached %q", name, refused, reached)
		}
	}
}

// The command line stands in that answers by the tenant that the attach file names: 70000 has the key, and the pool "theirs" is 70001's.
const answering = `#!/bin/bash
attach=$5 pool=$8
case $(grep -oE '[0-9]{5}' "$attach")/$pool in
    70000/theirs) echo '{"error":"no, \"status\":0}","response":null,"status":-1001}' ;;
    70000/*) echo '{"error":"no such pool","response":null,"status":-1005}' ;;
    *) echo '{"error":"unknown by this key","response":null,"status":-1001}' ;;
esac
`

func TestTheLongestNameFitsIntoAProof(t *testing.T) {
	refused, _, err := Read("own -1005\nkey -1001\nnumber -1001\n", "Tenant "+strings.Repeat("n", 253))
	if err != nil || len(refused) != 2 || len(refused[0]) > 256 || len(refused[1]) > 256 {
		t.Errorf("%q, %v", refused, err)
	}
}

func TestTheScriptTriesTheOthersPoolAndNumber(t *testing.T) {
	command, _, _ := job(t)
	folder := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("bin/weir", answering, 0o700)
	write("secret/client.json", "{\n  \"tenant\": 70000,\n  \"tenant_key_file\": \"tenant.key\"\n}\n", 0o600)
	write("secret/tenant.key", "k", 0o600)
	write("scratch/.keep", "", 0o600)
	run := exec.CommandContext(t.Context(), command[0], command[1:]...)
	run.Env = append(os.Environ(), "PATH="+folder+"/bin:"+os.Getenv("PATH"), "SECRET="+folder+"/secret", "SCRATCH="+folder+"/scratch",
		"POOL=theirs", "CONTAINER=c", "OTHER_TENANT=70001", "ANSWERS="+folder+"/answers")
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	message, err := os.ReadFile(filepath.Join(folder, "answers"))
	if err != nil {
		t.Fatal(err)
	}
	if refused, reached, err := Read(string(message), "Tenant genome"); err != nil || len(refused) != 2 || len(reached) != 0 {
		t.Errorf("%q: refused %q, reached %q, %v", message, refused, reached, err)
	}
}
