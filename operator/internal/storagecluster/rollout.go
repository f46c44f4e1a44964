package storagecluster

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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
	// fresh is true when the engine has never been up, or was given up: nobody misses it.
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
// others next is one, while every other engine that has been up is up, so that at most one engine is away because
// of a rollout; nil for none.
func due(engines []rolloutEngine) (ranks []int32, next *int32) {
	allSettled := true
	for _, e := range engines {
		if e.runnable && (!e.exists || (!e.current && (!e.serving || e.rekeyed))) {
			ranks = append(ranks, e.rank)
		}
		allSettled = allSettled && (e.settled || e.fresh)
	}
	if !allSettled {
		return ranks, nil
	}
	for _, e := range engines {
		if e.runnable && !e.current && e.serving && !e.rekeyed {
			return ranks, &e.rank
		}
	}
	return ranks, nil
}

// roll writes the StatefulSets that are due. Those that are current are applied as well, which changes nothing unless
// somebody edited them.
func (r *Reconciler) roll(ctx context.Context, cluster *v1alpha1.StorageCluster, where nodes, c credentials, engines []engine, spare *spare) error {
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
		set, err := manifest.StatefulSet(complete, e.rank, where.assigned[e.rank], fingerprint, r.engineEnv()...)
		if err != nil {
			return err
		}
		set.Annotations[manifest.AnnotationSeals] = c.seals()
		desired[i] = set
		seen[i] = rolloutEngine{
			rank:     e.rank,
			runnable: where.runnable(e.rank),
			exists:   e.set != nil,
			fresh:    !hasBeenUp(cluster, e.rank) || givenUp(cluster, e.rank),
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
	ranks, next := due(seen)
	if next != nil && spare.restart == "" {
		ranks = append(ranks, *next)
		spare.drain = fmt.Sprintf("rank %d is being restarted", *next)
	}
	for _, rank := range ranks {
		if err := apply.Object(ctx, r.client, r.live, desired[rank]); err != nil {
			return err
		}
	}
	for i := range engines {
		engines[i].outdated = !seen[i].current || !rolledOut(engines[i].set)
	}
	return nil
}

// engineEnv is what every engine has in its environment, in an order that stays.
func (r *Reconciler) engineEnv() []corev1.EnvVar {
	var env []corev1.EnvVar
	for _, name := range slices.Sorted(maps.Keys(r.config.EngineEnv)) {
		env = append(env, corev1.EnvVar{Name: name, Value: r.config.EngineEnv[name]})
	}
	return env
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

// givenUp tells whether the spec says that what an engine has is lost.
func givenUp(cluster *v1alpha1.StorageCluster, rank int32) bool {
	return slices.Contains(cluster.Spec.Engines.Lost, rank)
}

// rolledOut is true when the pod that runs, or was the last to run, has the StatefulSet's template.
func rolledOut(set *appsv1.StatefulSet) bool {
	return set.Status.ObservedGeneration == set.Generation && set.Status.CurrentRevision == set.Status.UpdateRevision
}

// setSettled is true when the controller of StatefulSets has seen the template and the ready pod has it.
func setSettled(set *appsv1.StatefulSet) bool {
	return set != nil && rolledOut(set) && set.Status.ReadyReplicas == 1
}
