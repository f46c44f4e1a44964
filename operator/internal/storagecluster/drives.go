package storagecluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/apply"
	"weir.dev/weir/operator/internal/assignment"
	"weir.dev/weir/operator/internal/manifest"
	"weir.dev/weir/operator/internal/status"
)

// wanted is what a cluster with devices asks for, as far as its engines have nodes.
func wanted(cluster *v1alpha1.StorageCluster, nodes map[int32]string) (assignment.Want, error) {
	selector := labels.Everything()
	if s := cluster.Spec.Storage.Devices.Selector; s != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(s); err != nil {
			return assignment.Want{}, fmt.Errorf("spec.storage.devices.selector of StorageCluster %s/%s: %w", cluster.Namespace, cluster.Name, err)
		}
	}
	return assignment.Want{
		Namespace: cluster.Namespace, Cluster: cluster.Name, Count: cluster.Spec.Storage.Devices.Count,
		MinBytes: manifest.TargetBytes(cluster), Selector: selector, Nodes: nodes,
	}, nil
}

// devices lists all drives.
func devices(ctx context.Context, reader client.Reader) ([]v1alpha1.NodeDevice, error) {
	var list v1alpha1.NodeDeviceList
	if err := reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list NodeDevices: %w", err)
	}
	return list.Items, nil
}

// lacksDrives says of a node what it lacks for an engine of a cluster with devices; nil for another cluster. Ranks that have a node
// are not asked for: their drives may be in use already.
func (r *Reconciler) lacksDrives(ctx context.Context, cluster *v1alpha1.StorageCluster) (func(node string) string, error) {
	if cluster.Spec.Storage.Devices == nil {
		return nil, nil
	}
	want, err := wanted(cluster, nil)
	if err != nil {
		return nil, err
	}
	list, err := devices(ctx, r.client)
	if err != nil {
		return nil, err
	}
	return func(node string) string { return want.Shortage(node, list) }, nil
}

// ensureDrives gives each target of the engines that have a node a drive of that node, and takes away drives that have failed when
// others are there. What a NodeDevice says is the record: the API server lets nobody assign one that another has changed since.
func (r *Reconciler) ensureDrives(ctx context.Context, cluster *v1alpha1.StorageCluster, nodes map[int32]string) (assignment.Decision, error) {
	want, err := wanted(cluster, nodes)
	if err != nil {
		return assignment.Decision{}, err
	}
	list, err := devices(ctx, r.client)
	if err != nil {
		return assignment.Decision{}, err
	}
	decision := assignment.Decide(want, list, r.clock.Now())
	for _, removal := range decision.Remove {
		at := removal.Device.Spec.Assignment
		if err := r.assign(ctx, removal.Device, nil); err != nil {
			return assignment.Decision{}, err
		}
		r.reporter.Event(cluster, corev1.EventTypeWarning, v1alpha1.ReasonDriveReplaced, "Assign", fmt.Sprintf(
			"drive %s of rank %d target %d is replaced by another: %s. What it holds is left on it; to have the target begin anew: weir system clear-device %d %d, then restart the engine",
			removal.Device.Name, at.Rank, at.Target, removal.Why, at.Rank, at.Target))
	}
	for _, gift := range decision.Give {
		if err := r.assign(ctx, gift.Device, &gift.To); err != nil {
			return assignment.Decision{}, err
		}
		r.reporter.Event(cluster, corev1.EventTypeNormal, v1alpha1.ReasonDriveAssigned, "Assign", fmt.Sprintf(
			"drive %s of node %s is for rank %d target %d", gift.Device.Name, gift.Device.Status.Node, gift.To.Rank, gift.To.Target))
	}
	return decision, nil
}

// ensureClaims makes the templates of the claims by which engines get their drives, where they get them so.
func (r *Reconciler) ensureClaims(ctx context.Context, cluster *v1alpha1.StorageCluster) error {
	if devices := cluster.Spec.Storage.Devices; devices == nil || devices.DeviceClass == "" {
		return nil
	}
	for rank := range cluster.Spec.Engines.Replicas {
		if err := apply.Object(ctx, r.client, r.live, manifest.DrivesTemplate(cluster, rank)); err != nil {
			return err
		}
	}
	return nil
}

// assign writes whose a drive is, unless somebody has changed its NodeDevice since it was read.
func (r *Reconciler) assign(ctx context.Context, device *v1alpha1.NodeDevice, to *v1alpha1.DeviceAssignment) error {
	changed := device.DeepCopy()
	changed.Spec.Assignment = to
	patch := client.MergeFromWithOptions(device, client.MergeFromWithOptimisticLock{})
	if err := r.client.Patch(ctx, changed, patch, client.FieldOwner(apply.FieldOwner)); err != nil {
		return fmt.Errorf("assign NodeDevice %s: %w", device.Name, err)
	}
	return nil
}

// drivesOf are the names of a rank's drives by target: an engine is restarted when they are others.
func drivesOf(cluster *v1alpha1.StorageCluster, decision assignment.Decision, rank int32) string {
	if cluster.Spec.Storage.Devices == nil {
		return ""
	}
	names := make([]string, cluster.Spec.Storage.Devices.Count)
	for target := range names {
		if device := decision.Have[assignment.Slot{Rank: rank, Target: int32(target)}]; device != nil {
			names[target] = device.Name
		}
	}
	return strings.Join(names, ",")
}

// driveShortage says which ranks have too few drives; empty when all have enough.
func driveShortage(cluster *v1alpha1.StorageCluster, decision assignment.Decision) string {
	var lacks []string
	for rank := range cluster.Spec.Engines.Replicas {
		if why := decision.Missing[rank]; why != "" {
			lacks = append(lacks, fmt.Sprintf("rank %d: %s", rank, why))
		}
	}
	return strings.Join(lacks, "; ")
}

// driveFailures says which drives have failed and were not replaced; empty when none.
func driveFailures(decision assignment.Decision) string { return status.List(decision.Failed) }

// lookAgain is when the cluster has to be looked at again because of its drives, at the latest after so long.
func lookAgain(after time.Duration, decision assignment.Decision) time.Duration {
	if decision.Recheck > 0 {
		return min(after, decision.Recheck)
	}
	return after
}

// driveChanged passes what assignment looks at.
type driveChanged struct{ predicate.Funcs }

// Update implements predicate.Predicate.
func (driveChanged) Update(e event.UpdateEvent) bool {
	before, okBefore := e.ObjectOld.(*v1alpha1.NodeDevice)
	after, okAfter := e.ObjectNew.(*v1alpha1.NodeDevice)
	if !okBefore || !okAfter {
		return false
	}
	return before.Generation != after.Generation || before.Status.Node != after.Status.Node ||
		!equality.Semantic.DeepEqual(before.Status.Conditions, after.Status.Conditions) ||
		!equality.Semantic.DeepEqual(before.Labels, after.Labels)
}

var _ predicate.TypedPredicate[client.Object] = driveChanged{}
