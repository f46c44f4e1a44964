// Package registration tells the kubelet about the node plugin, by the kubelet's plugin registration protocol v1: the
// plugin serves a socket in a folder that the kubelet watches, the kubelet asks there what the plugin is, and says how
// registering it went. A kubelet that restarts finds the socket and asks again.
package registration

import (
	"context"
	"log/slog"

	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"weir.dev/weir/csi/volume"
)

// csiVersion is the version of CSI that the kubelet is to speak with the plugin.
const csiVersion = "1.0.0"

// Server serves the kubelet's Registration protocol.
type Server struct {
	registrationv1.UnimplementedRegistrationServer

	logger   *slog.Logger
	endpoint string
	// result is told each outcome.
	result func(registered bool)
}

var _ registrationv1.RegistrationServer = (*Server)(nil)

// New returns a registration of the CSI endpoint, a socket path on the host. result is told each outcome.
func New(logger *slog.Logger, endpoint string, result func(registered bool)) *Server {
	return &Server{logger: logger, endpoint: endpoint, result: result}
}

// GetInfo says what the plugin is.
func (s *Server) GetInfo(context.Context, *registrationv1.InfoRequest) (*registrationv1.PluginInfo, error) {
	return &registrationv1.PluginInfo{
		Type:              registrationv1.CSIPlugin,
		Name:              volume.DriverName,
		Endpoint:          s.endpoint,
		SupportedVersions: []string{csiVersion},
	}, nil
}

// NotifyRegistrationStatus takes the outcome. The kubelet repeats a registration that failed, with growing pauses.
func (s *Server) NotifyRegistrationStatus(ctx context.Context, outcome *registrationv1.RegistrationStatus) (*registrationv1.RegistrationStatusResponse, error) {
	s.result(outcome.GetPluginRegistered())
	if outcome.GetPluginRegistered() {
		s.logger.InfoContext(ctx, "registered with the kubelet", "driver", volume.DriverName)
	} else {
		s.logger.ErrorContext(ctx, "the kubelet refused to register the driver", "driver", volume.DriverName, "error", outcome.GetError())
	}
	return &registrationv1.RegistrationStatusResponse{}, nil
}
