package telemetry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mountv1 "weir.dev/weir/client/fuse/proto/mount/v1"
	"weir.dev/weir/csi/internal/events"
	"weir.dev/weir/csi/internal/mounttest"
	"weir.dev/weir/csi/internal/node"
)

// serve runs the HTTP service until the test ends and returns its address.
func serve(t *testing.T, m *Metrics, ready func(context.Context) error) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Serve(ctx, listener, ready) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func call(m *Metrics, logger *slog.Logger, method string, request any, handler grpc.UnaryHandler) error {
	_, err := m.Intercept(logger)(context.Background(), request, &grpc.UnaryServerInfo{FullMethod: "/csi.v1." + method}, handler)
	return err
}

func TestCallsAreCountedTimedLoggedAndBounded(t *testing.T) {
	m := NewMetrics("v1", "controller")
	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	secret := &csi.CreateVolumeRequest{Name: "pvc-1", Secrets: map[string]string{"key": "hush"}}
	if err := call(m, logger, "Controller/CreateVolume", secret, func(ctx context.Context, _ any) (any, error) {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("the call has no deadline")
		}
		return &csi.CreateVolumeResponse{}, nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := call(m, logger, "Controller/DeleteVolume", &csi.DeleteVolumeRequest{VolumeId: "weir/a/b"}, func(context.Context, any) (any, error) {
		return nil, status.Error(codes.NotFound, "gone")
	}); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	if err := call(m, logger, "Node/NodeStageVolume", &csi.NodeStageVolumeRequest{}, func(context.Context, any) (any, error) {
		panic("defect")
	}); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "defect") {
		t.Fatalf("a panic gave %v, want Internal", err)
	}
	_, text := get(t, serve(t, m, func(context.Context) error { return nil })+"/metrics")
	for _, line := range []string{
		`weir_csi_operations_total{code="OK",method="Controller/CreateVolume"} 1`,
		`weir_csi_operations_total{code="NotFound",method="Controller/DeleteVolume"} 1`,
		`weir_csi_operations_total{code="Internal",method="Node/NodeStageVolume"} 1`,
		`weir_csi_operation_seconds_count{method="Controller/CreateVolume"} 1`,
		`weir_csi_operations_in_flight{method="Node/NodeStageVolume"} 0`,
		`weir_csi_build_info{mode="controller",version="v1"} 1`,
		"process_resident_memory_bytes",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("metrics lack %s", line)
		}
	}
	for _, part := range []string{`"name":"pvc-1"`, `"volume":"weir/a/b"`, `"code":"NotFound"`, "call panicked"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log lacks %s:\n%s", part, log.String())
		}
	}
	if strings.Contains(log.String(), "hush") {
		t.Error("the log has a secret")
	}
}

func TestTheNodesMountsAreCounted(t *testing.T) {
	m := NewMetrics("v1", "node")
	machine := mounttest.New()
	daemon := machine.Serve(t)
	m.WatchNode(daemon)
	m.SetRegistered(true)
	address := serve(t, m, func(context.Context) error { return nil })
	for _, path := range []string{"/a", "/b"} {
		if _, err := daemon.Mount(t.Context(), &mountv1.MountRequest{TargetPath: path, Volume: "weir/tank" + path}); err != nil {
			t.Fatal(err)
		}
	}
	_, text := get(t, address+"/metrics")
	for _, line := range []string{
		"weir_csi_mounted_volumes 2", "weir_csi_mountd_up 1", "weir_csi_registered 1", `weir_csi_volume_health{health="serving",volume="weir/tank/a"} 1`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("metrics lack %s", line)
		}
	}
	machine.Degrade("engine 1 is away")
	if _, text = get(t, address+"/metrics"); !strings.Contains(text, `weir_csi_volume_health{health="degraded",volume="weir/tank/b"} 1`) {
		t.Error("a volume that waits for engines is not told")
	}
	machine.Refuse(status.Error(codes.Unavailable, "gone"))
	_, text = get(t, address+"/metrics")
	if !strings.Contains(text, "weir_csi_mountd_up 0") || strings.Contains(text, "weir_csi_mounted_volumes 0") {
		t.Error("a daemon that is away must be reported as such, and not as a node without mounts")
	}
}

func TestHealthIsToldFromReadiness(t *testing.T) {
	var reason error
	address := serve(t, NewMetrics("v1", "node"), func(context.Context) error { return reason })
	for _, tc := range []struct {
		reason         error
		healthy, ready int
		body           string
	}{
		{healthy: http.StatusOK, ready: http.StatusOK, body: "ok"},
		{reason: errors.New("no attach file yet"), healthy: http.StatusOK, ready: http.StatusServiceUnavailable, body: "no attach file yet"},
	} {
		reason = tc.reason
		if code, _ := get(t, address+"/healthz"); code != tc.healthy {
			t.Errorf("healthz with %v: %d", tc.reason, code)
		}
		if code, body := get(t, address+"/readyz"); code != tc.ready || !strings.Contains(body, tc.body) {
			t.Errorf("readyz with %v: %d %q", tc.reason, code, body)
		}
	}
}

func TestTheMetricsAreThoseThatTheReferenceDocuments(t *testing.T) {
	content, err := os.ReadFile("../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(weir_csi_[a-z_]+)` \\|").FindAllStringSubmatch(string(content), -1) {
		documented[row[1]] = true
	}
	m := NewMetrics("v1", "node")
	daemon := mounttest.New().Serve(t)
	m.WatchNode(daemon)
	if _, err := daemon.Mount(t.Context(), &mountv1.MountRequest{TargetPath: "/a", Volume: "weir/tank/a"}); err != nil {
		t.Fatal(err)
	}
	events.New(slog.New(slog.DiscardHandler), m.Registry(), nil, "node-1").Lost(t.Context(), node.Loss{})
	if err := call(m, slog.New(slog.DiscardHandler), "Node/NodeGetInfo", &csi.NodeGetInfoRequest{}, func(context.Context, any) (any, error) {
		return &csi.NodeGetInfoResponse{}, nil
	}); err != nil {
		t.Fatal(err)
	}
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		name := family.GetName()
		if strings.HasPrefix(name, "weir_") && !documented[name] {
			t.Errorf("%s is not documented", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("%s is documented, but not served", name)
	}
}
