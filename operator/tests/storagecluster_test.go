package tests

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/engine/proto/management/roles"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/manifest"
)

// threeNodes adds the nodes that a cluster of three engines needs.
func threeNodes(i *installation) []string {
	return []string{i.machines.node("a"), i.machines.node("b"), i.machines.node("c")}
}

func TestClusterBecomesReady(t *testing.T) {
	t.Parallel()
	i := install(t, 3)
	nodes := threeNodes(i)
	i.apply(i.machines.cluster(3, ""))
	var cluster v1alpha1.StorageCluster
	i.ready(&cluster, "weir")
	i.condition(&cluster, "weir", v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
	i.condition(&cluster, "weir", v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonSettled)
	i.condition(&cluster, "weir", v1alpha1.ConditionDeletionBlocked, metav1.ConditionFalse, v1alpha1.ReasonNotDeleting)
	if cluster.Status.ReadyEngines != 3 || cluster.Status.ObservedGeneration != cluster.Generation {
		t.Errorf("status: %+v", cluster.Status)
	}
	want := []v1alpha1.EngineStatus{
		{Rank: 0, Node: nodes[0], Pod: "weir-engine-0-0", Ready: true, Version: "test"},
		{Rank: 1, Node: nodes[1], Pod: "weir-engine-1-0", Ready: true, Version: "test"},
		{Rank: 2, Node: nodes[2], Pod: "weir-engine-2-0", Ready: true, Version: "test"},
	}
	if diff := cmp.Diff(want, cluster.Status.Engines); diff != "" {
		t.Errorf("engines (-want +got):\n%s", diff)
	}
	if got := cluster.Status.Capacity.Total.String(); got != "192Gi" {
		t.Errorf("total capacity is %s, want the engines' 3 × 64Gi", got)
	}
	i.event("weir", v1alpha1.ReasonAllEnginesReady, "3 engines are up")
	checkOwnedObjects(i, &cluster)
	checkClientSecret(i)
	checkRoles(i)
}

// checkRoles looks at what each Secret lets its holder do, and that no more of them than needed have the key of the data path.
func checkRoles(i *installation) {
	i.t.Helper()
	for name, want := range map[string]struct {
		role   roles.Name
		hasKey bool
	}{
		"weir-management": {role: roles.Operator}, "weir-metrics": {role: roles.Metrics}, "weir-engine-tls": {},
		"weir-client": {role: roles.Provisioner, hasKey: true},
	} {
		if got := roles.Of(certificate(i, name)); got.Name != want.role {
			i.t.Errorf("the certificate of %s has the role %q, want %q", name, got, want.role)
		}
		var secret corev1.Secret
		if err := i.get(&secret, name); err != nil || (len(secret.Data["system.key"]) > 0) != want.hasKey {
			i.t.Errorf("%s has the system key: %t, %v", name, !want.hasKey, err)
		}
	}
	_, err := managementv1.NewPoolsClient(i.clientOf("weir-client")).Destroy(i.t.Context(), &managementv1.PoolDestroyRequest{Pool: "any"})
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "role provisioner may not call Pools/Destroy") {
		i.t.Errorf("with the client Secret, destroying a pool says %v", err)
	}
}

// checkOwnedObjects looks for the objects of a cluster, owned by it.
func checkOwnedObjects(i *installation, cluster *v1alpha1.StorageCluster) {
	i.t.Helper()
	owned := map[string]client.Object{
		"weir-engines": &corev1.Service{}, "weir-engine-2": &appsv1.StatefulSet{}, "weir-ca": &corev1.Secret{},
		"weir-engine-tls": &corev1.Secret{}, "weir-client": &corev1.Secret{}, "weir-management": &corev1.Secret{}, "weir-metrics": &corev1.Secret{},
	}
	for name, obj := range owned {
		if err := i.get(obj, name); err != nil {
			i.t.Errorf("%s: %v", name, err)
		} else if !metav1.IsControlledBy(obj, cluster) {
			i.t.Errorf("%s is not owned by the cluster: %v", name, obj.GetOwnerReferences())
		}
	}
	for _, obj := range []client.Object{&policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{}, &corev1.ConfigMap{}} {
		if err := i.get(obj, "weir-engines"); err != nil {
			i.t.Errorf("%T: %v", obj, err)
		}
	}
}

