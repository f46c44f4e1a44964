package enforcement

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
)

const (
	// waitingMax and waitingBytes bound what an entry says of pods that wait.
	waitingMax, waitingBytes = 8, 500
	// addressesMax bounds the pods of a node in one VNI: a kubelet runs some hundred.
	addressesMax = 2048
)

// announce writes down that this node admits pods to numbers, before it does. A pod whose number can't be announced is not admitted.
func (a *Agent) announce(ctx context.Context, v *view) error {
	for i := range v.allocations {
		allocation := &v.allocations[i]
		addresses := v.wanted(allocation.Spec.VNI)
		if len(addresses) == 0 {
			continue
		}
		err := a.write(ctx, allocation, func(entry *v1alpha1.VNINode) {
			entry.Addresses, entry.ReleasedAt = addresses, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// wanted are the addresses of the pods of this node that are to be admitted to a number.
func (v *view) wanted(number int32) []string {
	var addresses []string
	for _, one := range v.pods {
		if one.obstacle == nil && slices.Contains(one.vnis, number) {
			for _, address := range one.addresses {
				addresses = append(addresses, address.String())
			}
		}
	}
	slices.Sort(addresses)
	addresses = slices.Compact(addresses)
	return addresses[:min(len(addresses), addressesMax)]
}

// record writes what came of a look, and confirms the release of numbers that nobody on the node uses any more.
func (a *Agent) record(ctx context.Context, v *view, waiting map[int32][]string) error {
	held := map[int32]bool{}
	for _, entry := range a.keeper.Entries() {
		for _, number := range entry.Request.VNIs {
			held[int32(number)] = true
		}
	}
	for i := range v.allocations {
		allocation := &v.allocations[i]
		number := allocation.Spec.VNI
		addresses := v.wanted(number)
		if allocation.Node(a.node) == nil {
			continue // nobody was ever admitted here
		}
		err := a.write(ctx, allocation, func(entry *v1alpha1.VNINode) {
			entry.Waiting = bounded(waiting[number])
			if proof := v.proofs[number]; proof != nil {
				entry.Proof = proof
			}
			if held[number] {
				entry.ReleasedAt = nil
				return
			}
			if len(addresses) == 0 && entry.ReleasedAt == nil {
				now := metav1.NewTime(a.clock.Now())
				entry.Addresses, entry.Proof, entry.ReleasedAt = nil, nil, &now
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func bounded(texts []string) []string {
	var list []string
	for _, text := range texts[:min(len(texts), waitingMax)] {
		list = append(list, text[:min(len(text), waitingBytes)])
	}
	return list
}

// write changes the entry of this node in an allocation, if anything in it is new. It fails when somebody else has written in between:
// the next look sees what that was. Nobody is added to an object that is being deleted.
func (a *Agent) write(ctx context.Context, allocation *v1alpha1.VNIAllocation, change func(*v1alpha1.VNINode)) error {
	changed := allocation.DeepCopy()
	entry := changed.Node(a.node)
	if entry == nil {
		if !allocation.DeletionTimestamp.IsZero() {
			return fmt.Errorf("VNI %s is being released: nobody is admitted to it", allocation.Name)
		}
		changed.Status.Nodes = append(changed.Status.Nodes, v1alpha1.VNINode{Name: a.node})
		entry = changed.Node(a.node)
	}
	change(entry)
	if equality.Semantic.DeepEqual(allocation.Status, changed.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(allocation.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if err := a.client.Status().Patch(ctx, changed, patch, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("write VNIAllocation %s: %w", allocation.Name, err)
	}
	*allocation = *changed
	return nil
}
