// Package nodeagent has what the agents of nodes have in common: a manager that serves their objects, and a loop that looks at the node
// again and again.
package nodeagent

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Options of an agent's manager.
type Options struct {
	Scheme *runtime.Scheme
	// Cached says which objects of a kind the agent wants to know of; of kinds that it doesn't name, all.
	Cached map[client.Object]cache.ByObject
	// Metrics is the address that metrics are served at; "0" serves none.
	Metrics string
	// Probe is the address that the health check is served at.
	Probe string
}

// NewManager returns a manager with a health check.
func NewManager(config *rest.Config, o Options) (ctrl.Manager, error) {
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 o.Scheme,
		Cache:                  cache.Options{ByObject: o.Cached},
		Metrics:                metricsserver.Options{BindAddress: o.Metrics},
		HealthProbeBindAddress: o.Probe,
	})
	if err != nil {
		return nil, fmt.Errorf("set up the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("add health check: %w", err)
	}
	return mgr, nil
}

// Loop looks at the node when something has changed, and once in an interval.
type Loop struct {
	interval time.Duration
	look     func(context.Context)
	changed  chan struct{}
}

// NewLoop returns a loop.
func NewLoop(interval time.Duration, look func(context.Context)) *Loop {
	return &Loop{interval: interval, look: look, changed: make(chan struct{}, 1)}
}

// Signal has the loop look soon.
func (l *Loop) Signal() {
	select {
	case l.changed <- struct{}{}:
	default: // a look is due already
	}
}

// Watch has changes of a kind handled, which may call Signal.
func (l *Loop) Watch(ctx context.Context, from cache.Cache, kind client.Object, handle toolscache.ResourceEventHandlerFuncs) error {
	informer, err := from.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch %T: %w", kind, err)
	}
	if _, err := informer.AddEventHandler(handle); err != nil {
		return fmt.Errorf("watch %T: %w", kind, err)
	}
	return nil
}

// Run looks until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	ticker := time.NewTicker(l.interval)
	defer ticker.Stop()
	for {
		l.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-l.changed:
		case <-ticker.C:
		}
	}
}
