package main

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/container"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/manifest"
	weirmetrics "weir.dev/weir/operator/internal/metrics"
	"weir.dev/weir/operator/internal/pool"
	"weir.dev/weir/operator/internal/storagecluster"
)

const (
	leaseName = "weir-operator"
	// stopTimeout is what running reconciles may take after SIGTERM: one management call that writes.
	stopTimeout = 30 * time.Second
)

// run serves until ctx ends.
func run(ctx context.Context, o options) error {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return fmt.Errorf("register Kubernetes types: %w", err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return fmt.Errorf("register Weir types: %w", err)
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cacheOptions(o),
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.probeAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       ptr.To(stopTimeout),
	})
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}
	if err := addControllers(mgr, o); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("add health check: %w", err)
	}
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	ctrl.Log.Info("Starting", "version", version, "namespace", o.namespace, "engineImage", o.engineImage)
	return mgr.Start(ctx)
}

func addControllers(mgr ctrl.Manager, o options) error {
	collector := weirmetrics.NewCollector(mgr.GetClient(), version)
	if err := metrics.Registry.Register(collector); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	connections := management.NewConnections(mgr.GetClient(), management.WithObserver(collector.CallFailed))
	clusters := storagecluster.New(mgr.GetClient(), connections, mgr.GetEventRecorder("weir-storagecluster"), clock.RealClock{},
		storagecluster.Config{Namespace: o.namespace, EngineImage: o.engineImage})
	if err := clusters.SetupWithManager(mgr); err != nil {
		return err
	}
	pools := pool.New(mgr.GetClient(), mgr.GetAPIReader(), connections, mgr.GetEventRecorder("weir-pool"), clock.RealClock{})
	if err := pools.SetupWithManager(mgr); err != nil {
		return err
	}
	containers := container.New(mgr.GetClient(), mgr.GetAPIReader(), connections, mgr.GetEventRecorder("weir-container"), clock.RealClock{})
	return containers.SetupWithManager(mgr)
}

// cacheOptions keeps in memory what the operator made, not every Secret and pod of the cluster.
func cacheOptions(o options) cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{manifest.LabelManagedBy: manifest.ManagedBy})}
	options := cache.Options{ByObject: map[client.Object]cache.ByObject{
		&corev1.Secret{}:    ours,
		&corev1.ConfigMap{}: ours,
		&corev1.Pod{}:       ours,
		&batchv1.Job{}:      ours,
	}}
	if len(o.watchNamespaces) > 0 {
		options.DefaultNamespaces = map[string]cache.Config{o.namespace: {}}
		for _, name := range o.watchNamespaces {
			options.DefaultNamespaces[name] = cache.Config{}
		}
	}
	return options
}
