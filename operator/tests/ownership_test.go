package tests

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/apply"
	"weir.dev/weir/operator/internal/manifest"
)

// byOthers are objects that somebody else made under the names of cluster weir's, in the order in which it needs them.
func byOthers(namespace string) []client.Object {
	named := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"made-by": "hand"}}
	}
	own := map[string]string{"app": "own"}
	pod := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: own}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "own", Image: "own"}}},
	}
	return []client.Object{
		&corev1.Secret{ObjectMeta: named("weir-ca"), Data: map[string][]byte{"tls.key": []byte("precious")}},
		&corev1.ConfigMap{ObjectMeta: named("weir-placement"), Data: map[string]string{"seats": "12"}},
		&corev1.Service{ObjectMeta: named("weir-engines"), Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}},
		}},
		&corev1.ConfigMap{ObjectMeta: named("weir-engines"), Data: map[string]string{manifest.KeyConfig: "precious"}},
		&networkingv1.NetworkPolicy{ObjectMeta: named("weir-engines"), Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: own}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		}},
		&policyv1.PodDisruptionBudget{ObjectMeta: named("weir-engines"), Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: own},
		}},
		&appsv1.StatefulSet{ObjectMeta: named("weir-engine-0"), Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: own}, Template: pod,
		}},
	}
}

func TestObjectsOfOthersAreLeftAsTheyAre(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.machines.node("a")
	others := byOthers(i.namespace)
	for _, obj := range others {
		if err := admin.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	i.apply(i.machines.cluster(1, ""))
	var cluster v1alpha1.StorageCluster
	for n, obj := range others {
		gvk, err := admin.GroupVersionKindFor(obj)
		if err != nil {
			t.Fatal(err)
		}
		words := fmt.Sprintf("%s %s/%s belongs to somebody else", gvk.Kind, i.namespace, obj.GetName())
		i.condition(&cluster, "weir", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNameTaken, words, "Delete that object")
		if n == 0 {
			i.event("weir", v1alpha1.ReasonNameTaken, words)
		}
		if err := i.get(obj, obj.GetName()); err != nil || len(obj.GetOwnerReferences()) != 0 || len(obj.GetLabels()) != 1 || managedByOperator(obj) {
			t.Errorf("%s: it was taken over: %v %v %v", words, obj.GetLabels(), obj.GetOwnerReferences(), err)
		}
		// What went on needs nobody: the cluster gets on once the name is free.
		if err := admin.Delete(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	i.ready(&cluster, "weir")
	checkOwned(i, others[0], &cluster)
	for _, obj := range others[2:] {
		checkOwned(i, obj, &cluster)
	}
}

// managedByOperator tells whether the operator owns fields of an object.
func managedByOperator(obj client.Object) bool {
	for _, entry := range obj.GetManagedFields() {
		if entry.Manager == apply.FieldOwner {
			return true
		}
	}
	return false
}

// checkOwned looks for the object that the cluster has made under the name of obj.
func checkOwned(i *installation, obj client.Object, cluster *v1alpha1.StorageCluster) {
	i.t.Helper()
	if err := i.get(obj, obj.GetName()); err != nil || !metav1.IsControlledBy(obj, cluster) {
		i.t.Errorf("%T %s belongs to %v: %v", obj, obj.GetName(), obj.GetOwnerReferences(), err)
	}
}

func TestAClusterMadeAnewWaitsForTheGarbageOfTheFirst(t *testing.T) {
	t.Parallel()
	i := running(t, 1)
	var first, second v1alpha1.StorageCluster
	if err := i.get(&first, "weir"); err != nil {
		t.Fatal(err)
	}
	i.remove(&v1alpha1.StorageCluster{}, "weir")
	i.gone(&v1alpha1.StorageCluster{}, "weir")
	i.apply(i.machines.cluster(1, ""))
	i.condition(&second, "weir", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonCollectingGarbage,
		"Secret "+i.namespace+"/weir-ca belongs to an earlier StorageCluster "+i.namespace+"/weir")
	var set appsv1.StatefulSet
	if err := i.get(&set, "weir-engine-0"); err != nil || !metav1.IsControlledBy(&set, &first) {
		t.Errorf("the first cluster's StatefulSet belongs to %v: %v", set.OwnerReferences, err)
	}
	deleteOwned(i, &first)
	i.ready(&second, "weir")
	checkOwned(i, &set, &second)
	checkOwned(i, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "weir-engines"}}, &second)
}

// deleteOwned deletes what a cluster owns, as the garbage collector does when the cluster is gone.
func deleteOwned(i *installation, owner *v1alpha1.StorageCluster) {
	i.t.Helper()
	ctx := context.Background()
	for _, list := range []client.ObjectList{
		&appsv1.StatefulSetList{}, &batchv1.JobList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{},
		&policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{},
	} {
		if err := admin.List(ctx, list, client.InNamespace(i.namespace)); err != nil {
			i.t.Fatal(err)
		}
		objects, err := meta.ExtractList(list)
		if err != nil {
			i.t.Fatal(err)
		}
		for _, obj := range objects {
			obj := obj.(client.Object)
			if !metav1.IsControlledBy(obj, owner) {
				continue
			}
			if err := admin.Delete(ctx, obj); client.IgnoreNotFound(err) != nil {
				i.t.Fatal(err)
			}
		}
	}
}

// remembering is a client that shows an object as it once was.
type remembering struct {
	client.Client
	was *corev1.ConfigMap
}

func (r remembering) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	r.was.DeepCopyInto(obj.(*corev1.ConfigMap))
	return nil
}

func TestAnObjectThatReplacedTheOneInTheCacheIsNotTakenOver(t *testing.T) {
	t.Parallel()
	cluster := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Namespace: makeUserNamespace(t), Name: "weir", UID: "0a1b"}}
	ours := manifest.ConfigMap(cluster)
	if err := apply.Object(t.Context(), admin, admin, ours.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	cached := remembering{Client: admin, was: &corev1.ConfigMap{}}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(ours), cached.was); err != nil {
		t.Fatal(err)
	}
	if err := admin.Delete(t.Context(), ours.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	changed := ours.DeepCopy()
	changed.Data[manifest.KeyConfig] += "# another"
	if err := apply.Object(t.Context(), cached, admin, changed.DeepCopy()); !apierrors.IsConflict(err) {
		t.Errorf("what is gone was made anew from an old copy: %v", err)
	}
	other := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: ours.Name}, Data: map[string]string{manifest.KeyConfig: "precious"},
	}
	if err := admin.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := apply.Object(t.Context(), cached, admin, changed.DeepCopy()); err == nil {
		t.Error("it was applied")
	}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(ours), other); err != nil || other.Data[manifest.KeyConfig] != "precious" {
		t.Errorf("it was taken over: %+v, %v", other, err)
	}
}
