// Package services runs the CSI conformance suite against the driver's services in this process.
package services

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"weir.dev/weir/csi/internal/clusters"
	"weir.dev/weir/csi/internal/controller"
	"weir.dev/weir/csi/internal/identity"
	"weir.dev/weir/csi/internal/mounttest"
	"weir.dev/weir/csi/internal/node"
	"weir.dev/weir/csi/internal/server"
	"weir.dev/weir/csi/internal/telemetry"
	"weir.dev/weir/csi/sanity"
	"weir.dev/weir/engine/proto/management/managementtest"
)

// TestSanityOfTheServices runs the suite against the driver's services, served as the driver serves them, with the
// management protocol and the mount protocol answered in this process. It needs no privileges. TestSanityOfTheDriver
// runs the same suite with engines, mount daemon and driver as processes.
func TestSanityOfTheServices(t *testing.T) {
	system := managementtest.Start(t, 3)
	system.MakePool(sanity.Pool, 100<<30)
	systems := clusters.New(filepath.Dir(system.AttachFile()))
	t.Cleanup(func() { _ = systems.Close() })
	machine := mounttest.New()
	daemon := machine.Serve(t)
	ready := func(context.Context) error { return nil }
	metrics := telemetry.NewMetrics("test", "node")
	metrics.WatchNode(daemon)

	folder := t.TempDir()
	endpoint := filepath.Join(folder, "csi.sock")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	volumes, pods := controller.New(systems, nil, nil), node.New("node-1", daemon, machine)
	go func() {
		ended <- server.Serve(ctx, slog.New(slog.DiscardHandler), endpoint, func(s *grpc.Server) {
			csi.RegisterIdentityServer(s, identity.New("test", ready))
			csi.RegisterControllerServer(s, volumes)
			csi.RegisterNodeServer(s, pods)
		}, grpc.UnaryInterceptor(metrics.Intercept(slog.New(slog.DiscardHandler))))
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("serve CSI: %v", err)
		}
	})
	sanity.Run(t, endpoint, endpoint, folder)
	if left, _ := machine.List(); len(left) != 0 {
		t.Errorf("mounts left behind: %v", left)
	}
}
