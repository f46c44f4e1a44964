package tenant

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
)

func TestWhatIsSaidOfEngines(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		asked                    int
		silent, revoked, outside []string
		status                   metav1.ConditionStatus
		reason                   string
	}{
		"all serve":                        {asked: 2, status: metav1.ConditionTrue, reason: v1alpha1.ReasonAllEnginesServe},
		"none has been up":                 {status: metav1.ConditionUnknown, reason: v1alpha1.ReasonNoCluster},
		"one is silent":                    {asked: 1, silent: []string{"engine 1"}, status: metav1.ConditionUnknown, reason: v1alpha1.ReasonEnginesSilent},
		"one turns it away, one is silent": {asked: 1, silent: []string{"engine 1"}, revoked: []string{"engine 0"}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonAccessRevoked},
		"a VNI is not served":              {asked: 1, outside: []string{"VNI 7"}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonVNIOutsideBlock},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, after := served(tc.asked, tc.silent, tc.revoked, tc.outside)
			if c.Status != tc.status || c.Reason != tc.reason || after <= 0 {
				t.Errorf("got %+v after %s", c, after)
			}
			for _, named := range [][]string{tc.revoked, tc.outside} {
				for _, word := range named {
					if !strings.Contains(c.Message, word) {
						t.Errorf("the message does not name %s: %s", word, c.Message)
					}
				}
			}
		})
	}
}

func TestVNIsOutsideTheBlockOfTheEnginesAreNotServed(t *testing.T) {
	t.Parallel()
	tenant := &v1alpha1.Tenant{Status: v1alpha1.TenantStatus{VNIs: []int32{1030, 1200}}}
	block := &v1alpha1.VNIBlock{First: 1024, Last: 1151}
	for name, tc := range map[string]struct {
		fabric v1alpha1.FabricSpec
		want   string
	}{
		"inside and outside":        {v1alpha1.FabricSpec{Provider: "cxi", VNIBlock: block}, "1200"},
		"no block":                  {v1alpha1.FabricSpec{Provider: "cxi"}, ""},
		"a provider without VNIs":   {v1alpha1.FabricSpec{Provider: "tcp", VNIBlock: block}, ""},
		"a block that begins later": {v1alpha1.FabricSpec{Provider: "cxi", VNIBlock: &v1alpha1.VNIBlock{First: 1100, Last: 1200}}, "1030"},
	} {
		cluster := &v1alpha1.StorageCluster{Spec: v1alpha1.StorageClusterSpec{Fabric: tc.fabric}}
		if got := strings.Join(unserved(cluster, tenant), " "); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

func TestANumberIsNoAdministratorsAndReadByEveryone(t *testing.T) {
	t.Parallel()
	seen := map[int64]bool{}
	for attempt := range uint64(10_000) {
		got := number(&v1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{UID: "3f0f5a2e-8d3c-4a6e-9f5b-2c1d7e8a9b0c"}}, attempt)
		if got < v1alpha1.TenantNumberMin || got > v1alpha1.TenantNumberMax || seen[got] {
			t.Fatalf("attempt %d gives %d", attempt, got)
		}
		seen[got] = true
	}
}
