package storagecluster

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/manifest"
	"weir.dev/weir/operator/internal/policy"
	"weir.dev/weir/operator/internal/status"
)

// describe writes the status of the cluster and tells whether it is at rest: ready, with nothing left to change.
func (r *Reconciler) describe(ctx context.Context, cluster *v1alpha1.StorageCluster, c credentials, where nodes, engines []engine, spare spare) bool {
	facts := r.facts(cluster, c, where)
	before := cluster.Status.Engines
	cluster.Status.Engines = make([]v1alpha1.EngineStatus, 0, len(engines))
	cluster.Status.ReadyEngines = 0
	for _, e := range engines {
		s := engineStatus(e, where, before)
		if s.Ready {
			cluster.Status.ReadyEngines++
		}
		cluster.Status.Engines = append(cluster.Status.Engines, s)
		facts.Engines = append(facts.Engines, policy.ClusterEngine{
			Rank: e.rank, Ready: s.Ready, Started: s.Version != "", Outdated: e.outdated, GivenUp: givenUp(cluster, e.rank), Message: s.Message,
		})
	}
	facts.RolloutHeld = spare.restart
	r.reportSpare(ctx, cluster, spare)
	cluster.Status.Capacity = capacity(engines, cluster.Status.Capacity)
	return r.reportConditions(ctx, cluster, facts)
}

// facts are what is known of a cluster before its engines are looked at.
func (r *Reconciler) facts(cluster *v1alpha1.StorageCluster, c credentials, where nodes) policy.Cluster {
	return policy.Cluster{
		Name:              cluster.Name,
		TargetBytes:       manifest.TargetBytes(cluster),
		ClientSecretOwner: c.clientSecretOwner,
		ClientSecret:      r.config.Namespace + "/" + manifest.ClientName(cluster.Name),
		Shortage:          where.shortage,
		DriveShortage:     driveShortage(cluster, where.drives),
		DriveFailures:     driveFailures(where.drives),
	}
}

func (r *Reconciler) reportConditions(ctx context.Context, cluster *v1alpha1.StorageCluster, facts policy.Cluster) bool {
	report := func(c status.Condition) { r.reporter.Report(ctx, cluster, &cluster.Status.Conditions, c) }

	reason, message, notReady := policy.ClusterReady.Evaluate(facts)
	if !notReady {
		reason, message = v1alpha1.ReasonAllEnginesReady, fmt.Sprintf("%d engines are up", len(facts.Engines))
	}
	report(status.Of(v1alpha1.ConditionReady, !notReady, reason, message))

	reason, message, moving := policy.ClusterSettled.Evaluate(facts)
	if !moving {
		reason, message = v1alpha1.ReasonSettled, "every engine runs what the spec asks for"
	}
	report(status.Of(v1alpha1.ConditionProgressing, moving, reason, message))

	reason, message, ill := policy.ClusterHealthy.Evaluate(facts)
	if !ill {
		reason, message = v1alpha1.ReasonSettled, "every engine that was up is up"
	}
	report(status.Of(v1alpha1.ConditionDegraded, ill, reason, message))

	report(status.Condition{
		Type: v1alpha1.ConditionDeletionBlocked, Status: metav1.ConditionFalse,
		Reason: v1alpha1.ReasonNotDeleting, Message: "the StorageCluster is not being deleted",
	})
	return !notReady && !moving && !ill
}

// reportSpare says whether a node may be drained, of a cluster whose pools have copies.
func (r *Reconciler) reportSpare(ctx context.Context, cluster *v1alpha1.StorageCluster, spare spare) {
	c := status.Of(v1alpha1.ConditionDrainable, true, v1alpha1.ReasonNothingMissing, "one engine may be taken away: kubectl drain goes on")
	switch {
	case !spare.redundant:
		meta.RemoveStatusCondition(&cluster.Status.Conditions, v1alpha1.ConditionDrainable)
		return
	case spare.drain != "":
		c = status.Of(v1alpha1.ConditionDrainable, false, v1alpha1.ReasonNoneToSpare, "kubectl drain waits until engines may be taken away: "+spare.drain)
	}
	r.reporter.Report(ctx, cluster, &cluster.Status.Conditions, c)
}

// engineStatus is what the status says of one engine. The version stays while the engine is away: it tells that the
// engine was up before.
func engineStatus(e engine, where nodes, before []v1alpha1.EngineStatus) v1alpha1.EngineStatus {
	s := v1alpha1.EngineStatus{Rank: e.rank, Node: where.assigned[e.rank], Ready: e.up(), Message: e.problem(where)}
	for _, b := range before {
		if b.Rank == e.rank {
			s.Version = b.Version
		}
	}
	if e.pod != nil {
		s.Pod = e.pod.Name
		if !where.pinned {
			s.Node = e.pod.Spec.NodeName
		}
	}
	if version := e.state.GetVersion(); s.Ready && version != "" {
		s.Version = version
	}
	return s
}

// capacity sums what the engines report; when none answers, what was known stays.
func capacity(engines []engine, before *v1alpha1.Capacity) *v1alpha1.Capacity {
	var total, free int64
	answered := false
	for _, e := range engines {
		if e.state == nil {
			continue
		}
		answered = true
		total += int64(e.state.GetCapacityBytes())
		free += int64(e.state.GetFreeBytes())
	}
	if !answered {
		return before
	}
	return &v1alpha1.Capacity{
		Total: policy.Quantity(total),
		Used:  policy.Quantity(max(0, total-free)),
		Free:  policy.Quantity(free),
	}
}
