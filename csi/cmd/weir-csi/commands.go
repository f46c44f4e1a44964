package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	mountv1 "weir.dev/weir/client/fuse/proto/mount/v1"
	"weir.dev/weir/csi/internal/broker"
	"weir.dev/weir/csi/internal/clusters"
	"weir.dev/weir/csi/internal/controller"
	lossevents "weir.dev/weir/csi/internal/events"
	"weir.dev/weir/csi/internal/identity"
	"weir.dev/weir/csi/internal/mounts"
	"weir.dev/weir/csi/internal/node"
	"weir.dev/weir/csi/internal/registration"
	"weir.dev/weir/csi/internal/server"
	"weir.dev/weir/csi/internal/telemetry"
	"weir.dev/weir/csi/internal/tenants"
)

// options are the flags that both commands have.
type options struct {
	endpoint string
	metrics  string
	logLevel string
}

// parse reads flags into o and what add adds, and returns the logger they ask for.
func (o *options) parse(command string, arguments []string, stderr io.Writer, add func(*flag.FlagSet)) (*slog.Logger, error) {
	flags := flag.NewFlagSet("weir-csi "+command, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.endpoint, "endpoint", "/csi/csi.sock", "`path` of the unix socket to serve CSI on")
	flags.StringVar(&o.metrics, "metrics-address", ":9810", "`host:port` to serve /metrics, /healthz and /readyz on; empty for none")
	flags.StringVar(&o.logLevel, "log-level", "info", "`level` of the log: debug, info, warn or error")
	add(flags)
	if err := flags.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, errUsage
	}
	if flags.NArg() > 0 {
		_, _ = fmt.Fprintf(stderr, "weir-csi %s: unexpected argument %q\n", command, flags.Arg(0))
		return nil, errUsage
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		_, _ = fmt.Fprintf(stderr, "weir-csi %s: --log-level %q is not one of debug, info, warn, error\n", command, o.logLevel)
		return nil, errUsage
	}
	return slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: level})), nil
}

func runController(ctx context.Context, arguments []string, stderr io.Writer) error {
	var (
		o         options
		attachDir string
		nodes     bool
		claims    bool
	)
	logger, err := o.parse("controller", arguments, stderr, func(flags *flag.FlagSet) {
		flags.StringVar(&attachDir, "attach-dir", "/etc/weir/client",
			"`folder` with the attach file (client.json) of a system, or with a subfolder for each system that has one")
		flags.BoolVar(&nodes, "ask-nodes", false, "ask the API server of the cluster that this program runs in which nodes are gone, before a volume is deleted that is open there")
		flags.BoolVar(&claims, "ask-tenants", false, "ask the API server which tenant a claim's namespace belongs to, and make no volume in a pool of another tenant")
	})
	if err != nil {
		return err
	}
	systems := clusters.New(attachDir)
	defer func() { _ = systems.Close() }()
	ready := func(context.Context) error {
		_, err := systems.All()
		return err
	}
	metrics := telemetry.NewMetrics(version, "controller")
	api, err := apiServer("--ask-nodes", nodes)
	if err != nil {
		return err
	}
	var known controller.Nodes
	if api != nil {
		known = api.CoreV1().Nodes()
	}
	namespaces, err := tenantsOf(claims)
	if err != nil {
		return err
	}
	volumes := controller.New(systems, known, namespaces)
	return serveAll(ctx,
		o.serveMetrics(metrics, ready),
		func(ctx context.Context) error {
			return server.Serve(ctx, logger, o.endpoint, func(s *grpc.Server) {
				// Ready without any system: sidecars wait for this answer in silence, whereas a call that finds no system
				// is told why, and so is the claim that it is made for.
				csi.RegisterIdentityServer(s, identity.New(version, func(context.Context) error { return nil }))
				csi.RegisterControllerServer(s, volumes)
			}, grpc.UnaryInterceptor(metrics.Intercept(logger)))
		})
}

