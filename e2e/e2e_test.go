//go:build e2e

// Package e2e tests Weir on a real Kubernetes cluster: first the story of `make run`, then what must be refused,
// survived or given back. The tests run in order on one cluster.
package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/e2e/kubectl"
	"weir.dev/weir/e2e/story"
)

// reactionDeadline is how long the cluster may take to notice something, on two busy cores.
const reactionDeadline = 3 * time.Minute

const clientImage = "weir/client:dev"

func newStory(t *testing.T) *story.Story {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := os.Getenv("KUBECONFIG")
	if kubeconfig == "" {
		kubeconfig = filepath.Join(root, "target", "kubeconfig")
	}
	// The Go compiler is two fifths of the entries, and has none of a kind that the others haven't.
	return &story.Story{Cluster: &kubectl.Cluster{Kubeconfig: kubeconfig}, Repository: root, Without: "cmd"}
}

func TestCluster(t *testing.T) {
	s := newStory(t)
	perform(t, s.Install())
	if t.Failed() {
		return
	}
	t.Run("the story", func(t *testing.T) { perform(t, s.Use()) })
	c := s.Cluster
	t.Run("an impossible pool says why in its condition", func(t *testing.T) { testImpossiblePool(t, c) })
	t.Run("a bad StorageClass parameter is named in the claim's event", func(t *testing.T) { testBadParameter(t, c) })
	t.Run("a full volume gives ENOSPC, and takes writes again after a deletion", func(t *testing.T) { testFullVolume(t, c) })
	t.Run("a volume grows online", func(t *testing.T) { testExpansion(t, c) })
	t.Run("a second pod on a ReadWriteOncePod volume is refused", func(t *testing.T) { testExclusive(t, c) })
	t.Run("an engine on a foreign directory refuses it, leaves it alone and says so in the condition", func(t *testing.T) { testForeignDirectory(t, c) })
	t.Run("an engine gets a drive, and a foreign drive is left alone", func(t *testing.T) { testDrives(t, s) })
	t.Run("only what mounts, or keeps data on its node, needs privileges", func(t *testing.T) { testPrivileges(t, c) })
	t.Run("an operator that is restarted goes on", func(t *testing.T) { testOperatorRestart(t, c) })
	t.Run("a namespace that is deleted takes its cluster, pool and container with it", func(t *testing.T) { testNamespaceDeletion(t, c) })
	t.Run("nothing that mounts disturbs a writer when it is deleted or killed", func(t *testing.T) { testMountsOutlive(t, c) })
	t.Run("a mount that is lost comes back in a running pod, with events", func(t *testing.T) { testLostMounts(t, c) })
	t.Run("tenants are kept apart by the network and by their keys", func(t *testing.T) { testTenants(t, c) })
	t.Run("an engine pod that is deleted comes back with its data", func(t *testing.T) { testEngineDeleted(t, c) })
	t.Run("a lost node and restarts of all engines disturb no program of a pool with redundancy", func(t *testing.T) { perform(t, s.Survive()) })
}

