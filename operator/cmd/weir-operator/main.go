// Command weir-operator runs the controllers of the kinds of storage.weir.dev.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"

	"weir.dev/weir/operator/internal/command"
)

// version is set by the linker.
var version = "dev"

// options are the command line.
type options struct {
	namespace            string
	watchNamespaces      []string
	engineImage          string
	engineSeccompProfile string
	metricsAddress       string
	probeAddress         string
	leaderElect          bool
	logLevel             string
}

func parse(args []string) (options, error) {
	var o options
	var watched string
	flags := flag.NewFlagSet("weir-operator", flag.ContinueOnError)
	flags.Usage = func() {
		_, _ = fmt.Fprintf(flags.Output(), "weir-operator %s makes StorageClusters, Pools and Containers of storage.weir.dev so.\n\nFlags:\n", version)
		flags.PrintDefaults()
	}
	flags.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "`namespace` of the operator: leader lease and copies of client Secrets live there (default $POD_NAMESPACE)")
	flags.StringVar(&watched, "watch-namespaces", "", "comma-separated `namespaces` to serve; empty means all")
	flags.StringVar(&o.engineImage, "engine-image", os.Getenv("WEIR_ENGINE_IMAGE"), "`image` of engines whose StorageCluster names none (default $WEIR_ENGINE_IMAGE)")
	flags.StringVar(&o.engineSeccompProfile, "engine-seccomp-profile", "", "Localhost `profile` of engines whose StorageCluster names none; empty means the container runtime's own")
	flags.StringVar(&o.metricsAddress, "metrics-address", ":8080", "`address` of /metrics; 0 turns it off")
	flags.StringVar(&o.probeAddress, "probe-address", ":8081", "`address` of /healthz and /readyz")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "work only while holding the lease, so that several replicas may run")
	flags.StringVar(&o.logLevel, "log-level", "info", "`level`: debug, info or error")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	for name := range strings.SplitSeq(watched, ",") {
		if name = strings.TrimSpace(name); name != "" {
			o.watchNamespaces = append(o.watchNamespaces, name)
		}
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: see --help", flags.Arg(0))
	}
	if o.namespace == "" {
		return o, errors.New("--namespace is empty and POD_NAMESPACE is not set: say in which namespace the operator runs")
	}
	if o.engineImage == "" {
		return o, errors.New("--engine-image is empty and WEIR_ENGINE_IMAGE is not set: say which image engines run")
	}
	return o, nil
}

func main() {
	o := command.Begin("weir-operator", parse, func(o options) string { return o.logLevel })
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		ctrl.Log.Error(err, "Operator stopped")
		os.Exit(1)
	}
}
