package storagecluster

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/apply"
	"weir.dev/weir/operator/internal/manifest"
)

// rolloutEngine is what a rollout looks at.
type rolloutEngine struct {
	rank     int32
	runnable bool
	exists   bool
	// fresh is true when the engine has never been up: nobody misses it yet.
	fresh bool
	// current is true when the StatefulSet has the template that the spec asks for.
	current bool
	// rekeyed is true when the running engine can't talk to those that the spec asks for: they seal by another key.
	rekeyed bool
	// serving is true while the pod is ready, which the kubelet judges: clients may be using the engine even if the
	// operator can't reach it.
	serving bool
	// settled is true when the running pod has the StatefulSet's template and the engine is up. If nobody answers the
	// operator, being ready is all there is to go by: a rollout may be what mends management.
	settled bool
}

// due decides which StatefulSets are written now. Missing ones all at once: they hold up nobody. Outdated ones that
// are down anyway, and those that seal by another key, at once too: engines of two keys don't understand each other. Of the
// others one at a time, and only while every other engine that has been up is up, so that at most one engine is away because
// of a rollout.
func due(engines []rolloutEngine) []int32 {
	var ranks []int32
	allSettled := true
	for _, e := range engines {
		if e.runnable && (!e.exists || (!e.current && (!e.serving || e.rekeyed))) {
			ranks = append(ranks, e.rank)
		}
		allSettled = allSettled && (e.settled || e.fresh)
	}
	if !allSettled {
		return ranks
	}
	for _, e := range engines {
		if e.runnable && !e.current && e.serving && !e.rekeyed {
			return append(ranks, e.rank)
		}
	}
	return ranks
}

// roll writes the StatefulSets that are due. Those that are current are applied as well, which changes nothing unless
// somebody edited them.
func (r *Reconciler) roll(ctx context.Context, cluster *v1alpha1.StorageCluster, where nodes, c credentials, engines []engine) error {
	fingerprint := c.fingerprint(manifest.StartConfig(cluster))
	complete := r.complete(cluster)
	desired := make([]*appsv1.StatefulSet, len(engines))
	seen := make([]rolloutEngine, len(engines))
	silent := !slices.ContainsFunc(engines, func(e engine) bool { return e.state != nil })
	for i, e := range engines {
		fingerprint := fingerprint
		if drives := drivesOf(cluster, where.drives, e.rank); drives != "" {
			fingerprint = manifest.Fingerprint([]byte(fingerprint), []byte(drives))
		}
		set, err := manifest.StatefulSet(complete, e.rank, where.assigned[e.rank], fingerprint)
		if err != nil {
			return err
		}
		set.Annotations[manifest.AnnotationSeals] = c.seals()
		desired[i] = set
		seen[i] = rolloutEngine{
			rank:     e.rank,
			runnable: where.runnable(e.rank),
			exists:   e.set != nil,
			fresh:    !hasBeenUp(cluster, e.rank),
			current:  e.set != nil && e.set.Annotations[manifest.AnnotationTemplate] == set.Annotations[manifest.AnnotationTemplate],
			rekeyed:  e.set != nil && e.set.Annotations[manifest.AnnotationSeals] != c.seals(),
			serving:  e.pod != nil && podReady(e.pod),
			settled:  (e.up() || (silent && e.pod != nil && podReady(e.pod))) && setSettled(e.set),
		}
		if seen[i].current {
			if err := apply.Object(ctx, r.client, r.live, set); err != nil {
				return err
			}
		}
	}
	for _, rank := range due(seen) {
		if err := apply.Object(ctx, r.client, r.live, desired[rank]); err != nil {
			return err
		}
	}
	for i := range engines {
		engines[i].outdated = !seen[i].current || !rolledOut(engines[i].set)
	}
	return nil
}

// dropSurplus deletes the StatefulSets of ranks that the spec has no more. The API server lets only ranks go that were
// never up, and so hold nothing; what is known to have been up stays all the same.
func (r *Reconciler) dropSurplus(ctx context.Context, cluster *v1alpha1.StorageCluster) error {
	sets, err := statefulSets(ctx, r.client, cluster)
	if err != nil {
		return err
	}
	for i := range sets {
		set := &sets[i]
		rank, is := rankOf(cluster, set, manifest.EngineName)
		if !is || rank < cluster.Spec.Engines.Replicas || hasBeenUp(cluster, rank) || !set.DeletionTimestamp.IsZero() {
			continue
		}
		if err := apply.DeleteRead(ctx, r.client, set, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			return fmt.Errorf("delete StatefulSet %s/%s: %w", set.Namespace, set.Name, err)
		}
	}
	return nil
}

// hasBeenUp tells whether an engine was ever up: its version stays in the status.
func hasBeenUp(cluster *v1alpha1.StorageCluster, rank int32) bool {
	return slices.ContainsFunc(cluster.Status.Engines, func(e v1alpha1.EngineStatus) bool {
		return e.Rank == rank && e.Version != ""
	})
}

// rolledOut is true when the pod that runs, or was the last to run, has the StatefulSet's template.
func rolledOut(set *appsv1.StatefulSet) bool {
	return set.Status.ObservedGeneration == set.Generation && set.Status.CurrentRevision == set.Status.UpdateRevision
}

// setSettled is true when the controller of StatefulSets has seen the template and the ready pod has it.
func setSettled(set *appsv1.StatefulSet) bool {
	return set != nil && rolledOut(set) && set.Status.ReadyReplicas == 1
}