func perform(t *testing.T, steps []story.Step) {
	t.Helper()
	if _, err := story.Perform(t.Context(), os.Stdout, steps); err != nil {
		t.Error(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually fails the test when the output of a kubectl command does not come to contain a text.
func eventually(t *testing.T, c *kubectl.Cluster, want string, args ...string) {
	t.Helper()
	must(t, kubectl.Eventually(t.Context(), reactionDeadline, "kubectl "+strings.Join(args, " ")+" shows "+want,
		func() (bool, string) {
			out, err := c.Run(t.Context(), args...)
			return err == nil && strings.Contains(out, want), fmt.Sprintf("%s (%v)", out, err)
		}))
}

// claim applies a claim and deletes it, and waits for its end, when the test ends.
func claim(t *testing.T, c *kubectl.Cluster, name, class, mode, size string) {
	t.Helper()
	must(t, c.Apply(t.Context(), fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: default}
spec:
  storageClassName: %s
  accessModes: [%s]
  resources: {requests: {storage: %s}}
`, name, class, mode, size)))
	remove(t, c, "persistentvolumeclaim", name)
}

// pod applies a pod that mounts a claim at /data and sleeps; it is deleted when the test ends.
func pod(t *testing.T, c *kubectl.Cluster, name, claimName string) {
	t.Helper()
	podOn(t, c, name, claimName, "")
}

// podOn is pod on a node that no scheduler chooses, unless the name is empty.
func podOn(t *testing.T, c *kubectl.Cluster, name, claimName, node string) {
	t.Helper()
	must(t, c.Apply(t.Context(), fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  nodeName: %q
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: %s
      imagePullPolicy: IfNotPresent
      command: [sleep, infinity]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: %s}}]
`, name, node, clientImage, claimName)))
	remove(t, c, "pod", name)
}

func remove(t *testing.T, c *kubectl.Cluster, kind, name string) {
	t.Helper()
	t.Cleanup(func() {
		_, err := c.Run(context.WithoutCancel(t.Context()), "delete", kind, name, "--namespace", "default",
			"--ignore-not-found", "--timeout=3m")
		if err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
}

func ready(t *testing.T, c *kubectl.Cluster, name string) {
	t.Helper()
	must(t, c.WaitFor(t.Context(), "condition=Ready", reactionDeadline, "--namespace", "default", "pod/"+name))
}

func shell(t *testing.T, c *kubectl.Cluster, name, script string) (string, error) {
	t.Helper()
	return c.Run(t.Context(), "exec", "--namespace", "default", name, "--", "sh", "-c", script)
}

func testImpossiblePool(t *testing.T, c *kubectl.Cluster) {
	tests := map[string]struct{ spec, want string }{
		"too-large":     {spec: "size: 900Ti", want: "capacity"},
		"many-copies":   {spec: "size: 1Gi, objectClass: RP_6GX", want: "RP_6GX needs 6 engines, the pool has 3"},
		"unknown-class": {spec: "size: 1Gi, objectClass: S99Z", want: "S99Z"},
		"absent-rank":   {spec: "size: 1Gi, ranks: [77]", want: "77"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := c.Apply(t.Context(), fmt.Sprintf(`apiVersion: storage.weir.dev/v1alpha1
kind: Pool
metadata: {name: %s, namespace: %s}
spec: {clusterRef: {name: weir}, %s}
`, name, story.SystemNamespace, tc.spec))
			if err != nil {
				if !strings.Contains(err.Error(), tc.want) {
					t.Fatalf("the API server's refusal does not name %q: %v", tc.want, err)
				}
				return
			}
			t.Cleanup(func() {
				_, err := c.Run(context.WithoutCancel(t.Context()), "delete", "pool", name, "--namespace",
					story.SystemNamespace, "--timeout=2m")
				if err != nil {
					t.Errorf("clean up: %v", err)
				}
			})
			eventually(t, c, tc.want, "get", "pool", name, "--namespace", story.SystemNamespace, "-o",
				`jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].message}`)
		})
	}
}

func testBadParameter(t *testing.T, c *kubectl.Cluster) {
	must(t, c.Apply(t.Context(), `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: misspelt}
provisioner: csi.weir.dev
parameters: {pool: tank, chunkSise: 1Mi}
`))
	remove(t, c, "storageclass", "misspelt")
	claim(t, c, "misspelt", "misspelt", "ReadWriteMany", "64Mi")
	eventually(t, c, "chunkSise", "get", "events", "--namespace", "default", "--field-selector",
		"involvedObject.name=misspelt", "-o", "jsonpath={.items[*].message}")
}

func testFullVolume(t *testing.T, c *kubectl.Cluster) {
	claim(t, c, "small", "weir", "ReadWriteMany", "64Mi")
	pod(t, c, "filler", "small")
	ready(t, c, "filler")
	out, err := shell(t, c, "filler", "dd if=/dev/zero of=/data/big bs=1M count=200 conv=fsync 2>&1; echo status $?")
	must(t, err)
	if !strings.Contains(out, "No space left on device") && !strings.Contains(out, "Disk quota exceeded") {
		t.Fatalf("writing 200 MiB into a 64 MiB volume: %s", out)
	}
	must(t, kubectl.Eventually(t.Context(), reactionDeadline, "writes succeed after the deletion", func() (bool, string) {
		out, err := shell(t, c, "filler", "rm -f /data/big; dd if=/dev/zero of=/data/next bs=1M count=16 conv=fsync 2>&1")
		return err == nil, fmt.Sprintf("%s (%v)", out, err)
	}))
}

func testExpansion(t *testing.T, c *kubectl.Cluster) {
	claim(t, c, "growing", "weir", "ReadWriteMany", "64Mi")
	pod(t, c, "grower", "growing")
	ready(t, c, "grower")
	_, err := c.Run(t.Context(), "patch", "persistentvolumeclaim", "growing", "--namespace", "default", "--patch",
		`{"spec": {"resources": {"requests": {"storage": "256Mi"}}}}`)
	must(t, err)
	eventually(t, c, "256Mi", "get", "persistentvolumeclaim", "growing", "--namespace", "default", "-o",
		"jsonpath={.status.capacity.storage}")
	must(t, kubectl.Eventually(t.Context(), reactionDeadline, "100 MiB fit", func() (bool, string) {
		out, err := shell(t, c, "grower", "dd if=/dev/zero of=/data/file bs=1M count=100 conv=fsync 2>&1 && df -m /data")
		return err == nil, fmt.Sprintf("%s (%v)", out, err)
	}))
}

func testExclusive(t *testing.T, c *kubectl.Cluster) {
	claim(t, c, "exclusive", "weir", "ReadWriteOncePod", "64Mi")
	pod(t, c, "first", "exclusive")
	ready(t, c, "first")
	pod(t, c, "second", "exclusive")
	eventually(t, c, "ReadWriteOncePod", "get", "pod", "second", "--namespace", "default", "-o",
		`jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
	// One that the scheduler never sees is refused on the node.
	node, err := c.Run(t.Context(), "get", "pod", "first", "--namespace", "default", "-o", "jsonpath={.spec.nodeName}")
	must(t, err)
	podOn(t, c, "third", "exclusive", node)
	eventually(t, c, "ReadWriteOncePod", "get", "events", "--namespace", "default", "--field-selector",
		"involvedObject.name=third,reason=FailedMount", "-o", "jsonpath={.items[*].message}")
}

func testEngineDeleted(t *testing.T, c *kubectl.Cluster) {
	claim(t, c, "keep", "weir", "ReadWriteMany", "128Mi")
	pod(t, c, "keeper", "keep")
	ready(t, c, "keeper")
	before, err := shell(t, c, "keeper", "dd if=/dev/urandom of=/data/kept bs=1M count=32 conv=fsync status=none && sha256sum /data/kept")
	must(t, err)
	engines, err := c.Run(t.Context(), "get", "pods", "--namespace", story.SystemNamespace, "--selector",
		"app.kubernetes.io/component=engine", "-o", "jsonpath={.items[0].metadata.name}")
	must(t, err)
	_, err = c.Run(t.Context(), "delete", "pod", engines, "--namespace", story.SystemNamespace, "--timeout=2m")
	must(t, err)
	eventually(t, c, engines, "get", "pod", engines, "--namespace", story.SystemNamespace, "-o", "name")
	must(t, c.WaitFor(t.Context(), "condition=Ready", reactionDeadline, "--namespace", story.SystemNamespace, "pod/"+engines))
	pod(t, c, "reader", "keep")
	ready(t, c, "reader")
	must(t, kubectl.Eventually(t.Context(), reactionDeadline, "the file is the same", func() (bool, string) {
		after, err := shell(t, c, "reader", "sha256sum /data/kept")
		return err == nil && after == before, fmt.Sprintf("%s, was %s (%v)", after, before, err)
	}))
}
