package tenant

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
)

func TestWhatIsSaidOfTheFabric(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	at := func(age time.Duration) metav1.Time { return metav1.NewTime(now.Add(-age)) }
	released := at(time.Hour)
	proof := func(age time.Duration, reached ...string) *v1alpha1.IsolationProof {
		return &v1alpha1.IsolationProof{Time: at(age), Refused: []string{"VNI 1025", "no VNI"}, Reached: reached}
	}
	node := func(name string, proof *v1alpha1.IsolationProof, waiting ...string) v1alpha1.VNINode {
		return v1alpha1.VNINode{Name: name, Proof: proof, Waiting: waiting}
	}
	gone := node("gone", proof(time.Hour, "VNI 1"), "pod x")
	gone.ReleasedAt = &released
	for name, tc := range map[string]struct {
		nodes                          []v1alpha1.VNINode
		enforced, isolated             metav1.ConditionStatus
		enforcedReason, isolatedReason string
		word                           string
	}{
		"no node":                  {nil, metav1.ConditionUnknown, metav1.ConditionUnknown, v1alpha1.ReasonNoAgent, v1alpha1.ReasonNotProven, "no node runs"},
		"released":                 {[]v1alpha1.VNINode{gone}, metav1.ConditionUnknown, metav1.ConditionUnknown, v1alpha1.ReasonNoAgent, v1alpha1.ReasonNotProven, "no node runs"},
		"not probed":               {[]v1alpha1.VNINode{node("a", proof(0)), node("b", nil)}, metav1.ConditionTrue, metav1.ConditionUnknown, v1alpha1.ReasonPodsAdmitted, v1alpha1.ReasonNotProven, "node b"},
		"long ago":                 {[]v1alpha1.VNINode{node("a", proof(time.Hour))}, metav1.ConditionTrue, metav1.ConditionUnknown, v1alpha1.ReasonPodsAdmitted, v1alpha1.ReasonNotProven, "11:00:00"},
		"all refused":              {[]v1alpha1.VNINode{node("a", proof(0)), node("b", proof(10*time.Minute)), gone}, metav1.ConditionTrue, metav1.ConditionTrue, v1alpha1.ReasonPodsAdmitted, v1alpha1.ReasonAttemptsRefused, "all 4 attempts"},
		"one got through":          {[]v1alpha1.VNINode{node("a", proof(0)), node("b", proof(0, "VNI 1025"))}, metav1.ConditionTrue, metav1.ConditionFalse, v1alpha1.ReasonPodsAdmitted, v1alpha1.ReasonAttemptSucceeded, "node b: VNI 1025"},
		"one got through long ago": {[]v1alpha1.VNINode{node("b", proof(time.Hour, "VNI 1025"))}, metav1.ConditionTrue, metav1.ConditionFalse, v1alpha1.ReasonPodsAdmitted, v1alpha1.ReasonAttemptSucceeded, "node b"},
		"a pod waits":              {[]v1alpha1.VNINode{node("a", proof(0), "pod p: no address")}, metav1.ConditionFalse, metav1.ConditionTrue, v1alpha1.ReasonPodsWait, v1alpha1.ReasonAttemptsRefused, "all 2 attempts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			allocations := []*v1alpha1.VNIAllocation{{ObjectMeta: metav1.ObjectMeta{Name: "1024"}, Status: v1alpha1.VNIAllocationStatus{Nodes: tc.nodes}}}
			if c := enforced(allocations); c.Status != tc.enforced || c.Reason != tc.enforcedReason {
				t.Errorf("%+v", c)
			}
			c, oldest := isolated(allocations, now)
			if c.Status != tc.isolated || c.Reason != tc.isolatedReason || !strings.Contains(c.Message, tc.word) || (oldest != nil) != (tc.isolated == metav1.ConditionTrue) {
				t.Errorf("%+v %v", c, oldest)
			}
		})
	}
}
