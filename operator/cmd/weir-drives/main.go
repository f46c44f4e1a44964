// Command weir-drives runs on each node that has drives for engines: it keeps their NodeDevices, and gives them to the pods of the
// engines that they are assigned to.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"weir.dev/weir/operator/internal/command"
	"weir.dev/weir/operator/internal/drive"
	"weir.dev/weir/operator/internal/inventory"
)

// version is set by the linker.
var version = "dev"

// options are the command line.
type options struct {
	node         string
	state        string
	tree         drive.Tree
	kubelet      string
	dra          draOptions
	interval     time.Duration
	once         bool
	json         bool
	logLevel     string
	probeAddress string
}

func parse(args []string) (options, error) {
	var o options
	flags := command.Flags("weir-drives", version, "keeps the NodeDevices of a node's drives, and gives drives to the pods of engines")
	flags.StringVar(&o.node, "node", os.Getenv("NODE_NAME"), "`name` of the node (default $NODE_NAME)")
	flags.StringVar(&o.state, "state", "/var/lib/weir/drives", "`directory` for device files, at the same path on the node; not on a file system that is mounted with nodev")
	flags.StringVar(&o.tree.Sys, "sys", "/sys", "`directory` of sysfs")
	flags.StringVar(&o.tree.Mountinfo, "mountinfo", "/proc/1/mountinfo", "`file` with the mounts of the node's first process; empty if it can't be seen")
	flags.StringVar(&o.tree.Loops, "loops", "", "`directory` with files that stand in for drives by loop devices, for tests; empty for none")
	flags.StringVar(&o.kubelet, "kubelet", "", "`directory` of the kubelet for device plugins, such as /var/lib/kubelet/device-plugins; empty for no device plugin")
	flags.StringVar(&o.dra.kubelet, "dra", "", "root `directory` of the kubelet, such as /var/lib/kubelet, for dynamic resource allocation; empty for none")
	flags.StringVar(&o.dra.cdi, "cdi", "/var/run/cdi", "`directory` of CDI specifications, at the same path on the node")
	flags.StringVar(&o.dra.pod, "pod-uid", os.Getenv("POD_UID"), "`UID` of this pod, so that it and its successor may overlap (default $POD_UID)")
	flags.DurationVar(&o.interval, "interval", inventory.Interval, "`time` between two looks at the drives")
	flags.BoolVar(&o.once, "once", false, "print what is found, change nothing, and end: no Kubernetes is needed")
	flags.BoolVar(&o.json, "json", false, "with --once: print JSON")
	flags.StringVar(&o.logLevel, "log-level", "info", "`level`: debug, info or error")
	flags.StringVar(&o.probeAddress, "probe-address", ":8082", "`address` of /healthz; 0 turns it off")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q: see --help", flags.Arg(0))
	case o.json && !o.once:
		return o, errors.New("--json goes with --once")
	case o.node == "" && !o.once:
		return o, errors.New("--node is empty and NODE_NAME is not set: say on which node this is")
	case o.interval < time.Second:
		return o, errors.New("--interval is less than a second")
	default:
		return o, nil
	}
}

func main() {
	o := command.Begin("weir-drives", parse, func(o options) string { return o.logLevel })
	work := run
	if o.once {
		work = func(_ context.Context, o options) error { return dryRun(os.Stdout, o) }
	}
	if err := work(ctrl.SetupSignalHandler(), o); err != nil {
		fmt.Fprintln(os.Stderr, "weir-drives:", err)
		os.Exit(1)
	}
}

// finder looks at the drives of this machine.
type finder struct {
	drive.Tree
	drive.Nodes
}

var _ inventory.Finder = finder{}

// dryRun prints what the machine's drives are, and whether an engine may have them.
func dryRun(out io.Writer, o options) error {
	within := "" // the directory for temporary files
	if _, err := os.Stat(o.state); err == nil {
		within = o.state // the agent's image has no other
	}
	folder, err := os.MkdirTemp(within, "once-")
	if err != nil {
		return fmt.Errorf("make a directory for device files: %w", err)
	}
	defer func() { _ = os.Remove(folder) }() // it is empty
	seen, err := inventory.Look(finder{o.tree, drive.Nodes{Folder: folder}})
	if err != nil {
		return err
	}
	if o.json {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(seen)
	}
	return table(out, seen)
}

// table is the list of drives for people.
func table(out io.Writer, seen []inventory.Seen) error {
	rows := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(rows, "NAME\tDEVICE\tMODEL\tSIZE\tELIGIBLE\tWHY NOT") // Flush tells of errors
	for _, s := range seen {
		eligible, why := "yes", ""
		for i, o := range s.Obstacles {
			eligible = "no"
			if i > 0 {
				why += "; "
			}
			why += o.Reason + ": " + o.Message
		}
		cells := []string{s.Name, s.Drive.KernelName, s.Drive.Model, fmt.Sprintf("%d MiB", s.Drive.Bytes>>20), eligible, why}
		_, _ = fmt.Fprintln(rows, strings.Join(cells, "\t"))
	}
	return rows.Flush()
}