// checkClientSecret looks at what CSI driver and mount daemon are given, in the operator's namespace.
func checkClientSecret(i *installation) {
	i.t.Helper()
	var secret corev1.Secret
	if err := admin.Get(i.t.Context(), client.ObjectKey{Namespace: i.operatorNamespace, Name: "weir-client"}, &secret); err != nil {
		i.t.Fatal(err)
	}
	var attach manifest.Attach
	if err := json.Unmarshal(secret.Data["client.json"], &attach); err != nil {
		i.t.Fatalf("client.json: %v", err)
	}
	last := attach.Engines[len(attach.Engines)-1]
	want := manifest.AttachEngine{
		Rank: 2, Host: "weir-engine-2-0.weir-engines." + i.namespace + ".svc", FabricPort: 10100, Targets: 2,
		Management: "weir-engine-2-0.weir-engines." + i.namespace + ".svc:10001",
	}
	if last != want || attach.System != "weir" || attach.SystemKeyFile != "system.key" || attach.TLS.CA != "ca.crt" {
		i.t.Errorf("client.json: %+v", attach)
	}
	for _, key := range []string{"system.key", "ca.crt", "tls.crt", "tls.key"} {
		if len(secret.Data[key]) == 0 {
			i.t.Errorf("key %s of the client Secret is empty", key)
		}
	}
}

func TestPodsThatMountTheClientSecretAreToldOfIt(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	mounter := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: i.operatorNamespace, Name: "mountd", Labels: map[string]string{v1alpha1.LabelAttaches: "true"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "mountd", Image: "weir/client:test"}}},
	}
	if err := admin.Create(t.Context(), mounter); err != nil {
		t.Fatal(err)
	}
	i.machines.node("a")
	i.apply(i.machines.cluster(1, ""))
	i.eventually("the annotation that makes the kubelet look", func() string {
		if err := admin.Get(context.Background(), client.ObjectKeyFromObject(mounter), mounter); err != nil {
			return err.Error()
		}
		if mounter.Annotations["client.storage.weir.dev/weir"] == "" {
			return fmt.Sprint(mounter.Annotations)
		}
		return ""
	})
}

