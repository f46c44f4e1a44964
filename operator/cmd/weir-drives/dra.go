package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"weir.dev/weir/operator/internal/drive"
	"weir.dev/weir/operator/internal/inventory"
	"weir.dev/weir/operator/internal/resourceclaim"
)

// folderMode of the directories that kubelet and container runtime read.
const folderMode = 0o755

// draOptions are the part of the command line for dynamic resource allocation.
type draOptions struct {
	kubelet, cdi, pod string
}

// startDriver makes drives known to the scheduler and gives them to pods, until it is stopped.
func startDriver(ctx context.Context, config *rest.Config, o options, take resourceclaim.Taker) (*kubeletplugin.Helper, func(context.Context, []inventory.Seen), error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client: %w", err)
	}
	data := filepath.Join(o.dra.kubelet, "plugins", drive.Driver)
	for _, folder := range []string{data, o.dra.cdi} {
		if err := os.MkdirAll(folder, folderMode); err != nil {
			return nil, nil, fmt.Errorf("make a directory for dynamic resource allocation: %w", err)
		}
	}
	driver := resourceclaim.New(o.node, o.dra.cdi, take)
	settings := []kubeletplugin.Option{
		kubeletplugin.DriverName(drive.Driver), kubeletplugin.KubeClient(clients), kubeletplugin.NodeName(o.node),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RegistrarDirectoryPath(filepath.Join(o.dra.kubelet, "plugins_registry")),
	}
	if o.dra.pod != "" {
		settings = append(settings, kubeletplugin.RollingUpdate(types.UID(o.dra.pod)))
	}
	helper, err := kubeletplugin.Start(ctx, driver, settings...)
	if err != nil {
		return nil, nil, fmt.Errorf("start the driver of dynamic resource allocation: %w", err)
	}
	return helper, driver.Offer(helper), nil
}
