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

const fabricDomain = `apiVersion: storage.weir.dev/v1alpha1
kind: FabricDomain
metadata: {name: hsn}
spec:
  vniRange: {first: 1024, last: 1039}
  engineVNI: 1024
  quarantineSeconds: 15
`

// tenantManifest is a tenant with a namespace, a pool and a StorageClass of the same name.
func tenantManifest(name string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s, labels: {project: %[1]s}}
---
apiVersion: storage.weir.dev/v1alpha1
kind: Tenant
metadata: {name: %[1]s}
spec:
  namespaceSelector: {matchLabels: {project: %[1]s}}
  vni: {mode: PerTenant, count: 1}
---
apiVersion: storage.weir.dev/v1alpha1
kind: Pool
metadata: {name: %[1]s, namespace: %[2]s}
spec: {clusterRef: {name: weir}, tenantRef: {name: %[1]s}, size: 256Mi, deletionPolicy: Delete}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %[1]s}
provisioner: csi.weir.dev
parameters:
  pool: %[1]s
  csi.storage.k8s.io/node-stage-secret-name: weir-tenant-weir
  csi.storage.k8s.io/node-stage-secret-namespace: ${pvc.namespace}
`, name, story.SystemNamespace)
}

// tenantPod is a claim of a tenant, and a pod on a node that mounts it at /data and has the tenant's credentials.
func tenantPod(name, node string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: %[1]s}
spec:
  storageClassName: %[1]s
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: user, namespace: %[1]s}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: %[3]s
      imagePullPolicy: IfNotPresent
      command: [sleep, infinity]
      volumeMounts: [{name: data, mountPath: /data}, {name: credentials, mountPath: /etc/weir/client}]
  volumes:
    - name: data
      persistentVolumeClaim: {claimName: data}
    - name: credentials
      secret: {secretName: weir-tenant-weir}
`, name, node, clientImage)
}

// stranger is a pod of no tenant.
const stranger = `apiVersion: v1
kind: Pod
metadata: {name: stranger, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: ` + clientImage + `, imagePullPolicy: IfNotPresent, command: [sleep, infinity]}]
`

// reachScript says what comes of a connection to an address and port: accepted, answered by nobody who listens there, or dropped.
const reachScript = `timeout 3 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null
case $? in 0) echo accepted ;; 124) echo dropped ;; *) echo answered ;; esac`

// tenants are those of the test, each with the node of its pod.
type tenants struct {
	t     *testing.T
	c     *kubectl.Cluster
	nodes map[string]string
	port  string
}

func testTenants(t *testing.T, c *kubectl.Cluster) {
	out, err := c.Run(t.Context(), "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")
	must(t, err)
	nodes := strings.Fields(out)
	f := &tenants{t: t, c: c, nodes: map[string]string{"red": nodes[0], "blue": nodes[1]}}
	f.port, err = c.Run(t.Context(), "get", "storagecluster", "weir", "--namespace", story.SystemNamespace, "-o", "jsonpath={.spec.ports.fabric}")
	must(t, err)
	t.Cleanup(f.remove)
	f.start()
	f.useStorage()
	f.tryToGetOut()
	f.proven()
	f.tableRemoved("red")
	f.deleted("red")
}

// run is kubectl that has to succeed.
func (f *tenants) run(args ...string) string {
	f.t.Helper()
	out, err := f.c.Run(f.t.Context(), args...)
	must(f.t, err)
	return strings.TrimSpace(out)
}

// in runs a script in the pod of a namespace.
func (f *tenants) in(namespace, pod, script string, args ...string) (string, error) {
	command := append([]string{"exec", "--namespace", namespace, pod, "--", "sh", "-c", script, "sh"}, args...)
	out, err := f.c.Run(f.t.Context(), command...)
	return strings.TrimSpace(out), err
}

func (f *tenants) start() {
	f.t.Helper()
	must(f.t, f.c.Apply(f.t.Context(), fabricDomain+"---\n"+tenantManifest("red")+"---\n"+tenantManifest("blue")+"---\n"+stranger))
	for name := range f.nodes {
		must(f.t, f.c.WaitFor(f.t.Context(), "condition=Ready", reactionDeadline, "tenant/"+name))
		must(f.t, f.c.WaitFor(f.t.Context(), "condition=Ready", reactionDeadline, "--namespace", story.SystemNamespace, "pool/"+name))
	}
	for name, node := range f.nodes {
		must(f.t, f.c.Apply(f.t.Context(), tenantPod(name, node)))
	}
	for name := range f.nodes {
		must(f.t, f.c.WaitFor(f.t.Context(), "condition=Ready", reactionDeadline, "--namespace", name, "pod/user"))
	}
	must(f.t, f.c.WaitFor(f.t.Context(), "condition=Ready", reactionDeadline, "--namespace", "default", "pod/stranger"))
}

