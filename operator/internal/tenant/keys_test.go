package tenant

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/status"
	"weir.dev/weir/operator/internal/trespass"
)

// deaf takes events and forgets them.
type deaf struct{}

func (deaf) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// prober is a reconciler that tries keys, of an API server with two tenants, each with a pool and a container.
func prober(t *testing.T, at *clocktesting.FakePassiveClock) (*Reconciler, *v1alpha1.Tenant) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&batchv1.Job{})
	var tenants []*v1alpha1.Tenant
	for i, name := range []string{"climate", "genome"} {
		number := int64(70000 + i)
		meta := metav1.ObjectMeta{Namespace: "storage", Name: name}
		tenant := &v1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid of " + name)}, Status: v1alpha1.TenantStatus{Number: number}}
		tenant.Spec.NamespaceSelector.MatchLabels = map[string]string{"project": name}
		tenants = append(tenants, tenant)
		builder = builder.WithObjects(tenant,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name + "-pods", Labels: map[string]string{"project": name}}},
			&v1alpha1.Pool{
				ObjectMeta: meta, Spec: v1alpha1.PoolSpec{ClusterRef: v1alpha1.LocalReference{Name: "weir"}},
				Status: v1alpha1.PoolStatus{UUID: "pool-" + name, Tenant: number},
			},
			&v1alpha1.Container{
				ObjectMeta: meta, Spec: v1alpha1.ContainerSpec{PoolRef: v1alpha1.LocalReference{Name: name}, Type: v1alpha1.ContainerPosix},
				Status: v1alpha1.ContainerStatus{UUID: "container-" + name},
			})
	}
	c := builder.Build()
	return New(c, c, nil, deaf{}, at, "weir/client:1"), tenants[0]
}

// end has the Job of the attempts end with a message.
func end(t *testing.T, c client.Client, job *batchv1.Job, message string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: job.Namespace, Name: job.Name + "-x", Labels: map[string]string{batchv1.JobNameLabel: job.Name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID, Controller: new(true)}},
		},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "attempt", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}},
		}}},
	}
	if err := c.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	if err := c.Status().Update(t.Context(), job); err != nil {
		t.Fatal(err)
	}
}

func TestATenantsPodTriesWhatIsAnothers(t *testing.T) {
	t.Parallel()
	at := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	r, tenant := prober(t, at)
	key := client.ObjectKey{Namespace: "climate-pods", Name: trespass.JobName}
	look := func() *batchv1.Job {
		t.Helper()
		if err := r.keys(t.Context(), tenant); err != nil {
			t.Fatal(err)
		}
		var job batchv1.Job
		err := r.live.Get(t.Context(), key, &job)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		return &job
	}
	job := look()
	if job == nil || tenant.Status.KeyProof != nil {
		t.Fatalf("job %v, proof %v", job, tenant.Status.KeyProof)
	}
	if other, err := trespass.Other(job); err != nil || other != 70001 {
		t.Errorf("it tries tenant %d, %v", other, err)
	}
	if look() == nil || tenant.Status.KeyProof != nil {
		t.Errorf("a Job that runs proves %v", tenant.Status.KeyProof)
	}
	end(t, r.client, job, "own -1005\nkey -1001\nnumber -1001\n")
	if look() != nil || tenant.Status.KeyProof == nil || len(tenant.Status.KeyProof.Refused) != 2 ||
		!strings.Contains(tenant.Status.KeyProof.Refused[0], "Tenant genome") || !tenant.Status.KeyProof.Time.Time.Equal(at.Now()) {
		t.Fatalf("proof %+v", tenant.Status.KeyProof)
	}
	if look() != nil {
		t.Error("it is tried again at once")
	}
	at.SetTime(at.Now().Add(keyProofInterval))
	if look() == nil {
		t.Error("it is not tried again")
	}
}

