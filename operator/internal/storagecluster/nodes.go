package storagecluster

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/apply"
	"weir.dev/weir/operator/internal/assignment"
	"weir.dev/weir/operator/internal/manifest"
	"weir.dev/weir/operator/internal/placement"
)

// rankKeyPrefix starts the keys of the placement ConfigMap: rank-0, rank-1, …
const rankKeyPrefix = "rank-"

// nodes is where the engines are.
type nodes struct {
	assigned placement.Assignment
	// shortage says why some rank has no node.
	shortage string
	// pinned is true when engines are bound to nodes: their data is there.
	pinned bool
	// drives are the engines' drives, in a cluster with devices.
	drives assignment.Decision
}

// runnable tells whether the engine of a rank can be started.
func (n nodes) runnable(rank int32) bool {
	return n.lack(rank) == ""
}

// lack says why the engine of a rank can't be started; empty when it can.
func (n nodes) lack(rank int32) string {
	if _, ok := n.assigned[rank]; !ok && n.pinned {
		return "no node"
	}
	return n.drives.Missing[rank]
}

// ensurePlacement gives each rank a node and records it before any engine is started there. The record outlives the
// cluster under deletionPolicy Retain, so that a cluster of the same name finds its data.
func (r *Reconciler) ensurePlacement(ctx context.Context, cluster *v1alpha1.StorageCluster) (nodes, error) {
	if !manifest.OnNode(cluster) {
		return nodes{}, nil
	}
	lacks, err := r.lacksDrives(ctx, cluster)
	if err != nil {
		return nodes{}, err
	}
	var list corev1.NodeList
	if err := r.client.List(ctx, &list); err != nil {
		return nodes{}, fmt.Errorf("list nodes for StorageCluster %s/%s: %w", cluster.Namespace, cluster.Name, err)
	}
	var result nodes
	// The record is written only if it is incomplete past the cache as well, which does not show what was written a moment ago,
	// nor a record that somebody restored without its labels. A rank whose node is overwritten has lost its data.
	for _, reader := range []client.Reader{r.client, r.live} {
		held, err := recordedPlacement(ctx, reader, cluster)
		if err != nil {
			return nodes{}, err
		}
		assigned, shortage := placement.Assign(placement.Release(held, cluster.Spec.Engines, list.Items, lacks), cluster.Spec.Engines, list.Items, lacks)
		result = nodes{assigned: assigned, shortage: shortage, pinned: true}
		if equality.Semantic.DeepEqual(held, assigned) {
			return result, nil
		}
	}
	record := map[string]string{}
	for rank, node := range result.assigned {
		record[fmt.Sprintf("%s%d", rankKeyPrefix, rank)] = node
	}
	return result, apply.Object(ctx, r.client, r.live, placementRecord(cluster, record))
}

// placementRecord holds the node of each rank.
func placementRecord(cluster *v1alpha1.StorageCluster, record map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: manifest.LastingMeta(cluster, manifest.PlacementName(cluster.Name)),
		Data:       record,
	}
}

// recordedPlacement reads the record; what status says fills in for a record that somebody deleted.
func recordedPlacement(ctx context.Context, reader client.Reader, cluster *v1alpha1.StorageCluster) (placement.Assignment, error) {
	held := placement.Assignment{}
	for _, e := range cluster.Status.Engines {
		if e.Node != "" {
			held[e.Rank] = e.Node
		}
	}
	var record corev1.ConfigMap
	name := types.NamespacedName{Namespace: cluster.Namespace, Name: manifest.PlacementName(cluster.Name)}
	if err := reader.Get(ctx, name, &record); err != nil {
		if apierrors.IsNotFound(err) {
			return held, nil
		}
		return nil, fmt.Errorf("read ConfigMap %s: %w", name, err)
	}
	for key, node := range record.Data {
		rank, err := strconv.ParseInt(strings.TrimPrefix(key, rankKeyPrefix), 10, 32)
		if err != nil || !strings.HasPrefix(key, rankKeyPrefix) {
			if taken := apply.Taken(&record, placementRecord(cluster, nil)); taken != nil {
				return nil, taken
			}
			return nil, fmt.Errorf("ConfigMap %s: key %q is not %s<rank>: mend it, engines are bound to nodes by it", name, key, rankKeyPrefix)
		}
		held[int32(rank)] = node
	}
	return held, nil
}

// nodeSuitabilityChanged passes the changes of nodes that placement looks at, and not the kubelet's heartbeats.
type nodeSuitabilityChanged struct{ predicate.Funcs }

// Update implements predicate.Predicate.
func (nodeSuitabilityChanged) Update(e event.UpdateEvent) bool {
	before, okBefore := e.ObjectOld.(*corev1.Node)
	after, okAfter := e.ObjectNew.(*corev1.Node)
	if !okBefore || !okAfter {
		return false
	}
	return nodeReady(before) != nodeReady(after) ||
		before.Spec.Unschedulable != after.Spec.Unschedulable ||
		!equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) ||
		!equality.Semantic.DeepEqual(before.Labels, after.Labels)
}

var _ predicate.TypedPredicate[client.Object] = nodeSuitabilityChanged{}

func nodeReady(node *corev1.Node) corev1.ConditionStatus {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}
