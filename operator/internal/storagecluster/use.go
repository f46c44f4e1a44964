package storagecluster

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/manifest"
	"weir.dev/weir/operator/internal/status"
	"weir.dev/weir/operator/internal/usage"
)

// stopAnyway is what to do when a deletion is not to wait for who uses the cluster.
const stopAnyway = "; to stop the engines all the same, annotate the StorageCluster with " + v1alpha1.AnnotationStopInUse + "=true"

// inUse says who would lose the engines under a mounted volume, were they stopped now; nil for nobody. Pools that were retained
// have no object any more, so the engines are asked. Those of which none serves are not missed.
func (r *Reconciler) inUse(ctx context.Context, cluster *v1alpha1.StorageCluster) (*status.Condition, error) {
	if cluster.Annotations[v1alpha1.AnnotationStopInUse] == "true" {
		return nil, nil // nothing blocks, by the user's word
	}
	serving, err := r.serving(ctx, cluster)
	if err != nil || !serving {
		return nil, err
	}
	users, err := r.users(ctx, cluster)
	blocked := func(reason, message string) (*status.Condition, error) {
		c := status.Of(v1alpha1.ConditionDeletionBlocked, true, reason, message)
		return &c, nil
	}
	switch {
	case err == nil && len(users.Holders) == 0:
		return nil, nil // nothing blocks
	case err == nil:
		return blocked(v1alpha1.ReasonOpenHandles, users.Message("StorageCluster "+cluster.Name, "stop the pods that mount its volumes"+stopAnyway))
	case ctx.Err() != nil:
		return nil, fmt.Errorf("interrupted: %w", ctx.Err())
	case management.IsUnreachable(err):
		return blocked(v1alpha1.ReasonEngineUnreachable, "nobody can say whether volumes are in use: "+management.Unreachable(cluster.Name, err)+stopAnyway)
	case management.IsRejected(err):
		return blocked(v1alpha1.ReasonRejected, "the engines refuse to say whether volumes are in use: "+management.Message(err)+stopAnyway)
	default:
		return nil, fmt.Errorf("find out who uses StorageCluster %s/%s: %w", cluster.Namespace, cluster.Name, err)
	}
}

// serving tells whether engines run that nobody has stopped yet.
func (r *Reconciler) serving(ctx context.Context, cluster *v1alpha1.StorageCluster) (bool, error) {
	sets, err := statefulSets(ctx, r.live, cluster)
	if err != nil || !slices.ContainsFunc(sets, func(set appsv1.StatefulSet) bool { return set.DeletionTimestamp.IsZero() }) {
		return false, err
	}
	var pods corev1.PodList
	err = r.live.List(ctx, &pods, client.InNamespace(cluster.Namespace), client.MatchingLabels(manifest.EngineSelector(cluster.Name)))
	if err != nil {
		return false, fmt.Errorf("list pods of StorageCluster %s/%s: %w", cluster.Namespace, cluster.Name, err)
	}
	return slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return podReady(&pod) }), nil
}

// users names the containers of all pools that are in use.
func (r *Reconciler) users(ctx context.Context, cluster *v1alpha1.StorageCluster) (*usage.Users, error) {
	engines, err := r.engines.Connect(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return nil, err
	}
	listed, err := engines.Pools.List(ctx, &managementv1.PoolListRequest{})
	if err != nil {
		return nil, err
	}
	var pools []string
	for _, pool := range listed.GetPools() {
		pools = append(pools, pool.GetUuid())
	}
	return usage.New(r.live, cluster.Name).Pools(ctx, engines, pools...)
}
