// Package index finds objects in the cache by what they are of, so that no reconciliation goes through all objects of a kind.
package index

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
)

// Fields by which objects are found. Those that begin with spec the API server knows, too (the kinds' selectable fields): they serve
// for reads past the cache.
const (
	// ContainerPool is the name of a Container's Pool.
	ContainerPool = "spec.poolRef.name"
	// ContainerLabel is what EngineContainer returns for a Container.
	ContainerLabel = "label-in-pool"
	// ContainerDeleting is Yes for a Container that is being deleted.
	ContainerDeleting = "deleting"
	// PoolCluster is the name of a Pool's StorageCluster.
	PoolCluster = "spec.clusterRef.name"
	// PoolLabel is what EnginePool returns for a Pool.
	PoolLabel = "label-in-cluster"
)

// Yes is the value of fields that are there or not.
const Yes = "yes"

// Field is one way to find objects of a kind.
type Field struct {
	Object client.Object
	Name   string
	Values client.IndexerFunc
}

// Fields are all of them.
func Fields() []Field {
	return []Field{
		of(&v1alpha1.Container{}, ContainerPool, func(c *v1alpha1.Container) string { return c.Spec.PoolRef.Name }),
		of(&v1alpha1.Container{}, ContainerLabel, EngineContainer),
		of(&v1alpha1.Container{}, ContainerDeleting, func(c *v1alpha1.Container) string {
			if c.DeletionTimestamp.IsZero() {
				return ""
			}
			return Yes
		}),
		of(&v1alpha1.Pool{}, PoolCluster, func(p *v1alpha1.Pool) string { return p.Spec.ClusterRef.Name }),
		of(&v1alpha1.Pool{}, PoolLabel, EnginePool),
	}
}

// of is the field of a kind that has the value that get finds; objects for which that is empty are not in the index.
func of[T client.Object](kind T, name string, get func(T) string) Field {
	return Field{Object: kind, Name: name, Values: func(obj client.Object) []string {
		typed, ok := obj.(T)
		if !ok {
			return nil
		}
		if value := get(typed); value != "" {
			return []string{value}
		}
		return nil
	}}
}

// EngineContainer names the container in the engines that a Container of a namespace stands for. No name of a Kubernetes object has a
// slash.
func EngineContainer(c *v1alpha1.Container) string {
	return c.Spec.PoolRef.Name + "/" + c.EngineLabel()
}

// EnginePool names the pool in the engines that a Pool of a namespace stands for.
func EnginePool(p *v1alpha1.Pool) string { return p.Spec.ClusterRef.Name + "/" + p.EngineLabel() }

// Register has a cache keep the indexes.
func Register(ctx context.Context, indexer client.FieldIndexer) error {
	for _, field := range Fields() {
		if err := indexer.IndexField(ctx, field.Object, field.Name, field.Values); err != nil {
			return fmt.Errorf("index %T by %s: %w", field.Object, field.Name, err)
		}
	}
	return nil
}
