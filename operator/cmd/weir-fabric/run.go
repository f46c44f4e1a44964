package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/assembly"
	"weir.dev/weir/operator/internal/enforcement"
	"weir.dev/weir/operator/internal/fabric"
	"weir.dev/weir/operator/internal/fabric/simulated"
	"weir.dev/weir/operator/internal/nodeagent"
)

// bootFile tells this start of the node from others.
const bootFile = "/proc/sys/kernel/random/boot_id"

// run keeps the node's fabric until ctx ends. The fabric stays as it is then.
func run(ctx context.Context, o options) error {
	scheme, err := assembly.NewScheme()
	if err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	mgr, err := nodeagent.NewManager(config, nodeagent.Options{
		Scheme:  scheme,
		Metrics: o.metrics,
		Probe:   o.probeAddress,
		Cached: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", o.node)},
		},
	})
	if err != nil {
		return err
	}
	shared, err := cache.New(config, cache.Options{Scheme: scheme, ByObject: enforcement.SharedPods()})
	if err != nil {
		return fmt.Errorf("set up the cache of pods that belong to all VNIs: %w", err)
	}
	if err := mgr.Add(shared); err != nil {
		return fmt.Errorf("add the cache of pods that belong to all VNIs: %w", err)
	}
	boot, err := os.ReadFile(bootFile)
	if err != nil {
		return fmt.Errorf("find out which start of the node this is: %w", err)
	}
	net := simulated.New()
	keeper, err := fabric.NewKeeper(ctx, net, o.state, strings.TrimSpace(string(boot)), clock.RealClock{})
	if err != nil {
		return err
	}
	if err := metrics.Registry.Register(enforcement.NewCollector(keeper, net, version)); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	agent := enforcement.New(enforcement.Config{
		Client: mgr.GetClient(), Shared: shared, Clock: clock.RealClock{}, Node: o.node, Namespace: o.namespace,
		Keeper: keeper, Switch: net, Machine: enforcement.Machine{Folder: o.namespaces},
	})
	loop := nodeagent.NewLoop(o.interval, func(ctx context.Context) {
		if err := agent.Sync(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Info("The fabric is not what it should be, which is tried again", "reason", err.Error())
		}
	})
	if err := notice(ctx, loop, mgr.GetCache(), &corev1.Pod{}, &v1alpha1.VNIAllocation{}, &v1alpha1.Tenant{}, &v1alpha1.StorageCluster{}, &corev1.Namespace{}); err != nil {
		return err
	}
	if err := notice(ctx, loop, shared, &corev1.Pod{}); err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(loop.Run)); err != nil {
		return fmt.Errorf("add the agent: %w", err)
	}
	ctrl.Log.Info("Starting", "version", version, "node", o.node)
	return mgr.Start(ctx)
}

// notice has all changes of objects looked at.
func notice(ctx context.Context, loop *nodeagent.Loop, from cache.Cache, kinds ...client.Object) error {
	for _, kind := range kinds {
		err := loop.Watch(ctx, from, kind, toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { loop.Signal() }, UpdateFunc: func(any, any) { loop.Signal() }, DeleteFunc: func(any) { loop.Signal() },
		})
		if err != nil {
			return err
		}
	}
	return nil
}
