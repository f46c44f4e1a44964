// Package storagecluster makes StorageClusters so: credentials, configuration, one pinned StatefulSet for each rank,
// rolled one at a time, and a status that says what is wrong.
package storagecluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/apply"
	"weir.dev/weir/operator/internal/lifecycle"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/manifest"
	"weir.dev/weir/operator/internal/policy"
	"weir.dev/weir/operator/internal/status"
)

const (
	// settledInterval is how often a cluster at rest is asked for its capacity. Changes of pods come by watch.
	settledInterval = 30 * time.Second
	// startingInterval is how often engines that are not all up are asked: becoming ready in the engine's own view
	// causes no event in the API server.
	startingInterval = 3 * time.Second
	// takenInterval is how often an object is looked for that has the name of one of the cluster's: nobody watches it.
	takenInterval = 5 * time.Second
	// blockedLook is how often open handles, which nobody can watch, are looked at while they block a deletion.
	blockedLook = 15 * time.Second
)

// blockedInterval is how often to look at what blocks a deletion.
func blockedInterval(reason string) time.Duration {
	if reason == v1alpha1.ReasonDependentsExist {
		return 0 // Pools are watched
	}
	return blockedLook
}

// +kubebuilder:rbac:groups=storage.weir.dev,resources=storageclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=storageclusters/status,verbs=patch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=storageclusters/finalizers,verbs=update
// +kubebuilder:rbac:groups=storage.weir.dev,resources=pools,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=statefulsets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaimtemplates,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Connector reaches the engines of a StorageCluster.
type Connector interface {
	Connect(ctx context.Context, cluster types.NamespacedName) (*management.Engines, error)
	// Forget drops the connection to a cluster that is gone.
	Forget(cluster types.NamespacedName)
}

// Config is what an operator was installed with.
type Config struct {
	// Namespace of the operator: client Secrets are copied there for the CSI controller.
	Namespace string
	// AgentsNamespace is where the release's pods on each node are, among them the mount daemon; empty means Namespace.
	AgentsNamespace string
	// EngineImage of clusters whose spec names none.
	EngineImage string
	// EngineSeccompProfile is the Localhost profile of clusters whose spec names none; empty means the runtime's own.
	EngineSeccompProfile string
	// EngineEnv is variables that every engine gets.
	EngineEnv map[string]string
}

// attaching are the namespaces with pods of the release that attach to clusters.
func (c Config) attaching() []string {
	if c.AgentsNamespace == "" || c.AgentsNamespace == c.Namespace {
		return []string{c.Namespace}
	}
	return []string{c.Namespace, c.AgentsNamespace}
}

// Reconciler makes StorageClusters so.
type Reconciler struct {
	client   client.Client
	live     client.Reader
	engines  Connector
	reporter *status.Reporter
	clock    clock.PassiveClock
	config   Config
	course   lifecycle.Course[*v1alpha1.StorageCluster]
}

var _ reconcile.Reconciler = (*Reconciler)(nil)

// New makes a reconciler. live reads past the cache, which holds only what the operator made.
func New(c client.Client, live client.Reader, engines Connector, recorder status.Recorder, passive clock.PassiveClock, config Config) *Reconciler {
	r := &Reconciler{
		client:   c,
		live:     live,
		engines:  engines,
		reporter: status.NewReporter(recorder, passive),
		clock:    passive,
		config:   config,
	}
	r.course = lifecycle.Course[*v1alpha1.StorageCluster]{
		Client: c, Live: live, Reporter: r.reporter,
		New:      func() *v1alpha1.StorageCluster { return &v1alpha1.StorageCluster{} },
		Status:   statusOf,
		Converge: r.converge, Blocker: r.end,
		BlockedInterval: blockedInterval,
	}
	return r
}

func statusOf(cluster *v1alpha1.StorageCluster) lifecycle.Status {
	return lifecycle.Status{ObservedGeneration: &cluster.Status.ObservedGeneration, Conditions: &cluster.Status.Conditions}
}

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("storagecluster").
		For(&v1alpha1.StorageCluster{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&appsv1.StatefulSet{}).
		Owns(&corev1.Secret{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&batchv1.Job{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(clusterOfLabel)).
		Watches(&v1alpha1.Pool{}, handler.EnqueueRequestsFromMapFunc(clusterOfPool),
			builder.WithPredicates(predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, poolHealthChanged{}))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.allClusters), builder.WithPredicates(nodeSuitabilityChanged{})).
		Watches(&v1alpha1.NodeDevice{}, handler.EnqueueRequestsFromMapFunc(r.clustersWithDevices), builder.WithPredicates(driveChanged{})).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up StorageCluster controller: %w", err)
	}
	return nil
}

// Reconcile moves one StorageCluster towards its spec.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	return r.course.Reconcile(ctx, request)
}

