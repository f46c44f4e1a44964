package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/assembly"
	"weir.dev/weir/operator/internal/drive"
	"weir.dev/weir/operator/internal/inventory"
	"weir.dev/weir/operator/internal/nodeagent"
	"weir.dev/weir/operator/internal/plugin"
	"weir.dev/weir/operator/internal/resourceclaim"
)

// stateMode lets nobody but root see the device files.
const stateMode = 0o700

// run keeps the node's drives until ctx ends.
func run(ctx context.Context, o options) error {
	if err := os.MkdirAll(o.state, stateMode); err != nil {
		return fmt.Errorf("make the directory for device files: %w", err)
	}
	scheme, err := assembly.NewScheme()
	if err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	own := labels.SelectorFromSet(labels.Set{v1alpha1.LabelNode: o.node})
	mgr, err := nodeagent.NewManager(config, nodeagent.Options{
		Scheme:  scheme,
		Cached:  map[client.Object]cache.ByObject{&v1alpha1.NodeDevice{}: {Label: own}},
		Metrics: "0",
		Probe:   o.probeAddress,
	})
	if err != nil {
		return err
	}
	nodes := drive.Nodes{Folder: o.state}
	agent := inventory.New(mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder("weir-drives"), clock.RealClock{}, o.node, finder{o.tree, nodes})
	w := &watch{agent: agent}
	if o.kubelet != "" {
		w.offers = append(w.offers, plugin.New(o.kubelet, handOut(w.take(nodes))).Offer)
	}
	if o.dra.kubelet != "" {
		helper, offer, err := startDriver(ctx, config, o, w.take(nodes))
		if err != nil {
			return err
		}
		defer helper.Stop()
		w.offers = append(w.offers, offer)
	}
	loop := nodeagent.NewLoop(o.interval, w.look)
	if err := notice(ctx, loop, mgr.GetCache()); err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(loop.Run)); err != nil {
		return fmt.Errorf("add the inventory: %w", err)
	}
	ctrl.Log.Info("Starting", "version", version, "node", o.node)
	return mgr.Start(ctx)
}

// watch looks at the drives.
type watch struct {
	agent *inventory.Agent
	// offers are told what was seen.
	offers []func(context.Context, []inventory.Seen)
}

// notice has changes of NodeDevices looked at: a drive that is assigned to an engine is wanted at once.
func notice(ctx context.Context, loop *nodeagent.Loop, from cache.Cache) error {
	return loop.Watch(ctx, from, &v1alpha1.NodeDevice{}, toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			a, okA := before.(*v1alpha1.NodeDevice)
			b, okB := after.(*v1alpha1.NodeDevice)
			if okA && okB && a.Generation != b.Generation {
				loop.Signal()
			}
		},
		DeleteFunc: func(any) { loop.Signal() },
	})
}

func (w *watch) look(ctx context.Context) {
	seen, err := w.agent.Scan(ctx)
	if err != nil && ctx.Err() == nil {
		log.FromContext(ctx).Info("Not all drives could be recorded; they are looked at again", "reason", err.Error())
	}
	for _, offer := range w.offers {
		if seen != nil { // otherwise nothing is known, not even that there are no drives
			offer(ctx, seen)
		}
	}
}

// take looks at a drive, and makes its device file, which belongs to the engine's user.
func (w *watch) take(nodes drive.Nodes) resourceclaim.Taker {
	return func(ctx context.Context, name string) (*inventory.Seen, string, error) {
		seen, err := w.agent.Take(ctx, name)
		if err != nil {
			return nil, "", err
		}
		path, err := nodes.Make(name, &seen.Drive, drive.EngineUser)
		if err != nil {
			return nil, "", err
		}
		return seen, path, nil
	}
}

// handOut gives a drive to a container by its device file: container runtimes make the container's own like it.
func handOut(take resourceclaim.Taker) plugin.HandOut {
	return func(ctx context.Context, name string) (*pluginapi.DeviceSpec, error) {
		seen, path, err := take(ctx, name)
		if err != nil {
			return nil, err
		}
		return &pluginapi.DeviceSpec{HostPath: path, ContainerPath: drive.ContainerPath(seen.Assignment.Target), Permissions: "rw"}, nil
	}
}
