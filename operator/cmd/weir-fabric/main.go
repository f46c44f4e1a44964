// Command weir-fabric runs on each node of a cluster with virtual networks: it admits the pods of tenants to their VNIs, keeps all
// others out, and tries whether the networks are kept apart.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"weir.dev/weir/operator/internal/command"
	"weir.dev/weir/operator/internal/enforcement"
)

// version is set by the linker.
var version = "dev"

// options are the command line.
type options struct {
	node         string
	namespace    string
	state        string
	namespaces   string
	interval     time.Duration
	logLevel     string
	probeAddress string
	metrics      string
}

func parse(args []string) (options, error) {
	var o options
	flags := command.Flags("weir-fabric", version, "admits the pods of tenants on a node to their virtual networks (VNIs)")
	flags.StringVar(&o.node, "node", os.Getenv("NODE_NAME"), "`name` of the node (default $NODE_NAME)")
	flags.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "`namespace` of the mount daemons (default $POD_NAMESPACE)")
	flags.StringVar(&o.state, "state", "/var/lib/weir/fabric", "`directory` of the journal, which outlives this process")
	flags.StringVar(&o.namespaces, "netns", "/var/run/netns", "`directory` in which the network namespaces of pods are bound to files")
	flags.DurationVar(&o.interval, "interval", enforcement.Interval, "`time` between two looks when nothing has changed")
	flags.StringVar(&o.logLevel, "log-level", "info", "`level`: debug, info or error")
	flags.StringVar(&o.probeAddress, "probe-address", ":8083", "`address` of /healthz; 0 turns it off")
	flags.StringVar(&o.metrics, "metrics-address", ":9812", "`address` of /metrics; 0 turns it off")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q: see --help", flags.Arg(0))
	case o.node == "":
		return o, errors.New("--node is empty and NODE_NAME is not set: say on which node this is")
	case o.namespace == "":
		return o, errors.New("--namespace is empty and POD_NAMESPACE is not set: say in which namespace the mount daemons are")
	case o.interval < time.Second:
		return o, errors.New("--interval is less than a second")
	default:
		return o, nil
	}
}

func main() {
	o := command.Begin("weir-fabric", parse, func(o options) string { return o.logLevel })
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		fmt.Fprintln(os.Stderr, "weir-fabric:", err)
		os.Exit(1)
	}
}
