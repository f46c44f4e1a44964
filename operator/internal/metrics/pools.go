package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"

	"weir.dev/weir/operator/api/v1alpha1"
)

// pools are what is told of pools with redundancy.
type pools struct {
	condition, mayFail, rebuilt, rate *prometheus.Desc
}

func newPools() pools {
	pool := []string{"namespace", "name"}
	return pools{
		condition: prometheus.NewDesc("weir_operator_pool_condition",
			"1 if the condition of a Pool with redundancy is True, else 0.", append(pool, "condition"), nil),
		mayFail: prometheus.NewDesc("weir_operator_pool_may_fail",
			"Failure domains that a Pool with redundancy may lose at this moment.", pool, nil),
		rebuilt: prometheus.NewDesc("weir_operator_pool_rebuilt_ratio",
			"Part of the copies under way that is made; absent while none is being made, or while it isn't known.", pool, nil),
		rate: prometheus.NewDesc("weir_operator_pool_rebuild_bytes_per_second",
			"Bytes of copies that are made in a second; absent while none is being made, or while it isn't known.", pool, nil),
	}
}

func (p *pools) describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{p.condition, p.mayFail, p.rebuilt, p.rate} {
		ch <- desc
	}
}

func (p *pools) collect(ch chan<- prometheus.Metric, pool *v1alpha1.Pool) {
	if pool.Spec.RedundancyFactor == 0 {
		return
	}
	gauge := func(desc *prometheus.Desc, value float64, more ...string) {
		labels := append([]string{pool.Namespace, pool.Name}, more...)
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for _, kind := range []string{v1alpha1.ConditionDegraded, v1alpha1.ConditionRebuilding, v1alpha1.ConditionAtRisk} {
		value := 0.0
		if meta.IsStatusConditionTrue(pool.Status.Conditions, kind) {
			value = 1
		}
		gauge(p.condition, value, kind)
	}
	if pool.Status.MayFail != nil {
		gauge(p.mayFail, float64(*pool.Status.MayFail))
	}
	rebuild := pool.Status.Rebuild
	if rebuild == nil {
		return
	}
	if rebuild.Percent != nil {
		gauge(p.rebuilt, float64(*rebuild.Percent)/100)
	}
	if rebuild.Rate != nil {
		gauge(p.rate, rebuild.Rate.AsApproximateFloat64())
	}
}
