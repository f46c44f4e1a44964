package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/internal/manifest"
)

// switchable is a switch that several goroutines look at.
type switchable struct {
	mu sync.Mutex
	is bool
}

func (s *switchable) set(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is = on
}

func (s *switchable) on() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.is
}

// machines stand in for what an API server alone does not have: the controller of StatefulSets, the scheduler and the
// kubelets. They run one pod for each StatefulSet of a namespace, from its template, and make it ready.
type machines struct {
	t         testing.TB
	namespace string

	mu sync.Mutex
	// held are StatefulSets whose pods don't become ready, and what their pods say.
	held map[string]string
	// running is the template of each pod that was started, in order of starting.
	running map[string]string
	// settled is the template of each pod that was the last to become ready.
	settled map[string]string
	// started lists the names of StatefulSets in the order in which their pods were started.
	started []string
	// away is the greatest number of engines that were seen not ready at once after all had been ready.
	away int
	// whole is true once every engine was ready.
	whole bool
}

func startMachines(t testing.TB, namespace string) *machines {
	t.Helper()
	m := &machines{t: t, namespace: namespace, held: map[string]string{}, running: map[string]string{}, settled: map[string]string{}}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			m.tick(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(look):
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return m
}

// node adds a node that is ready, with the taints given.
func (m *machines) node(name string, taints ...corev1.Taint) string {
	m.t.Helper()
	full := m.namespace + "-" + name
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: full, Labels: map[string]string{"test": m.namespace}},
		Spec:       corev1.NodeSpec{Taints: taints},
	}
	if err := admin.Create(m.t.Context(), node); err != nil {
		m.t.Fatalf("create node: %v", err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := admin.Status().Update(m.t.Context(), node); err != nil {
		m.t.Fatalf("make node ready: %v", err)
	}
	// The API server taints new nodes until the node controller, which is not here, has seen them.
	node.Spec.Taints = taints
	if err := admin.Update(m.t.Context(), node); err != nil {
		m.t.Fatalf("take the taint off a node: %v", err)
	}
	m.t.Cleanup(func() { _ = admin.Delete(context.Background(), node) })
	return full
}

// hold keeps the pod of a StatefulSet from becoming ready; an empty message lets it.
func (m *machines) hold(set, message string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if message == "" {
		delete(m.held, set)
	} else {
		m.held[set] = message
	}
}

// starts are the StatefulSets whose pods were started, in order.
func (m *machines) starts() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string{}, m.started...)
}

// awayAtOnce is how many engines were away at once after all had been ready.
func (m *machines) awayAtOnce() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.away
}

// tick does for every StatefulSet what there is to do. Conflicts and objects that just went are met again next time.
func (m *machines) tick(ctx context.Context) {
	var sets appsv1.StatefulSetList
	if err := admin.List(ctx, &sets, client.InNamespace(m.namespace)); err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopOrphans(ctx, sets.Items)
	away := 0
	for i := range sets.Items {
		set := &sets.Items[i]
		if *set.Spec.Replicas == 0 {
			continue // no engine's
		}
		ready, err := m.runPod(ctx, set)
		if err != nil {
			return
		}
		if ready == 0 {
			away++
		}
		if _, ran := m.settled[set.Name]; ready == 1 || !ran {
			m.settled[set.Name] = m.running[set.Name]
		}
		status := appsv1.StatefulSetStatus{
			ObservedGeneration: set.Generation, Replicas: 1, ReadyReplicas: ready, UpdatedReplicas: 1,
			CurrentRevision: m.settled[set.Name], UpdateRevision: set.Annotations[manifest.AnnotationTemplate],
		}
		if set.Status.ObservedGeneration != status.ObservedGeneration || set.Status.ReadyReplicas != ready || set.Status.CurrentRevision != status.CurrentRevision {
			set.Status = status
			if err := admin.Status().Update(ctx, set); err != nil {
				return
			}
		}
	}
	m.whole = m.whole || (away == 0 && len(sets.Items) > 0)
	if m.whole {
		m.away = max(m.away, away)
	}
}

// runPod makes the pod of a set have its template and be ready, one step at a time.
func (m *machines) runPod(ctx context.Context, set *appsv1.StatefulSet) (ready int32, err error) {
	want := set.Annotations[manifest.AnnotationTemplate]
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace, Name: set.Name + "-0", Labels: set.Spec.Template.Labels}}
	err = admin.Get(ctx, client.ObjectKeyFromObject(pod), pod)
	switch {
	case apierrors.IsNotFound(err):
		pod.Spec = *set.Spec.Template.Spec.DeepCopy()
		pod.Spec.NodeName = pinnedNode(set)
		m.running[set.Name] = want
		m.started = append(m.started, set.Name)
		return 0, admin.Create(ctx, pod)
	case err != nil:
		return 0, err
	case m.running[set.Name] != want:
		return 0, admin.Delete(ctx, pod, client.GracePeriodSeconds(0))
	}
	message, held := m.held[set.Name]
	state := corev1.ConditionTrue
	if held {
		state = corev1.ConditionFalse
	}
	if len(pod.Status.Conditions) != 1 || pod.Status.Conditions[0].Status != state {
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: state}}}
		if held {
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: manifest.EngineContainer, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "starting\n" + message}},
			}}
		}
		return 0, admin.Status().Update(ctx, pod)
	}
	if held {
		return 0, nil
	}
	return 1, nil
}

// stopOrphans deletes pods whose StatefulSet is gone.
func (m *machines) stopOrphans(ctx context.Context, sets []appsv1.StatefulSet) {
	alive := map[string]bool{}
	for i := range sets {
		alive[sets[i].Name+"-0"] = sets[i].DeletionTimestamp.IsZero()
	}
	var pods corev1.PodList
	ours := client.MatchingLabels{manifest.LabelManagedBy: manifest.ManagedBy}
	if err := admin.List(ctx, &pods, client.InNamespace(m.namespace), ours); err != nil {
		return
	}
	for i := range pods.Items {
		if !alive[pods.Items[i].Name] {
			_ = admin.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0))
		}
	}
}

// pinnedNode is the node that a set's pod has to run on, "" when it may run anywhere.
func pinnedNode(set *appsv1.StatefulSet) string {
	affinity := set.Spec.Template.Spec.Affinity.NodeAffinity
	if affinity == nil {
		return ""
	}
	return affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
}

// cluster is the manifest of a StorageCluster on the nodes of this test.
func (m *machines) cluster(replicas int, more string) string {
	return fmt.Sprintf(`
apiVersion: storage.weir.dev/v1alpha1
kind: StorageCluster
metadata: {name: weir}
spec:
  engines: {replicas: %d, nodeSelector: {test: %s}}
  storage: {size: 8Gi, hostPath: {path: /var/lib/weir-data}}
%s`, replicas, m.namespace, more)
}
