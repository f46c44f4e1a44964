//go:build e2e

package e2e

import (
	"regexp"
	"strings"
	"testing"

	"weir.dev/weir/e2e/kubectl"
	"weir.dev/weir/e2e/story"
)

// disturbScript writes and verifies until it is told to stop, and says what went wrong and how long the longest turn took.
const disturbScript = `n=0; bad=0; longest=0
while [ ! -e /data/stop ] && [ "$n" -lt 100000 ]; do
	n=$((n + 1))
	began=$(date +%s%3N)
	dd if=/dev/urandom of=/data/block bs=64k count=1 conv=fsync status=none || bad=$((bad + 1))
	sum=$(sha256sum </data/block) || bad=$((bad + 1))
	cp /data/block /data/copy && [ "$(sha256sum </data/copy)" = "$sum" ] || bad=$((bad + 1))
	took=$(($(date +%s%3N) - began))
	[ "$took" -le "$longest" ] || longest=$took
	sleep 0.02
done
echo "$n turns, $bad errors, longest turn $longest ms"`

// undisturbed matches what disturbScript prints when all went well.
var undisturbed = regexp.MustCompile(`^[1-9]\d* turns, 0 errors, longest turn \d+ ms\n$`)

// testMountsOutlive takes away, under a writer, each process that has to do with its mount.
func testMountsOutlive(t *testing.T, c *kubectl.Cluster) {
	// Less than what the writer overwrites while engines keep history: some megabytes a second, for some seconds.
	claim(t, c, "steady", "weir", "ReadWriteMany", "256Mi")
	pod(t, c, "worker", "steady")
	ready(t, c, "worker")
	node := nodeOf(t, c, "worker")
	type outcome struct {
		text string
		err  error
	}
	for _, disturbance := range []struct {
		name    string
		disturb func()
	}{
		{"the node plugin's pod is deleted", func() { replacePod(t, c, "csi-node", node) }},
		{"the mount daemon's pod is deleted", func() { replacePod(t, c, "mountd", node) }},
		{"the mount broker's pod is deleted", func() { replacePod(t, c, "mount-broker", node) }},
		{"the process of the mount is killed", func() { kill(t, node, "weir-mountd serve") }},
	} {
		done := make(chan outcome, 1)
		go func() {
			text, err := c.Run(t.Context(), "exec", "--namespace", "default", "worker", "--", "sh", "-c", disturbScript)
			done <- outcome{text, err}
		}()
		disturbance.disturb()
		_, err := shell(t, c, "worker", "touch /data/stop")
		must(t, err)
		result := <-done
		must(t, result.err)
		if !undisturbed.MatchString(result.text) {
			t.Fatalf("%s: the writer saw: %s", disturbance.name, result.text)
		}
		t.Logf("%s: %s", disturbance.name, strings.TrimSpace(result.text))
		_, err = shell(t, c, "worker", "rm /data/stop")
		must(t, err)
	}
}

// nodeOf is the node of a pod in the default namespace.
func nodeOf(t *testing.T, c *kubectl.Cluster, pod string) string {
	t.Helper()
	node, err := c.Run(t.Context(), "get", "pod", pod, "--namespace", "default", "-o", "jsonpath={.spec.nodeName}")
	must(t, err)
	return node
}

// replacePod deletes the pod of a component on a node, and waits until its successor is ready.
func replacePod(t *testing.T, c *kubectl.Cluster, component, node string) {
	t.Helper()
	selector := "app.kubernetes.io/component=" + component
	_, err := c.Run(t.Context(), "delete", "pods", "--namespace", story.SystemNamespace, "--selector", selector,
		"--field-selector", "spec.nodeName="+node, "--timeout=2m")
	must(t, err)
	must(t, c.WaitFor(t.Context(), "jsonpath={.status.numberReady}=3", reactionDeadline, "--namespace", story.SystemNamespace,
		"daemonset", "--selector", selector))
}

// kill sends SIGKILL at once to all processes of a node whose command lines begin with one of the texts.
func kill(t *testing.T, node string, programs ...string) {
	t.Helper()
	script := `pids=
for process in /proc/[0-9]*; do
	line=$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null) || continue
	for program in "$@"; do
		case "$line" in "$program"* | /*/"$program"* | /"$program"*) pids="$pids ${process#/proc/}" ;; esac
	done
done
[ -n "$pids" ] || exit 1
# The first process of a container takes the others with it, which then are not there to be killed.
kill -9 $pids || true`
	_, err := kubectl.Execute(t.Context(), "docker", append([]string{"exec", node, "sh", "-c", script, "sh"}, programs...)...)
	must(t, err)
}
