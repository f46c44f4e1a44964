// Command weir-operator runs the controllers of the kinds of storage.weir.dev.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"

	"weir.dev/weir/operator/internal/command"
	"weir.dev/weir/operator/internal/container"
)

// version is set by the linker.
var version = "dev"

// options are the command line.
type options struct {
	namespace            string
	agentsNamespace      string
	watchNamespaces      []string
	engineImage          string
	engineSeccompProfile string
	tenantProber         string
	// engineEnv is variables that every engine gets.
	engineEnv      map[string]string
	metricsAddress string
	probeAddress   string
	leaderElect    bool
	logLevel       string
	// workers is how many objects of a kind are reconciled at once.
	workers int
	// apiRate and apiBurst bound requests to the API server.
	apiRate  float64
	apiBurst int
	// usageRate is how many Containers a second have their status written only because their usage has changed.
	usageRate float64
}

func parse(args []string) (options, error) {
	var o options
	var watched string
	flags := command.Flags("weir-operator", version, "makes StorageClusters, Pools and Containers of storage.weir.dev so")
	flags.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "`namespace` of the operator: leader lease and copies of client Secrets live there (default $POD_NAMESPACE)")
	flags.StringVar(&o.agentsNamespace, "agents-namespace", "", "`namespace` of the release's pods on each node, where what the mount daemon attaches with is written, too; empty means the operator's")
	flags.StringVar(&watched, "watch-namespaces", "", "comma-separated `namespaces` to serve; empty means all")
	flags.StringVar(&o.engineImage, "engine-image", os.Getenv("WEIR_ENGINE_IMAGE"), "`image` of engines whose StorageCluster names none (default $WEIR_ENGINE_IMAGE)")
	flags.StringVar(&o.engineSeccompProfile, "engine-seccomp-profile", "", "Localhost `profile` of engines whose StorageCluster names none; empty means the container runtime's own")
	flags.StringVar(&o.tenantProber, "tenant-prober", "", "`image`, with the weir command line, of pods that try from each Tenant to reach what is another one's; empty for no such pods")
	flags.Func("engine-env", "`NAME=VALUE` that every engine has in its environment, for example FI_LOG_LEVEL=warn; may be repeated", o.addEngineEnv)
	flags.StringVar(&o.metricsAddress, "metrics-address", ":8080", "`address` of /metrics; 0 turns it off")
	flags.StringVar(&o.probeAddress, "probe-address", ":8081", "`address` of /healthz and /readyz")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "work only while holding the lease, so that several replicas may run")
	flags.StringVar(&o.logLevel, "log-level", "info", "`level`: debug, info or error")
	flags.IntVar(&o.workers, "workers", 4, "`objects` of a kind that are reconciled at once, so that a cluster which does not answer holds up no other")
	flags.Float64Var(&o.apiRate, "api-rate", 50, "`requests` to the API server a second")
	flags.IntVar(&o.apiBurst, "api-burst", 100, "`requests` to the API server at once, before the rate holds")
	flags.Float64Var(&o.usageRate, "usage-rate", container.DefaultUsageRate, "`writes` a second of the status of Containers of which only the usage has changed")
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
	return o, o.checkRates()
}

// engineOwn begins the variables that the operator itself gives to each engine.
var engineOwn = []string{"WEIR_RANK", "WEIR_HOST", "WEIR_DEVICES"}

// addEngineEnv takes a variable of the engines.
func (o *options) addEngineEnv(argument string) error {
	name, value, found := strings.Cut(argument, "=")
	switch {
	case !found || len(validation.IsEnvVarName(name)) > 0:
		return fmt.Errorf("%q is no variable: give NAME=VALUE", argument)
	case slices.Contains(engineOwn, name):
		return fmt.Errorf("%s is set by the operator, to another value for each engine", name)
	}
	if o.engineEnv == nil {
		o.engineEnv = map[string]string{}
	}
	o.engineEnv[name] = value
	return nil
}

// checkRates refuses rates under which nothing would be done.
func (o options) checkRates() error {
	switch {
	case o.workers < 1:
		return fmt.Errorf("--workers is %d: give 1 or more", o.workers)
	case !(o.apiRate > 0) || o.apiBurst < 1:
		return fmt.Errorf("--api-rate is %v and --api-burst %d: both have to be greater than 0", o.apiRate, o.apiBurst)
	case !(o.usageRate > 0):
		return fmt.Errorf("--usage-rate is %v: it has to be greater than 0", o.usageRate)
	default:
		return nil
	}
}

func main() {
	o := command.Begin("weir-operator", parse, func(o options) string { return o.logLevel })
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		ctrl.Log.Error(err, "Operator stopped")
		os.Exit(1)
	}
}
