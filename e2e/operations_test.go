//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"weir.dev/weir/e2e/kubectl"
	"weir.dev/weir/e2e/story"
)

// smallCluster is the manifest of a cluster of one engine that keeps its data below /var/lib/<name>.
func smallCluster(name, namespace, policy string) string {
	return fmt.Sprintf(`apiVersion: storage.weir.dev/v1alpha1
kind: StorageCluster
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  engines: {replicas: 1, targetsPerEngine: 1}
  storage: {size: 1Gi, hostPath: {path: /var/lib/%[1]s}}
  deletionPolicy: %[3]s
`, name, namespace, policy)
}

// onNodes runs a script on every node of the cluster.
func onNodes(ctx context.Context, t *testing.T, c *kubectl.Cluster, script string) {
	t.Helper()
	nodes, err := c.Run(ctx, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")
	must(t, err)
	for node := range strings.FieldsSeq(nodes) {
		_, err := kubectl.Execute(ctx, "docker", "exec", node, "sh", "-c", script)
		must(t, err)
	}
}

// conditionOf is the status and message of a condition, for kubectl.
func conditionOf(kind string) string {
	return fmt.Sprintf(`jsonpath={.status.conditions[?(@.type==%[1]q)].status} {.status.conditions[?(@.type==%[1]q)].message}`, kind)
}

func testForeignDirectory(t *testing.T, c *kubectl.Cluster) {
	const folder = "/var/lib/foreign/" + story.SystemNamespace + "_foreign/rank-0"
	onNodes(t.Context(), t, c, "mkdir -p "+folder+" && echo mine >"+folder+"/holiday.jpg")
	must(t, c.Apply(t.Context(), smallCluster("foreign", story.SystemNamespace, "Retain")))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := c.Run(ctx, "delete", "storagecluster", "foreign", "--namespace", story.SystemNamespace, "--timeout=2m")
		if err != nil {
			t.Errorf("clean up: %v", err)
		}
		onNodes(ctx, t, c, "rm -r /var/lib/foreign")
	})
	eventually(t, c, `holds no targets but "holiday.jpg"`, "get", "storagecluster", "foreign", "--namespace", story.SystemNamespace, "-o",
		conditionOf("Ready"))
	onNodes(t.Context(), t, c, `test "$(cat `+folder+`/holiday.jpg)" = mine`)
}

// testPrivileges asks the API server which pods a stricter level of Pod Security would refuse.
func testPrivileges(t *testing.T, c *kubectl.Cluster) {
	warnings, err := c.Warnings(t.Context(), "label", "--dry-run=server", "--overwrite", "namespace", story.SystemNamespace,
		"pod-security.kubernetes.io/enforce=restricted")
	must(t, err)
	for _, confined := range []string{"weir-operator", "weir-csi-controller"} {
		if strings.Contains(warnings, confined) {
			t.Errorf("%s does not fit the level restricted:\n%s", confined, warnings)
		}
	}
	// Of pods with the same demands, as those of the CSI node plugin and of engines on directories, the warning names the first.
	for _, privileged := range []string{"weir-mount-broker", "weir-mountd"} {
		if !strings.Contains(warnings, privileged) {
			t.Errorf("%s is not named, so that this test shows nothing:\n%s", privileged, warnings)
		}
	}
	pods, err := c.Run(t.Context(), "get", "pods", "--namespace", story.SystemNamespace, "-o",
		`jsonpath={range .items[*]}{.metadata.labels.app\.kubernetes\.io/component} {.spec.containers[*].securityContext.privileged}{"\n"}{end}`)
	must(t, err)
	for line := range strings.Lines(pods) {
		component, privileged, _ := strings.Cut(strings.TrimSpace(line), " ")
		if may := component == "mount-broker" || component == "drives"; strings.Contains(privileged, "true") != may {
			t.Errorf("a pod of component %q has privileged: %q; the mount broker and the agent of drives alone need it", component, privileged)
		}
	}
}

