package pool

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/index"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/status"
	"weir.dev/weir/operator/internal/usage"
)

// blockedLook is how often to look at what nobody can watch: containers without a Container object, and engines that refuse.
const blockedLook = 15 * time.Second

// blockedInterval is how often to look at what blocks a deletion.
func blockedInterval(reason string) time.Duration {
	if reason == v1alpha1.ReasonDependentsExist {
		return 0 // Containers are watched
	}
	return blockedLook
}

// blocker lets the pool go after its containers and, under deletionPolicy Delete, after the engines destroyed it. It returns
// what stands in the way, nil for nothing.
func (r *Reconciler) blocker(ctx context.Context, pool *v1alpha1.Pool) (*status.Condition, error) {
	blocked := func(reason, message string) (*status.Condition, error) {
		c := status.Of(v1alpha1.ConditionDeletionBlocked, true, reason, message)
		return &c, nil
	}
	objects, err := r.dependents(ctx, pool)
	if err != nil {
		return nil, err
	}
	if len(objects) > 0 {
		return blocked(v1alpha1.ReasonDependentsExist, fmt.Sprintf("Pool %s is used by %s: delete them first", pool.Name, status.List(objects)))
	}
	if pool.Spec.DeletionPolicy != v1alpha1.DeletionDelete {
		users, err := r.users(ctx, pool)
		if err != nil || len(users.Holders) == 0 {
			return nil, err // nothing blocks: the engines keep the pool
		}
		return blocked(v1alpha1.ReasonOpenHandles, users.Message("pool "+pool.EngineLabel(), "stop the pods that mount its volumes"))
	}
	missing, err := r.destroy(ctx, pool)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("interrupted: %w", ctx.Err())
	case err == nil && missing && pool.Status.UUID == "":
		return nil, nil // nothing blocks: the engines never had the pool
	case err == nil && missing:
		r.reporter.Event(pool, corev1.EventTypeNormal, "AlreadyGone", "Destroy", fmt.Sprintf(
			"pool %s (%s) was not in the engines any more: there was nothing to destroy", pool.EngineLabel(), pool.Status.UUID))
		return nil, nil // nothing blocks
	case err == nil:
		r.reporter.Event(pool, corev1.EventTypeNormal, "Destroyed", "Destroy", fmt.Sprintf("pool %s and its data are destroyed", pool.EngineLabel()))
		return nil, nil // nothing blocks
	case management.IsPrecondition(err):
		return blocked(v1alpha1.ReasonContainersExist, fmt.Sprintf(
			"pool %s still holds %s: delete the claims; make Containers with deletionPolicy Delete of those that were retained, and delete them; or set spec.deletionPolicy of the Pool to Retain",
			pool.EngineLabel(), r.held(ctx, pool, err)))
	case management.IsUnreachable(err):
		abandoned, lookErr := management.Abandoned(ctx, r.live, clusterKey(pool))
		if lookErr != nil {
			return nil, lookErr
		}
		if abandoned != "" {
			r.reporter.Event(pool, corev1.EventTypeWarning, "NotDestroyed", "Destroy", fmt.Sprintf("pool %s could not be destroyed: %s", pool.EngineLabel(), abandoned))
			return nil, nil // nobody is left to ask
		}
		return blocked(v1alpha1.ReasonEngineUnreachable, fmt.Sprintf(
			"pool %s can't be destroyed: %s. Bring the engines back, or set spec.deletionPolicy to Retain to delete the object only",
			pool.EngineLabel(), management.Unreachable(pool.Spec.ClusterRef.Name, err)))
	case management.IsRejected(err):
		return blocked(v1alpha1.ReasonRejected, fmt.Sprintf(
			"the engines refuse to destroy pool %s: %s. Mend that, or set spec.deletionPolicy to Retain to delete the object only",
			pool.EngineLabel(), management.Message(err)))
	default:
		return nil, fmt.Errorf("destroy pool %s of StorageCluster %s: %w", pool.EngineLabel(), clusterKey(pool), err)
	}
}

// users names the containers of the pool that are in use. Where no engine can be asked there are none: the object alone goes, and no
// engine is stopped by that.
func (r *Reconciler) users(ctx context.Context, pool *v1alpha1.Pool) (*usage.Users, error) {
	engines, err := r.engines.Connect(ctx, clusterKey(pool))
	users := &usage.Users{}
	if err == nil {
		users, err = usage.New(r.live, pool.Spec.ClusterRef.Name).Pools(ctx, engines, pool.EngineUUID())
	}
	switch {
	case err == nil:
		return users, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("interrupted: %w", ctx.Err())
	case management.IsUnreachable(err), management.IsRejected(err):
		return &usage.Users{}, nil
	default:
		return nil, fmt.Errorf("find out who uses pool %s of StorageCluster %s: %w", pool.EngineLabel(), clusterKey(pool), err)
	}
}

// held names the containers of a pool, with their claims; if they can't be listed, what the engines said has to do.
func (r *Reconciler) held(ctx context.Context, pool *v1alpha1.Pool, refusal error) string {
	engines, err := r.engines.Connect(ctx, clusterKey(pool))
	if err != nil {
		return inWordsOf(refusal)
	}
	answer, err := engines.Containers.List(ctx, &managementv1.ContainerListRequest{Pool: pool.EngineUUID()})
	if err != nil || len(answer.GetContainers()) == 0 {
		return inWordsOf(refusal)
	}
	var names []string
	for i, c := range answer.GetContainers() {
		name := "container " + c.GetLabel()
		if i < status.MaxListed {
			// That it can't be told whose it is leaves its name.
			answer, _ := engines.Containers.Query(ctx, &managementv1.ContainerQueryRequest{Pool: pool.EngineUUID(), Container: c.GetUuid()})
			name += management.OfClaim(answer.GetContainer())
		}
		names = append(names, name)
	}
	return status.List(names)
}

func inWordsOf(refusal error) string { return "containers (" + management.Message(refusal) + ")" }

// destroy has the engines destroy the pool; missing is true if they don't have it.
func (r *Reconciler) destroy(ctx context.Context, pool *v1alpha1.Pool) (missing bool, err error) {
	engines, err := r.engines.Connect(ctx, clusterKey(pool))
	if err != nil {
		return false, err
	}
	// By UUID: another pool may have taken the label. Without force: containers that no object stands for, such as
	// those of volumes, keep the pool.
	answer, err := engines.Pools.Destroy(ctx, &managementv1.PoolDestroyRequest{Pool: pool.EngineUUID()})
	if management.IsNotFound(err) {
		return true, nil
	}
	return answer.GetMissing(), err
}

func (r *Reconciler) dependents(ctx context.Context, pool *v1alpha1.Pool) ([]string, error) {
	var containers v1alpha1.ContainerList
	if err := r.live.List(ctx, &containers, client.InNamespace(pool.Namespace), client.MatchingFields{index.ContainerPool: pool.Name}); err != nil {
		return nil, fmt.Errorf("list containers of Pool %s/%s: %w", pool.Namespace, pool.Name, err)
	}
	var names []string
	for i := range containers.Items {
		names = append(names, fmt.Sprintf("Container %s/%s", containers.Items[i].Namespace, containers.Items[i].Name))
	}
	return names, nil
}
