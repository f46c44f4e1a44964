package storagecluster

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/manifest"
)

// byHand is the metadata of what somebody made who knows nothing of the operator.
func byHand(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "7"}
}

// engineOf is a StatefulSet with the labels of the engine of a rank, controlled by another kind of object.
func engineOf(t *testing.T, cluster *v1alpha1.StorageCluster, rank int32) *appsv1.StatefulSet {
	t.Helper()
	set, err := manifest.StatefulSet(cluster, rank, "a", "")
	if err != nil {
		t.Fatal(err)
	}
	set.ResourceVersion = "7"
	set.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Copy", Name: "copy", UID: "copy", Controller: new(true)}}
	return set
}

// untouched fails the test unless the objects are there as they were made.
func untouched(t *testing.T, server client.Client, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		got := object.DeepCopyObject().(client.Object)
		if err := server.Get(t.Context(), client.ObjectKeyFromObject(object), got); err != nil || got.GetResourceVersion() != "7" {
			t.Errorf("%T %s was touched: %+v, %v", object, object.GetName(), got, err)
		}
	}
}

func TestADeletionTouchesNothingOfOthers(t *testing.T) {
	cluster := deleted(inDirectories())
	others := []client.Object{
		&corev1.Secret{ObjectMeta: byHand("data", "weir-auth")},
		&corev1.Secret{ObjectMeta: byHand("operator", "weir-client")},
		&corev1.ConfigMap{ObjectMeta: byHand("data", "weir-placement")},
		engineOf(t, cluster, 0),
	}
	all := holding(t, append(others, cluster)...)
	if got := again(t, reconciler(all, all)); got != nil {
		t.Errorf("blocked by %s", blockedBy(got))
	}
	untouched(t, all, others...)
}

func TestAStatefulSetOfOthersIsNoSurplus(t *testing.T) {
	cluster := inDirectories()
	other := engineOf(t, cluster, 5)
	all := holding(t, cluster, other)
	if err := reconciler(all, all).dropSurplus(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	untouched(t, all, other)
}

func TestWhatReplacedASurplusStatefulSetIsNotDeleted(t *testing.T) {
	cluster := inDirectories()
	surplus, err := manifest.StatefulSet(cluster, 5, "a", "")
	if err != nil {
		t.Fatal(err)
	}
	surplus.UID = "in the cache"
	asked := 0
	server := interceptor.NewClient(holding(t, cluster, surplus), interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, obj client.Object, options ...client.DeleteOption) error {
			asked++
			only := (&client.DeleteOptions{}).ApplyOptions(options).Preconditions
			if only == nil || only.UID == nil || *only.UID != surplus.UID {
				t.Errorf("whatever is called %s is deleted: %+v", obj.GetName(), only)
			}
			return nil
		},
	})
	r := reconciler(server, server)
	if err := r.dropSurplus(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	if _, err := r.stopEngines(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	if asked != 2 {
		t.Errorf("%d deletions were asked for", asked)
	}
}

// A copy has the labels of the engine, and may have its owner.
func TestACopyIsNotTakenForTheEngine(t *testing.T) {
	cluster := inDirectories()
	set, err := manifest.StatefulSet(cluster, 0, "a", "")
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "data", Name: "weir-engine-0-0", Labels: set.Labels}}
	set2, pod2 := set.DeepCopy(), pod.DeepCopy()
	set2.Name, pod2.Name = "weir-engine-0-copy", "weir-engine-0-copy-0"
	surplus := set.DeepCopy()
	surplus.Name, surplus.Labels[v1alpha1.LabelRank], surplus.ResourceVersion = "weir-engine-0-spare", "5", "7"
	all := holding(t, cluster, set, set2, pod, pod2, surplus)
	r := reconciler(all, all)
	engines, err := r.observe(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	if e := engines[0]; e.set.Name != set.Name || e.pod.Name != pod.Name {
		t.Errorf("rank 0 is StatefulSet %s with pod %s", e.set.Name, e.pod.Name)
	}
	if err := r.dropSurplus(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	untouched(t, all, surplus)
}

func TestAJobOfOthersIsNotTakenForAnErasure(t *testing.T) {
	cluster := deleted(inDirectories())
	job := &batchv1.Job{ObjectMeta: byHand("data", "weir-erase-0")}
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	all := holding(t, cluster, record("a"), job)
	r := reconciler(all, all)
	got := again(t, r)
	if reason := blockedBy(got); reason != v1alpha1.ReasonNameTaken {
		t.Fatalf("blocked by %s", reason)
	}
	message := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionDeletionBlocked).Message
	if !strings.Contains(message, "Job data/weir-erase-0 belongs to somebody else") || !strings.Contains(message, "Retain") {
		t.Errorf("message %s", message)
	}
	untouched(t, all, job)
	if err := all.Delete(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if reason := blockedBy(again(t, r)); reason != v1alpha1.ReasonErasingData {
		t.Errorf("blocked by %s when the Job was gone", reason)
	}
}

func TestARecordThatIsSomethingElseIsToldApart(t *testing.T) {
	cluster := inDirectories()
	other := &corev1.ConfigMap{ObjectMeta: byHand("data", "weir-placement"), Data: map[string]string{"seats": "12"}}
	all := holding(t, cluster, other)
	got := again(t, reconciler(all, all))
	c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionReady)
	if c.Reason != v1alpha1.ReasonNameTaken || !strings.Contains(c.Message, "ConfigMap data/weir-placement belongs to somebody else") {
		t.Errorf("condition %+v", c)
	}
	untouched(t, all, other)
}
