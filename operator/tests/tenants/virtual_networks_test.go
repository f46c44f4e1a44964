package tenants

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/enforcement"
	"weir.dev/weir/operator/internal/fabric"
	"weir.dev/weir/operator/internal/fabric/nettest"
	"weir.dev/weir/operator/internal/fabric/simulated"
	"weir.dev/weir/operator/internal/manifest"
)

// fabricAgent is the agent of a node that is made of network namespaces, with the role that the chart gives it.
func fabricAgent(t *testing.T, net *simulated.Fabric, folder string) *enforcement.Agent {
	t.Helper()
	text, err := os.ReadFile(chartFiles + "rbac/fabric/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict(text, &role); err != nil {
		t.Fatal(err)
	}
	account := rbacv1.Subject{Kind: rbacv1.UserKind, Name: "fabric-agent", APIGroup: rbacv1.GroupName}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Name}, Subjects: []rbacv1.Subject{account},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	}
	for _, obj := range []client.Object{&role, binding} {
		if err := admin.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	config := rest.CopyConfig(adminConfig)
	config.Impersonate = rest.ImpersonationConfig{UserName: account.Name, Groups: []string{"system:authenticated"}}
	c, err := client.New(config, client.Options{Scheme: admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	keeper, err := fabric.NewKeeper(t.Context(), net, t.TempDir(), "boot", passive)
	if err != nil {
		t.Fatal(err)
	}
	return enforcement.New(enforcement.Config{
		Client: c, Shared: c, Clock: passive, Node: "node", Namespace: operatorNamespace, Keeper: keeper, Switch: net, Machine: enforcement.Machine{Folder: folder},
	})
}

// schedule makes the pod object of a network namespace, as scheduler and kubelet do.
func schedule(t *testing.T, namespace string, pod nettest.Pod, labels map[string]string) *corev1.Pod {
	t.Helper()
	obj := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod.Name, Labels: labels},
		Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	if err := admin.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	obj.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: pod.Router.String(), HostIPs: []corev1.HostIP{{IP: pod.Router.String()}},
		PodIP: pod.Address.String(), PodIPs: []corev1.PodIP{{IP: pod.Address.String()}},
	}
	if err := admin.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// Two tenants on one node: real packets, real nftables, a real API server. Only the kubelet is missing.
func TestTenantsAreKeptApartAndProvenToBe(t *testing.T) {
	n := nettest.New(t)
	net := simulated.New(nftables.WithNetNSFd(n.Descriptor))
	agent := fabricAgent(t, net, n.Folder)
	sync := func() {
		t.Helper()
		if err := agent.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cluster(t)
	create(t, "FabricDomain", "woven", `{vniRange: {first: 3000, last: 3010}, engineVNI: 3000, quarantineSeconds: 600}`)
	var tenant v1alpha1.Tenant
	for _, name := range []string{"linen", "wool"} {
		namespace(t, name, map[string]string{"cloth": name})
		create(t, "Tenant", name, fmt.Sprintf(`{namespaceSelector: {matchLabels: {cloth: %s}}, fabricDomainRef: {name: woven}}`, name))
		condition(t, &tenant, name, v1alpha1.ConditionVNIAllocated, true, v1alpha1.ReasonAllocated)
	}
	condition(t, &tenant, "linen", v1alpha1.ConditionFabricEnforced, false, v1alpha1.ReasonNoAgent)
	schedule(t, "storage", n.Pod("engine"), manifest.EngineSelector("weir"))
	pods := map[string]*corev1.Pod{}
	for _, name := range []string{"linen", "wool"} {
		pods[name] = schedule(t, name, n.Pod(name), nil)
	}
	sync()
	sync()
	for _, name := range []string{"linen", "wool"} {
		condition(t, &tenant, name, v1alpha1.ConditionFabricEnforced, true, v1alpha1.ReasonPodsAdmitted)
		condition(t, &tenant, name, v1alpha1.ConditionIsolated, true, v1alpha1.ReasonAttemptsRefused, "all 2 attempts")
		if tenant.Status.ProvenAt == nil || !tenant.Status.ProvenAt.Equal(new(metav1.NewTime(passive.Now().Truncate(time.Second)))) {
			t.Errorf("proven at %v, now is %v", tenant.Status.ProvenAt, passive.Now())
		}
	}
	// Somebody deletes the table.
	if err := net.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	sync()
	condition(t, &tenant, "linen", v1alpha1.ConditionIsolated, false, v1alpha1.ReasonAttemptSucceeded, "of another tenant", "on node node")
	condition(t, &tenant, "linen", v1alpha1.ConditionReady, false, v1alpha1.ReasonAttemptSucceeded)
	// It is back, which the next attempts show.
	passive.SetTime(passive.Now().Add(enforcement.ProofInterval))
	sync()
	condition(t, &tenant, "linen", v1alpha1.ConditionIsolated, true, v1alpha1.ReasonAttemptsRefused)
	// The agent is away.
	passive.SetTime(passive.Now().Add(time.Hour))
	touch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": {"cloth": "linen", "later": "yes"}}}`))
	if err := admin.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "linen"}}, touch); err != nil {
		t.Fatal(err)
	}
	condition(t, &tenant, "linen", v1alpha1.ConditionIsolated, false, v1alpha1.ReasonNotProven, "node node")
	// The tenant goes: its number rests once the node has released it.
	number := v1alpha1.VNIName(tenant.Status.VNIs[0])
	remove(t, &v1alpha1.Tenant{}, "linen")
	condition(t, &tenant, "linen", v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonNodesHoldVNI, "on node")
	if err := admin.Delete(t.Context(), pods["linen"], client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	sync()
	gone(t, &v1alpha1.Tenant{}, "linen")
	condition(t, &v1alpha1.VNIAllocation{}, number, v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonQuarantined)
	if err := admin.Delete(t.Context(), pods["wool"], client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	sync()
	remove(t, &v1alpha1.Tenant{}, "wool")
	gone(t, &v1alpha1.Tenant{}, "wool")
}
