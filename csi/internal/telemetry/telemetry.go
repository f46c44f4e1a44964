// Package telemetry counts, times and logs CSI calls, and serves the driver's metrics and health over HTTP.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mountv1 "weir.dev/weir/client/fuse/proto/mount/v1"
)

const (
	// CallTimeout bounds a call whose caller has set no deadline. It is longer than what Kubernetes' sidecars allow by
	// default (15 s) and as long as the kubelet waits (2 min).
	CallTimeout = 2 * time.Minute
	// scrapeTimeout bounds what a scrape waits for the mount daemon.
	scrapeTimeout = time.Second
	// headerTimeout bounds how long an HTTP client may take to send its request.
	headerTimeout = 5 * time.Second
)

// secondsBuckets are those that docs/reference/metrics.md states for CSI calls.
var secondsBuckets = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}

// Metrics holds the driver's metrics.
type Metrics struct {
	registry   *prometheus.Registry
	operations *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	inFlight   *prometheus.GaugeVec
	registered prometheus.Gauge
}

// NewMetrics returns the metrics of a driver that runs in mode "controller" or "node".
func NewMetrics(version, mode string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_csi_operations_total", Help: "CSI calls answered.",
		}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weir_csi_operation_seconds", Help: "From a CSI call's arrival to its answer.", Buckets: secondsBuckets,
		}, []string{"method"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weir_csi_operations_in_flight", Help: "CSI calls not answered yet.",
		}, []string{"method"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weir_csi_build_info", Help: "Always 1; the labels tell the version.",
		ConstLabels: prometheus.Labels{"version": version, "mode": mode},
	})
	build.Set(1)
	m.registry.MustRegister(m.operations, m.seconds, m.inFlight, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// WatchNode adds the metrics of a node plugin. The mount daemon is asked at each scrape.
func (m *Metrics) WatchNode(daemon mountv1.MountsClient) {
	m.registered = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weir_csi_registered", Help: "1 once the kubelet has registered the node plugin.",
	})
	m.registry.MustRegister(m.registered, &daemonCollector{daemon: daemon})
}

// SetRegistered records whether the kubelet has registered the node plugin.
func (m *Metrics) SetRegistered(registered bool) {
	if registered {
		m.registered.Set(1)
		return
	}
	m.registered.Set(0)
}

// Registry returns where the metrics are gathered.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Intercept wraps each CSI call: it gets a deadline, is counted, timed and logged, and a panic becomes an error of this
// one call. Requests are not logged, since they may hold secrets.
func (m *Metrics) Intercept(logger *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
		// "/csi.v1.Controller/CreateVolume" is counted as "Controller/CreateVolume".
		method := strings.TrimPrefix(info.FullMethod, "/csi.v1.")
		if _, bounded := ctx.Deadline(); !bounded {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, CallTimeout)
			defer cancel()
		}
		start := time.Now()
		m.inFlight.WithLabelValues(method).Inc()
		defer func() {
			if cause := recover(); cause != nil {
				logger.ErrorContext(ctx, "call panicked", "method", method, "cause", cause, "stack", string(debug.Stack()))
				err = status.Errorf(codes.Internal, "%s failed by a defect of the driver: %v", method, cause)
			}
			elapsed := time.Since(start)
			m.inFlight.WithLabelValues(method).Dec()
			m.operations.WithLabelValues(method, status.Code(err).String()).Inc()
			m.seconds.WithLabelValues(method).Observe(elapsed.Seconds())
			report(ctx, logger, method, request, elapsed, err)
		}()
		return handler(ctx, request)
	}
}

// report logs a call: failures always, successes that change something at info, the rest at debug.
func report(ctx context.Context, logger *slog.Logger, method string, request any, elapsed time.Duration, err error) {
	attributes := []any{"method", method, "seconds", elapsed.Seconds()}
	if named, ok := request.(interface{ GetVolumeId() string }); ok {
		attributes = append(attributes, "volume", named.GetVolumeId())
	}
	if named, ok := request.(interface{ GetName() string }); ok {
		attributes = append(attributes, "name", named.GetName())
	}
	if placed, ok := request.(interface{ GetTargetPath() string }); ok {
		attributes = append(attributes, "target", placed.GetTargetPath())
	}
	switch _, operation, _ := strings.Cut(method, "/"); {
	case err != nil:
		logger.WarnContext(ctx, "call failed", append(attributes, "code", status.Code(err).String(), "error", status.Convert(err).Message())...)
	case strings.Contains(operation, "Get"), strings.HasPrefix(operation, "List"), strings.Contains(operation, "List"), operation == "Probe":
		logger.DebugContext(ctx, "call served", attributes...)
	default:
		logger.InfoContext(ctx, "call served", attributes...)
	}
}

// Serve answers /metrics, /healthz (the process lives) and /readyz (it can serve) on listener until ctx ends.
func (m *Metrics) Serve(ctx context.Context, listener net.Listener, ready func(context.Context) error) error {
	routes := http.NewServeMux()
	routes.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Timeout: 2 * scrapeTimeout}))
	routes.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	routes.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		bounded, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
		defer cancel()
		if err := ready(bounded); err != nil {
			http.Error(w, status.Convert(err).Message(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	server := &http.Server{Handler: routes, ReadHeaderTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

var (
	mountedDescription = prometheus.NewDesc("weir_csi_mounted_volumes", "Volumes staged on the node.", nil, nil)
	healthDescription  = prometheus.NewDesc("weir_csi_volume_health", "1 for the health of a volume that is staged on the node.", []string{"volume", "health"}, nil)
	daemonDescription  = prometheus.NewDesc("weir_csi_mountd_up", "1 while the mount daemon answers.", nil, nil)
)

// daemonCollector asks the mount daemon at each scrape.
type daemonCollector struct {
	daemon mountv1.MountsClient
}

// Describe names the metrics.
func (c *daemonCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- mountedDescription
	descriptions <- healthDescription
	descriptions <- daemonDescription
}

// Collect counts the daemon's mounts that name a volume. Without an answer there is no count: 0 would say that nothing
// is mounted.
func (c *daemonCollector) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	list, err := c.daemon.List(ctx, &mountv1.ListRequest{})
	if err != nil {
		metrics <- prometheus.MustNewConstMetric(daemonDescription, prometheus.GaugeValue, 0)
		return
	}
	var volumes int
	// A volume has several mounts while it is staged anew: the worst counts.
	worst := map[string]mountv1.MountHealth{}
	for _, mount := range list.GetMounts() {
		if mount.GetVolume() != "" {
			volumes++
			worst[mount.GetVolume()] = max(worst[mount.GetVolume()], mount.GetHealth())
		}
	}
	for volume, health := range worst {
		metrics <- prometheus.MustNewConstMetric(healthDescription, prometheus.GaugeValue, 1, volume, healthName(health))
	}
	metrics <- prometheus.MustNewConstMetric(daemonDescription, prometheus.GaugeValue, 1)
	metrics <- prometheus.MustNewConstMetric(mountedDescription, prometheus.GaugeValue, float64(volumes))
}

// healthName is the health of a mount as the mount daemon's own metrics name it.
func healthName(health mountv1.MountHealth) string {
	return strings.ToLower(strings.TrimPrefix(health.String(), "MOUNT_HEALTH_"))
}
