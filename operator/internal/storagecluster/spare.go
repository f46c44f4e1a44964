package storagecluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/index"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/policy"
)

// resyncNotice is how long after an engine has become ready its pools may not know yet that it lacks something: it tells their services within
// seconds of its start.
const resyncNotice = 10 * time.Second

// servesAlone is the least number of replicas of a pool's service that goes on without one of them.
const servesAlone = 3

// spare says whether a cluster can spare an engine at this moment.
type spare struct {
	// redundant is true when pools of the cluster have copies.
	redundant bool
	// restart says why no engine may be restarted now, because another one holds the only copy of something, or nobody can
	// tell; empty when one may.
	restart string
	// drain says why no node may be drained now: as restart, or an engine is away, or a pool's service could not do without another one.
	drain string
}

// budget is how many engines a voluntary disruption may take.
func (s *spare) budget() int32 {
	if s.drain != "" {
		return 0
	}
	return 1
}

// spare finds out whether the cluster can spare an engine. Without pools that have copies it can as little as ever: one at a time.
func (r *Reconciler) spare(ctx context.Context, cluster *v1alpha1.StorageCluster, engines []engine) (spare, error) {
	redundant, err := r.hasRedundantPool(ctx, cluster)
	if err != nil || !redundant {
		return spare{}, err
	}
	s := spare{redundant: true}
	if !slices.ContainsFunc(engines, func(e engine) bool { return e.state != nil }) {
		s.drain = "no engine answers, so that nobody knows what may be missing"
		return s, nil // a rollout may be what mends it
	}
	for _, e := range engines {
		if hasBeenUp(cluster, e.rank) && !e.up() && !givenUp(cluster, e.rank) {
			s.drain = fmt.Sprintf("rank %d is not up", e.rank)
			return s, nil // for which a rollout waits, too
		}
		if age := r.clock.Since(readySince(e.pod)); e.up() && age < resyncNotice {
			s.restart = fmt.Sprintf("rank %d has just started", e.rank)
			s.drain = s.restart
			return s, nil
		}
	}
	pools, err := r.listPools(ctx, cluster)
	if ctx.Err() != nil {
		return spare{}, fmt.Errorf("interrupted: %w", ctx.Err())
	}
	if err != nil {
		s.restart = "the engines don't say how the pools are: " + management.Message(err)
		s.drain = s.restart
		return s, nil
	}
	s.restart, s.drain = inTheWay(pools)
	return s, nil
}

// inTheWay says why no engine may be restarted, and why none may be taken away for longer, as the pools are.
func inTheWay(pools []*managementv1.PoolInfo) (restart, drain string) {
	for _, pool := range pools {
		health := pool.GetHealth()
		switch class, _ := policy.ParseClass(pool.GetObjectClass()); {
		case health == nil && class.Survives > 0:
			restart = fmt.Sprintf("the service of pool %s doesn't answer", pool.GetLabel())
		case health == nil:
			continue // it has no copies that could be missing
		case health.GetCondition() == managementv1.PoolCondition_POOL_CONDITION_REBUILDING:
			restart = fmt.Sprintf("copies of pool %s are being made", pool.GetLabel())
		case health.GetCondition() != managementv1.PoolCondition_POOL_CONDITION_HEALTHY:
			restart = fmt.Sprintf("copies of pool %s are missing", pool.GetLabel())
		case health.GetFailuresSurvived() == 0 && len(pool.GetServiceRanks()) >= servesAlone:
			drain = fmt.Sprintf("the service of pool %s can't do without another engine", pool.GetLabel())
			continue
		default:
			continue
		}
		return restart, restart
	}
	return "", drain
}

func (r *Reconciler) hasRedundantPool(ctx context.Context, cluster *v1alpha1.StorageCluster) (bool, error) {
	var pools v1alpha1.PoolList
	err := r.client.List(ctx, &pools, client.InNamespace(cluster.Namespace), client.MatchingFields{index.PoolCluster: cluster.Name},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, fmt.Errorf("list Pools of StorageCluster %s/%s: %w", cluster.Namespace, cluster.Name, err)
	}
	return slices.ContainsFunc(pools.Items, func(pool v1alpha1.Pool) bool {
		return pool.Spec.RedundancyFactor > 0 && pool.Status.UUID != ""
	}), nil
}

func (r *Reconciler) listPools(ctx context.Context, cluster *v1alpha1.StorageCluster) ([]*managementv1.PoolInfo, error) {
	connected, err := r.engines.Connect(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return nil, err
	}
	answer, err := connected.Pools.List(ctx, &managementv1.PoolListRequest{})
	return answer.GetPools(), err
}

// readySince is when a pod became ready; the zero time for one that is not.
func readySince(pod *corev1.Pod) time.Time {
	if pod == nil {
		return time.Time{}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// poolHealthChanged passes the changes of a Pool by which its cluster may spare an engine, or no more.
type poolHealthChanged struct{ predicate.Funcs }

// Update implements predicate.Predicate.
func (poolHealthChanged) Update(e event.UpdateEvent) bool {
	before, okBefore := e.ObjectOld.(*v1alpha1.Pool)
	after, okAfter := e.ObjectNew.(*v1alpha1.Pool)
	if !okBefore || !okAfter {
		return false
	}
	risk := func(pool *v1alpha1.Pool) metav1.ConditionStatus {
		if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionAtRisk); c != nil {
			return c.Status
		}
		return metav1.ConditionUnknown
	}
	return before.Status.Health != after.Status.Health || before.Status.UUID != after.Status.UUID || risk(before) != risk(after)
}
