package storagecluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/index"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/manifest"
)

var today = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// nobody has no engines.
type nobody struct{}

func (nobody) Connect(context.Context, types.NamespacedName) (*management.Engines, error) {
	return nil, nil
}

func (nobody) Forget(types.NamespacedName) {}

// deaf takes events and forgets them.
type deaf struct{}

func (deaf) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// holding is an API server, or a cache of it, that holds objects.
func holding(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.StorageCluster{})
	for _, object := range objects {
		builder = builder.WithObjects(object.DeepCopyObject().(client.Object))
	}
	for _, field := range index.Fields() {
		builder = builder.WithIndex(field.Object, field.Name, field.Values)
	}
	return builder.Build()
}

func reconciler(cached, live client.Client) *Reconciler {
	return New(cached, live, nobody{}, deaf{}, clocktesting.NewFakePassiveClock(today), Config{Namespace: "operator", EngineImage: "engine"})
}

// inDirectories is a cluster of one engine on directories of nodes.
func inDirectories() *v1alpha1.StorageCluster {
	return &v1alpha1.StorageCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "data", Name: "weir", UID: "this"},
		Spec: v1alpha1.StorageClusterSpec{
			DeletionPolicy: v1alpha1.DeletionDelete,
			Engines:        v1alpha1.EnginesSpec{Replicas: 1, TargetsPerEngine: 1},
			Storage:        v1alpha1.StorageSpec{Size: resource.MustParse("8Gi"), HostPath: &v1alpha1.HostPathStorage{Path: "/var/lib/weir"}},
		},
	}
}

// deleted is a cluster that somebody has deleted.
func deleted(cluster *v1alpha1.StorageCluster) *v1alpha1.StorageCluster {
	now := metav1.NewTime(today)
	cluster.DeletionTimestamp, cluster.Finalizers = &now, []string{v1alpha1.Finalizer}
	return cluster
}

// record is the placement of rank 0, as somebody restored it: without labels.
func record(node string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "data", Name: "weir-placement"}, Data: map[string]string{"rank-0": node},
	}
}

// again reconciles the cluster and returns it, nil when it is gone.
func again(t *testing.T, r *Reconciler) *v1alpha1.StorageCluster {
	t.Helper()
	key := types.NamespacedName{Namespace: "data", Name: "weir"}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	cluster := &v1alpha1.StorageCluster{}
	if err := r.client.Get(t.Context(), key, cluster); err != nil {
		if !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return nil
	}
	return cluster
}

// blockedBy is the reason of DeletionBlocked.
func blockedBy(cluster *v1alpha1.StorageCluster) string {
	if cluster == nil {
		return "nothing: it is gone"
	}
	if c := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ConditionDeletionBlocked); c != nil {
		return c.Reason
	}
	return "nothing"
}

func TestClaimsFollowAPolicyThatWasChangedAfterTheDeletion(t *testing.T) {
	cluster := deleted(inDirectories())
	cluster.Spec.Storage.HostPath, cluster.Spec.Storage.VolumeClaimTemplate = nil, &v1alpha1.VolumeClaimStorage{}
	set, err := manifest.StatefulSet(cluster, 0, "", "")
	if err != nil {
		t.Fatal(err)
	}
	set.Generation, set.Status.ObservedGeneration = 2, 1
	cluster.Spec.DeletionPolicy = v1alpha1.DeletionRetain
	all := holding(t, cluster, set)
	r := reconciler(all, all)
	if reason := blockedBy(again(t, r)); reason != v1alpha1.ReasonSettlingClaims {
		t.Errorf("blocked by %s while the claims would still go", reason)
	}
	got := &appsv1.StatefulSet{}
	if err := all.Get(t.Context(), client.ObjectKeyFromObject(set), got); err != nil {
		t.Fatal(err)
	}
	if when := got.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted; when != appsv1.RetainPersistentVolumeClaimRetentionPolicyType {
		t.Errorf("claims are %sd with the StatefulSet", when)
	}
	got.Status.ObservedGeneration = got.Generation
	if err := all.Status().Update(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	if cluster := again(t, r); cluster != nil {
		t.Errorf("blocked by %s", blockedBy(cluster))
	}
}

func TestDataIsErasedThatTheCacheDoesNotKnowOf(t *testing.T) {
	cluster := deleted(inDirectories())
	engine := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "data", Name: "weir-engine-0-0", Labels: manifest.EngineSelector("weir")}}
	live := holding(t, cluster, record("a"), engine)
	r := reconciler(holding(t, cluster), live)
	if got := again(t, r); got == nil || !strings.Contains(fmt.Sprint(got.Status.Conditions), engine.Name) {
		t.Errorf("does not wait for the engine to stop: %+v", got)
	}
	r = reconciler(holding(t, cluster), holding(t, cluster, record("a")))
	if reason := blockedBy(again(t, r)); reason != v1alpha1.ReasonErasingData {
		t.Errorf("blocked by %s", reason)
	}
	if err := r.client.Get(t.Context(), types.NamespacedName{Namespace: "data", Name: "weir-erase-0"}, &batchv1.Job{}); err != nil {
		t.Errorf("nothing erases the data: %v", err)
	}
}

func TestAJobOfAnEarlierClusterHasNotErasedTheDataOfThisOne(t *testing.T) {
	cluster := deleted(inDirectories())
	earlier := cluster.DeepCopy()
	earlier.UID = "earlier"
	job := manifest.EraseJob(earlier, 0, "a")
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	all := holding(t, cluster, record("a"), job)
	r := reconciler(all, all)
	for range 2 {
		if reason := blockedBy(again(t, r)); reason != v1alpha1.ReasonErasingData {
			t.Fatalf("blocked by %s", reason)
		}
	}
	if err := all.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil || !metav1.IsControlledBy(job, cluster) {
		t.Errorf("the Job is of %v, %v", job.OwnerReferences, err)
	}
}

func TestARecordOfNodesThatTheCacheDoesNotShowIsNotOverwritten(t *testing.T) {
	cluster := inDirectories()
	ready := corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
	node := func(name string) client.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: ready}
	}
	cached := holding(t, cluster, node("a"), node("b"))
	r := reconciler(cached, holding(t, record("b")))
	where, err := r.ensurePlacement(t.Context(), cluster)
	if err != nil || where.assigned[0] != "b" {
		t.Errorf("rank 0 is on %q, its data on b (%v)", where.assigned[0], err)
	}
	if err := cached.Get(t.Context(), client.ObjectKeyFromObject(record("")), &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
		t.Errorf("the record was written: %v", err)
	}
}
