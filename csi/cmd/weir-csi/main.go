// Command weir-csi is the CSI driver csi.weir.dev: `weir-csi controller` makes and destroys volumes, `weir-csi node`
// shows them to the pods of a node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// version is set when the program is linked.
var version = "dev"

const usage = `weir-csi is the CSI driver csi.weir.dev.

Usage:
  weir-csi controller [flags]   make, expand, list and destroy volumes
  weir-csi node [flags]         mount volumes for the pods of a node
  weir-csi version              print the version

"weir-csi <command> --help" lists the flags of a command.
`

// errUsage says that the command line was wrong; what is wrong has been printed.
var errUsage = errors.New("wrong usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	default:
		slog.New(slog.NewJSONHandler(os.Stderr, nil)).Error("weir-csi ends", "error", err.Error())
		os.Exit(1)
	}
}

// run carries out a command line until ctx ends.
func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	if len(arguments) == 0 {
		_, _ = fmt.Fprint(stderr, usage)
		return errUsage
	}
	switch command := arguments[0]; command {
	case "controller":
		return runController(ctx, arguments[1:], stderr)
	case "node":
		return runNode(ctx, arguments[1:], stderr)
	case "version", "--version":
		_, err := fmt.Fprintln(stdout, version)
		return err
	case "help", "--help", "-h":
		_, err := fmt.Fprint(stdout, usage)
		return err
	default:
		_, _ = fmt.Fprintf(stderr, "weir-csi: unknown command %q\n\n%s", command, usage)
		return errUsage
	}
}