func runNode(ctx context.Context, arguments []string, stderr io.Writer) error {
	var (
		o                                                      options
		name, mountd, mountBroker, registrationSocket, kubelet string
		events                                                 bool
	)
	logger, err := o.parse("node", arguments, stderr, func(flags *flag.FlagSet) {
		flags.StringVar(&name, "node-name", os.Getenv("NODE_NAME"), "`name` of this node; by default the environment variable NODE_NAME")
		flags.StringVar(&mountd, "mountd-socket", "/var/lib/weir/mountd/mountd.sock", "`path` of the mount daemon's unix socket")
		flags.StringVar(&mountBroker, "broker-socket", "", "`path` of the mount broker's unix socket; empty mounts without it, which takes CAP_SYS_ADMIN")
		flags.StringVar(&registrationSocket, "registration-socket", "",
			"`path` of the unix socket that the kubelet watches, e.g. /var/lib/kubelet/plugins_registry/csi.weir.dev-reg.sock; empty registers with no kubelet")
		flags.StringVar(&kubelet, "kubelet-endpoint", "", "`path` of --endpoint as the kubelet sees it; by default the same")
		flags.BoolVar(&events, "events", false, "tell of lost mounts by events of pods and claims, through the API server of the cluster that this program runs in")
	})
	if err != nil {
		return err
	}
	if name == "" {
		_, _ = fmt.Fprintln(stderr, "weir-csi node: set --node-name or the environment variable NODE_NAME")
		return errUsage
	}
	if kubelet == "" {
		kubelet = o.endpoint
	}
	conn, err := grpc.NewClient("unix://"+mountd, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return fmt.Errorf("mount daemon at %s: %w", mountd, err)
	}
	defer func() { _ = conn.Close() }()
	daemon := mountv1.NewMountsClient(conn)
	ready := func(ctx context.Context) error {
		_, err := daemon.List(ctx, &mountv1.ListRequest{})
		return err
	}
	metrics := telemetry.NewMetrics(version, "node")
	metrics.WatchNode(daemon)
	var table mounts.Table = mounts.Linux{}
	if mountBroker != "" {
		table = broker.NewTable(mountBroker)
	}
	volumes := node.New(name, daemon, table)
	api, err := apiServer("--events", events)
	if err != nil {
		return err
	}
	reporter := lossevents.New(logger, metrics.Registry(), api, name)
	services := []func(context.Context) error{
		o.serveMetrics(metrics, ready),
		func(ctx context.Context) error { return volumes.Restore(ctx, logger, reporter) },
		func(ctx context.Context) error { return volumes.WatchHealth(ctx, logger, reporter) },
		func(ctx context.Context) error {
			return server.Serve(ctx, logger, o.endpoint, func(s *grpc.Server) {
				csi.RegisterIdentityServer(s, identity.New(version, ready))
				csi.RegisterNodeServer(s, volumes)
			}, grpc.UnaryInterceptor(metrics.Intercept(logger)))
		},
	}
	if registrationSocket != "" {
		services = append(services, func(ctx context.Context) error {
			return server.Serve(ctx, logger, registrationSocket, func(s *grpc.Server) {
				registrationv1.RegisterRegistrationServer(s, registration.New(logger, kubelet, metrics.SetRegistered))
			})
		})
	}
	return serveAll(ctx, services...)
}

// apiServer returns a client of the cluster's API server, with the service account of the pod that this program runs in; nil
// if the flag that needs it is not set.
func apiServer(name string, set bool) (kubernetes.Interface, error) {
	if !set {
		return nil, nil
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: run it in a pod with a service account token", name, err)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return api, nil
}

// tenantsOf returns who knows the tenants of namespaces; nil if nobody is to be asked.
func tenantsOf(set bool) (controller.Tenants, error) {
	core, err := apiServer("--ask-tenants", set)
	if err != nil || core == nil {
		return nil, err
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("--ask-tenants: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("--ask-tenants: %w", err)
	}
	return tenants.New(core.CoreV1().Namespaces(), objects), nil
}

// serveMetrics returns the service that answers on the metrics address.
func (o *options) serveMetrics(metrics *telemetry.Metrics, ready func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if o.metrics == "" {
			<-ctx.Done()
			return nil
		}
		listener, err := net.Listen("tcp", o.metrics)
		if err != nil {
			return fmt.Errorf("serve metrics: %w", err)
		}
		return metrics.Serve(ctx, listener, ready)
	}
}

// serveAll runs services until ctx ends or one of them fails, which ends the others. It returns once all have ended.
func serveAll(ctx context.Context, services ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(services))
	for _, serve := range services {
		go func() { ended <- serve(ctx) }()
	}
	var failures []error
	for range services {
		if err := <-ended; err != nil {
			failures = append(failures, err)
		}
		cancel()
	}
	return errors.Join(failures...)
}
