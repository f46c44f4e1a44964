package tests

import (
	"context"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
)

// begun applies an object as the operator leaves it that ends between the engines' answer and the status: with the finalizer,
// and without a UUID. It returns the object's UID.
func (i *installation) begun(obj client.Object, name, manifest string) string {
	i.t.Helper()
	i.apply(manifest)
	i.patch(obj, name, `{"metadata": {"finalizers": ["`+v1alpha1.Finalizer+`"]}}`)
	return string(obj.GetUID())
}

func TestWhatWasMadeBeforeACrashIsDestroyedWithItsObject(t *testing.T) {
	t.Parallel()
	i := withPool(t)
	i.stopOperator()
	lake := i.begun(&v1alpha1.Pool{}, "lake", object("Pool", "lake", `{clusterRef: {name: weir}, size: 1Gi, deletionPolicy: Delete}`))
	box := i.begun(&v1alpha1.Container{}, "box", object("Container", "box", `{poolRef: {name: tank}, deletionPolicy: Delete}`))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn := i.client()
	pools, containers := managementv1.NewPoolsClient(conn), managementv1.NewContainersClient(conn)
	if _, err := pools.Create(ctx, &managementv1.PoolCreateRequest{Label: "lake", SizeBytes: 1 << 30, Uuid: lake}); err != nil {
		t.Fatal(err)
	}
	_, err := containers.Create(ctx, &managementv1.ContainerCreateRequest{
		Pool: "tank", Label: "box", Type: managementv1.ContainerType_CONTAINER_TYPE_POSIX, Uuid: box,
	})
	if err != nil {
		t.Fatal(err)
	}
	i.remove(&v1alpha1.Pool{}, "lake")
	i.remove(&v1alpha1.Container{}, "box")
	i.startOperator()
	i.gone(&v1alpha1.Pool{}, "lake")
	i.gone(&v1alpha1.Container{}, "box")
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	left, err := pools.List(ctx, &managementv1.PoolListRequest{})
	if err != nil || len(left.GetPools()) != 1 || left.GetPools()[0].GetContainers() != 0 {
		t.Errorf("left in the engines: %v, %v", left, err)
	}
}

func TestPoolsAndContainersAreMadeUnderTheUIDsOfTheirObjects(t *testing.T) {
	t.Parallel()
	i := withPool(t)
	i.apply(object("Container", "box", `{poolRef: {name: tank}}`))
	var pool v1alpha1.Pool
	var box v1alpha1.Container
	i.ready(&box, "box")
	i.ready(&pool, "tank")
	if pool.Status.UUID != string(pool.UID) || box.Status.UUID != string(box.UID) {
		t.Errorf("pool %s of object %s, container %s of object %s", pool.Status.UUID, pool.UID, box.Status.UUID, box.UID)
	}
	// Growth by less than a mebibyte for each target counts.
	i.patch(&pool, "tank", `{"spec": {"size": "4097Mi"}}`)
	i.eventually("the pool grows", func() string {
		_ = i.get(&pool, "tank")
		if got := pool.Status.Capacity.Total.String(); got != "4097Mi" {
			return got
		}
		return ""
	})
}
