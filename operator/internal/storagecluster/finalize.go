package storagecluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/apply"
	"weir.dev/weir/operator/internal/index"
	"weir.dev/weir/operator/internal/manifest"
	"weir.dev/weir/operator/internal/status"
)

// escape is what to do when a node that a deletion waits for never comes back.
const escape = "; if a node is gone for good, set spec.deletionPolicy to Retain to delete the StorageCluster without erasing its data"

// end lets the cluster go: after its pools, with its data erased under deletionPolicy Delete. It returns what that waits for,
// nil for nothing.
func (r *Reconciler) end(ctx context.Context, cluster *v1alpha1.StorageCluster) (*status.Condition, error) {
	blocked, err := r.blockers(ctx, cluster)
	if taken, is := errors.AsType[*apply.TakenError](err); is {
		c := status.Of(v1alpha1.ConditionDeletionBlocked, true, takenReason(taken), fmt.Sprintf(
			"data can't be erased: %s; or set spec.deletionPolicy to Retain to delete the StorageCluster without erasing its data", taken))
		return &c, nil
	}
	if blocked != nil || err != nil {
		return blocked, err
	}
	if err := r.deleteLasting(ctx, cluster); err != nil {
		return nil, err
	}
	r.engines.Forget(client.ObjectKeyFromObject(cluster))
	return nil, nil // nothing blocks
}

// blockers does what can be done towards the deletion and returns what it has to wait for, nil for nothing. It reads past the
// cache: an engine, or a record of its node, that the cache does not show yet would leave data behind.
func (r *Reconciler) blockers(ctx context.Context, cluster *v1alpha1.StorageCluster) (*status.Condition, error) {
	blocked := func(reason, message string) *status.Condition {
		c := status.Of(v1alpha1.ConditionDeletionBlocked, true, reason, message)
		return &c
	}
	pools, err := r.dependents(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if len(pools) > 0 {
		return blocked(v1alpha1.ReasonDependentsExist, fmt.Sprintf("StorageCluster %s is used by %s: delete them first",
			cluster.Name, status.List(pools))), nil
	}
	if inUse, err := r.inUse(ctx, cluster); inUse != nil || err != nil {
		return inUse, err
	}
	if !manifest.OnNode(cluster) {
		unsettled, err := r.settleClaims(ctx, cluster)
		if err != nil || len(unsettled) == 0 {
			return nil, err
		}
		return blocked(v1alpha1.ReasonSettlingClaims, "waiting for Kubernetes' controller of StatefulSets to note whether the claims stay: "+
			status.List(unsettled)), nil
	}
	if cluster.Spec.DeletionPolicy != v1alpha1.DeletionDelete {
		return nil, nil // nothing blocks: owned objects go with the cluster, the directories stay
	}
	pods, err := r.stopEngines(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if len(pods) > 0 {
		return blocked(v1alpha1.ReasonErasingData, "waiting for engines to stop before their data is erased: "+status.List(pods)+escape), nil
	}
	return r.erase(ctx, cluster, blocked)
}

func (r *Reconciler) dependents(ctx context.Context, cluster *v1alpha1.StorageCluster) ([]string, error) {
	var pools v1alpha1.PoolList
	if err := r.live.List(ctx, &pools, client.InNamespace(cluster.Namespace), client.MatchingFields{index.PoolCluster: cluster.Name}); err != nil {
		return nil, fmt.Errorf("list pools of StorageCluster %s/%s: %w", cluster.Namespace, cluster.Name, err)
	}
	var names []string
	for i := range pools.Items {
		names = append(names, fmt.Sprintf("Pool %s/%s", pools.Items[i].Namespace, pools.Items[i].Name))
	}
	return names, nil
}

// settleClaims gives the StatefulSets the deletion policy as it is now, which decides over the claims once the cluster is gone:
// it may have been changed just before the deletion, or since. It returns the StatefulSets whose controller has not noted it.
func (r *Reconciler) settleClaims(ctx context.Context, cluster *v1alpha1.StorageCluster) ([]string, error) {
	sets, err := statefulSets(ctx, r.live, cluster)
	if err != nil {
		return nil, err
	}
	var unsettled []string
	for i := range sets {
		set := &sets[i]
		if !set.DeletionTimestamp.IsZero() {
			continue
		}
		if want := manifest.ClaimRetention(cluster); !equality.Semantic.DeepEqual(set.Spec.PersistentVolumeClaimRetentionPolicy, want) {
			base := set.DeepCopy()
			set.Spec.PersistentVolumeClaimRetentionPolicy = want
			err := r.client.Patch(ctx, set, client.MergeFrom(base), client.FieldOwner(apply.FieldOwner))
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("set what becomes of the claims of StatefulSet %s/%s: %w", set.Namespace, set.Name, err)
			}
		}
		if set.Status.ObservedGeneration < set.Generation {
			unsettled = append(unsettled, "StatefulSet "+set.Name)
		}
	}
	return unsettled, nil
}

// statefulSets are those of a cluster's engines. What carries their labels and isn't the cluster's is left out.
func statefulSets(ctx context.Context, reader client.Reader, cluster *v1alpha1.StorageCluster) ([]appsv1.StatefulSet, error) {
	var sets appsv1.StatefulSetList
	err := reader.List(ctx, &sets, client.InNamespace(cluster.Namespace), client.MatchingLabels(manifest.EngineSelector(cluster.Name)))
	if err != nil {
		return nil, fmt.Errorf("list StatefulSets of StorageCluster %s/%s: %w", cluster.Namespace, cluster.Name, err)
	}
	return slices.DeleteFunc(sets.Items, func(set appsv1.StatefulSet) bool {
		return apply.Taken(&set, &appsv1.StatefulSet{ObjectMeta: manifest.Meta(cluster, set.Name)}) != nil
	}), nil
}

// stopEngines deletes the StatefulSets and returns the pods that are still there.
func (r *Reconciler) stopEngines(ctx context.Context, cluster *v1alpha1.StorageCluster) ([]string, error) {
	sets, err := statefulSets(ctx, r.live, cluster)
	if err != nil {
		return nil, err
	}
	for i := range sets {
		if err := apply.DeleteRead(ctx, r.client, &sets[i], client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			return nil, fmt.Errorf("delete StatefulSet %s/%s: %w", cluster.Namespace, sets[i].Name, err)
		}
	}
	var pods corev1.PodList
	err = r.live.List(ctx, &pods, client.InNamespace(cluster.Namespace), client.MatchingLabels(manifest.EngineSelector(cluster.Name)))
	if err != nil {
		return nil, fmt.Errorf("list pods of StorageCluster %s/%s: %w", cluster.Namespace, cluster.Name, err)
	}
	var names []string
	for i := range pods.Items {
		names = append(names, "Pod "+pods.Items[i].Name)
	}
	return names, nil
}

// erase runs a Job on the node of each rank and waits for all.
func (r *Reconciler) erase(ctx context.Context, cluster *v1alpha1.StorageCluster,
	blocked func(reason, message string) *status.Condition,
) (*status.Condition, error) {
	held, err := recordedPlacement(ctx, r.live, cluster)
	if err != nil {
		return nil, err
	}
	var running, failed []string
	for rank, node := range held {
		at := fmt.Sprintf("%s on node %s", manifest.DataPath(cluster, rank), node)
		end, err := r.eraseRank(ctx, cluster, rank, node)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			// No event can be sent about an object of a namespace that is going.
			log.FromContext(ctx).Info("Nothing can run in a namespace that is going: data is left behind, remove it by hand",
				"path", manifest.DataPath(cluster, rank), "node", node)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("erase data of rank %d of StorageCluster %s/%s: %w", rank, cluster.Namespace, cluster.Name, err)
		}
		switch end {
		case batchv1.JobComplete:
		case batchv1.JobFailed:
			failed = append(failed, at)
		default:
			running = append(running, at)
		}
	}
	switch {
	case len(failed) > 0:
		return blocked(v1alpha1.ReasonErasureFailed, fmt.Sprintf(
			"could not erase %s: see the pods of the Jobs, and delete the Jobs to try again%s", status.List(failed), escape)), nil
	case len(running) > 0:
		return blocked(v1alpha1.ReasonErasingData, "erasing "+status.List(running)+escape), nil
	default:
		return nil, nil // nothing blocks
	}
}

