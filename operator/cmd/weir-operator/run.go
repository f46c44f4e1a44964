package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"weir.dev/weir/operator/internal/assembly"
)

const (
	leaseName = "weir-operator"
	// stopTimeout is what running reconciles may take after SIGTERM: one management call that writes.
	stopTimeout = 30 * time.Second
	// A leader that can't renew its lease stops. A busy or small control plane may be silent for a while; nothing but
	// changes waits for a new leader.
	leaseDuration = 40 * time.Second
	leaseRenewal  = 30 * time.Second
	leaseRetry    = 5 * time.Second
)

// run serves until ctx ends.
func run(ctx context.Context, o options) error {
	scheme, err := assembly.NewScheme()
	if err != nil {
		return err
	}
	api, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	api.QPS, api.Burst = float32(o.apiRate), o.apiBurst
	mgr, err := ctrl.NewManager(api, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         assembly.CacheOptions(o.namespace, o.watchNamespaces...),
		Controller:                    config.Controller{MaxConcurrentReconciles: o.workers},
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.probeAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 new(leaseDuration),
		RenewDeadline:                 new(leaseRenewal),
		RetryPeriod:                   new(leaseRetry),
		GracefulShutdownTimeout:       new(stopTimeout),
	})
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}
	err = assembly.Setup(mgr, assembly.Options{
		Namespace:            o.namespace,
		AgentsNamespace:      o.agentsNamespace,
		EngineImage:          o.engineImage,
		EngineSeccompProfile: o.engineSeccompProfile,
		EngineEnv:            o.engineEnv,
		TenantProber:         o.tenantProber,
		Version:              version,
		Clock:                clock.RealClock{},
		UsageRate:            o.usageRate,
		Registry:             metrics.Registry,
	})
	if err != nil {
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
