//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/e2e/kubectl"
	"weir.dev/weir/e2e/story"
)

// drivesScript makes two files on a node that stand in for drives by loop devices: a blank one, and one with an
// ext4 file system. It prints the second one's checksum.
const drivesScript = `set -e
mkdir -p /var/lib/weir/loops
cd /var/lib/weir/loops
truncate -s 1G e2e-blank.img
truncate -s 64M e2e-foreign.img
mkfs.ext4 -q e2e-foreign.img
for file in e2e-blank.img e2e-foreign.img; do losetup --find "$PWD/$file"; done
sha256sum <e2e-foreign.img`

const removeDrivesScript = `cd /var/lib/weir/loops
for file in e2e-blank.img e2e-foreign.img; do losetup -j "$PWD/$file" | cut -d: -f1 | xargs -r losetup --detach; done
rm -r e2e-blank.img e2e-foreign.img /var/lib/weir/engines`

// testDrives gives an engine a drive by the device plugin, over a restart of the kubelet, and looks whether a foreign drive stays
// as it is.
func testDrives(t *testing.T, s *story.Story) {
	c := s.Cluster
	agent := func(ctx context.Context, enabled string) {
		t.Helper()
		_, err := kubectl.Execute(ctx, "helm", "upgrade", "weir", filepath.Join(s.Repository, "charts/weir"), "--kubeconfig", c.Kubeconfig,
			"--namespace", story.SystemNamespace, "--reuse-values", "--set", "devices.enabled="+enabled+",devices.loopDir=/var/lib/weir/loops",
			"--wait", "--timeout", reactionDeadline.String())
		must(t, err)
	}
	agent(t.Context(), "true")
	t.Cleanup(func() { agent(context.WithoutCancel(t.Context()), "false") })
	node, err := c.Run(t.Context(), "get", "nodes", "-o", "jsonpath={.items[1].metadata.name}")
	must(t, err)
	on := func(ctx context.Context, script string) string {
		t.Helper()
		out, err := kubectl.Execute(ctx, "docker", "exec", node, "sh", "-c", script)
		must(t, err)
		return strings.TrimSpace(out)
	}
	ready := func(file string) []string {
		condition := `.status.conditions[?(@.type=="Ready")]`
		return []string{"get", "nodedevices", "-o", fmt.Sprintf(`jsonpath={range .items[?(@.status.identity=="loop.%s")]}{%s.status} {%s.reason}{end}`,
			file, condition, condition)}
	}
	checksum := on(t.Context(), drivesScript)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, args := range [][]string{
			{"delete", "storagecluster", "driven", "--namespace", story.SystemNamespace, "--timeout=2m"},
			{"wait", "--for=delete", "pod/driven-engine-0-0", "--namespace", story.SystemNamespace, "--timeout=2m"},
		} {
			if _, err := c.Run(ctx, args...); err != nil {
				t.Errorf("clean up: %v", err)
			}
		}
		on(ctx, removeDrivesScript)
		if _, err := c.Run(ctx, "delete", "nodedevices", "--all"); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	eventually(t, c, "True Eligible", ready("e2e-blank.img")...)
	eventually(t, c, "False ForeignSignature", ready("e2e-foreign.img")...)
	must(t, c.Apply(t.Context(), fmt.Sprintf(`apiVersion: storage.weir.dev/v1alpha1
kind: StorageCluster
metadata: {name: driven, namespace: %s}
spec:
  engines: {replicas: 1, targetsPerEngine: 1}
  storage: {size: 512Mi, devices: {count: 1}}
`, story.SystemNamespace)))
	cluster := []string{"get", "storagecluster", "driven", "--namespace", story.SystemNamespace, "-o", conditionOf("Ready")}
	eventually(t, c, "True", cluster...)
	eventually(t, c, "True Assigned", ready("e2e-blank.img")...)
	on(t.Context(), "systemctl restart kubelet")
	_, err = c.Run(t.Context(), "delete", "pod", "driven-engine-0-0", "--namespace", story.SystemNamespace, "--timeout=2m")
	must(t, err)
	must(t, c.WaitFor(t.Context(), "condition=Ready", reactionDeadline, "--namespace", story.SystemNamespace, "pod/driven-engine-0-0"))
	if now := on(t.Context(), "sha256sum </var/lib/weir/loops/e2e-foreign.img"); now != checksum {
		t.Errorf("the foreign drive is another: %s, before %s", now, checksum)
	}
}
