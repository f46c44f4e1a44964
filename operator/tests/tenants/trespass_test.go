package tenants

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/trespass"
)

// touch changes a namespace, which has the operator look at all tenants.
func touch(t *testing.T, name string, label string) {
	t.Helper()
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata": {"labels": {"touched": %q}}}`, label))
	if err := admin.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch); err != nil {
		t.Fatal(err)
	}
}

// stored makes an object of the namespace storage, and has it be in the engines.
func stored(t *testing.T, kind, name, spec, status string) {
	t.Helper()
	obj := object(t, kind, name, spec)
	obj.SetNamespace("storage")
	if err := admin.Create(t.Context(), obj, fieldSet); err != nil {
		t.Fatal(err)
	}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"status": %s}`, status))
	if err := admin.Status().Patch(t.Context(), obj, patch); err != nil {
		t.Fatal(err)
	}
}

// endJob plays the Job controller and the kubelet: the Job's pod has ended with a message.
func endJob(t *testing.T, job *batchv1.Job, message string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: job.Namespace, Name: job.Name + "-x", Labels: map[string]string{batchv1.JobNameLabel: job.Name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID, Controller: new(true)}},
		},
		Spec: job.Spec.Template.Spec,
	}
	if err := admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "attempt", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message, FinishedAt: now}},
	}}
	if err := admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	job.Status = batchv1.JobStatus{StartTime: &now, CompletionTime: &now, Succeeded: 1, Conditions: []batchv1.JobCondition{
		{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue}, {Type: batchv1.JobComplete, Status: corev1.ConditionTrue},
	}}
	if err := admin.Status().Update(t.Context(), job); err != nil {
		t.Fatal(err)
	}
}

// The operator's own rights suffice to have a pod of a tenant try another one's container in a namespace of the level restricted.
func TestKeysAreTriedAndProvenToBeRefused(t *testing.T) {
	cluster(t)
	var host, guest v1alpha1.Tenant
	tenant := func(name string) {
		t.Helper()
		namespace(t, name, map[string]string{"trespass": name, "pod-security.kubernetes.io/enforce": "restricted"})
		create(t, "Tenant", name, fmt.Sprintf(`{namespaceSelector: {matchLabels: {trespass: %s}}, vni: {mode: None}}`, name))
	}
	tenant("host")
	condition(t, &host, "host", v1alpha1.ConditionVNIAllocated, false, v1alpha1.ReasonNoVNIWanted)
	eventually(t, "the number of Tenant host", func() string {
		if err := admin.Get(t.Context(), client.ObjectKey{Name: "host"}, &host); err != nil || host.Status.Number == 0 {
			return fmt.Sprintf("%d, %v", host.Status.Number, err)
		}
		return ""
	})
	stored(t, "Pool", "house", `{clusterRef: {name: weir}, size: 1Gi, tenantRef: {name: host}}`,
		fmt.Sprintf(`{"uuid": "835697a7-ea7b-b55f-2c64-2cad015dafe4", "tenant": %d, "containers": 1}`, host.Status.Number))
	stored(t, "Container", "room", `{poolRef: {name: house}}`, `{"uuid": "e65d3969-c4f6-789b-f077-820470260783", "openHandles": 0}`)
	tenant("guest")
	var job batchv1.Job
	eventually(t, "the Job that tries", func() string {
		touch(t, "guest", fmt.Sprintf("at-%d", time.Now().UnixNano()))
		if err := admin.Get(t.Context(), client.ObjectKey{Namespace: "guest", Name: trespass.JobName}, &job); err != nil {
			return err.Error()
		}
		return ""
	})
	if other, err := trespass.Other(&job); err != nil || other != host.Status.Number {
		t.Errorf("it tries tenant %d, %v; the host is %d", other, err, host.Status.Number)
	}
	endJob(t, &job, "own -1005\nkey -1001\nnumber -1001\n")
	touch(t, "guest", "ended")
	condition(t, &guest, "guest", v1alpha1.ConditionIsolated, true, v1alpha1.ReasonAttemptsRefused, "all 2 attempts", "no VNIs")
	if proof := guest.Status.KeyProof; proof == nil || len(proof.Refused) != 2 || len(proof.Reached) != 0 {
		t.Errorf("proof %+v", proof)
	}
}
