package enforcement

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"weir.dev/weir/operator/internal/fabric"
)

// Dropper counts what a fabric keeps from where it must not get.
type Dropper interface {
	Denied(ctx context.Context) (uint64, error)
}

// Collector exports what an agent knows of its fabric, read at each scrape.
type Collector struct {
	keeper  *fabric.Keeper
	net     Dropper
	version string

	build, services, busy, dropped *prometheus.Desc
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector makes a collector.
func NewCollector(keeper *fabric.Keeper, net Dropper, version string) *Collector {
	return &Collector{
		keeper: keeper, net: net, version: version,
		build:    prometheus.NewDesc("weir_fabric_agent_build_info", "Always 1.", []string{"version"}, nil),
		services: prometheus.NewDesc("weir_fabric_agent_services", "Services of the node's fabric that the agent keeps.", []string{"state"}, nil),
		busy:     prometheus.NewDesc("weir_fabric_agent_busy_services", "Services that should be destroyed and are in use.", nil, nil),
		dropped:  prometheus.NewDesc("weir_fabric_agent_dropped_packets_total", "Packets between addresses without a common VNI.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.build, c.services, c.busy, c.dropped} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(c.build, prometheus.GaugeValue, 1, c.version)
	states, busy := map[fabric.State]int{}, 0
	for _, entry := range c.keeper.Entries() {
		states[entry.State]++
		if entry.BusySince != nil {
			busy++
		}
	}
	for _, state := range []fabric.State{fabric.StateAllocated, fabric.StateAdmitting, fabric.StateAdmitted, fabric.StateDestroying} {
		ch <- prometheus.MustNewConstMetric(c.services, prometheus.GaugeValue, float64(states[state]), string(state))
	}
	ch <- prometheus.MustNewConstMetric(c.busy, prometheus.GaugeValue, float64(busy))
	if dropped, err := c.net.Denied(context.Background()); err == nil { // one that can't be read has no sample
		ch <- prometheus.MustNewConstMetric(c.dropped, prometheus.CounterValue, float64(dropped))
	}
}
