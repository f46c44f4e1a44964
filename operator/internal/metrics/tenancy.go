package metrics

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
)

// Tenancy exports which numbers tenants and virtual networks have, read from the cache at each scrape.
type Tenancy struct {
	reader client.Reader
	tenant *prometheus.Desc
	used   *prometheus.Desc
	quota  *prometheus.Desc
	vnis   *prometheus.Desc
}

var _ prometheus.Collector = (*Tenancy)(nil)

// NewTenancy makes a collector that reads objects through reader.
func NewTenancy(reader client.Reader) *Tenancy {
	return &Tenancy{
		reader: reader,
		tenant: prometheus.NewDesc("weir_operator_tenant_info", "Always 1; the labels tell the number of a Tenant.", []string{"name", "tenant"}, nil),
		used:   prometheus.NewDesc("weir_operator_tenant_used_bytes", "Bytes that the pools of a Tenant with a quota hold.", []string{"name"}, nil),
		quota:  prometheus.NewDesc("weir_operator_tenant_quota_bytes", "Bytes that the pools of a Tenant may hold.", []string{"name"}, nil),
		vnis:   prometheus.NewDesc("weir_operator_vnis", "Numbers of a FabricDomain: allocated, releasing and free.", []string{"name", "state"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (t *Tenancy) Describe(ch chan<- *prometheus.Desc) {
	ch <- t.tenant
	ch <- t.used
	ch <- t.quota
	ch <- t.vnis
}

// Collect implements prometheus.Collector.
func (t *Tenancy) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	var tenants v1alpha1.TenantList
	if err := t.reader.List(ctx, &tenants, client.UnsafeDisableDeepCopy); err == nil {
		for i := range tenants.Items {
			if number := tenants.Items[i].Status.Number; number != 0 {
				ch <- prometheus.MustNewConstMetric(t.tenant, prometheus.GaugeValue, 1, tenants.Items[i].Name, strconv.FormatInt(number, 10))
			}
			q := tenants.Items[i].Status.Quota
			if q == nil || q.Bytes == nil || q.Used == nil {
				continue
			}
			ch <- prometheus.MustNewConstMetric(t.used, prometheus.GaugeValue, q.Used.AsApproximateFloat64(), tenants.Items[i].Name)
			ch <- prometheus.MustNewConstMetric(t.quota, prometheus.GaugeValue, q.Bytes.AsApproximateFloat64(), tenants.Items[i].Name)
		}
	}
	var domains v1alpha1.FabricDomainList
	if err := t.reader.List(ctx, &domains, client.UnsafeDisableDeepCopy); err == nil {
		for i := range domains.Items {
			s := &domains.Items[i].Status
			for state, count := range map[string]int32{"allocated": s.Allocated, "releasing": s.Releasing, "free": s.Free} {
				ch <- prometheus.MustNewConstMetric(t.vnis, prometheus.GaugeValue, float64(count), domains.Items[i].Name, state)
			}
		}
	}
}
