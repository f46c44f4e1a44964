// Package assembly puts the controllers together. The operator and the tests use the same assembly.
package assembly

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/container"
	"weir.dev/weir/operator/internal/fabricdomain"
	"weir.dev/weir/operator/internal/index"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/manifest"
	"weir.dev/weir/operator/internal/metrics"
	"weir.dev/weir/operator/internal/pool"
	"weir.dev/weir/operator/internal/storagecluster"
	"weir.dev/weir/operator/internal/tenant"
	"weir.dev/weir/operator/internal/vniallocation"
)

// Options are what differs between installations, and between operator and tests.
type Options struct {
	// Namespace of the operator.
	Namespace string
	// AgentsNamespace is where the release's pods on each node are; empty means Namespace.
	AgentsNamespace string
	// EngineImage of StorageClusters whose spec names none.
	EngineImage string
	// EngineSeccompProfile of StorageClusters whose spec names none; empty means the container runtime's own.
	EngineSeccompProfile string
	// EngineEnv is variables that every engine gets.
	EngineEnv map[string]string
	// TenantProber is the image of pods that try the keys of Tenants; empty means that nobody tries.
	TenantProber string
	// Version of the operator.
	Version string
	Clock   clock.PassiveClock
	// UsageRate is how many Containers a second have their status written only because their usage has changed; 0 means the
	// controller's default.
	UsageRate float64
	// Registry takes the operator's own metrics.
	Registry prometheus.Registerer
	// Management changes how engines are reached.
	Management []management.Option
}

// NewScheme knows the kinds that the operator works with.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register Kubernetes types: %w", err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register Weir types: %w", err)
	}
	return scheme, nil
}

// CacheOptions keep in memory what the operator made, not every object of these kinds. Without namespaces all are
// served.
func CacheOptions(operatorNamespace string, namespaces ...string) cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{manifest.LabelManagedBy: manifest.ManagedBy})}
	options := cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: map[client.Object]cache.ByObject{
		// The images that a node has are most of it.
		&corev1.Node{}: {Transform: withoutImages},

		&corev1.Secret{}:                ours,
		&corev1.ConfigMap{}:             ours,
		&corev1.Service{}:               ours,
		&corev1.Pod{}:                   ours,
		&appsv1.StatefulSet{}:           ours,
		&batchv1.Job{}:                  ours,
		&policyv1.PodDisruptionBudget{}: ours,
		&networkingv1.NetworkPolicy{}:   ours,

		&resourceapi.ResourceClaimTemplate{}: ours,
	}}
	if len(namespaces) > 0 {
		options.DefaultNamespaces = map[string]cache.Config{operatorNamespace: {}}
		for _, name := range namespaces {
			options.DefaultNamespaces[name] = cache.Config{}
		}
	}
	return options
}

// withoutImages takes off a Node what nobody here reads.
func withoutImages(in any) (any, error) {
	if node, is := in.(*corev1.Node); is {
		node.ManagedFields, node.Status.Images = nil, nil
	}
	return in, nil
}

// Setup adds the controllers and their metrics to a manager.
func Setup(mgr ctrl.Manager, o Options) error {
	if err := index.Register(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}
	collector := metrics.NewCollector(mgr.GetClient(), o.Version)
	if err := o.Registry.Register(collector); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	if err := o.Registry.Register(metrics.NewTenancy(mgr.GetClient())); err != nil {
		return fmt.Errorf("register metrics of tenants: %w", err)
	}
	connections := management.NewConnections(mgr.GetClient(),
		append([]management.Option{management.WithObserver(collector.CallFailed)}, o.Management...)...)
	clusters := storagecluster.New(mgr.GetClient(), mgr.GetAPIReader(), connections, mgr.GetEventRecorder("weir-storagecluster"), o.Clock,
		storagecluster.Config{
			Namespace: o.Namespace, AgentsNamespace: o.AgentsNamespace,
			EngineImage: o.EngineImage, EngineSeccompProfile: o.EngineSeccompProfile, EngineEnv: o.EngineEnv,
		})
	if err := clusters.SetupWithManager(mgr); err != nil {
		return err
	}
	pools := pool.New(mgr.GetClient(), mgr.GetAPIReader(), connections, mgr.GetEventRecorder("weir-pool"), o.Clock)
	if err := pools.SetupWithManager(mgr); err != nil {
		return err
	}
	containers := container.New(mgr.GetClient(), mgr.GetAPIReader(), connections, mgr.GetEventRecorder("weir-container"), o.Clock)
	if o.UsageRate > 0 {
		containers.SetUsageRate(o.UsageRate)
	}
	if err := containers.SetupWithManager(mgr); err != nil {
		return err
	}
	return setupFabric(mgr, o, connections)
}

// setupFabric adds the controllers of virtual networks.
func setupFabric(mgr ctrl.Manager, o Options, connections *management.Connections) error {
	domains := fabricdomain.New(mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder("weir-fabricdomain"), o.Clock)
	if err := domains.SetupWithManager(mgr); err != nil {
		return err
	}
	tenants := tenant.New(mgr.GetClient(), mgr.GetAPIReader(), connections, mgr.GetEventRecorder("weir-tenant"), o.Clock, o.TenantProber)
	if err := tenants.SetupWithManager(mgr); err != nil {
		return err
	}
	allocations := vniallocation.New(mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder("weir-vniallocation"), o.Clock)
	return allocations.SetupWithManager(mgr)
}
