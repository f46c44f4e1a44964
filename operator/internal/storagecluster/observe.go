package storagecluster

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/manifest"
)

// maxEngineMessage bounds what one engine puts into the status; its log has the rest.
const maxEngineMessage = 300

// engine is what is seen of the engine of a rank.
type engine struct {
	rank int32
	set  *appsv1.StatefulSet
	pod  *corev1.Pod
	// outdated is true while the StatefulSet has an older template than the spec asks for.
	outdated bool
	// state is what the system says of the engine; nil when nobody answered.
	state *managementv1.EngineState
}

// observe looks at the StatefulSets, the pods and, if one is ready, what the engines say of each other.
func (r *Reconciler) observe(ctx context.Context, cluster *v1alpha1.StorageCluster) ([]engine, error) {
	engines := make([]engine, cluster.Spec.Engines.Replicas)
	for rank := range cluster.Spec.Engines.Replicas {
		engines[rank].rank = rank
	}
	sets, err := statefulSets(ctx, r.client, cluster)
	if err != nil {
		return nil, err
	}
	for i := range sets {
		if rank, is := rankOf(cluster, &sets[i], manifest.EngineName); is && int(rank) < len(engines) {
			engines[rank].set = &sets[i]
		}
	}
	var pods corev1.PodList
	err = r.client.List(ctx, &pods, client.InNamespace(cluster.Namespace), client.MatchingLabels(manifest.EngineSelector(cluster.Name)))
	if err != nil {
		return nil, fmt.Errorf("list pods of StorageCluster %s/%s: %w", cluster.Namespace, cluster.Name, err)
	}
	someReady := false
	for i := range pods.Items {
		if rank, is := rankOf(cluster, &pods.Items[i], manifest.PodName); is && int(rank) < len(engines) {
			engines[rank].pod = &pods.Items[i]
			someReady = someReady || podReady(engines[rank].pod)
		}
	}
	if someReady {
		r.askSystem(ctx, cluster, engines)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted: %w", ctx.Err()) // silence now says nothing of the engines
	}
	return engines, nil
}

// askSystem fills in what the system says. That it does not answer shows as engines without state.
func (r *Reconciler) askSystem(ctx context.Context, cluster *v1alpha1.StorageCluster, engines []engine) {
	connected, err := r.engines.Connect(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return
	}
	answer, err := connected.System.Query(ctx, &managementv1.SystemQueryRequest{})
	if err != nil {
		if !management.IsUnreachable(err) {
			r.reporter.Event(cluster, corev1.EventTypeWarning, v1alpha1.ReasonRejected, "Query", "the engines refuse to answer: "+management.Message(err))
		}
		return
	}
	for _, state := range answer.GetEngines() {
		if int(state.GetRank()) < len(engines) {
			engines[state.GetRank()].state = state
		}
	}
}

// rankOf is the rank of the engine that an object is of, by its label. named gives the name that the engine's own object has:
// a copy of it has the label, too.
func rankOf(cluster *v1alpha1.StorageCluster, obj client.Object, named func(cluster string, rank int32) string) (rank int32, is bool) {
	parsed, err := strconv.ParseInt(obj.GetLabels()[v1alpha1.LabelRank], 10, 32)
	rank = int32(parsed)
	return rank, err == nil && rank >= 0 && obj.GetName() == named(cluster.Name, rank)
}

func podReady(pod *corev1.Pod) bool {
	if !pod.DeletionTimestamp.IsZero() {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// up is true while the pod is ready and the system says that the engine and all its targets answer.
func (e engine) up() bool {
	return e.pod != nil && podReady(e.pod) && e.state.GetHealth() == managementv1.EngineHealth_ENGINE_HEALTH_UP && e.state.GetMessage() == ""
}

// problem says why the engine is not up.
func (e engine) problem(where nodes) string {
	switch {
	case e.up():
		return ""
	case !where.runnable(e.rank):
		return shorten(where.lack(e.rank))
	case e.pod == nil && e.set == nil:
		return "not started yet"
	case e.pod == nil:
		return fmt.Sprintf("StatefulSet %s has no pod: see its events", e.set.Name)
	case !podReady(e.pod):
		return shorten(podProblem(e.pod))
	case e.state == nil:
		return "the pod is ready, the management service does not answer"
	case e.state.GetHealth() == managementv1.EngineHealth_ENGINE_HEALTH_UP:
		return shorten(e.state.GetMessage())
	default:
		return shorten("other engines can't reach it: " + e.state.GetMessage())
	}
}

// podProblem finds the most telling thing about a pod that is not ready.
func podProblem(pod *corev1.Pod) string {
	if !pod.DeletionTimestamp.IsZero() {
		return "the pod is being stopped"
	}
	statuses := append(append([]corev1.ContainerStatus{}, pod.Status.InitContainerStatuses...), pod.Status.ContainerStatuses...)
	for _, c := range statuses {
		last := c.LastTerminationState.Terminated
		switch {
		case c.State.Waiting != nil && last != nil && last.ExitCode != 0:
			return c.State.Waiting.Reason + ": " + ended(last)
		case c.State.Waiting != nil && c.State.Waiting.Message != "":
			return c.State.Waiting.Reason + ": " + c.State.Waiting.Message
		case c.State.Terminated != nil && c.State.Terminated.ExitCode != 0:
			return ended(c.State.Terminated)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Reason + ": " + c.Message
		}
	}
	if pod.Status.Phase == corev1.PodRunning {
		return "running, not ready yet"
	}
	return "the pod is starting"
}

// signalBase is what a runtime adds to the number of the signal that ended a process.
const signalBase = 128

// ended says how a container came to its end. The log of a process that was killed knows nothing of it.
func ended(state *corev1.ContainerStateTerminated) string {
	if state.ExitCode > signalBase {
		return fmt.Sprintf("ended by signal %d (%s)", state.ExitCode-signalBase, state.Reason)
	}
	return fmt.Sprintf("exited with code %d: %s", state.ExitCode, lastLine(state.Message))
}

// colours of a log on a terminal.
var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// lastLine is the last line of a log that says something.
func lastLine(log string) string {
	lines := strings.Split(strings.TrimSpace(colours.ReplaceAllString(log, "")), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

func shorten(message string) string {
	runes := []rune(message)
	if len(runes) <= maxEngineMessage {
		return message
	}
	return string(runes[:maxEngineMessage]) + "…"
}