func TestReconcilingAgainChangesNothing(t *testing.T) {
	t.Parallel()
	i := install(t, 3)
	threeNodes(i)
	i.apply(i.machines.cluster(3, ""))
	var cluster v1alpha1.StorageCluster
	i.ready(&cluster, "weir")
	i.condition(&cluster, "weir", v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
	before := versions(i)
	// A change of an owned object's annotation starts another round; the operator leaves what it does not own.
	i.patch(&corev1.Service{}, "weir-engines", `{"metadata": {"annotations": {"somebody": "else"}}}`)
	i.patch(&corev1.Secret{}, "weir-client", `{"metadata": {"annotations": {"somebody": "else"}}}`)
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"deletionPolicy": "Delete"}}`)
	i.condition(&cluster, "weir", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonAllEnginesReady)
	after := versions(i)
	for _, changed := range []string{"Service weir-engines", "Secret weir-client"} {
		delete(before, changed)
		delete(after, changed)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("objects were written again (-before +after):\n%s", diff)
	}
	if got := i.machines.starts(); len(got) != 3 {
		t.Errorf("pods were started again: %v", got)
	}
}

// versions are the generations, or contents, of the cluster's objects.
func versions(i *installation) map[string]string {
	i.t.Helper()
	found := map[string]string{}
	lists := []client.ObjectList{&corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{}, &policyv1.PodDisruptionBudgetList{}}
	for _, list := range lists {
		if err := admin.List(i.t.Context(), list, client.InNamespace(i.namespace)); err != nil {
			i.t.Fatal(err)
		}
	}
	for _, s := range lists[0].(*corev1.SecretList).Items {
		found["Secret "+s.Name] = s.ResourceVersion
	}
	for _, s := range lists[1].(*corev1.ConfigMapList).Items {
		found["ConfigMap "+s.Name] = s.ResourceVersion
	}
	for _, s := range lists[2].(*corev1.ServiceList).Items {
		found["Service "+s.Name] = s.ResourceVersion
	}
	return found
}

func TestTooFewNodesSayWhichAndWhy(t *testing.T) {
	t.Parallel()
	i := install(t, 3)
	i.machines.node("a")
	tainted := i.machines.node("cp", corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule})
	i.apply(i.machines.cluster(2, ""))
	var cluster v1alpha1.StorageCluster
	i.condition(&cluster, "weir", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTooFewNodes,
		"1 of 2 engines have no node", tainted, "node-role.kubernetes.io/control-plane:NoSchedule", "Add nodes")
	i.event("weir", v1alpha1.ReasonTooFewNodes, tainted)
	// A node that comes later is taken without anybody touching the cluster.
	i.machines.node("b")
	i.ready(&cluster, "weir")
}

func TestAnEngineTooManyCanBeTakenBack(t *testing.T) {
	t.Parallel()
	i := install(t, 3)
	i.machines.node("a")
	i.apply(i.machines.cluster(1, ""))
	var cluster v1alpha1.StorageCluster
	i.ready(&cluster, "weir")
	// Rank 1 gets a node and does not start there, rank 2 gets none.
	i.machines.node("b")
	i.machines.hold("weir-engine-1", "error: data directory holds no targets but \"holiday.jpg\"")
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"engines": {"replicas": 3}}}`)
	i.condition(&cluster, "weir", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTooFewNodes, "1 of 3 engines have no node", "lower spec.engines.replicas")
	i.eventually("rank 1 is tried", func() string {
		if err := i.get(&appsv1.StatefulSet{}, "weir-engine-1"); err != nil {
			return err.Error()
		}
		return ""
	})
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"engines": {"replicas": 1}}}`)
	i.ready(&cluster, "weir")
	i.gone(&appsv1.StatefulSet{}, "weir-engine-1")
	if err := i.get(&appsv1.StatefulSet{}, "weir-engine-0"); err != nil {
		t.Errorf("rank 0: %v", err)
	}
}

func TestEngineStaysOnItsNode(t *testing.T) {
	t.Parallel()
	i := install(t, 3)
	nodes := threeNodes(i)
	i.apply(i.machines.cluster(2, ""))
	var cluster v1alpha1.StorageCluster
	i.ready(&cluster, "weir")
	// A node whose name sorts first, and the loss of what the operator knows of rank 0's node: label and readiness.
	i.machines.node("0")
	i.relabel(nodes[0])
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"engines": {"replicas": 3}}}`)
	i.eventually("three engines", func() string {
		_ = i.get(&cluster, "weir")
		if cluster.Status.ReadyEngines == 3 {
			return ""
		}
		return fmt.Sprintf("%+v", cluster.Status)
	})
	var got []string
	for _, e := range cluster.Status.Engines {
		got = append(got, e.Node)
	}
	if want := []string{nodes[0], nodes[1], i.namespace + "-0"}; !slices.Equal(got, want) {
		t.Errorf("engines are on %v, want %v", got, want)
	}
	if starts := i.machines.starts(); len(starts) != 3 {
		t.Errorf("engines were restarted, which learn of the added one by themselves: %v", starts)
	}
	var set appsv1.StatefulSet
	if err := i.get(&set, "weir-engine-0"); err != nil || pinnedNode(&set) != nodes[0] {
		t.Errorf("rank 0 is pinned to %q, want %s (%v)", pinnedNode(&set), nodes[0], err)
	}
}

// relabel takes the label away by which clusters of this test select nodes.
func (i *installation) relabel(node string) {
	i.t.Helper()
	obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": {"test": null}}}`))
	if err := admin.Patch(i.t.Context(), obj, patch); err != nil {
		i.t.Fatal(err)
	}
}

