// Package status writes conditions and tells of their changes: one report becomes condition, event and log line.
package status

import (
	"context"
	"errors"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"weir.dev/weir/operator/api/v1alpha1"
)

// messageBytes bounds messages: an event's note holds at most 1024 characters.
const messageBytes = 1000

// Recorder sends events.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

// Reporter writes conditions.
type Reporter struct {
	recorder Recorder
	clock    clock.PassiveClock
}

// NewReporter makes a reporter.
func NewReporter(recorder Recorder, passive clock.PassiveClock) *Reporter {
	return &Reporter{recorder: recorder, clock: passive}
}

// Condition is one fact to report.
type Condition struct {
	Type    string
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// Of makes a condition from a truth.
func Of(kind string, truth bool, reason, message string) Condition {
	state := metav1.ConditionFalse
	if truth {
		state = metav1.ConditionTrue
	}
	return Condition{Type: kind, Status: state, Reason: reason, Message: message}
}

// desired are the conditions that are True when all is well; the others are True when something is wrong, or under way.
var desired = map[string]bool{
	v1alpha1.ConditionReady: true, v1alpha1.ConditionDrainable: true, v1alpha1.ConditionVNIAllocated: true, v1alpha1.ConditionCredentialsWritten: true,
	v1alpha1.ConditionEnginesServe: true, v1alpha1.ConditionQuotaEnforced: true, v1alpha1.ConditionFabricEnforced: true, v1alpha1.ConditionIsolated: true,
}

// Report sets a condition of obj. When its status or reason is new, it also sends an event and logs.
func (r *Reporter) Report(ctx context.Context, obj client.Object, conditions *[]metav1.Condition, c Condition) {
	c.Message = truncate(c.Message)
	before := meta.FindStatusCondition(*conditions, c.Type)
	news := before == nil || before.Status != c.Status || before.Reason != c.Reason
	wasTrue := before != nil && before.Status == metav1.ConditionTrue
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type:               c.Type,
		Status:             c.Status,
		Reason:             c.Reason,
		Message:            c.Message,
		ObservedGeneration: obj.GetGeneration(),
		LastTransitionTime: metav1.NewTime(r.clock.Now()),
	})
	if !news {
		return
	}
	log.FromContext(ctx).Info("Condition changed", "condition", c.Type, "status", c.Status, "reason", c.Reason, "message", c.Message)
	good := c.Status == metav1.ConditionTrue
	switch {
	case c.Type == v1alpha1.ConditionHealthy:
		if good && before == nil {
			return // that nothing is wrong with what has just been found is no news
		}
	case desired[c.Type]:
	default:
		good = !good
		if good && !wasTrue {
			return // that nothing is wrong, and never was, is no news
		}
	}
	if c.Type == v1alpha1.ConditionProgressing || c.Reason == v1alpha1.ReasonDeleting {
		return // Ready tells of the result, DeletionBlocked of what a deletion waits for
	}
	eventType := corev1.EventTypeWarning
	if good {
		eventType = corev1.EventTypeNormal
	}
	r.recorder.Eventf(obj, nil, eventType, c.Reason, c.Type, "%s", c.Message)
}

// Blocked reports what the deletion of obj waits for; while it does, obj is not ready.
func (r *Reporter) Blocked(ctx context.Context, obj client.Object, conditions *[]metav1.Condition, blocked Condition) {
	r.Report(ctx, obj, conditions, Of(v1alpha1.ConditionReady, false, v1alpha1.ReasonDeleting, "being deleted: the condition DeletionBlocked says what that waits for"))
	r.Report(ctx, obj, conditions, blocked)
}

// Failed reports an error that ended a reconciliation, where the object's user looks: Ready is False, or for an object
// that is being deleted DeletionBlocked is True. What passes by itself is left to the next attempt.
func (r *Reporter) Failed(ctx context.Context, obj client.Object, conditions *[]metav1.Condition, err error) {
	if passes(err) {
		return
	}
	message := err.Error() + "; the operator tries again"
	if obj.GetDeletionTimestamp().IsZero() {
		r.Report(ctx, obj, conditions, Of(v1alpha1.ConditionReady, false, v1alpha1.ReasonReconcileFailed, message))
		return
	}
	r.Blocked(ctx, obj, conditions, Of(v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonReconcileFailed, message))
}

// passes tells whether an error is nobody's to mend: another writer was faster, the API server is busy, or the operator
// is being stopped.
func passes(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || apierrors.IsConflict(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
}

// Event tells of something that is no condition.
func (r *Reporter) Event(obj client.Object, eventType, reason, action, message string) {
	r.recorder.Eventf(obj, nil, eventType, reason, action, "%s", truncate(message))
}

func truncate(message string) string {
	if len(message) <= messageBytes {
		return message
	}
	cut := messageBytes - len("…")
	for cut > 0 && !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut] + "…"
}
