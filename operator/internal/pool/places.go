package pool

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/manifest"
	"weir.dev/weir/operator/internal/placement"
)

// places says in which failure domains the engines of a cluster are, from the labels of their nodes. An engine without a node, or whose node
// is gone, isn't named: it counts as a domain of its own.
func (r *Reconciler) places(ctx context.Context, cluster *v1alpha1.StorageCluster) ([]*managementv1.EnginePlace, error) {
	var places []*managementv1.EnginePlace
	for _, engine := range cluster.Status.Engines {
		if engine.Node == "" {
			continue
		}
		var node corev1.Node
		err := r.client.Get(ctx, types.NamespacedName{Name: engine.Node}, &node)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read node %s of rank %d of StorageCluster %s/%s: %w", engine.Node, engine.Rank, cluster.Namespace, cluster.Name, err)
		}
		path := placement.Domains(cluster.Spec.Engines, &node, manifest.OnNode(cluster), manifest.EngineName(cluster.Name, engine.Rank))
		places = append(places, &managementv1.EnginePlace{Rank: uint32(engine.Rank), Path: path})
	}
	return places, nil
}

// nodeless finds an engine that a pool with redundancy is to be on, and of which nobody knows yet where it is.
func nodeless(pool *v1alpha1.Pool, cluster *v1alpha1.StorageCluster) (rank int32, lacks bool) {
	if pool.Spec.RedundancyFactor == 0 {
		return 0, false
	}
	for rank := range cluster.Spec.Engines.Replicas {
		wanted := len(pool.Spec.Ranks) == 0 || slices.Contains(pool.Spec.Ranks, rank)
		known := slices.ContainsFunc(cluster.Status.Engines, func(e v1alpha1.EngineStatus) bool { return e.Rank == rank && e.Node != "" })
		if wanted && !known {
			return rank, true
		}
	}
	return 0, false
}

// domainOf is the failure domain of an engine; empty if it is one of its own.
func domainOf(places []*managementv1.EnginePlace, rank uint32) string {
	at := slices.IndexFunc(places, func(place *managementv1.EnginePlace) bool { return place.GetRank() == rank })
	if at < 0 {
		return ""
	}
	return strings.Join(places[at].GetPath(), "/")
}
