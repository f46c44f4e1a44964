package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"weir.dev/weir/operator/internal/assembly"
	"weir.dev/weir/operator/internal/management"
)

// childSettings names the environment variable that makes this program an operator, whose memory is measured, and says how.
const childSettings = "WEIR_SCALE_OPERATOR"

// settings are what an operator in a process of its own is given.
type settings struct {
	KubeConfig string
	Namespace  string
	// Engines are the addresses by which engines are reached, by the names that they have in a cluster.
	Engines map[string]string
	Metrics string
	Rate    float32
	Burst   int
}

// runChild is the operator until it is told to stop.
func runChild(text string) error {
	ctrl.SetLogger(logr.Discard())
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	api, err := clientcmd.RESTConfigFromKubeConfig([]byte(s.KubeConfig))
	if err != nil {
		return err
	}
	api.QPS, api.Burst = s.Rate, s.Burst
	api.Impersonate = rest.ImpersonationConfig{
		UserName: fmt.Sprintf("system:serviceaccount:%s:weir-operator", s.Namespace),
		Groups:   []string{"system:serviceaccounts", "system:authenticated"},
	}
	scheme, err := assembly.NewScheme()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(api, ctrl.Options{
		Scheme: scheme, Cache: assembly.CacheOptions(s.Namespace), Metrics: metricsserver.Options{BindAddress: s.Metrics},
		Controller: config.Controller{MaxConcurrentReconciles: 4},
	})
	if err != nil {
		return err
	}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.Engines[address])
	}
	err = assembly.Setup(mgr, assembly.Options{
		Namespace: s.Namespace, EngineImage: engineImage, Version: "test", Clock: clock.RealClock{},
		Registry: metrics.Registry, Management: []management.Option{management.WithDial(dial)},
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return mgr.Start(ctx)
}

// child is an operator in a process of its own.
type child struct {
	t       testing.TB
	command *exec.Cmd
	metrics string
}

// startChild starts an operator that may make so many requests to the API server.
func (i *installation) startChild(rate float32, burst int) *child {
	i.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		i.t.Fatal(err)
	}
	s := settings{
		KubeConfig: string(environment.KubeConfig), Namespace: i.operatorNamespace, Engines: map[string]string{},
		Metrics: listener.Addr().String(), Rate: rate, Burst: burst,
	}
	_ = listener.Close() // the child listens there; nobody else asks for the port meanwhile
	for rank := range scaleEngines {
		s.Engines[fmt.Sprintf("weir-engine-%d-0.weir-engines.%s.svc:10001", rank, i.namespace)] = i.engines.Address(rank)
	}
	text, err := json.Marshal(s)
	if err != nil {
		i.t.Fatal(err)
	}
	command := exec.CommandContext(context.Background(), os.Args[0])
	command.Env = append(os.Environ(), childSettings+"="+string(text), "GOMEMLIMIT="+chartMemory, "GOGC="+chartGarbage)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Start(); err != nil {
		i.t.Fatal(err)
	}
	return &child{t: i.t, command: command, metrics: "http://" + s.Metrics + "/metrics"}
}

// stop ends the operator and waits for its end.
func (c *child) stop() {
	c.t.Helper()
	if err := c.command.Process.Signal(syscall.SIGTERM); err != nil {
		c.t.Fatal(err)
	}
	if err := c.command.Wait(); err != nil {
		c.t.Errorf("operator: %v", err)
	}
}

// requests is how many requests it has made to the API server. A watch is one when it begins.
func (c *child) requests() float64 {
	c.t.Helper()
	client := http.Client{Timeout: 30 * time.Second}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, c.metrics, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	var sum float64
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); strings.HasPrefix(lines.Text(), "rest_client_requests_total{") {
			count, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				c.t.Fatal(err)
			}
			sum += count
		}
	}
	if err := lines.Err(); err != nil || sum == 0 {
		c.t.Fatalf("%s tells of no request: %v", c.metrics, err)
	}
	return sum
}

// memory is what it has of a figure of /proc/PID/status, in MiB.
func (c *child) memory(name string) float64 {
	c.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.command.Process.Pid))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if value, is := strings.CutPrefix(line, name+":"); is {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			if err != nil {
				c.t.Fatal(err)
			}
			return kib / 1024
		}
	}
	c.t.Fatalf("no %s", name)
	return 0
}
