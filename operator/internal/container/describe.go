package container

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/policy"
	"weir.dev/weir/operator/internal/status"
)

func (r *Reconciler) report(ctx context.Context, container *v1alpha1.Container, c status.Condition) {
	r.reporter.Report(ctx, container, &container.Status.Conditions, c)
}

func (r *Reconciler) notReady(ctx context.Context, container *v1alpha1.Container, reason, message string) {
	r.report(ctx, container, status.Of(v1alpha1.ConditionReady, false, reason, message))
}

// unreachable reports that no engine answers, or one that is needed does not.
func (r *Reconciler) unreachable(ctx context.Context, container *v1alpha1.Container, pool *v1alpha1.Pool, err error) {
	r.silent(ctx, container, management.Unreachable(pool.Spec.ClusterRef.Name, err))
}

// usedChangePercent is how much of the space that a status shows has to come or go before the status is written: metrics have the
// figures of each moment.
const usedChangePercent = 1

// usedChanged tells whether a container's space differs enough from what its status shows.
func usedChanged(shown *resource.Quantity, bytes int64) bool {
	if shown == nil {
		return true
	}
	before, after := shown.Value(), policy.Quantity(bytes).Value()
	return max(before, after)-min(before, after) > before/100*usedChangePercent
}

// silent reports that engines don't answer, in words that say which.
func (r *Reconciler) silent(ctx context.Context, container *v1alpha1.Container, message string) {
	r.notReady(ctx, container, v1alpha1.ReasonEngineUnreachable, message)
	if container.Status.UUID != "" {
		r.report(ctx, container, status.Of(v1alpha1.ConditionDegraded, true, v1alpha1.ReasonEngineUnreachable, message))
	}
}

// describe writes what the engines say of the container into the status. accepted is false when the spec can't be met,
// which has been, or will be, reported as the reason for not being ready.
func (r *Reconciler) describe(ctx context.Context, container *v1alpha1.Container, pool *v1alpha1.Pool, info *managementv1.ContainerInfo, accepted bool) {
	container.Status.UUID = info.GetUuid()
	if used := int64(info.GetUsedBytes()); usedChanged(container.Status.Used, used) {
		container.Status.Used = policy.Quantity(used)
	}
	container.Status.ObjectClass = info.GetObjectClass()
	container.Status.OpenHandles = int32(info.GetOpenHandles())
	if degraded(pool) {
		message := fmt.Sprintf("part of container %s is unavailable while Pool %s is degraded: see its conditions", info.GetLabel(), pool.Name)
		r.report(ctx, container, status.Of(v1alpha1.ConditionDegraded, true, v1alpha1.ReasonPoolDegraded, message))
		if accepted {
			r.notReady(ctx, container, v1alpha1.ReasonPoolDegraded, message)
		}
		return
	}
	r.report(ctx, container, status.Of(v1alpha1.ConditionDegraded, false, v1alpha1.ReasonAvailable,
		fmt.Sprintf("Pool %s is whole", pool.Name)))
	if accepted {
		r.report(ctx, container, status.Of(v1alpha1.ConditionReady, true, v1alpha1.ReasonAvailable,
			fmt.Sprintf("container %s of pool %s can be opened", info.GetLabel(), pool.EngineLabel())))
	}
}
