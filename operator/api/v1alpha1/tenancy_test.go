package v1alpha1

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTheOldestTenantThatSelectsANamespaceHasIt(t *testing.T) {
	t.Parallel()
	tenant := func(name string, age time.Duration, selector metav1.LabelSelector) Tenant {
		made := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age))
		return Tenant{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: made}, Spec: TenantSpec{NamespaceSelector: selector}}
	}
	team := metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	tenants := []Tenant{
		tenant("malformed", 3*time.Hour, metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: "Resembles"}}}),
		tenant("all", 3*time.Hour, metav1.LabelSelector{}),
		tenant("young", time.Hour, team),
		tenant("old", 2*time.Hour, team),
	}
	if owner := TenantOf(tenants, map[string]string{"team": "a"}); owner == nil || owner.Name != "old" {
		t.Errorf("%v", owner)
	}
	if owner := TenantOf(tenants, map[string]string{"team": "b"}); owner != nil {
		t.Errorf("nobody selects it: %s", owner.Name)
	}
}