// converge makes the cluster so and says when to look again.
func (r *Reconciler) converge(ctx context.Context, cluster *v1alpha1.StorageCluster) (time.Duration, error) {
	after, err := r.makeSo(ctx, cluster)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return 0, nil // the cluster's own deletion comes next
	}
	if taken, is := errors.AsType[*apply.TakenError](err); is {
		r.reporter.Report(ctx, cluster, &cluster.Status.Conditions,
			status.Of(v1alpha1.ConditionReady, false, takenReason(taken), taken.Error()))
		return takenInterval, nil
	}
	return after, err
}

func takenReason(taken *apply.TakenError) string {
	if taken.Leftover {
		return v1alpha1.ReasonCollectingGarbage
	}
	return v1alpha1.ReasonNameTaken
}

// makeSo makes the objects of the cluster, writes its state into the status and says when to look again.
func (r *Reconciler) makeSo(ctx context.Context, cluster *v1alpha1.StorageCluster) (time.Duration, error) {
	credentials, err := r.ensureCredentials(ctx, cluster)
	if err != nil {
		return 0, err
	}
	misplaced := credentials.clientSecretOwner != "" && cluster.Namespace == r.config.Namespace
	if misplaced || manifest.TargetBytes(cluster) < policy.MinTargetBytes {
		// Nothing is started: where this cluster's client Secret belongs there is another one's, through which nobody
		// would reach it; or no engine could work with so little storage.
		r.reportConditions(ctx, cluster, r.facts(cluster, credentials, nodes{}))
		return settledInterval, nil
	}
	nodes, err := r.ensurePlacement(ctx, cluster)
	if err != nil {
		return 0, err
	}
	if cluster.Spec.Storage.Devices != nil {
		if nodes.drives, err = r.ensureDrives(ctx, cluster, nodes.assigned); err != nil {
			return 0, err
		}
	}
	for _, obj := range []client.Object{
		manifest.Service(cluster),
		manifest.ConfigMap(cluster),
		manifest.NetworkPolicy(cluster, r.config.attaching()...),
	} {
		if err := apply.Object(ctx, r.client, r.live, obj); err != nil {
			return 0, err
		}
	}
	if err := r.ensureClaims(ctx, cluster); err != nil {
		return 0, err
	}
	if err := r.dropSurplus(ctx, cluster); err != nil {
		return 0, err
	}
	observed, err := r.observe(ctx, cluster)
	if err != nil {
		return 0, err
	}
	spare, err := r.spare(ctx, cluster, observed)
	if err != nil {
		return 0, err
	}
	if err := apply.Object(ctx, r.client, r.live, manifest.DisruptionBudget(cluster, spare.budget())); err != nil {
		return 0, err
	}
	if err := r.roll(ctx, cluster, nodes, credentials, observed, &spare); err != nil {
		return 0, err
	}
	after := startingInterval
	if r.describe(ctx, cluster, credentials, nodes, observed, spare) && spare.drain == "" {
		after = settledInterval
	}
	after = lookAgain(after, nodes.drives)
	return min(after, max(time.Second, credentials.renewAt.Sub(r.clock.Now()))), nil
}

// complete is the cluster with what its spec leaves to the operator.
func (r *Reconciler) complete(cluster *v1alpha1.StorageCluster) *v1alpha1.StorageCluster {
	return manifest.Complete(cluster, r.config.EngineImage, r.config.EngineSeccompProfile)
}

func clusterOfLabel(_ context.Context, obj client.Object) []reconcile.Request {
	name, ok := obj.GetLabels()[v1alpha1.LabelCluster]
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: obj.GetNamespace(), Name: name}}}
}

func clusterOfPool(_ context.Context, obj client.Object) []reconcile.Request {
	pool, ok := obj.(*v1alpha1.Pool)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.ClusterRef.Name}}}
}

// clustersWithDevices are those to which a drive may matter.
func (r *Reconciler) clustersWithDevices(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.clusters(ctx, func(c *v1alpha1.StorageCluster) bool { return c.Spec.Storage.Devices != nil })
}

func (r *Reconciler) allClusters(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.clusters(ctx, func(*v1alpha1.StorageCluster) bool { return true })
}

// clusters are those that are meant.
func (r *Reconciler) clusters(ctx context.Context, meant func(*v1alpha1.StorageCluster) bool) []reconcile.Request {
	var clusters v1alpha1.StorageClusterList
	if err := r.client.List(ctx, &clusters); err != nil {
		return nil // the next periodic look at each cluster sees what has changed
	}
	requests := make([]reconcile.Request, 0, len(clusters.Items))
	for i := range clusters.Items {
		if !meant(&clusters.Items[i]) {
			continue
		}
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&clusters.Items[i])})
	}
	return requests
}
