package events

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"weir.dev/weir/csi/internal/node"
)

func pod(name, claim string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{NodeName: "node-1", Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}},
	}
}

func TestPodsAndClaimsOfALostMountGetEvents(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "data", UID: "uid-data"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-7"},
	}
	api := fake.NewClientset(pod("writer", "data"), pod("reader", "data"), pod("stranger", "other"), claim)
	registry := prometheus.NewRegistry()
	reporter := New(slog.New(slog.DiscardHandler), registry, api, "node-1")
	target := func(name string) string {
		return "/var/lib/kubelet/pods/uid-" + name + "/volumes/kubernetes.io~csi/pvc-7/mount"
	}
	loss := node.Loss{Volume: "weir/tank/home", Targets: []string{target("writer"), target("reader"), "/elsewhere"}, Reason: "its process has ended"}
	reporter.Lost(t.Context(), loss)
	reporter.Failed(t.Context(), loss, errors.New("engines are away"))
	reporter.Restored(t.Context(), loss, 2)
	reporter.Degraded(t.Context(), loss)
	reporter.Recovered(t.Context(), loss)
	want := []string{"PersistentVolumeClaim/data", "Pod/reader", "Pod/writer"}
	for _, reason := range []string{ReasonLost, ReasonFailed, ReasonRestored, ReasonDegraded, ReasonRecovered} {
		if got := await(t, api, reason, len(want)); !slices.Equal(got, want) {
			t.Errorf("events %s of %v, want %v", reason, got, want)
		}
	}
	for _, outcome := range []string{"lost", "failed", "restored"} {
		if count := testutil.ToFloat64(reporter.losses.WithLabelValues(outcome)); count != 1 {
			t.Errorf("%v %s, want 1", count, outcome)
		}
	}
}

// await returns the objects that have an event of that reason, once there are so many or half a minute has passed.
func await(t *testing.T, api *fake.Clientset, reason string, count int) []string {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		list, err := api.CoreV1().Events(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var objects []string
		for _, event := range list.Items {
			if event.Reason == reason {
				objects = append(objects, event.InvolvedObject.Kind+"/"+event.InvolvedObject.Name)
			}
		}
		if len(objects) >= count || time.Now().After(deadline) {
			slices.Sort(objects)
			return objects
		}
	}
}
