package enforcement

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"weir.dev/weir/charts/contract"
)

// counted is a fabric that has dropped something.
type counted struct{}

func (counted) Denied(context.Context) (uint64, error) { return 7, nil }

func TestTheMetricsAreThoseOfTheReference(t *testing.T) {
	w := newWorld(t)
	w.tenant("one", 1001)
	w.pod("one", "first", "here", "10.0.0.1", nil)
	w.sync()
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewCollector(w.agent.keeper, counted{}, "test"))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	documented, err := contract.Metrics("../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(documented, func(name string, _ contract.Metric) bool { return !strings.HasPrefix(name, "weir_fabric_agent_") })
	for _, family := range families {
		metric, found := documented[family.GetName()]
		if !found || strings.ToUpper(metric.Kind) != family.GetType().String() {
			t.Errorf("%s is a %s; the reference says %+v", family.GetName(), family.GetType(), metric)
		}
		delete(documented, family.GetName())
		for _, m := range family.GetMetric() {
			var labels []string
			for _, label := range m.GetLabel() {
				labels = append(labels, label.GetName())
				if label.GetValue() == "Admitted" && m.GetGauge().GetValue() != 1 {
					t.Errorf("%v", m)
				}
			}
			if !slices.Equal(labels, metric.Labels) {
				t.Errorf("%s has the labels %v, documented are %v", family.GetName(), labels, metric.Labels)
			}
		}
	}
	if len(documented) > 0 {
		t.Errorf("documented and not exported: %v", documented)
	}
}
