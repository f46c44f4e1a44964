// Package identity is the CSI identity service.
package identity

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"weir.dev/weir/csi/volume"
)

// Server serves csi.Identity.
type Server struct {
	csi.UnimplementedIdentityServer

	version string
	ready   func(context.Context) error
}

var _ csi.IdentityServer = (*Server)(nil)

// New returns an identity service. ready tells why the plugin cannot serve now; nil if it can.
func New(version string, ready func(context.Context) error) *Server {
	return &Server{version: version, ready: ready}
}

// GetPluginInfo names the driver.
func (s *Server) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: volume.DriverName, VendorVersion: s.version}, nil
}

// GetPluginCapabilities says which services there are.
func (s *Server) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE,
		}}},
	}}, nil
}

// Probe tells whether the plugin can serve. What it waits for (an attach file, the mount daemon) comes by itself, so
// that not being ready is no error: nothing is won by a restart.
func (s *Server) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(s.ready(ctx) == nil)}, nil
}
