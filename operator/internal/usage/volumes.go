package usage

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/csi/handles"
	"weir.dev/weir/csi/volume"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=list

// boundVolume is a container that a claim has as its volume.
type boundVolume struct {
	id volume.ID
	// pods run somewhere and have the claim.
	pods []*corev1.Pod
}

// volumes are found by their containers' names, which are UUIDs or labels.
type volumes map[string][]boundVolume

// podsOf are the pods that have a container as a volume.
func (v volumes) podsOf(container *managementv1.ContainerInfo) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, name := range handles.Distinct([]string{plain(container.GetUuid()), plain(container.GetLabel())}) {
		for _, bound := range v[name] {
			if isOf(bound.id, container) {
				pods = append(pods, bound.pods...)
			}
		}
	}
	return pods
}

// isOf tells whether a volume's handle leads to a container.
func isOf(id volume.ID, container *managementv1.ContainerInfo) bool {
	return isIn(id, container) && (plain(id.Container) == plain(container.GetUuid()) || id.Container == container.GetLabel())
}

// isIn tells whether a volume's handle leads to the pool of a container.
func isIn(id volume.ID, container *managementv1.ContainerInfo) bool {
	return plain(id.Pool) == plain(container.GetPoolUuid()) || id.Pool == container.GetPoolLabel()
}

// plain is a UUID in one of the ways in which it may be written.
func plain(uuid string) string { return strings.ToLower(strings.ReplaceAll(uuid, "-", "")) }

// volumes finds those of the system that concern the caller, with the pods that have them. No VolumeAttachment tells: nothing is
// attached before it is mounted.
func (o *Observer) volumes(ctx context.Context, concerns func(volume.ID) bool) (volumes, error) {
	if o.persistent == nil {
		o.persistent = &corev1.PersistentVolumeList{}
		if err := o.live.List(ctx, o.persistent); err != nil {
			return nil, fmt.Errorf("list PersistentVolumes of cluster %s: %w", o.system, err)
		}
	}
	found := volumes{}
	for i := range o.persistent.Items {
		id, claim := claimed(&o.persistent.Items[i])
		if claim == nil || id.System != o.system || !concerns(id) {
			continue
		}
		pods, read := o.pods[claim.Namespace]
		if !read {
			var err error
			if pods, err = o.podsByClaim(ctx, claim.Namespace); err != nil {
				return nil, err
			}
			o.pods[claim.Namespace] = pods
		}
		name := plain(id.Container)
		found[name] = append(found[name], boundVolume{id: id, pods: pods[claim.Name]})
	}
	return found, nil
}

// claimed is the container of a PersistentVolume and the claim that has it; nil when it is no volume of ours, or no claim has it.
func claimed(pv *corev1.PersistentVolume) (volume.ID, *types.NamespacedName) {
	source, claim := pv.Spec.CSI, pv.Spec.ClaimRef
	if source == nil || source.Driver != volume.DriverName || claim == nil || pv.Status.Phase != corev1.VolumeBound {
		return volume.ID{}, nil
	}
	id, err := volume.ParseID(source.VolumeHandle)
	if err != nil {
		return volume.ID{}, nil // no pod can mount it
	}
	return id, &types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
}

// podsByClaim are the pods of a namespace that run somewhere, by the claims that they have. There are none to see in a namespace that
// the operator doesn't serve: handles have to tell of those.
func (o *Observer) podsByClaim(ctx context.Context, namespace string) (map[string][]*corev1.Pod, error) {
	var list corev1.PodList
	err := o.live.List(ctx, &list, client.InNamespace(namespace))
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pods of namespace %s, which may use volumes of cluster %s: %w", namespace, o.system, err)
	}
	pods := map[string][]*corev1.Pod{}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		for j := range pod.Spec.Volumes {
			if claim := claimOf(pod, &pod.Spec.Volumes[j]); claim != "" {
				pods[claim] = append(pods[claim], pod)
			}
		}
	}
	return pods, nil
}

// claimOf names the claim of a pod's volume; "" for a volume of another kind.
func claimOf(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name // as Kubernetes names it
	default:
		return ""
	}
}
