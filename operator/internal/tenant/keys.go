package tenant

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/status"
	"weir.dev/weir/operator/internal/trespass"
)

const (
	// keyProofInterval is how old attempts with keys become before they are made again. Each takes a pod.
	keyProofInterval = time.Hour
	// keyProofAge is how old they may be and count.
	keyProofAge = 3 * keyProofInterval
)

// keys has a pod of the tenant try from time to time to reach what is another tenant's, and writes down what came of it.
func (r *Reconciler) keys(ctx context.Context, tenant *v1alpha1.Tenant) error {
	if r.prober == "" {
		tenant.Status.KeyProof = nil
		return nil
	}
	now := r.clock.Now()
	if proof := tenant.Status.KeyProof; proof != nil && now.Sub(proof.Time.Time) < keyProofInterval {
		return nil
	}
	f, err := r.look(ctx, tenant)
	if err != nil || len(f.namespaces) == 0 {
		return err
	}
	namespace := f.namespaces[0]
	var job batchv1.Job
	err = r.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: trespass.JobName}, &job)
	switch {
	case apierrors.IsNotFound(err):
		return r.tryKeys(ctx, tenant, namespace, now)
	case err != nil:
		return fmt.Errorf("read Job %s/%s: %w", namespace, trespass.JobName, err)
	case !metav1.IsControlledBy(&job, tenant) || !ended(&job):
		return nil // one of an earlier Tenant goes by itself
	}
	proof, err := r.readKeys(ctx, &job)
	if err != nil {
		// The Job stays for a while, so that somebody can look at it, and then goes by itself.
		log.FromContext(ctx).Info("Attempts with keys have proven nothing, which is tried again", "job", namespace+"/"+job.Name, "reason", err.Error())
		return nil
	}
	proof.Time = metav1.NewTime(now)
	tenant.Status.KeyProof = proof
	if err := r.client.Delete(ctx, &job, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Job %s/%s: %w", namespace, job.Name, err)
	}
	return nil
}

// tryKeys starts attempts, if there is something of another tenant to try.
func (r *Reconciler) tryKeys(ctx context.Context, tenant *v1alpha1.Tenant, namespace string, now time.Time) error {
	var pools v1alpha1.PoolList
	var containers v1alpha1.ContainerList
	for what, list := range map[string]client.ObjectList{"Pools": &pools, "Containers": &containers} {
		if err := r.client.List(ctx, list); err != nil {
			return fmt.Errorf("list %s: %w", what, err)
		}
	}
	targets := targetsOf(pools.Items, containers.Items, tenant.Status.Number)
	if len(targets) == 0 {
		return nil
	}
	// Another one each time.
	target := targets[int(now.Unix()/int64(keyProofInterval.Seconds()))%len(targets)]
	err := r.client.Create(ctx, trespass.Job(r.prober, tenant, namespace, target))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		// A quota, or a policy of the namespace, keeps the tenant from nothing else.
		log.FromContext(ctx).Info("Attempts with keys can't be made, which is tried again", "namespace", namespace, "reason", err.Error())
	}
	return nil
}

// targetsOf are containers of other tenants than that of a number, one of each pool that has any, in an order of their own. They are, or
// were, in the engines: a container that is gone proves nothing.
func targetsOf(pools []v1alpha1.Pool, containers []v1alpha1.Container, number int64) []trespass.Target {
	var targets []trespass.Target
	for i := range pools {
		p := &pools[i]
		if p.Status.Tenant == 0 || p.Status.Tenant == number || p.Status.UUID == "" {
			continue
		}
		for j := range containers {
			c := &containers[j]
			if c.Namespace == p.Namespace && c.Spec.PoolRef.Name == p.Name && c.Spec.Type == v1alpha1.ContainerPosix && c.Status.UUID != "" {
				targets = append(targets, trespass.Target{
					Cluster: p.Spec.ClusterRef.Name, Pool: p.Status.UUID, Container: c.Status.UUID, Tenant: p.Status.Tenant,
				})
				break
			}
		}
	}
	slices.SortFunc(targets, func(a, b trespass.Target) int { return cmp.Compare(a.Pool, b.Pool) })
	return targets
}

// readKeys says what came of the attempts of a Job that has ended.
func (r *Reconciler) readKeys(ctx context.Context, job *batchv1.Job) (*v1alpha1.IsolationProof, error) {
	number, err := trespass.Other(job)
	if err != nil {
		return nil, err
	}
	var tenants v1alpha1.TenantList
	if err := r.client.List(ctx, &tenants); err != nil {
		return nil, fmt.Errorf("list Tenants: %w", err)
	}
	who := fmt.Sprintf("tenant %d", number)
	if i := slices.IndexFunc(tenants.Items, func(t v1alpha1.Tenant) bool { return t.Status.Number == number }); i >= 0 {
		who = "Tenant " + tenants.Items[i].Name
	}
	var pods corev1.PodList
	if err := r.live.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil {
		return nil, fmt.Errorf("list pods of Job %s/%s: %w", job.Namespace, job.Name, err)
	}
	var message string
	for i := range pods.Items {
		for _, s := range pods.Items[i].Status.ContainerStatuses {
			if s.State.Terminated != nil && metav1.IsControlledBy(&pods.Items[i], job) {
				message = s.State.Terminated.Message
			}
		}
	}
	refused, reached, err := trespass.Read(message, who)
	if err != nil {
		return nil, err
	}
	return &v1alpha1.IsolationProof{Refused: refused, Reached: reached}, nil
}

func ended(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed)
	})
}

// withKeys adds to what is said of the network what came of attempts with keys, and tells since when it is proven.
func withKeys(c status.Condition, since *metav1.Time, proof *v1alpha1.IsolationProof, now time.Time) (status.Condition, *metav1.Time) {
	if proof == nil {
		return c, since
	}
	at := proof.Time.UTC().Format(time.RFC3339)
	switch {
	case len(proof.Reached) > 0:
		return status.Of(v1alpha1.ConditionIsolated, false, v1alpha1.ReasonAttemptSucceeded, fmt.Sprintf(
			"engines let a pod of the tenant reach %s, at %s. They should not: see docs/how-to/alerts.md", status.List(proof.Reached), at)), nil
	case now.Sub(proof.Time.Time) > keyProofAge:
		c.Message += "; the last attempts with keys were at " + at
		return c, since
	case c.Reason == v1alpha1.ReasonNoVNIWanted:
		return status.Of(v1alpha1.ConditionIsolated, true, v1alpha1.ReasonAttemptsRefused, fmt.Sprintf(
			"engines refused all %d attempts of a pod of the tenant to reach what is another tenant's, at %s; the tenant has no VNIs", len(proof.Refused), at)), proof.Time.DeepCopy()
	default:
		c.Message = strings.TrimSuffix(c.Message, keysUntried) + fmt.Sprintf("; engines refused all %d attempts with keys, at %s", len(proof.Refused), at)
		return c, since
	}
}
