package tenant

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/status"
)

// keysUntried ends what is said of the network alone.
const keysUntried = "; keys are not part of it"

// proofAge is how old a proof of isolation may be: three times as old as agents let it become.
const proofAge = 15 * time.Minute

// fabric reports what the nodes say of the tenant's VNIs, and what engines said to attempts with keys.
func (r *Reconciler) fabric(ctx context.Context, tenant *v1alpha1.Tenant) error {
	var c status.Condition
	var since *metav1.Time
	if tenant.Spec.VNI.Mode == v1alpha1.VNINone {
		const message = "spec.vni.mode is None: the tenant's key alone keeps it apart"
		r.report(ctx, tenant, status.Of(v1alpha1.ConditionFabricEnforced, false, v1alpha1.ReasonNoVNIWanted, message))
		c = status.Of(v1alpha1.ConditionIsolated, false, v1alpha1.ReasonNoVNIWanted, message)
	} else {
		objects, err := list(ctx, r.client)
		if err != nil {
			return err
		}
		mine := ofTenant(objects, tenant)
		r.report(ctx, tenant, enforced(mine))
		c, since = isolated(mine, r.clock.Now())
	}
	c, tenant.Status.ProvenAt = withKeys(c, since, tenant.Status.KeyProof, r.clock.Now())
	r.report(ctx, tenant, c)
	return nil
}

func unknown(kind, reason, message string) status.Condition {
	return status.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: reason, Message: message}
}

// enforced is what to say of the admission of the tenant's pods.
func enforced(allocations []*v1alpha1.VNIAllocation) status.Condition {
	nodes := map[string]bool{}
	var waiting []string
	for _, a := range allocations {
		for _, node := range a.Status.Nodes {
			if node.ReleasedAt != nil {
				continue
			}
			nodes[node.Name] = true
			for _, why := range node.Waiting {
				waiting = append(waiting, fmt.Sprintf("VNI %s on node %s: %s", a.Name, node.Name, why))
			}
		}
	}
	switch {
	case len(waiting) > 0:
		return status.Of(v1alpha1.ConditionFabricEnforced, false, v1alpha1.ReasonPodsWait, status.ListSome(waiting, 3))
	case len(nodes) == 0:
		return unknown(v1alpha1.ConditionFabricEnforced, v1alpha1.ReasonNoAgent,
			"no node has admitted a pod of the tenant: there is none that runs, or the nodes have no agent (fabric.enabled of the chart)")
	default:
		return status.Of(v1alpha1.ConditionFabricEnforced, true, v1alpha1.ReasonPodsAdmitted, fmt.Sprintf(
			"the tenant's pods are admitted to its VNIs on %d nodes", len(nodes)))
	}
}

// isolated is what to say of the attempts to get out of the tenant's VNIs, and the time of the oldest of those that count.
func isolated(allocations []*v1alpha1.VNIAllocation, now time.Time) (status.Condition, *metav1.Time) {
	var reached, missing []string
	var oldest *metav1.Time
	attempts := 0
	for _, a := range allocations {
		for _, node := range a.Status.Nodes {
			where := fmt.Sprintf("VNI %s on node %s", a.Name, node.Name)
			switch proof := node.Proof; {
			case node.ReleasedAt != nil:
			case proof == nil:
				missing = append(missing, where)
			case len(proof.Reached) > 0:
				reached = append(reached, fmt.Sprintf("%s: %s at %s", where, status.ListSome(slices.Clone(proof.Reached), 3), proof.Time.UTC().Format(time.RFC3339)))
			case now.Sub(proof.Time.Time) > proofAge:
				missing = append(missing, fmt.Sprintf("%s (the last is of %s)", where, proof.Time.UTC().Format(time.RFC3339)))
			default:
				attempts += len(proof.Refused)
				if oldest == nil || proof.Time.Before(oldest) {
					oldest = proof.Time.DeepCopy()
				}
			}
		}
	}
	switch {
	case len(reached) > 0:
		return status.Of(v1alpha1.ConditionIsolated, false, v1alpha1.ReasonAttemptSucceeded,
			"the network let through what it should refuse: "+status.ListSome(reached, 3)+". Look at the agent weir-fabric and the nftables of the node"), nil
	case len(missing) > 0:
		return unknown(v1alpha1.ConditionIsolated, v1alpha1.ReasonNotProven,
			"no recent proof of "+status.ListSome(missing, 3)+": look whether the agent weir-fabric runs there, and reaches an engine or another pod of the tenant"), nil
	case oldest == nil:
		return unknown(v1alpha1.ConditionIsolated, v1alpha1.ReasonNotProven, "no node runs a pod of the tenant from which something could be tried"), nil
	default:
		return status.Of(v1alpha1.ConditionIsolated, true, v1alpha1.ReasonAttemptsRefused, fmt.Sprintf(
			"the network refused all %d attempts to get out of the tenant's VNIs, the oldest at %s%s", attempts, oldest.UTC().Format(time.RFC3339), keysUntried)), oldest
	}
}
