// Package server serves gRPC on unix sockets in folders that others may clear: the CSI endpoint and the kubelet's
// registration.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
)

const (
	// guardInterval is how often a socket is looked for in its folder. Whoever wipes the folder (a kubelet that is
	// installed anew) takes longer than this to look there again.
	guardInterval = 5 * time.Second
	// drainTimeout bounds how long calls under way may take at the end; the caller repeats those that are cut off.
	drainTimeout = 10 * time.Second
	// socketFolderMode lets only root see the sockets.
	socketFolderMode = 0o750
)

// Serve serves the services that register adds on a unix socket until ctx ends. A socket left by an earlier process is
// replaced, and one that somebody removes is made again.
func Serve(ctx context.Context, logger *slog.Logger, path string, register func(*grpc.Server), options ...grpc.ServerOption) error {
	for {
		server := grpc.NewServer(options...)
		register(server)
		listener, err := listen(path)
		if err != nil {
			return err
		}
		logger.InfoContext(ctx, "listening", "socket", path)
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(listener) }()
		lost, err := guard(ctx, path, ended)
		drain(server)
		if err != nil {
			return fmt.Errorf("serve %s: %w", path, err)
		}
		if !lost {
			return nil
		}
		logger.WarnContext(ctx, "socket was removed; making it again", "socket", path)
	}
}

// guard waits until ctx ends (false), the server ends by itself (an error) or the socket has been removed (true). A
// socket that another process has put in its place is left alone: that process is this one's successor.
func guard(ctx context.Context, path string, ended <-chan error) (lost bool, err error) {
	ticker := time.NewTicker(guardInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case err := <-ended:
			if err == nil {
				err = errors.New("the server has ended")
			}
			return false, err
		case <-ticker.C:
			if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
				return true, nil
			}
		}
	}
}

// drain lets calls under way end, for a bounded time.
func drain(server *grpc.Server) {
	timer := time.AfterFunc(drainTimeout, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

// listen makes the socket. It appears at path only once it accepts connections: the kubelet connects as soon as it sees
// one. The name it is made under starts with a dot, which the kubelet ignores.
func listen(path string) (net.Listener, error) {
	folder, name := filepath.Split(path)
	if err := os.MkdirAll(folder, socketFolderMode); err != nil {
		return nil, fmt.Errorf("make the folder of socket %s: %w", path, err)
	}
	hidden := filepath.Join(folder, "."+name)
	if err := os.Remove(hidden); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// The socket stays when the listener closes: by then a successor may have put its own in its place, and a kubelet
	// that saw it vanish would take the driver from the node until the successor is there.
	listener.SetUnlinkOnClose(false)
	if err := os.Rename(hidden, path); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return listener, nil
}
