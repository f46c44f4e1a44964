// Command weir-broker makes and removes the mounts of a node for the mount daemon and the CSI node plugin, which need no
// privileges then. It is the only program of Weir's that mounts.
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
	"strconv"
	"strings"
	"syscall"

	"weir.dev/weir/csi/internal/broker"
)

// version is set when the program is linked.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	default:
		slog.New(slog.NewJSONHandler(os.Stderr, nil)).Error("weir-broker ends", "error", err.Error())
		os.Exit(1)
	}
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

// run serves until ctx ends.
func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("weir-broker", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var roots, users list
	socket := flags.String("socket", "/var/lib/weir/broker/broker.sock", "`path` of the unix socket to serve")
	flags.Var(&roots, "root", "`folder` below which mounts may be made; may be given several times (default /var/lib/kubelet)")
	flags.Var(&users, "user", "`id` of a user whose processes may ask; may be given several times (default 0)")
	showVersion := flags.Bool("version", false, "print the version, and end")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *showVersion {
		_, err := fmt.Fprintln(stdout, version)
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if len(roots) == 0 {
		roots = list{"/var/lib/kubelet"}
	}
	ids, err := idsOf(users)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewJSONHandler(stderr, nil))
	server, err := broker.New(logger, roots, ids)
	if err != nil {
		return err
	}
	defer server.Close()
	listener, err := broker.Listen(*socket)
	if err != nil {
		return err
	}
	logger.Info("mount broker serves", "version", version, "socket", *socket, "roots", roots)
	return server.Serve(ctx, listener)
}

// idsOf reads user ids; root's where there is none.
func idsOf(users []string) ([]uint32, error) {
	if len(users) == 0 {
		return []uint32{0}, nil
	}
	var ids []uint32
	for _, user := range users {
		id, err := strconv.ParseUint(user, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--user %q is not the number of a user", user)
		}
		ids = append(ids, uint32(id))
	}
	return ids, nil
}