func TestChangeRestartsOneEngineAtATime(t *testing.T) {
	t.Parallel()
	i := install(t, 3)
	threeNodes(i)
	i.apply(i.machines.cluster(3, ""))
	var cluster v1alpha1.StorageCluster
	i.ready(&cluster, "weir")
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"image": "weir/engine:next"}}`)
	i.eventually("every engine runs the new image", func() string {
		for rank := range 3 {
			var pod corev1.Pod
			if err := i.get(&pod, fmt.Sprintf("weir-engine-%d-0", rank)); err != nil || pod.Spec.Containers[0].Image != "weir/engine:next" {
				return fmt.Sprintf("rank %d: %v %v", rank, pod.Spec.Containers, err)
			}
		}
		return ""
	})
	i.condition(&cluster, "weir", v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
	i.ready(&cluster, "weir")
	if want, got := []string{"weir-engine-0", "weir-engine-1", "weir-engine-2"}, i.machines.starts()[3:]; !slices.Equal(got, want) {
		t.Errorf("restarted %v, want %v", got, want)
	}
	if away := i.machines.awayAtOnce(); away != 1 {
		t.Errorf("%d engines were away at once", away)
	}
}

func TestRolloutStopsAtAnEngineThatDoesNotComeBack(t *testing.T) {
	t.Parallel()
	i := install(t, 3)
	threeNodes(i)
	i.apply(i.machines.cluster(3, ""))
	var cluster v1alpha1.StorageCluster
	i.ready(&cluster, "weir")
	i.machines.hold("weir-engine-0", "error: data directory belongs to system \"other\"")
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"image": "weir/engine:broken"}}`)
	i.condition(&cluster, "weir", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonEnginesNotReady,
		"2 of 3 engines ready", "rank 0", "CrashLoopBackOff", `data directory belongs to system "other"`)
	i.condition(&cluster, "weir", v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonEnginesNotReady, "rank 0")
	i.condition(&cluster, "weir", v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRollingOut, "0, 1 and 2")
	for rank := 1; rank < 3; rank++ {
		var pod corev1.Pod
		if err := i.get(&pod, fmt.Sprintf("weir-engine-%d-0", rank)); err != nil || pod.Spec.Containers[0].Image != engineImage {
			t.Errorf("rank %d was restarted with %s (%v)", rank, pod.Spec.Containers[0].Image, err)
		}
	}
	// The next image reaches the broken engine although it never became ready.
	i.machines.hold("weir-engine-0", "")
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"image": "weir/engine:mended"}}`)
	i.condition(&cluster, "weir", v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
	i.ready(&cluster, "weir")
}

func TestRolloutGoesByReadinessWhileManagementIsSilent(t *testing.T) {
	t.Parallel()
	i := install(t, 3)
	threeNodes(i)
	i.apply(i.machines.cluster(3, ""))
	var cluster v1alpha1.StorageCluster
	i.ready(&cluster, "weir")
	i.unreachable.set(true)
	for rank := range 3 {
		i.engines.StopEngine(rank)
	}
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"image": "weir/engine:next"}}`)
	i.condition(&cluster, "weir", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonEnginesNotReady, "management service does not answer")
	i.condition(&cluster, "weir", v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
	if want, got := []string{"weir-engine-0", "weir-engine-1", "weir-engine-2"}, i.machines.starts()[3:]; !slices.Equal(got, want) {
		t.Errorf("restarted %v, want %v", got, want)
	}
	if away := i.machines.awayAtOnce(); away != 1 {
		t.Errorf("%d engines were away at once", away)
	}
}

