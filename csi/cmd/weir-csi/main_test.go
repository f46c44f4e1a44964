package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"weir.dev/weir/csi/internal/mounttest"
)

func TestCommandLine(t *testing.T) {
	tests := map[string]struct {
		arguments []string
		want      error
		output    string
	}{
		"help is printed":                       {arguments: []string{"--help"}, output: "weir-csi controller"},
		"a command's help lists its flags":      {arguments: []string{"node", "--help"}, want: flag.ErrHelp, output: "-mountd-socket"},
		"the version is printed":                {arguments: []string{"version"}, output: version},
		"no command is refused":                 {want: errUsage, output: "Usage"},
		"an unknown command is refused by name": {arguments: []string{"serve"}, want: errUsage, output: `"serve"`},
		"an unknown flag is refused by name":    {arguments: []string{"controller", "--nodes"}, want: errUsage, output: "-nodes"},
		"an extra argument is refused by name":  {arguments: []string{"controller", "now"}, want: errUsage, output: `"now"`},
		"an unknown log level is refused":       {arguments: []string{"controller", "--log-level", "loud"}, want: errUsage, output: `"loud"`},
		"a node plugin needs the node's name":   {arguments: []string{"node", "--node-name", ""}, want: errUsage, output: "--node-name"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var output bytes.Buffer
			err := run(t.Context(), tc.arguments, &output, &output)
			if !errors.Is(err, tc.want) || !strings.Contains(output.String(), tc.output) {
				t.Errorf("got %v and %q, want %v and %q", err, output.String(), tc.want, tc.output)
			}
		})
	}
}

func TestTheNodePluginServesAndEndsWhenToldTo(t *testing.T) {
	folder := t.TempDir()
	daemonSocket := mounttest.New().Listen(t)
	endpoint, registration := filepath.Join(folder, "csi.sock"), filepath.Join(folder, "reg", "csi.weir.dev-reg.sock")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var log bytes.Buffer
	go func() {
		ended <- run(ctx, []string{
			"node", "--endpoint", endpoint, "--node-name", "node-1", "--mountd-socket", daemonSocket,
			"--registration-socket", registration, "--kubelet-endpoint", "/host/csi.sock", "--metrics-address", "127.0.0.1:0",
		}, &log, &log)
	}()
	bounded, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	dial := func(socket string) *grpc.ClientConn {
		conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	info, err := csi.NewNodeClient(dial(endpoint)).NodeGetInfo(bounded, &csi.NodeGetInfoRequest{}, grpc.WaitForReady(true))
	if err != nil || info.GetNodeId() != "node-1" {
		t.Errorf("node info %v, %v", info, err)
	}
	probe, err := csi.NewIdentityClient(dial(endpoint)).Probe(bounded, &csi.ProbeRequest{})
	if err != nil || !probe.GetReady().GetValue() {
		t.Errorf("probe %v, %v; want ready", probe, err)
	}
	plugin, err := registrationv1.NewRegistrationClient(dial(registration)).GetInfo(bounded, &registrationv1.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil || plugin.GetEndpoint() != "/host/csi.sock" {
		t.Errorf("plugin info %v, %v", plugin, err)
	}
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the plugin ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the plugin did not end")
	}
}

func TestAControllerWithoutAnAttachFileSaysSoToEachCall(t *testing.T) {
	folder := t.TempDir()
	endpoint := filepath.Join(folder, "csi.sock")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var log bytes.Buffer
	go func() {
		ended <- run(ctx, []string{"controller", "--endpoint", endpoint, "--attach-dir", filepath.Join(folder, "absent"), "--metrics-address", ""}, &log, &log)
	}()
	conn, err := grpc.NewClient("unix://"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	bounded, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	probe, err := csi.NewIdentityClient(conn).Probe(bounded, &csi.ProbeRequest{}, grpc.WaitForReady(true))
	if err != nil || !probe.GetReady().GetValue() {
		t.Errorf("probe %v, %v; a sidecar would wait for it in silence", probe, err)
	}
	_, err = csi.NewControllerClient(conn).CreateVolume(bounded, &csi.CreateVolumeRequest{
		Name: "pvc-1", Parameters: map[string]string{"pool": "tank"}, VolumeCapabilities: []*csi.VolumeCapability{{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		}},
	})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the operator writes it when a StorageCluster has engines") {
		t.Errorf("create volume: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the controller ended with %v", err)
	}
}