func TestAttemptsThatProveNothingLeaveTheJobAndTheProof(t *testing.T) {
	t.Parallel()
	r, tenant := prober(t, clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)))
	var job batchv1.Job
	if err := r.keys(t.Context(), tenant); err != nil {
		t.Fatal(err)
	}
	key := client.ObjectKey{Namespace: "climate-pods", Name: trespass.JobName}
	if err := r.live.Get(t.Context(), key, &job); err != nil {
		t.Fatal(err)
	}
	end(t, r.client, &job, "own -1011\nkey -1011\nnumber -1011\n")
	if err := r.keys(t.Context(), tenant); err != nil || tenant.Status.KeyProof != nil {
		t.Errorf("%v, proof %+v", err, tenant.Status.KeyProof)
	}
	if err := r.live.Get(t.Context(), key, &job); err != nil {
		t.Errorf("nobody can look at it: %v", err)
	}
}

func TestNobodyTriesWithoutAnImageOrATarget(t *testing.T) {
	t.Parallel()
	jobs := func(r *Reconciler, tenant *v1alpha1.Tenant) int {
		t.Helper()
		if err := r.keys(t.Context(), tenant); err != nil {
			t.Fatal(err)
		}
		var list batchv1.JobList
		if err := r.live.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	at := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	r, tenant := prober(t, at)
	r.prober = ""
	tenant.Status.KeyProof = &v1alpha1.IsolationProof{}
	if n := jobs(r, tenant); n != 0 || tenant.Status.KeyProof != nil {
		t.Errorf("without an image: %d Jobs, proof %v", n, tenant.Status.KeyProof)
	}
	r, tenant = prober(t, at)
	if err := r.client.Delete(t.Context(), &v1alpha1.Container{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "genome"}}); err != nil {
		t.Fatal(err)
	}
	if n := jobs(r, tenant); n != 0 {
		t.Errorf("without a container of another tenant: %d Jobs", n)
	}
}

func TestWhatKeysAddToTheNetwork(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	since := metav1.NewTime(now.Add(-time.Minute))
	network := status.Of(v1alpha1.ConditionIsolated, true, v1alpha1.ReasonAttemptsRefused, "the network refused all"+keysUntried)
	none := status.Of(v1alpha1.ConditionIsolated, false, v1alpha1.ReasonNoVNIWanted, "the key alone")
	proof := func(age time.Duration, reached ...string) *v1alpha1.IsolationProof {
		return &v1alpha1.IsolationProof{Time: metav1.NewTime(now.Add(-age)), Refused: []string{"a", "b"}, Reached: reached}
	}
	for name, tc := range map[string]struct {
		said   status.Condition
		proof  *v1alpha1.IsolationProof
		status metav1.ConditionStatus
		reason string
		word   string
		age    time.Duration
	}{
		"not tried":                {network, nil, metav1.ConditionTrue, v1alpha1.ReasonAttemptsRefused, keysUntried, time.Minute},
		"refused":                  {network, proof(time.Hour), metav1.ConditionTrue, v1alpha1.ReasonAttemptsRefused, "all; engines refused all 2 attempts with keys, at 2026-11-01T11:00:00Z", time.Minute},
		"long ago":                 {network, proof(4 * time.Hour), metav1.ConditionTrue, v1alpha1.ReasonAttemptsRefused, "not part of it; the last attempts", time.Minute},
		"reached":                  {network, proof(time.Hour, "a container"), metav1.ConditionFalse, v1alpha1.ReasonAttemptSucceeded, "reach a container", 0},
		"reached, without VNIs":    {none, proof(time.Hour, "a container"), metav1.ConditionFalse, v1alpha1.ReasonAttemptSucceeded, "reach a container", 0},
		"refused, without VNIs":    {none, proof(time.Hour), metav1.ConditionTrue, v1alpha1.ReasonAttemptsRefused, "no VNIs", time.Hour},
		"without VNIs, long ago":   {none, proof(4 * time.Hour), metav1.ConditionFalse, v1alpha1.ReasonNoVNIWanted, "the last attempts", time.Minute},
		"without VNIs, not tried ": {none, nil, metav1.ConditionFalse, v1alpha1.ReasonNoVNIWanted, "the key alone", time.Minute},
	} {
		c, at := withKeys(tc.said, &since, tc.proof, now)
		if c.Status != tc.status || c.Reason != tc.reason || !strings.Contains(c.Message, tc.word) {
			t.Errorf("%s: %+v", name, c)
		}
		if (at == nil) != (tc.age == 0) || (at != nil && now.Sub(at.Time) != tc.age) {
			t.Errorf("%s: proven at %v", name, at)
		}
	}
}
