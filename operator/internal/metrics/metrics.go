// Package metrics exports what the operator knows, under the names that docs/reference/metrics.md states.
package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
)

// scrapeTimeout bounds reading the cache for one scrape; it answers from memory.
const scrapeTimeout = 5 * time.Second

// Collector exports the conditions of every object, read from the cache at each scrape: an object that goes takes its
// series with it. It changes no object that it reads, so that none is copied.
type Collector struct {
	reader  client.Reader
	build   *prometheus.Desc
	ready   *prometheus.Desc
	blocked *prometheus.Desc
	proven  *prometheus.Desc
	pools   pools
	engines *prometheus.Desc
	errors  *prometheus.CounterVec
	version string
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector makes a collector that reads objects through reader.
func NewCollector(reader client.Reader, version string) *Collector {
	object := []string{"kind", "namespace", "name"}
	return &Collector{
		reader:  reader,
		version: version,
		build:   prometheus.NewDesc("weir_operator_build_info", "Always 1.", []string{"version"}, nil),
		ready: prometheus.NewDesc("weir_operator_resource_ready",
			"1 if the object's Ready condition is True, else 0.", object, nil),
		blocked: prometheus.NewDesc("weir_operator_deletion_blocked",
			"1 if the object's deletion waits for something else; its condition says what.", object, nil),
		proven: prometheus.NewDesc("weir_operator_tenant_isolation",
			"1 if every attempt to get out of the Tenant's VNIs, or to reach what is another Tenant's, was refused, 0 if one got through; absent while that is not known.", []string{"name"}, nil),
		pools: newPools(),
		engines: prometheus.NewDesc("weir_operator_engines",
			"Engines of a StorageCluster: desired by its spec, and ready.", []string{"namespace", "name", "state"}, nil),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_operator_management_errors_total", Help: "Management calls that failed.",
		}, []string{"method", "code"}),
	}
}

// CallFailed counts a management call that failed.
func (c *Collector) CallFailed(method string, err error) {
	c.errors.WithLabelValues(shortMethod(method), status.Code(err).String()).Inc()
}

// shortMethod turns /weir.management.v1.Pools/Create into Pools/Create.
func shortMethod(full string) string {
	for i := len(full) - 1; i >= 0; i-- {
		if full[i] == '.' {
			return full[i+1:]
		}
	}
	return full
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.build
	ch <- c.ready
	ch <- c.blocked
	ch <- c.proven
	ch <- c.engines
	c.pools.describe(ch)
	c.errors.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(c.build, prometheus.GaugeValue, 1, c.version)
	c.errors.Collect(ch)
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	var clusters v1alpha1.StorageClusterList
	if err := c.reader.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err == nil {
		for i := range clusters.Items {
			cluster := &clusters.Items[i]
			c.object(ch, "StorageCluster", cluster, cluster.Status.Conditions)
			for state, count := range map[string]int32{"desired": cluster.Spec.Engines.Replicas, "ready": cluster.Status.ReadyEngines} {
				ch <- prometheus.MustNewConstMetric(c.engines, prometheus.GaugeValue, float64(count), cluster.Namespace, cluster.Name, state)
			}
		}
	}
	var pools v1alpha1.PoolList
	if err := c.reader.List(ctx, &pools, client.UnsafeDisableDeepCopy); err == nil {
		for i := range pools.Items {
			c.object(ch, "Pool", &pools.Items[i], pools.Items[i].Status.Conditions)
			c.pools.collect(ch, &pools.Items[i])
		}
	}
	var tenants v1alpha1.TenantList
	if err := c.reader.List(ctx, &tenants, client.UnsafeDisableDeepCopy); err == nil {
		for i := range tenants.Items {
			c.object(ch, "Tenant", &tenants.Items[i], tenants.Items[i].Status.Conditions)
			c.isolation(ch, &tenants.Items[i])
		}
	}
	c.fabric(ctx, ch)
	var containers v1alpha1.ContainerList
	if err := c.reader.List(ctx, &containers, client.UnsafeDisableDeepCopy); err == nil {
		for i := range containers.Items {
			c.object(ch, "Container", &containers.Items[i], containers.Items[i].Status.Conditions)
		}
	}
}

// fabric exports the kinds that are in no namespace and no tenant's.
func (c *Collector) fabric(ctx context.Context, ch chan<- prometheus.Metric) {
	var domains v1alpha1.FabricDomainList
	if err := c.reader.List(ctx, &domains, client.UnsafeDisableDeepCopy); err == nil {
		for i := range domains.Items {
			c.object(ch, "FabricDomain", &domains.Items[i], domains.Items[i].Status.Conditions)
		}
	}
	var drives v1alpha1.NodeDeviceList
	if err := c.reader.List(ctx, &drives, client.UnsafeDisableDeepCopy); err == nil {
		for i := range drives.Items {
			if drives.Items[i].Spec.Assignment != nil { // others are ready only for those that look for drives
				c.object(ch, "NodeDevice", &drives.Items[i], drives.Items[i].Status.Conditions)
			}
		}
	}
}

// isolation exports whether a tenant is kept apart from others, if that was tried.
func (c *Collector) isolation(ch chan<- prometheus.Metric, tenant *v1alpha1.Tenant) {
	condition := meta.FindStatusCondition(tenant.Status.Conditions, v1alpha1.ConditionIsolated)
	switch {
	case condition == nil || condition.Status == metav1.ConditionUnknown || condition.Reason == v1alpha1.ReasonNoVNIWanted:
	case condition.Status == metav1.ConditionTrue:
		ch <- prometheus.MustNewConstMetric(c.proven, prometheus.GaugeValue, 1, tenant.Name)
	default:
		ch <- prometheus.MustNewConstMetric(c.proven, prometheus.GaugeValue, 0, tenant.Name)
	}
}

func (c *Collector) object(ch chan<- prometheus.Metric, kind string, obj client.Object, conditions []metav1.Condition) {
	gauge := func(desc *prometheus.Desc, condition string) {
		value := 0.0
		if meta.IsStatusConditionTrue(conditions, condition) {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, kind, obj.GetNamespace(), obj.GetName())
	}
	gauge(c.ready, v1alpha1.ConditionReady)
	gauge(c.blocked, v1alpha1.ConditionDeletionBlocked)
}
