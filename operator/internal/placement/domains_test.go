package placement

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
)

func TestDomainsComeFromTheLabelsOfNodes(t *testing.T) {
	all := map[string]string{corev1.LabelTopologyZone: "z", labelRack: "r", corev1.LabelHostname: "h", "row": "7"}
	for name, tc := range map[string]struct {
		labels  map[string]string
		domains []string
		bound   bool
		want    []string
	}{
		"zone, rack and host":                            {all, nil, true, []string{"z", "r", "h"}},
		"without rack":                                   {map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelHostname: "h"}, nil, true, []string{"z", "h"}},
		"without labels":                                 {nil, nil, true, []string{"node"}},
		"as the spec says":                               {all, []string{"row", labelRack}, true, []string{"7", "r"}},
		"without the narrowest label":                    {map[string]string{"row": "7"}, []string{"row", labelRack}, true, []string{"7", "node"}},
		"of an engine that moves with its data":          {all, nil, false, []string{"z", "r", "weir-engine-1"}},
		"of an engine that moves, where racks are apart": {all, []string{labelRack}, false, []string{"r"}},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: tc.labels}}
			if got := Domains(v1alpha1.EnginesSpec{FailureDomains: tc.domains}, node, tc.bound, "weir-engine-1"); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
