package status

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"weir.dev/weir/operator/api/v1alpha1"
)

// events keeps what was sent.
type events []string

func (e *events) Eventf(_, _ runtime.Object, eventType, reason, action, note string, args ...any) {
	*e = append(*e, fmt.Sprintf("%s %s %s: ", eventType, reason, action)+fmt.Sprintf(note, args...))
}

func TestReportTellsNewsOnce(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	var sent events
	reporter := NewReporter(&sent, clock)
	pool := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Name: "tank", Generation: 3}}
	steps := []struct {
		name   string
		report Condition
		event  string
	}{
		{"nothing wrong at the start is no news", Of("Degraded", false, "Fine", "all is well"), ""},
		{"becoming ready is", Of("Ready", true, "Available", "here"), "Normal Available Ready: here"},
		{"the same again is not", Of("Ready", true, "Available", "here"), ""},
		{"another message alone is not", Of("Ready", true, "Available", "there"), ""},
		{"a fault is a warning", Of("Degraded", true, "Lost", "rank 1"), "Warning Lost Degraded: rank 1"},
		{"another reason is news", Of("Degraded", true, "Worse", "ranks 1 and 2"), "Warning Worse Degraded: ranks 1 and 2"},
		{"its end is good news", Of("Degraded", false, "Fine", "all is well"), "Normal Fine Degraded: all is well"},
		{"a blocked deletion is a warning", Of("DeletionBlocked", true, "Busy", "box"), "Warning Busy DeletionBlocked: box"},
		{"progress is told by readiness", Of("Progressing", true, "Starting", "soon"), ""},
		{"not being ready is a warning", Of("Ready", false, "Gone", "100% gone"), "Warning Gone Ready: 100% gone"},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			sent = nil
			clock.SetTime(clock.Now().Add(time.Minute))
			reporter.Report(t.Context(), pool, &pool.Status.Conditions, step.report)
			if got := strings.Join(sent, "; "); got != step.event {
				t.Errorf("sent %q, want %q", got, step.event)
			}
			c := meta.FindStatusCondition(pool.Status.Conditions, step.report.Type)
			if c.Message != step.report.Message || c.ObservedGeneration != 3 {
				t.Errorf("condition %+v", c)
			}
		})
	}
	ready := meta.FindStatusCondition(pool.Status.Conditions, "Ready")
	if !ready.LastTransitionTime.Time.Equal(clock.Now()) {
		t.Errorf("Ready changed at %s, want %s", ready.LastTransitionTime, clock.Now())
	}
}

func TestFailedTellsWhatSomebodyHasToMend(t *testing.T) {
	gone := metav1.NewTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	secrets := schema.GroupResource{Resource: "secrets"}
	tests := map[string]struct {
		err     error
		deleted *metav1.Time
		// condition and state that the object has afterwards; none for an error that passes.
		condition string
		state     metav1.ConditionStatus
	}{
		"a forbidden change makes it not ready":         {apierrors.NewForbidden(secrets, "weir-ca", errors.New("exceeded quota")), nil, "Ready", metav1.ConditionFalse},
		"a wrapped error too":                           {fmt.Errorf("query: %w", errors.New("broken")), nil, "Ready", metav1.ConditionFalse},
		"a failing finalizer says that it blocks":       {errors.New("broken"), &gone, "DeletionBlocked", metav1.ConditionTrue},
		"another writer is none of the user's business": {fmt.Errorf("patch: %w", apierrors.NewConflict(secrets, "weir-ca", errors.New("changed"))), nil, "", ""},
		"nor is a busy API server":                      {apierrors.NewTooManyRequests("slow down", 1), nil, "", ""},
		"nor the operator's own end":                    {fmt.Errorf("query: %w", context.Canceled), nil, "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var sent events
			pool := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Name: "tank", Generation: 3, DeletionTimestamp: tc.deleted}}
			reporter := NewReporter(&sent, clocktesting.NewFakePassiveClock(gone.Time))
			reporter.Failed(t.Context(), pool, &pool.Status.Conditions, tc.err)
			if tc.condition == "" {
				if len(pool.Status.Conditions) != 0 || len(sent) != 0 {
					t.Errorf("reported %+v, sent %v", pool.Status.Conditions, sent)
				}
				return
			}
			c := meta.FindStatusCondition(pool.Status.Conditions, tc.condition)
			if c == nil || c.Status != tc.state || c.Reason != v1alpha1.ReasonReconcileFailed || !strings.Contains(c.Message, tc.err.Error()) {
				t.Errorf("conditions %+v", pool.Status.Conditions)
			}
			if len(sent) != 1 || !strings.HasPrefix(sent[0], "Warning ReconcileFailed") {
				t.Errorf("sent %v", sent)
			}
		})
	}
}

func TestLongMessagesAreCutBetweenCharacters(t *testing.T) {
	got := truncate(strings.Repeat("é", messageBytes))
	if len(got) > messageBytes || !strings.HasSuffix(got, "é…") || strings.ContainsRune(got, '\uFFFD') {
		t.Errorf("%d bytes ending in %q", len(got), got[len(got)-8:])
	}
}

func TestList(t *testing.T) {
	var many []string
	for i := range 12 {
		many = append(many, fmt.Sprintf("p%02d", 11-i))
	}
	if got := List(many); got != "p00, p01, p02, p03, p04, p05, p06, p07, p08, p09 and 2 more" {
		t.Errorf("got %s", got)
	}
}
