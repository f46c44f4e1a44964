package storagecluster

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/internal/placement"
)

// pod makes a pod that is ready and changes it.
func pod(changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "weir-engine-0-0"}}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	for _, change := range changes {
		change(p)
	}
	return p
}

func notReady(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func container(s corev1.ContainerStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, s) }
}

func TestProblem(t *testing.T) {
	healthy := &managementv1.EngineState{Health: managementv1.EngineHealth_ENGINE_HEALTH_UP}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "weir-engine-0"}}
	here := nodes{assigned: placement.Assignment{0: "a"}, pinned: true}
	tests := map[string]struct {
		engine engine
		where  nodes
		want   string
	}{
		"an engine that is up has none":      {engine{set: set, pod: pod(), state: healthy}, here, ""},
		"without a node":                     {engine{}, nodes{pinned: true}, "no node"},
		"before its StatefulSet":             {engine{}, here, "not started yet"},
		"a StatefulSet that makes no pod":    {engine{set: set}, here, "StatefulSet weir-engine-0 has no pod: see its events"},
		"an engine on a claim needs no node": {engine{}, nodes{}, "not started yet"},
		"a pod that is going": {engine{set: set, pod: pod(func(p *corev1.Pod) {
			now := metav1.Now()
			p.DeletionTimestamp = &now
		})}, here, "the pod is being stopped"},
		"a pod without a place": {engine{set: set, pod: pod(notReady, func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "Insufficient memory",
			})
		})}, here, "Unschedulable: Insufficient memory"},
		"an image that does not come": {engine{set: set, pod: pod(notReady, container(corev1.ContainerStatus{
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}},
		}))}, here, "ImagePullBackOff: no such image"},
		"an engine that gives up shows the end of its log": {engine{set: set, pod: pod(notReady, container(corev1.ContainerStatus{
			State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, Message: "INFO start\n\x1b[31mERROR\x1b[0m target 0 is corrupt\n"}},
		}))}, here, "CrashLoopBackOff: exited with code 2: ERROR target 0 is corrupt"},
		"an engine that was killed": {engine{set: set, pod: pod(notReady, container(corev1.ContainerStatus{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", Message: "INFO all is well"}},
		}))}, here, "ended by signal 9 (OOMKilled)"},
		"an engine that recovers":      {engine{set: set, pod: pod(notReady)}, here, "running, not ready yet"},
		"a management that is silent":  {engine{set: set, pod: pod()}, here, "the pod is ready, the management service does not answer"},
		"an engine others can't reach": {engine{set: set, pod: pod(), state: &managementv1.EngineState{Health: managementv1.EngineHealth_ENGINE_HEALTH_DOWN, Message: "timeout"}}, here, "other engines can't reach it: timeout"},
		"an engine with a target gone": {engine{set: set, pod: pod(), state: &managementv1.EngineState{Health: managementv1.EngineHealth_ENGINE_HEALTH_UP, Message: "target 1 does not answer"}}, here, "target 1 does not answer"},
		"a message as long as a novel": {engine{set: set, pod: pod(), state: &managementv1.EngineState{Message: strings.Repeat("é", 1000)}}, here, "other engines can't reach it: " + strings.Repeat("é", maxEngineMessage-30) + "…"},
		"an init container that failed": {engine{set: set, pod: pod(notReady, func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "chown: denied"}}}}
		})}, here, "exited with code 1: chown: denied"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.engine.problem(tc.where); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
			if tc.engine.up() != (tc.want == "") {
				t.Errorf("up is %v", tc.engine.up())
			}
		})
	}
}
