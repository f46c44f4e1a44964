package driver

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"weir.dev/weir/charts/contract"
	"weir.dev/weir/csi/sanity"
)

// scrape returns the metrics that an address serves, by name.
func scrape(t *testing.T, address string) map[string]*dto.MetricFamily {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	return families
}

// value adds up the series whose labels include those given, and tells how many there were.
func value(family *dto.MetricFamily, labels map[string]string) (sum float64, series int) {
	for _, metric := range family.GetMetric() {
		matching := 0
		for _, pair := range metric.GetLabel() {
			if want, ok := labels[pair.GetName()]; ok && want == pair.GetValue() {
				matching++
			}
		}
		if matching == len(labels) {
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			series++
		}
	}
	return sum, series
}

// engineMetrics returns the address of each engine's metrics: `weir dev` serves them at the port behind management.
func (m *machine) engineMetrics(t *testing.T) []string {
	t.Helper()
	var addresses []string
	for _, engine := range m.management(t).Attachment().Engines {
		host, port, err := net.SplitHostPort(engine.Management)
		if err != nil {
			t.Fatal(err)
		}
		number, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, net.JoinHostPort(host, strconv.Itoa(number+1)))
	}
	return addresses
}

// undocumented lists the metrics and labels of a component that the reference does not have. allowed are labels that
// every series of the component may have besides its own.
func undocumented(families map[string]*dto.MetricFamily, known map[string]contract.Metric, allowed ...string) []string {
	var problems []string
	for name, family := range families {
		metric, ok := known[name]
		if !ok {
			if len(name) > 5 && name[:5] == "weir_" {
				problems = append(problems, name+" is not documented")
			}
			continue
		}
		for _, series := range family.GetMetric() {
			for _, pair := range series.GetLabel() {
				if !slices.Contains(metric.Labels, pair.GetName()) && !slices.Contains(allowed, pair.GetName()) {
					problems = append(problems, fmt.Sprintf("%s has the label %s, which is not documented", name, pair.GetName()))
				}
			}
			if len(metric.Labels) > 0 && len(series.GetLabel()) < len(metric.Labels) {
				problems = append(problems, fmt.Sprintf("%s lacks some of its labels %v", name, metric.Labels))
			}
		}
	}
	slices.Sort(problems)
	return slices.Compact(problems)
}

func TestWhatTheProgramsMeasureIsDocumentedAndTellsWhatHappened(t *testing.T) {
	v := newVolume(t, 256*mebibyte)
	target := v.mount("pod", false)
	if err := os.WriteFile(filepath.Join(target, "file"), pattern(8*mebibyte), 0o600); err != nil {
		t.Fatal(err)
	}
	// Read through another mount: this one has the file in the kernel's cache.
	if _, err := os.ReadFile(filepath.Join(v.mount("reader", false), "file")); err != nil {
		t.Fatal(err)
	}
	known, err := contract.Metrics("../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	engines := map[string]*dto.MetricFamily{}
	for _, address := range v.machine.engineMetrics(t) {
		families := scrape(t, address)
		for _, problem := range undocumented(families, known, "rank") {
			t.Errorf("engine: %s", problem)
		}
		for name, family := range families {
			if engines[name] == nil {
				engines[name] = &dto.MetricFamily{Name: family.Name, Type: family.Type}
			}
			engines[name].Metric = append(engines[name].Metric, family.GetMetric()...)
		}
	}
	nodes := map[string]*dto.MetricFamily{}
	for part, address := range map[string]string{"mount daemon": v.machine.mountdMetrics, "node plugin": v.machine.nodeMetrics} {
		families := scrape(t, address)
		for _, problem := range undocumented(families, known) {
			t.Errorf("%s: %s", part, problem)
		}
		maps.Copy(nodes, families)
	}
	own := map[string]string{"pool": sanity.Pool, "container": v.name}
	with := func(name, value string) map[string]string {
		return map[string]string{"pool": sanity.Pool, "container": v.name, name: value}
	}
	for _, check := range []struct {
		from    map[string]*dto.MetricFamily
		name    string
		labels  map[string]string
		atLeast float64
	}{
		{engines, "weir_engine_build_info", nil, 3},
		{engines, "weir_engine_target_up", nil, 3},
		{engines, "weir_engine_start_time_seconds", nil, 1},
		{engines, "weir_engine_bytes_total", with("direction", "write"), 8 * mebibyte},
		{engines, "weir_engine_bytes_total", with("direction", "read"), 8 * mebibyte},
		{engines, "weir_engine_operations_total", with("op", "update"), 8},
		{engines, "weir_engine_operations_total", with("op", "fetch"), 8},
		{engines, "weir_engine_operation_seconds", map[string]string{"op": "update"}, 8},
		{engines, "weir_engine_wal_flush_seconds", nil, 1},
		{engines, "weir_engine_wal_records_total", nil, 8},
		{engines, "weir_engine_wal_capacity_bytes", nil, 1},
		{engines, "weir_engine_capacity_bytes", nil, 1},
		{engines, "weir_engine_space_bytes", map[string]string{"pool": sanity.Pool, "kind": "used"}, 8 * mebibyte},
		{engines, "weir_engine_target_busy_seconds_total", nil, 0.001},
		{engines, "weir_engine_management_requests_total", map[string]string{"method": "Containers/Create", "code": "OK"}, 1},
		{engines, "weir_pool_size_bytes", map[string]string{"pool": sanity.Pool}, 1},
		{engines, "weir_container_quota_bytes", own, 256 * mebibyte},
		{engines, "weir_container_open_handles", own, 2},
		{nodes, "weir_mountd_bytes_total", with("direction", "write"), 8 * mebibyte},
		{nodes, "weir_mountd_operations_total", with("op", "write"), 1},
		{nodes, "weir_mountd_mounts", map[string]string{"health": "serving"}, 2},
		{nodes, "weir_csi_operations_total", map[string]string{"method": "Node/NodeStageVolume", "code": "OK"}, 2},
		{nodes, "weir_csi_mounted_volumes", nil, 2},
		{nodes, "weir_csi_mountd_up", nil, 1},
	} {
		got, series := value(check.from[check.name], check.labels)
		if series == 0 || got < check.atLeast {
			t.Errorf("%s%v is %v in %d series, want at least %v", check.name, check.labels, got, series, check.atLeast)
		}
	}
	used, _ := value(engines["weir_engine_space_bytes"], map[string]string{"kind": "used"})
	free, _ := value(engines["weir_engine_space_bytes"], map[string]string{"kind": "free"})
	total, _ := value(engines["weir_engine_space_bytes"], map[string]string{"kind": "total"})
	if used+free != total {
		t.Errorf("used %v + free %v is not total %v", used, free, total)
	}
	if leaders := engines["weir_pool_size_bytes"].GetMetric(); len(leaders) != 1 {
		t.Errorf("%d engines export the pool, want only its service's leader", len(leaders))
	}
}
