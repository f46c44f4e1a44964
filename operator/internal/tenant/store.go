package tenant

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/apply"
	"weir.dev/weir/operator/internal/vni"
)

// store keeps allocations as VNIAllocations for a tenant that takes numbers from a domain.
type store struct {
	client client.Client
	live   client.Reader
	tenant *v1alpha1.Tenant
	domain string
}

var _ vni.Store = (*store)(nil)

// List implements vni.Store. It reads past the cache, which may lack what was allocated a moment ago.
func (s *store) List(ctx context.Context) ([]vni.Allocation, error) {
	objects, err := list(ctx, s.live)
	if err != nil {
		return nil, err
	}
	return allocations(objects), nil
}

// Create implements vni.Store. The finalizer is there from the first moment: a number that is deleted then rests all the same.
func (s *store) Create(ctx context.Context, made vni.Allocation) error {
	err := s.client.Create(ctx, &v1alpha1.VNIAllocation{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.VNIName(made.Number), Finalizers: []string{v1alpha1.Finalizer}},
		Spec: v1alpha1.VNIAllocationSpec{
			VNI:             made.Number,
			FabricDomainRef: v1alpha1.ClusterReference{Name: s.domain},
			Owner:           v1alpha1.VNIOwner{Kind: v1alpha1.VNIOwnerTenant, Name: s.tenant.Name, UID: string(s.tenant.UID)},
		},
	}, client.FieldOwner(apply.FieldOwner))
	if apierrors.IsAlreadyExists(err) {
		return vni.ErrTaken
	}
	if err != nil {
		return fmt.Errorf("create VNIAllocation %d: %w", made.Number, err)
	}
	return nil
}

func list(ctx context.Context, reader client.Reader) ([]v1alpha1.VNIAllocation, error) {
	var objects v1alpha1.VNIAllocationList
	if err := reader.List(ctx, &objects); err != nil {
		return nil, fmt.Errorf("list VNIAllocations: %w", err)
	}
	return objects.Items, nil
}

func allocations(objects []v1alpha1.VNIAllocation) []vni.Allocation {
	all := make([]vni.Allocation, 0, len(objects))
	for i := range objects {
		o := &objects[i]
		all = append(all, vni.Allocation{Number: o.Spec.VNI, Owner: o.Spec.Owner.UID, Releasing: !o.DeletionTimestamp.IsZero()})
	}
	return all
}

// ofTenant are the allocations of a tenant.
func ofTenant(objects []v1alpha1.VNIAllocation, tenant *v1alpha1.Tenant) []*v1alpha1.VNIAllocation {
	var mine []*v1alpha1.VNIAllocation
	for i := range objects {
		if objects[i].Spec.Owner.UID == string(tenant.UID) {
			mine = append(mine, &objects[i])
		}
	}
	return mine
}