// eraseRank runs the Job that erases the directory of a rank, and returns how that has ended, "" while it has not.
func (r *Reconciler) eraseRank(ctx context.Context, cluster *v1alpha1.StorageCluster, rank int32, node string) (batchv1.JobConditionType, error) {
	job := manifest.EraseJob(r.complete(cluster), rank, node)
	var existing batchv1.Job
	err := r.live.Get(ctx, client.ObjectKeyFromObject(job), &existing)
	switch {
	case apierrors.IsNotFound(err):
		return "", apply.Object(ctx, r.client, r.live, job)
	case err != nil || metav1.IsControlledBy(&existing, cluster):
		return jobEnd(&existing), err
	}
	if taken := apply.Taken(&existing, job); taken != nil && !taken.Leftover {
		return "", taken
	}
	// It erased what an earlier cluster of this name had.
	return "", apply.DeleteRead(ctx, r.client, &existing, client.PropagationPolicy(metav1.DeletePropagationBackground))
}

func jobEnd(job *batchv1.Job) batchv1.JobConditionType {
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return c.Type
		}
	}
	return ""
}

// deleteLasting deletes what nobody owns: the client Secret in the operator's namespace and, under deletionPolicy
// Delete, the keys and the record of nodes.
func (r *Reconciler) deleteLasting(ctx context.Context, cluster *v1alpha1.StorageCluster) error {
	if err := r.delist(ctx, cluster); err != nil {
		return err
	}
	var lasting []client.Object
	if cluster.Namespace != r.config.Namespace {
		lasting = append(lasting, clientClone(cluster, r.config.Namespace))
	}
	if cluster.Spec.DeletionPolicy == v1alpha1.DeletionDelete {
		lasting = append(lasting, systemKeySecret(cluster), engineKeySecret(cluster), placementRecord(cluster, nil))
	}
	for _, obj := range lasting {
		if err := apply.Delete(ctx, r.client, r.live, obj); err != nil {
			return err
		}
	}
	return nil
}
