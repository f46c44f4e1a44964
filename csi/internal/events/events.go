// Package events tells users of a node's lost mounts, and of volumes that wait for engines: by events of the pods that use them and of their
// claims, by a metric and in the log.
package events

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"weir.dev/weir/csi/internal/node"
)

// Reasons of events.
const (
	// ReasonLost says that a mount's process has ended.
	ReasonLost = "VolumeMountLost"
	// ReasonRestored says that the mount was made again.
	ReasonRestored = "VolumeMountRestored"
	// ReasonFailed says that it could not be made again.
	ReasonFailed = "VolumeMountRestoreFailed"
	// ReasonDegraded says that a volume waits for engines.
	ReasonDegraded = "VolumeDegraded"
	// ReasonRecovered says that it serves again.
	ReasonRecovered = "VolumeRecovered"
)

// Reporter reports losses. It implements node.Reporter and node.HealthReporter.
type Reporter struct {
	logger   *slog.Logger
	losses   *prometheus.CounterVec
	api      kubernetes.Interface
	recorder record.EventRecorder
	node     string
}

var (
	_ node.Reporter       = (*Reporter)(nil)
	_ node.HealthReporter = (*Reporter)(nil)
)

// New returns a reporter for the node called name. Without an API server (nil) there are no events.
func New(logger *slog.Logger, registry prometheus.Registerer, api kubernetes.Interface, name string) *Reporter {
	losses := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_csi_lost_mounts_total",
		Help: "Mounts whose process has ended, by outcome: lost, restored, or failed for each attempt that did not make it again.",
	}, []string{"outcome"})
	registry.MustRegister(losses)
	r := &Reporter{logger: logger, losses: losses, api: api, node: name}
	if api != nil {
		broadcaster := record.NewBroadcaster()
		broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: api.CoreV1().Events("")})
		r.recorder = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "csi.weir.dev", Host: name})
	}
	return r
}

// Lost tells of a loss.
func (r *Reporter) Lost(ctx context.Context, loss node.Loss) {
	r.losses.WithLabelValues("lost").Inc()
	r.logger.ErrorContext(ctx, "mount lost", "volume", loss.Volume, "reason", loss.Reason, "targets", loss.Targets)
	r.tell(ctx, loss, corev1.EventTypeWarning, ReasonLost, fmt.Sprintf(
		"the mount of volume %s on node %s was lost (%s): what is open on it gets errors; it is being made again", loss.Volume, r.node, loss.Reason))
}

// Restored tells that a mount works again.
func (r *Reporter) Restored(ctx context.Context, loss node.Loss, containers int) {
	r.losses.WithLabelValues("restored").Inc()
	r.logger.InfoContext(ctx, "mount restored", "volume", loss.Volume, "targets", loss.Targets, "containers", containers)
	r.tell(ctx, loss, corev1.EventTypeNormal, ReasonRestored, fmt.Sprintf(
		"the mount of volume %s on node %s works again; programs that had files or a working directory open on it must open them again, else restart the pod",
		loss.Volume, r.node))
}

// Failed tells that a mount could not be made again. It will be tried again.
func (r *Reporter) Failed(ctx context.Context, loss node.Loss, err error) {
	r.losses.WithLabelValues("failed").Inc()
	r.logger.ErrorContext(ctx, "mount not restored", "volume", loss.Volume, "targets", loss.Targets, "error", err)
	r.tell(ctx, loss, corev1.EventTypeWarning, ReasonFailed, fmt.Sprintf(
		"the mount of volume %s on node %s cannot be made again yet: %v", loss.Volume, r.node, err))
}

// Degraded tells that a volume waits for engines. weir_csi_volume_health has the state.
func (r *Reporter) Degraded(ctx context.Context, loss node.Loss) {
	r.logger.WarnContext(ctx, "volume waits for engines", "volume", loss.Volume, "reason", loss.Reason, "targets", loss.Targets)
	r.tell(ctx, loss, corev1.EventTypeWarning, ReasonDegraded, fmt.Sprintf(
		"volume %s waits for engines on node %s (%s): programs that use it wait, too, and nothing is lost; the conditions of its Pool and StorageCluster say which engines are away",
		loss.Volume, r.node, loss.Reason))
}

// Recovered tells that a volume serves again.
func (r *Reporter) Recovered(ctx context.Context, loss node.Loss) {
	r.logger.InfoContext(ctx, "volume serves again", "volume", loss.Volume, "targets", loss.Targets)
	r.tell(ctx, loss, corev1.EventTypeNormal, ReasonRecovered, fmt.Sprintf("volume %s serves again on node %s", loss.Volume, r.node))
}

// podPath finds pod and volume in a path at which the kubelet has a volume published.
var podPath = regexp.MustCompile(`/pods/([^/]+)/volumes/kubernetes\.io~csi/([^/]+)/mount$`)

// tell makes an event of each pod that has the volume, and of their claims.
func (r *Reporter) tell(ctx context.Context, loss node.Loss, kind, reason, message string) {
	if r.api == nil {
		return
	}
	volumes := map[string]string{}
	for _, target := range loss.Targets {
		if found := podPath.FindStringSubmatch(target); found != nil {
			volumes[found[1]] = found[2]
		}
	}
	if len(volumes) == 0 {
		return
	}
	pods, err := r.api.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", r.node).String(),
	})
	if err != nil {
		r.logger.WarnContext(ctx, "no event: pods of the node cannot be listed", "error", err)
		return
	}
	told := map[string]bool{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		name, uses := volumes[string(pod.UID)]
		if !uses {
			continue
		}
		r.recorder.Event(pod, kind, reason, message)
		claim := r.claimOf(ctx, pod, name)
		if claim == nil || told[string(claim.UID)] {
			continue
		}
		told[string(claim.UID)] = true
		r.recorder.Event(claim, kind, reason, message)
	}
}

// claimOf finds the claim of a pod that is bound to the PersistentVolume called name; nil if there is none.
func (r *Reporter) claimOf(ctx context.Context, pod *corev1.Pod, name string) *corev1.PersistentVolumeClaim {
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := r.api.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, volume.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
		if err != nil {
			r.logger.WarnContext(ctx, "no event: a claim cannot be read", "namespace", pod.Namespace, "claim", volume.PersistentVolumeClaim.ClaimName, "error", err)
			continue
		}
		if claim.Spec.VolumeName == name {
			return claim
		}
	}
	return nil
}
