package container

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/status"
	"weir.dev/weir/operator/internal/usage"
)

// blockedLook is how often to look at what nobody watches: pods whose mounts engines don't hear, and engines that refuse. The poll of the
// pool tells of handles that are closed, and watches tell of nodes that go or come back.
const blockedLook = 30 * time.Second

// blockedInterval is how often to look at what blocks a deletion.
func blockedInterval(reason string) time.Duration {
	if reason == v1alpha1.ReasonPoolNotReady {
		return 0 // the Pool is watched
	}
	return blockedLook
}

// blocker lets the container go; under deletionPolicy Delete, after the engines destroyed it. It returns what stands in the
// way, nil for nothing.
func (r *Reconciler) blocker(ctx context.Context, container *v1alpha1.Container) (*status.Condition, error) {
	if container.Spec.DeletionPolicy != v1alpha1.DeletionDelete {
		return nil, nil // nothing blocks: the engines keep the container
	}
	blocked := func(reason, message string) (*status.Condition, error) {
		c := status.Of(v1alpha1.ConditionDeletionBlocked, true, reason, message)
		return &c, nil
	}
	var pool v1alpha1.Pool
	err := r.live.Get(ctx, poolKey(container), &pool)
	if container.Status.UUID == "" && (apierrors.IsNotFound(err) || (err == nil && pool.Status.UUID == "")) {
		return nil, nil // nothing blocks: a container is made in a pool that is known to be there
	}
	if apierrors.IsNotFound(err) {
		r.reporter.Event(container, corev1.EventTypeWarning, "NotDestroyed", "Destroy", fmt.Sprintf(
			"container %s was not destroyed: Pool %s is gone", container.EngineLabel(), container.Spec.PoolRef.Name))
		return nil, nil // nobody is left to ask
	}
	if err != nil {
		return nil, fmt.Errorf("read Pool %s: %w", poolKey(container), err)
	}
	switch {
	case pool.Status.UUID == "" && !pool.DeletionTimestamp.IsZero():
		r.reporter.Event(container, corev1.EventTypeWarning, "NotDestroyed", "Destroy", fmt.Sprintf(
			"container %s was not destroyed: Pool %s is being deleted and was never ready", container.EngineLabel(), pool.Name))
		return nil, nil // the Pool waits for this Container, and will never be ready
	case pool.Status.UUID == "":
		return blocked(v1alpha1.ReasonPoolNotReady, fmt.Sprintf(
			"container %s can't be destroyed before Pool %s is ready, see its conditions: wait, or set spec.deletionPolicy to Retain to delete the object only",
			container.EngineLabel(), pool.Name))
	}
	users, missing, err := r.destroy(ctx, container, &pool)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("interrupted: %w", ctx.Err())
	case err == nil && len(users.Holders) > 0:
		return blocked(v1alpha1.ReasonOpenHandles, users.Message("container "+container.EngineLabel(),
			"stop the pods that mount it, or set spec.deletionPolicy to Retain"))
	case err == nil && missing && container.Status.UUID == "":
		return nil, nil // nothing blocks: the engines never had the container
	case err == nil && missing:
		r.reporter.Event(container, corev1.EventTypeNormal, "AlreadyGone", "Destroy", fmt.Sprintf(
			"container %s (%s) was not in pool %s any more: there was nothing to destroy",
			container.EngineLabel(), container.Status.UUID, pool.EngineLabel()))
		return nil, nil // nothing blocks
	case err == nil:
		r.reporter.Event(container, corev1.EventTypeNormal, "Destroyed", "Destroy", fmt.Sprintf(
			"container %s is destroyed; its space comes back in the background", container.EngineLabel()))
		return nil, nil // nothing blocks
	case management.IsPrecondition(err):
		return blocked(v1alpha1.ReasonOpenHandles, fmt.Sprintf(
			"container %s is in use (%s): stop the pods that mount it, or set spec.deletionPolicy to Retain", container.EngineLabel(), management.Message(err)))
	case management.IsUnreachable(err):
		abandoned, lookErr := management.Abandoned(ctx, r.live, clusterKey(&pool))
		if lookErr != nil {
			return nil, lookErr
		}
		if abandoned != "" {
			r.reporter.Event(container, corev1.EventTypeWarning, "NotDestroyed", "Destroy", fmt.Sprintf("container %s could not be destroyed: %s", container.EngineLabel(), abandoned))
			return nil, nil // nobody is left to ask
		}
		return blocked(v1alpha1.ReasonEngineUnreachable, fmt.Sprintf(
			"container %s can't be destroyed: %s. Bring the engines back, or set spec.deletionPolicy to Retain to delete the object only",
			container.EngineLabel(), management.Unreachable(pool.Spec.ClusterRef.Name, err)))
	case management.IsRejected(err):
		return blocked(v1alpha1.ReasonRejected, fmt.Sprintf(
			"the engines refuse to destroy container %s: %s. Mend that, or set spec.deletionPolicy to Retain to delete the object only",
			container.EngineLabel(), management.Message(err)))
	default:
		return nil, fmt.Errorf("destroy container %s of Pool %s: %w", container.EngineLabel(), poolKey(container), err)
	}
}

// destroy has the engines destroy the container unless somebody uses it, whom it returns; missing is true if they don't have it.
func (r *Reconciler) destroy(ctx context.Context, container *v1alpha1.Container, pool *v1alpha1.Pool) (users *usage.Users, missing bool, err error) {
	engines, err := r.engines.Connect(ctx, clusterKey(pool))
	if err != nil {
		return nil, false, err
	}
	// By UUID: another container may have taken the label.
	users, err = usage.New(r.live, pool.Spec.ClusterRef.Name).Container(ctx, engines, pool.Status.UUID, container.EngineUUID())
	if err != nil || len(users.Holders) > 0 {
		return users, false, err
	}
	// Without force: who has opened it since writes.
	answer, err := engines.Containers.Destroy(ctx, &managementv1.ContainerDestroyRequest{
		Pool: pool.Status.UUID, Container: container.EngineUUID(), GoneHandles: users.Gone,
	})
	if management.IsNotFound(err) {
		return users, true, nil
	}
	return users, answer.GetMissing(), err
}
