package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"weir.dev/weir/csi/internal/registration"
)

// run serves a registration on a socket until the returned function is called.
func run(t *testing.T, socket string, result func(bool)) (stop func()) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, logger, socket, func(s *grpc.Server) {
			registrationv1.RegisterRegistrationServer(s, registration.New(logger, "/csi/csi.sock", result))
		})
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// ask does what the kubelet does when it sees a socket, waiting for the socket as it does.
func ask(t *testing.T, socket string) *registrationv1.PluginInfo {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 4*guardInterval)
	defer cancel()
	client := registrationv1.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registrationv1.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatalf("get info: %v", err)
	}
	if _, err := client.NotifyRegistrationStatus(ctx, &registrationv1.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatalf("notify: %v", err)
	}
	return info
}

func TestTheKubeletLearnsTheDriverEachTimeItAsks(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "csi.weir.dev-reg.sock")
	outcomes := make(chan bool, 2)
	run(t, socket, func(registered bool) { outcomes <- registered })
	for range 2 { // The second time stands for a kubelet that has restarted.
		info := ask(t, socket)
		if info.GetType() != "CSIPlugin" || info.GetName() != "csi.weir.dev" || info.GetEndpoint() != "/csi/csi.sock" || len(info.GetSupportedVersions()) != 1 {
			t.Errorf("got %v", info)
		}
		if !<-outcomes {
			t.Error("the outcome was not passed on")
		}
	}
}

func TestASocketThatSomebodyRemovesIsMadeAgain(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "reg.sock")
	run(t, socket, func(bool) {})
	ask(t, socket)
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	ask(t, socket)
}

func TestASuccessorTakesTheSocketOver(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "reg.sock")
	stop := run(t, socket, func(bool) {})
	ask(t, socket)
	taken := make(chan bool, 1)
	run(t, socket, func(bool) { taken <- true })
	deadline := time.After(4 * guardInterval)
	for {
		ask(t, socket)
		select {
		case <-taken:
			stop()
			ask(t, socket)
			<-taken
			return
		case <-deadline:
			t.Fatal("the successor never answered")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func TestASocketInAPlaceThatCannotBeIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Serve(t.Context(), slog.New(slog.DiscardHandler), filepath.Join(file, "reg.sock"), func(*grpc.Server) {})
	if err == nil {
		t.Fatal("served below a file")
	}
	if _, network := errors.AsType[*net.OpError](err); network {
		t.Errorf("got %v, want the folder to be named as the reason", err)
	}
}
