package tests

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
)

func TestARetainedPoolStaysWhileItsVolumesAreOpen(t *testing.T) {
	t.Parallel()
	i := withPool(t)
	volume(i, "tank", "pvc-1")
	i.engines.SetOpenHandles("tank", "pvc-1", 2)
	i.remove(&v1alpha1.Pool{}, "tank")
	i.condition(&v1alpha1.Pool{}, "tank", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonOpenHandles,
		"container pvc-1 of PersistentVolumeClaim apps/data in pool tank (2 clients that don't say where they are)")
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
		"container pvc-1 of PersistentVolumeClaim apps/data in pool tank (1 client that doesn't say where it is)", v1alpha1.AnnotationStopInUse)
	i.event("weir", v1alpha1.ReasonOpenHandles, "pvc-1")
	// While nobody can be asked, it is in use.
	i.unreachable.set(true)
	i.engines.StopEngine(0)
	i.condition(&cluster, "weir", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonEngineUnreachable,
		"nobody can say whether volumes are in use")
	i.patch(&v1alpha1.StorageCluster{}, "weir", `{"metadata": {"annotations": {"`+v1alpha1.AnnotationStopInUse+`": "true"}}}`)
	i.gone(&cluster, "weir")
}

// The engines have long forgotten the mount of a pod on a node that is cut off. What the operator reads for it is within its rights.
func TestAContainerStaysWhileAPodOnANodeThatNobodyHearsHasIt(t *testing.T) {
	t.Parallel()
	i := withPool(t)
	i.apply(object("Container", "box", `{poolRef: {name: tank}, deletionPolicy: Delete}`))
	var box v1alpha1.Container
	i.ready(&box, "box")
	lost, gone := i.machines.node("lost"), i.namespace+"-deleted"
	setReady := func(ready corev1.ConditionStatus) {
		var node corev1.Node
		if err := admin.Get(t.Context(), client.ObjectKey{Name: lost}, &node); err != nil {
			t.Fatal(err)
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		if err := admin.Status().Update(t.Context(), &node); err != nil {
			t.Fatal(err)
		}
	}
	setReady(corev1.ConditionUnknown)
	i.engines.SetHandles("tank", "box", &managementv1.OpenHandle{Handle: 7, Node: gone, Counts: true},
		&managementv1.OpenHandle{Handle: 8, Node: lost, SilentSeconds: 5000})
	pv := i.mount("weir/tank/box", lost)
	i.remove(&v1alpha1.Container{}, "box")
	i.condition(&box, "box", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonOpenHandles,
		"pod "+i.namespace+"/web on node "+lost, "bring the node back", corev1.TaintNodeOutOfService)
	i.event("box", v1alpha1.ReasonOpenHandles, "on node "+lost)
	// The node is back, and its mount still is cut off from the engines.
	setReady(corev1.ConditionTrue)
	i.eventually("the node is back", func() string {
		if err := i.get(&box, "box"); err != nil {
			return err.Error()
		}
		blocked := meta.FindStatusCondition(box.Status.Conditions, v1alpha1.ConditionDeletionBlocked)
		if strings.Contains(blocked.Message, "bring the node back") || !strings.Contains(blocked.Message, "on node "+lost) {
			return blocked.Message
		}
		return ""
	})
	i.remove(&corev1.Pod{}, "web")
	i.gone(&box, "box")
	if err := admin.Delete(t.Context(), pv); err != nil {
		t.Error(err)
	}
}

// mount makes a volume of a container, and a pod on a node that has it.
func (i *installation) mount(handle, node string) *corev1.PersistentVolume {
	i.t.Helper()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: i.namespace}}
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "csi.weir.dev", VolumeHandle: handle}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: i.namespace, Name: "data"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: i.namespace, Name: "web"}}
	pod.Spec.NodeName = node
	pod.Spec.TerminationGracePeriodSeconds = new(int64(0))
	pod.Spec.AutomountServiceAccountToken = new(false)
	pod.Spec.Containers = []corev1.Container{{Name: "web", Image: "web"}}
	claim := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}}}
	for _, object := range []client.Object{pv, pod} {
		if err := admin.Create(i.t.Context(), object); err != nil {
			i.t.Fatal(err)
		}
	}
	pv.Status.Phase = corev1.VolumeBound
	if err := admin.Status().Update(i.t.Context(), pv); err != nil {
		i.t.Fatal(err)
	}
	return pv
}
