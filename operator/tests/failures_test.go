package tests

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
)

// at is the installation as seen from another namespace that the operator serves.
func (i *installation) at(namespace string) *installation {
	other := *i
	other.namespace = namespace
	return &other
}

func TestWhatTheAPIServerRefusesIsInTheCondition(t *testing.T) {
	t.Parallel()
	i := running(t, 1)
	i.patch(&corev1.ConfigMap{}, "weir-engines", `{"immutable": true}`)
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"engines": {"logLevel": "debug"}}}`)
	var cluster v1alpha1.StorageCluster
	i.condition(&cluster, "weir", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonReconcileFailed,
		"apply ConfigMap "+i.namespace+"/weir-engines", "immutable")
	i.event("weir", v1alpha1.ReasonReconcileFailed, "immutable")
	i.remove(&corev1.ConfigMap{}, "weir-engines")
	i.ready(&cluster, "weir")
}

// failing makes one kind of management call fail as a defect of an engine would.
func (i *installation) failing(method string) {
	i.engines.Intercept(func(_ context.Context, called string, _ any) error {
		if strings.HasSuffix(called, method) {
			return status.Error(codes.Internal, "target 1 of rank 0: the index is broken")
		}
		return nil
	})
}

func TestADefectOfTheEnginesIsInTheCondition(t *testing.T) {
	t.Parallel()
	i := running(t, 1)
	i.failing("Pools/Query")
	i.apply(object("Pool", "tank", `{clusterRef: {name: weir}, size: 1Gi, deletionPolicy: Delete}`))
	var pool v1alpha1.Pool
	i.condition(&pool, "tank", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonReconcileFailed, "the index is broken", "tries again")
	i.engines.Intercept(nil)
	i.ready(&pool, "tank")

	i.failing("Containers/Query")
	i.apply(object("Container", "box", `{poolRef: {name: tank}, deletionPolicy: Delete}`))
	var box v1alpha1.Container
	i.condition(&box, "box", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonReconcileFailed, "the index is broken")
	i.engines.Intercept(nil)
	i.ready(&box, "box")

	i.failing("/Destroy")
	i.remove(&v1alpha1.Container{}, "box")
	i.condition(&box, "box", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonReconcileFailed, "the index is broken")
	i.engines.Intercept(nil)
	i.gone(&box, "box")
	i.failing("/Destroy")
	i.remove(&v1alpha1.Pool{}, "tank")
	i.condition(&pool, "tank", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonReconcileFailed, "the index is broken")
	i.engines.Intercept(nil)
	i.gone(&pool, "tank")
}

func TestNamesakesDoNotShareTheClientSecret(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.machines.node("a")
	i.apply(i.machines.cluster(1, ""))
	i.ready(&v1alpha1.StorageCluster{}, "weir")
	home := i.at(i.operatorNamespace)
	var before, after corev1.Secret
	if err := home.get(&before, "weir-client"); err != nil {
		t.Fatal(err)
	}

	home.apply(i.machines.cluster(1, ""))
	var second v1alpha1.StorageCluster
	home.condition(&second, "weir", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonClientSecretTaken,
		"weir-client belongs to StorageCluster "+i.namespace+"/weir")
	home.apply(object("Pool", "tank", goodPool))
	home.condition(&v1alpha1.Pool{}, "tank", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonClusterNotReady,
		"waiting for an engine of StorageCluster weir")
	if err := home.get(&after, "weir-client"); err != nil || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the Secret of the first cluster was written: %v", err)
	}
	if err := home.get(&appsv1.StatefulSet{}, "weir-engine-0"); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the second cluster has an engine: %v", err)
	}
	if calls := i.engines.Calls(createPool); calls != 0 {
		t.Errorf("the first cluster was asked for the second one's pool")
	}

	i.remove(&v1alpha1.StorageCluster{}, "weir")
	i.gone(&v1alpha1.StorageCluster{}, "weir")
	home.patch(&v1alpha1.StorageCluster{}, "weir", `{"spec": {"deletionPolicy": "Delete"}}`)
	home.eventually("the second cluster has its own client Secret", func() string {
		if err := home.get(&after, "weir-client"); err != nil {
			return err.Error()
		}
		if !metav1.IsControlledBy(&after, &second) {
			return "it is not owned by the cluster"
		}
		return ""
	})
}

func TestALostAnswerAndARestartMakeNoSecondPool(t *testing.T) {
	t.Parallel()
	i := running(t, 1)
	var lost atomic.Bool
	pools := managementv1.NewPoolsClient(i.client())
	i.engines.Intercept(func(ctx context.Context, method string, request any) error {
		create, is := request.(*managementv1.PoolCreateRequest)
		if !is || method != createPool || !lost.CompareAndSwap(false, true) {
			return nil
		}
		if _, err := pools.Create(ctx, create); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, "the connection broke")
	})
	i.apply(object("Pool", "tank", goodPool))
	i.eventually("the answer is lost", func() string {
		if !lost.Load() {
			return "the pool was not asked for"
		}
		return ""
	})
	i.stopOperator()
	i.startOperator()
	var pool v1alpha1.Pool
	i.ready(&pool, "tank")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	list, err := pools.List(ctx, &managementv1.PoolListRequest{})
	if err != nil || len(list.GetPools()) != 1 || list.GetPools()[0].GetUuid() != pool.Status.UUID {
		t.Errorf("the engines have %v, the object is %s (%v)", list.GetPools(), pool.Status.UUID, err)
	}
}

func TestANamespaceThatGoesTakesEverythingWithIt(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.machines.node("a")
	i.apply(i.machines.cluster(1, "  deletionPolicy: Delete\n"))
	i.apply(object("Pool", "tank", `{clusterRef: {name: weir}, size: 1Gi, deletionPolicy: Delete}`))
	i.apply(object("Container", "box", `{poolRef: {name: tank}, deletionPolicy: Delete}`))
	i.ready(&v1alpha1.Container{}, "box")
	volume(i, "tank", "pvc-1")

	// What the namespace's controller, which is not here, does: everything in it at once, in no good order.
	ctx := context.Background()
	if err := admin.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: i.namespace}}); err != nil {
		t.Fatal(err)
	}
	i.unreachable.set(true)
	i.engines.StopEngine(0)
	for _, obj := range []client.Object{
		&corev1.Secret{}, &corev1.ConfigMap{}, &appsv1.StatefulSet{}, &batchv1.Job{},
		&v1alpha1.StorageCluster{}, &v1alpha1.Pool{}, &v1alpha1.Container{},
	} {
		if err := admin.DeleteAllOf(ctx, obj, client.InNamespace(i.namespace)); err != nil {
			t.Fatalf("delete %T: %v", obj, err)
		}
	}
	i.gone(&v1alpha1.Container{}, "box")
	i.gone(&v1alpha1.Pool{}, "tank")
	i.gone(&v1alpha1.StorageCluster{}, "weir")
}

func TestAContainerDoesNotWaitForAPoolThatNeverWas(t *testing.T) {
	t.Parallel()
	i := withPool(t)
	i.apply(object("Container", "box", `{poolRef: {name: tank}, deletionPolicy: Delete}`))
	i.ready(&v1alpha1.Container{}, "box")
	// The Pool object is lost, and the one that replaces it can't be made: it asks for another size under the old label.
	i.patch(&v1alpha1.Pool{}, "tank", `{"metadata": {"finalizers": null}}`)
	i.remove(&v1alpha1.Pool{}, "tank")
	i.eventually("an impossible Pool of the same name", func() string {
		pool := parse(t, object("Pool", "tank", `{clusterRef: {name: weir}, size: 8Gi}`))[0]
		pool.SetNamespace(i.namespace)
		if err := admin.Create(context.Background(), pool); err != nil {
			return err.Error()
		}
		return ""
	})
	i.condition(&v1alpha1.Pool{}, "tank", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRejected)
	i.remove(&v1alpha1.Container{}, "box")
	i.condition(&v1alpha1.Container{}, "box", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonPoolNotReady, "Retain")
	i.remove(&v1alpha1.Pool{}, "tank")
	i.gone(&v1alpha1.Container{}, "box")
	i.gone(&v1alpha1.Pool{}, "tank")
	i.event("box", "NotDestroyed", "was never ready")
}

func TestNothingIsStartedOnTooLittleStorage(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	i.machines.node("a")
	i.apply(strings.Replace(i.machines.cluster(1, ""), "size: 8Gi", "size: 100Mi", 1))
	i.condition(&v1alpha1.StorageCluster{}, "weir", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonStorageTooSmall,
		"gives each target 50Mi, it needs 64Mi")
	if err := i.get(&appsv1.StatefulSet{}, "weir-engine-0"); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("an engine was started: %v", err)
	}
}