func testOperatorRestart(t *testing.T, c *kubectl.Cluster) {
	_, err := c.Run(t.Context(), "delete", "pods", "--namespace", story.SystemNamespace, "--selector",
		"app.kubernetes.io/component=operator", "--wait=false")
	must(t, err)
	must(t, c.Apply(t.Context(), fmt.Sprintf(`apiVersion: storage.weir.dev/v1alpha1
kind: Container
metadata: {name: meanwhile, namespace: %s}
spec: {poolRef: {name: tank}, deletionPolicy: Delete}
`, story.SystemNamespace)))
	eventually(t, c, "True", "get", "container", "meanwhile", "--namespace", story.SystemNamespace, "-o", conditionOf("Ready"))
	_, err = c.Run(t.Context(), "delete", "container", "meanwhile", "--namespace", story.SystemNamespace, "--timeout=2m")
	must(t, err)
}

// testLostMounts kills mount daemon and mount broker of a node at once, and with them all that is known of the node's mounts.
func testLostMounts(t *testing.T, c *kubectl.Cluster) {
	claim(t, c, "bereft", "weir", "ReadWriteMany", "64Mi")
	pod(t, c, "survivor", "bereft")
	ready(t, c, "survivor")
	_, err := shell(t, c, "survivor", "echo kept >/data/file && sync /data/file")
	must(t, err)
	node := nodeOf(t, c, "survivor")
	id := func() string {
		out, err := c.Run(t.Context(), "get", "pod", "survivor", "--namespace", "default", "-o",
			"jsonpath={.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}")
		must(t, err)
		return out
	}
	before := id()
	kill(t, node, "weir-broker", "weir-mountd")
	must(t, kubectl.Eventually(t.Context(), reactionDeadline, "the file is readable again in the same pod", func() (bool, string) {
		out, err := shell(t, c, "survivor", "cat /data/file && echo more >>/data/file && sync /data/file")
		return err == nil && strings.HasPrefix(out, "kept\n"), fmt.Sprintf("%s (%v)", out, err)
	}))
	if after := id(); after != before {
		t.Errorf("the pod is another one now: %s, was %s", after, before)
	}
	for _, object := range []string{"survivor", "bereft"} {
		for _, reason := range []string{"VolumeMountLost", "VolumeMountRestored"} {
			eventually(t, c, "csi.weir.dev", "get", "events", "--namespace", "default", "--field-selector",
				"involvedObject.name="+object+",reason="+reason, "-o", "jsonpath={.items[*].source.component}")
		}
	}
	eventually(t, c, `outcome="restored"`, "get", "--raw", metricsOf(t, c, node))
}

// metricsOf is the path at the API server of the metrics of a node's CSI plugin.
func metricsOf(t *testing.T, c *kubectl.Cluster, node string) string {
	t.Helper()
	plugin, err := c.Run(t.Context(), "get", "pods", "--namespace", story.SystemNamespace, "--selector",
		"app.kubernetes.io/component=csi-node", "--field-selector", "spec.nodeName="+node, "-o", "jsonpath={.items[0].metadata.name}")
	must(t, err)
	return "/api/v1/namespaces/" + story.SystemNamespace + "/pods/" + plugin + ":9810/proxy/metrics"
}

func testNamespaceDeletion(t *testing.T, c *kubectl.Cluster) {
	const name = "passing"
	must(t, c.Apply(t.Context(), `apiVersion: v1
kind: Namespace
metadata: {name: passing}
---
`+smallCluster(name, name, "Delete")+`---
apiVersion: storage.weir.dev/v1alpha1
kind: Pool
metadata: {name: puddle, namespace: passing}
spec: {clusterRef: {name: passing}, size: 256Mi, deletionPolicy: Delete}
---
apiVersion: storage.weir.dev/v1alpha1
kind: Container
metadata: {name: box, namespace: passing}
spec: {poolRef: {name: puddle}, deletionPolicy: Delete}
`))
	t.Cleanup(func() { onNodes(context.WithoutCancel(t.Context()), t, c, "rm -rf /var/lib/passing") })
	eventually(t, c, "True", "get", "container", "box", "--namespace", name, "-o", conditionOf("Ready"))
	_, err := c.Run(t.Context(), "delete", "namespace", name, "--timeout=5m")
	must(t, err)
}
