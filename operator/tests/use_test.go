package tests

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
)

func TestARetainedPoolStaysWhileItsVolumesAreOpen(t *testing.T) {
	t.Parallel()
	i := withPool(t)
	volume(i, "tank", "pvc-1")
	i.engines.SetOpenHandles("tank", "pvc-1", 2)
	i.remove(&v1alpha1.Pool{}, "tank")
	i.condition(&v1alpha1.Pool{}, "tank", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonOpenHandles,
		"container pvc-1 of PersistentVolumeClaim apps/data (open at 2 clients)")
	i.event("tank", v1alpha1.ReasonOpenHandles, "pvc-1")
	i.engines.SetOpenHandles("tank", "pvc-1", 0)
	i.gone(&v1alpha1.Pool{}, "tank")
}

func TestARetainedClusterStaysWhileVolumesOfARetainedPoolAreOpen(t *testing.T) {
	t.Parallel()
	i := withPool(t)
	volume(i, "tank", "pvc-1")
	i.remove(&v1alpha1.Pool{}, "tank")
	i.gone(&v1alpha1.Pool{}, "tank")
	i.engines.SetOpenHandles("tank", "pvc-1", 1)
	i.remove(&v1alpha1.StorageCluster{}, "weir")
	var cluster v1alpha1.StorageCluster
	i.condition(&cluster, "weir", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonOpenHandles,
		"container pvc-1 of PersistentVolumeClaim apps/data (open at 1 clients) in pool tank", v1alpha1.AnnotationStopInUse)
	i.event("weir", v1alpha1.ReasonOpenHandles, "pvc-1")
	// While nobody can be asked, it is in use.
	i.unreachable.set(true)
	i.engines.StopEngine(0)
	i.condition(&cluster, "weir", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonEngineUnreachable,
		"nobody can say whether volumes are in use")
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"metadata": {"annotations": {"`+v1alpha1.AnnotationStopInUse+`": "true"}}}`)
	i.gone(&cluster, "weir")
}