// useStorage has each tenant use its volume and its credentials, and try those with the other's pool.
func (f *tenants) useStorage() {
	f.t.Helper()
	for name, other := range map[string]string{"red": "blue", "blue": "red"} {
		if out, err := f.in(name, "user", `echo "$1" >/data/file && sync /data/file && cat /data/file`, name); err != nil || out != name {
			f.t.Errorf("%s reads %q from its volume: %v", name, out, err)
		}
		must(f.t, kubectl.Eventually(f.t.Context(), reactionDeadline, name+" lists the containers of its own pool", func() (bool, string) {
			out, err := f.in(name, "user", `weir container list "$1"`, name)
			return err == nil, fmt.Sprintf("%s (%v)", out, err)
		}))
		out, err := f.in(name, "user", `weir container list "$1"`, other)
		f.t.Logf("%s asks for the pool of %s: %s %v", name, other, out, err)
		if err == nil {
			f.t.Errorf("%s lists the containers of %s: %s", name, other, out)
		}
	}
}

// reach has a pod try to reach another one at the engines' port.
func (f *tenants) reach(namespace, pod, address, want string) {
	f.t.Helper()
	must(f.t, kubectl.Eventually(f.t.Context(), reactionDeadline, fmt.Sprintf("%s/%s to %s is %s", namespace, pod, address, want), func() (bool, string) {
		out, err := f.in(namespace, pod, reachScript, address, f.port)
		return err == nil && out == want, fmt.Sprintf("%s (%v)", out, err)
	}))
}

func (f *tenants) addressOf(namespace, pod string) string {
	f.t.Helper()
	return f.run("get", "pod", pod, "--namespace", namespace, "-o", "jsonpath={.status.podIP}")
}

// tryToGetOut has the pods try to reach an engine and each other: the network drops what leaves a VNI.
func (f *tenants) tryToGetOut() {
	f.t.Helper()
	engine := f.run("get", "pods", "--namespace", story.SystemNamespace, "--selector", "app.kubernetes.io/component=engine", "-o",
		"jsonpath={.items[0].status.podIP}")
	red, blue := f.addressOf("red", "user"), f.addressOf("blue", "user")
	f.reach("red", "user", engine, "accepted")
	f.reach("blue", "user", engine, "accepted")
	f.reach("default", "stranger", engine, "dropped")
	f.reach("red", "user", blue, "dropped")
	f.reach("blue", "user", red, "dropped")
	f.reach("default", "stranger", red, "dropped")
}

// proven waits for the agents' own attempts.
func (f *tenants) proven() {
	f.t.Helper()
	for name := range f.nodes {
		eventually(f.t, f.c, "True the network refused all", "get", "tenant", name, "-o", conditionOf("Isolated"))
		if f.run("get", "tenant", name, "-o", "jsonpath={.status.provenAt}") == "" {
			f.t.Errorf("%s does not say when it was proven", name)
		}
	}
	f.t.Logf("kubectl get tenants:\n%s", f.run("get", "tenants"))
}

// tableRemoved takes away what keeps a node's pods apart. The agent finds that out, says so, and puts it back.
func (f *tenants) tableRemoved(name string) {
	f.t.Helper()
	_, err := kubectl.Execute(f.t.Context(), "docker", "exec", f.nodes[name], "nft", "delete", "table", "inet", "weir-fabric")
	must(f.t, err)
	eventually(f.t, f.c, "False the network let through", "get", "tenant", name, "-o", conditionOf("Isolated"))
	f.t.Logf("without nftables: %s", f.run("get", "tenant", name, "-o", conditionOf("Isolated")))
	f.reach("red", "user", f.addressOf("blue", "user"), "dropped")
	_, err = kubectl.Execute(f.t.Context(), "docker", "exec", f.nodes[name], "nft", "list", "table", "inet", "weir-fabric")
	must(f.t, err)
}

// deleted deletes a tenant, whose number rests then.
func (f *tenants) deleted(name string) {
	f.t.Helper()
	number := f.run("get", "tenant", name, "-o", "jsonpath={.status.vnis[0]}")
	f.run("delete", "pod", "user", "--namespace", name, "--timeout=2m")
	f.run("delete", "persistentvolumeclaim", "data", "--namespace", name, "--timeout=2m")
	f.run("delete", "tenant", name, "--timeout=2m")
	eventually(f.t, f.c, "Quarantined", "get", "vniallocation", number, "-o",
		`jsonpath={.status.conditions[?(@.type=="DeletionBlocked")].reason}`)
}

// remove takes everything away. Volumes go before the pools that they are in.
func (f *tenants) remove() {
	ctx := context.WithoutCancel(f.t.Context())
	for _, args := range [][]string{
		{"pod", "stranger", "--namespace", "default"},
		{"pod", "user", "--namespace", "red"},
		{"pod", "user", "--namespace", "blue"},
		{"persistentvolumeclaim", "data", "--namespace", "red"},
		{"persistentvolumeclaim", "data", "--namespace", "blue"},
		{"tenant", "red", "blue"},
		{"pool", "red", "blue", "--namespace", story.SystemNamespace},
		{"storageclass", "red", "blue"},
		{"namespace", "red", "blue"},
		{"fabricdomain", "hsn"},
	} {
		if _, err := f.c.Run(ctx, append(append([]string{"delete"}, args...), "--ignore-not-found", "--timeout=2m")...); err != nil {
			f.t.Errorf("clean up: %v", err)
		}
	}
}