func TestAuthorityIsReplacedWhenItsSecretIsDeleted(t *testing.T) {
	t.Parallel()
	i := install(t, 2)
	i.machines.node("a")
	i.machines.node("b")
	i.apply(i.machines.cluster(2, ""))
	var cluster v1alpha1.StorageCluster
	i.ready(&cluster, "weir")
	before := certificate(i, "weir-ca")
	i.remove(&corev1.Secret{}, "weir-ca")
	i.eventually("a new authority, and an engine certificate of it", func() string {
		if err := i.get(&corev1.Secret{}, "weir-ca"); err != nil {
			return err.Error()
		}
		now := certificate(i, "weir-ca")
		if bytes.Equal(now.Raw, before.Raw) {
			return "the old one is there"
		}
		if err := certificate(i, "weir-engine-tls").CheckSignatureFrom(now); err != nil {
			return err.Error()
		}
		return ""
	})
	i.condition(&cluster, "weir", v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
	i.ready(&cluster, "weir")
	if starts := i.machines.starts(); len(starts) != 2 {
		t.Errorf("engines were restarted, which read certificates again by themselves: %v", starts)
	}
}

func TestTheSystemKeyOutlivesItsSecret(t *testing.T) {
	t.Parallel()
	i := running(t, 2)
	var before, after corev1.Secret
	if err := i.get(&before, "weir-auth"); err != nil {
		t.Fatal(err)
	}
	i.remove(&corev1.Secret{}, "weir-auth")
	i.patch(&corev1.Secret{}, "weir-engine-tls", `{"metadata": {"annotations": {"look": "now"}}}`)
	i.eventually("the Secret is there again", func() string {
		if err := i.get(&after, "weir-auth"); err != nil {
			return err.Error()
		}
		return ""
	})
	if !bytes.Equal(before.Data["system.key"], after.Data["system.key"]) {
		t.Error("the key is another one")
	}
	i.event("weir", "SystemKeyRestored", "Secret weir-auth was gone")
	i.ready(&v1alpha1.StorageCluster{}, "weir")
	if starts := i.machines.starts(); len(starts) != 2 {
		t.Errorf("engines were started again: %v", starts)
	}
}

func TestEnginePodIsConfined(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.machines.node("a")
	i.apply(i.machines.cluster(1, ""))
	i.ready(&v1alpha1.StorageCluster{}, "weir")
	var set appsv1.StatefulSet
	if err := i.get(&set, "weir-engine-0"); err != nil {
		t.Fatal(err)
	}
	spec := set.Spec.Template.Spec
	engine := spec.Containers[0].SecurityContext
	if !*spec.SecurityContext.RunAsNonRoot || !*engine.ReadOnlyRootFilesystem || *engine.AllowPrivilegeEscalation ||
		engine.Capabilities.Drop[0] != "ALL" || len(engine.Capabilities.Add) != 0 || *spec.AutomountServiceAccountToken {
		t.Errorf("security context of the engine: %+v %+v", spec.SecurityContext, engine)
	}
	if path, want := spec.Volumes[2].HostPath.Path, "/var/lib/weir-data/"+i.namespace+"_weir/rank-0"; path != want {
		t.Errorf("data is in %s, want %s", path, want)
	}
}

func TestCertificatesAreRenewedBeforeTheyExpire(t *testing.T) {
	t.Parallel()
	i := install(t, 3)
	threeNodes(i)
	i.apply(i.machines.cluster(3, ""))
	var cluster v1alpha1.StorageCluster
	i.ready(&cluster, "weir")
	first := certificate(i, "weir-engine-tls")
	client0 := certificate(i, "weir-client")
	if left := first.NotAfter.Sub(i.clock.Now()); left < 80*24*time.Hour {
		t.Fatalf("a new certificate is good for %s", left)
	}
	// Less than thirty days are left now: time to renew. Touching a Secret makes the operator look.
	i.clock.SetTime(first.NotAfter.Add(-29 * 24 * time.Hour))
	i.patch(&corev1.Secret{}, "weir-engine-tls", `{"metadata": {"annotations": {"look": "now"}}}`)
	i.eventually("renewal", func() string {
		if bytes.Equal(certificate(i, "weir-engine-tls").Raw, first.Raw) || bytes.Equal(certificate(i, "weir-client").Raw, client0.Raw) {
			return "the old certificates are there"
		}
		return ""
	})
	i.condition(&cluster, "weir", v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
	i.ready(&cluster, "weir")
	if starts := i.machines.starts(); len(starts) != 3 {
		t.Errorf("engines were restarted, which read certificates again by themselves: %v", starts)
	}
}

func certificate(i *installation, secretName string) *x509.Certificate {
	i.t.Helper()
	var secret corev1.Secret
	if err := i.get(&secret, secretName); err != nil {
		i.t.Fatal(err)
	}
	block, _ := pem.Decode(secret.Data["tls.crt"])
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		i.t.Fatal(err)
	}
	return cert
}

func TestDeletionWaitsForPoolsThenErasesData(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	node := i.machines.node("a")
	i.apply(i.machines.cluster(1, "  deletionPolicy: Delete\n"))
	i.apply(object("Pool", "tank", goodPool))
	var cluster v1alpha1.StorageCluster
	i.ready(&v1alpha1.Pool{}, "tank")
	i.remove(&v1alpha1.StorageCluster{}, "weir")
	i.condition(&cluster, "weir", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonDependentsExist,
		"Pool "+i.namespace+"/tank", "delete them first")
	i.condition(&cluster, "weir", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDeleting, "DeletionBlocked")
	i.event("weir", v1alpha1.ReasonDependentsExist, "tank")
	i.remove(&v1alpha1.Pool{}, "tank")
	i.gone(&v1alpha1.Pool{}, "tank")
	i.condition(&cluster, "weir", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonErasingData,
		"rank-0 on node "+node)
	var job batchv1.Job
	if err := i.get(&job, "weir-erase-0"); err != nil {
		t.Fatal(err)
	}
	finish(t, &job)
	i.gone(&cluster, "weir")
	var secrets corev1.SecretList
	if err := admin.List(t.Context(), &secrets, client.InNamespace(i.operatorNamespace)); err != nil || len(secrets.Items) != 0 {
		t.Errorf("left in the operator's namespace: %v %v", secrets.Items, err)
	}
	i.gone(&corev1.Secret{}, "weir-auth")
	i.gone(&corev1.ConfigMap{}, "weir-placement")
}

// finish makes a Job complete, as its controller would.
func finish(t *testing.T, job *batchv1.Job) {
	t.Helper()
	now := metav1.Now()
	job.Status.StartTime, job.Status.CompletionTime, job.Status.Succeeded = &now, &now, 1
	job.Status.Conditions = []batchv1.JobCondition{
		{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now},
	}
	if err := admin.Status().Update(t.Context(), job); err != nil {
		t.Fatalf("complete the Job: %v", err)
	}
}

func TestRetainedClusterIsTakenOver(t *testing.T) {
	t.Parallel()
	i := install(t, 2)
	nodes := []string{i.machines.node("b"), i.machines.node("c")}
	i.apply(i.machines.cluster(2, ""))
	var cluster v1alpha1.StorageCluster
	i.ready(&cluster, "weir")
	var before corev1.Secret
	if err := i.get(&before, "weir-auth"); err != nil {
		t.Fatal(err)
	}
	first := cluster.DeepCopy()
	i.remove(&v1alpha1.StorageCluster{}, "weir")
	i.gone(&cluster, "weir")
	collectGarbage(i, first)
	i.machines.node("a") // sorts first: a new cluster would take it
	i.apply(i.machines.cluster(2, ""))
	i.ready(&cluster, "weir")
	for rank, e := range cluster.Status.Engines {
		if e.Node != nodes[rank] {
			t.Errorf("rank %d is on %s, its data on %s", rank, e.Node, nodes[rank])
		}
	}
	var after corev1.Secret
	if err := i.get(&after, "weir-auth"); err != nil || !bytes.Equal(before.Data["system.key"], after.Data["system.key"]) {
		t.Errorf("the system key changed (%v)", err)
	}
}

// collectGarbage deletes what a gone cluster owned, and waits for its engines to stop.
func collectGarbage(i *installation, owner *v1alpha1.StorageCluster) {
	i.t.Helper()
	ctx := context.Background()
	deleteOwned(i, owner)
	i.eventually("the engines have stopped", func() string {
		var pods corev1.PodList
		if err := admin.List(ctx, &pods, client.InNamespace(i.namespace)); err != nil || len(pods.Items) > 0 {
			return fmt.Sprintf("%d pods, %v", len(pods.Items), err)
		}
		return ""
	})
}
