// Package pool makes Pools so: it asks the engines to create, grow and destroy pools, and reports what they say.
package pool

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/index"
	"weir.dev/weir/operator/internal/lifecycle"
	"weir.dev/weir/operator/internal/management"
	"weir.dev/weir/operator/internal/policy"
	"weir.dev/weir/operator/internal/status"
)

const (
	// settledInterval is how often a pool at rest is asked for its usage.
	settledInterval = 15 * time.Second
	// movingInterval is how often a pool is asked for its health while copies are missing, or are being made.
	movingInterval = 3 * time.Second
	// waitingInterval is how often engines that did not answer, or refused, are asked again.
	waitingInterval = 5 * time.Second
)

// +kubebuilder:rbac:groups=storage.weir.dev,resources=pools,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=pools/status,verbs=patch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=containers,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get

// Connector reaches the engines of a StorageCluster.
type Connector interface {
	Connect(ctx context.Context, cluster types.NamespacedName) (*management.Engines, error)
}

// Reconciler makes Pools so.
type Reconciler struct {
	client   client.Client
	live     client.Reader
	engines  Connector
	reporter *status.Reporter
	course   lifecycle.Course[*v1alpha1.Pool]
}

var _ reconcile.Reconciler = (*Reconciler)(nil)

// New makes a reconciler. live reads past the cache, for deletions.
func New(c client.Client, live client.Reader, engines Connector, recorder status.Recorder, passive clock.PassiveClock) *Reconciler {
	r := &Reconciler{client: c, live: live, engines: engines, reporter: status.NewReporter(recorder, passive)}
	r.course = lifecycle.Course[*v1alpha1.Pool]{
		Client: c, Live: live, Reporter: r.reporter,
		New:      func() *v1alpha1.Pool { return &v1alpha1.Pool{} },
		Status:   statusOf,
		Converge: r.converge, Blocker: r.blocker, BlockedInterval: blockedInterval,
	}
	return r
}

func statusOf(pool *v1alpha1.Pool) lifecycle.Status {
	return lifecycle.Status{
		ObservedGeneration: &pool.Status.ObservedGeneration, Conditions: &pool.Status.Conditions, UUID: &pool.Status.UUID,
	}
}

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("pool").
		For(&v1alpha1.Pool{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.StorageCluster{}, handler.EnqueueRequestsFromMapFunc(r.poolsOfCluster), builder.WithPredicates(predicate.Or[client.Object](engineCountChanged{}, lostChanged{}))).
		Watches(&v1alpha1.Container{}, handler.EnqueueRequestsFromMapFunc(poolOfContainer), builder.WithPredicates(comesOrGoes{})).
		Watches(&v1alpha1.Tenant{}, handler.EnqueueRequestsFromMapFunc(r.poolsOfTenant), builder.WithPredicates(numberChanged{})).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up Pool controller: %w", err)
	}
	return nil
}

// Reconcile moves one Pool towards its spec.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	return r.course.Reconcile(ctx, request)
}

// converge brings the pool in the engines in line with the spec, writes the status and says when to look again.
func (r *Reconciler) converge(ctx context.Context, pool *v1alpha1.Pool) (time.Duration, error) {
	r.report(ctx, pool, status.Of(v1alpha1.ConditionDeletionBlocked, false, v1alpha1.ReasonNotDeleting, "the Pool is not being deleted"))
	var cluster v1alpha1.StorageCluster
	err := r.client.Get(ctx, clusterKey(pool), &cluster)
	if apierrors.IsNotFound(err) {
		r.notReady(ctx, pool, v1alpha1.ReasonClusterNotFound, fmt.Sprintf(
			"StorageCluster %s does not exist in namespace %s: create it, or make a Pool with another clusterRef", pool.Spec.ClusterRef.Name, pool.Namespace))
		return 0, nil // the StorageCluster's creation starts the next look
	}
	if err != nil {
		return 0, fmt.Errorf("read StorageCluster %s: %w", clusterKey(pool), err)
	}
	engines, err := r.engines.Connect(ctx, clusterKey(pool))
	if err == nil {
		err = r.reconcileEngines(ctx, pool, &cluster, engines)
	}
	switch {
	case err == nil && pool.Spec.RedundancyFactor > 0 && pool.Status.Health != v1alpha1.PoolHealthy:
		return movingInterval, nil
	case err == nil:
		return settledInterval, nil
	case ctx.Err() != nil:
		return 0, fmt.Errorf("interrupted: %w", ctx.Err()) // says nothing of the engines
	case management.IsUnreachable(err):
		r.unreachable(ctx, pool, err)
	case management.IsRejected(err):
		r.notReady(ctx, pool, v1alpha1.ReasonRejected, "refused by the engines: "+management.Message(err))
	default:
		return 0, fmt.Errorf("pool %s of StorageCluster %s: %w", pool.EngineLabel(), clusterKey(pool), err)
	}
	return waitingInterval, nil
}

// reconcileEngines creates, adopts or grows the pool. An impossible pool is a condition, not an error.
func (r *Reconciler) reconcileEngines(ctx context.Context, pool *v1alpha1.Pool, cluster *v1alpha1.StorageCluster, engines *management.Engines) error {
	label := pool.EngineLabel()
	answer, err := engines.Pools.Query(ctx, &managementv1.PoolQueryRequest{Pool: label})
	missing := management.IsNotFound(err)
	if err != nil && !missing {
		return err
	}
	known := answer.GetPool()
	if pool.Status.UUID != "" && (missing || known.GetUuid() != pool.Status.UUID) {
		r.notReady(ctx, pool, reasonPoolLost, fmt.Sprintf(
			"pool %s (%s) is not in the engines any more: somebody destroyed it there. Delete this Pool; a new one starts empty", label, pool.Status.UUID))
		return nil
	}
	var refusal *status.Condition
	var places []*managementv1.EnginePlace
	if !accepted(pool) || grows(pool, known) {
		if places, err = r.places(ctx, cluster); err != nil {
			return err
		}
		if refusal, err = r.refusal(ctx, pool, cluster, engines, known, places); err != nil {
			return err
		}
	}
	if refusal != nil {
		r.report(ctx, pool, *refusal)
		if pool.Status.UUID == "" {
			return nil
		}
	}
	number := known.GetTenant()
	if pool.Status.UUID == "" || pool.Spec.TenantRef != nil {
		var problem *status.Condition
		if number, problem, err = r.tenantNumber(ctx, pool); err != nil {
			return err
		}
		if problem == nil && pool.Status.UUID != "" && number != known.GetTenant() {
			c := status.Of(v1alpha1.ConditionReady, false, v1alpha1.ReasonTenantMismatch, fmt.Sprintf(
				"the pool belongs to tenant %d, and Tenant %s is number %d: make another Pool and copy the data", known.GetTenant(), pool.Spec.TenantRef.Name, number))
			problem = &c
		}
		if problem != nil {
			r.report(ctx, pool, *problem)
			if pool.Status.UUID == "" {
				return nil
			}
			refusal = problem
		}
	}
	switch {
	case pool.Status.UUID == "":
		known, err = r.create(ctx, pool, engines, number, places)
	case refusal == nil && grows(pool, known):
		var grown *managementv1.PoolResizeResponse
		grown, err = engines.Pools.Resize(ctx, &managementv1.PoolResizeRequest{Pool: pool.Status.UUID, SizeBytes: uint64(pool.Spec.Size.Value())})
		known = grown.GetPool()
	}
	if err != nil {
		return err
	}
	known, refused, err := r.arrange(ctx, pool, cluster, engines, known, refusal == nil)
	if err != nil {
		return err
	}
	r.describe(ctx, pool, known, refusal == nil)
	if refused != nil {
		r.report(ctx, pool, *refused)
	}
	return nil
}

// arrange has a pool wait for engines as long as it is told, go on without those that are given up, and take in new ones if it may.
// It returns the pool as it is then, or why engines don't do it.
func (r *Reconciler) arrange(
	ctx context.Context, pool *v1alpha1.Pool, cluster *v1alpha1.StorageCluster, engines *management.Engines,
	known *managementv1.PoolInfo, mayJoin bool,
) (*managementv1.PoolInfo, *status.Condition, error) {
	known, err := setDelay(ctx, pool, engines, known)
	if err != nil || pool.Status.UUID == "" {
		return known, nil, err
	}
	known, refused, err := r.giveUp(ctx, pool, cluster.Spec.Engines.Lost, engines, known)
	if err != nil || refused != nil || !mayJoin {
		return known, refused, err
	}
	return r.join(ctx, pool, cluster, engines, known)
}

func (r *Reconciler) create(
	ctx context.Context, pool *v1alpha1.Pool, engines *management.Engines, tenant uint64, places []*managementv1.EnginePlace,
) (*managementv1.PoolInfo, error) {
	request := &managementv1.PoolCreateRequest{
		Label:            pool.EngineLabel(),
		SizeBytes:        uint64(pool.Spec.Size.Value()),
		RedundancyFactor: uint32(pool.Spec.RedundancyFactor),
		ObjectClass:      pool.Spec.ObjectClass,
		Uuid:             string(pool.UID),
		Tenant:           tenant,
		Places:           places,
	}
	for _, rank := range pool.Spec.Ranks {
		request.Ranks = append(request.Ranks, uint32(rank))
	}
	made, err := engines.Pools.Create(ctx, request)
	return made.GetPool(), err
}

// accepted tells whether a pool was made, and found ready, by the spec that it has. What its engines are like is not asked again then: one
// engine has to ask all others for that.
func accepted(pool *v1alpha1.Pool) bool {
	ready := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
	return pool.Status.UUID != "" && ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == pool.Generation
}

// grows is true when the spec asks for more than the pool has. Engines round up, so that a pool that has grown has enough.
func grows(pool *v1alpha1.Pool, known *managementv1.PoolInfo) bool {
	return pool.Spec.Size.Value() > int64(known.GetSizeBytes())
}

// refusal gathers the facts and asks the policy whether the pool can be made, or grown. known is nil for a pool that
// does not exist yet.
func (r *Reconciler) refusal(
	ctx context.Context, pool *v1alpha1.Pool, cluster *v1alpha1.StorageCluster, engines *management.Engines,
	known *managementv1.PoolInfo, places []*managementv1.EnginePlace,
) (*status.Condition, error) {
	if rank, lacks := nodeless(pool, cluster); lacks && known == nil {
		c := status.Of(v1alpha1.ConditionReady, false, v1alpha1.ReasonClusterNotReady, fmt.Sprintf(
			"waiting until rank %d of StorageCluster %s has a node: copies are kept in failure domains apart", rank, cluster.Name))
		return &c, nil
	}
	system, err := engines.System.Query(ctx, &managementv1.SystemQueryRequest{})
	if err != nil {
		return nil, err
	}
	twin, err := r.twin(ctx, pool)
	if err != nil {
		return nil, err
	}
	facts := policy.Pool{
		Label:            pool.EngineLabel(),
		Cluster:          pool.Spec.ClusterRef.Name,
		Twin:             twin,
		Size:             pool.Spec.Size.Value(),
		Current:          int64(known.GetSizeBytes()),
		Ranks:            pool.Spec.Ranks,
		ObjectClass:      pool.Spec.ObjectClass,
		RedundancyFactor: pool.Spec.RedundancyFactor,
	}
	for _, e := range system.GetEngines() {
		facts.Engines = append(facts.Engines, policy.Engine{
			Rank: int32(e.GetRank()),
			Up:   e.GetHealth() == managementv1.EngineHealth_ENGINE_HEALTH_UP,
			Free: int64(e.GetFreeBytes()), Targets: int32(e.GetTargets()),
			Domain: domainOf(places, e.GetRank()),
		})
	}
	if known != nil && len(facts.Ranks) == 0 {
		for _, rank := range known.GetRanks() {
			facts.Ranks = append(facts.Ranks, int32(rank))
		}
	}
	reason, message, failed := policy.PoolAcceptable.Evaluate(facts)
	if !failed {
		return nil, nil // nothing is wrong
	}
	c := status.Of(v1alpha1.ConditionReady, false, reason, message)
	return &c, nil
}

// twin returns the name of an older Pool for the same label, "" when there is none.
func (r *Reconciler) twin(ctx context.Context, pool *v1alpha1.Pool) (string, error) {
	var same v1alpha1.PoolList
	err := r.client.List(ctx, &same, client.InNamespace(pool.Namespace), client.MatchingFields{index.PoolLabel: index.EnginePool(pool)})
	if err != nil {
		return "", fmt.Errorf("list Pools of pool %s in namespace %s: %w", pool.EngineLabel(), pool.Namespace, err)
	}
	for i := range same.Items {
		if other := &same.Items[i]; other.UID != pool.UID && v1alpha1.Older(other, pool) {
			return other.Name, nil
		}
	}
	return "", nil
}

func clusterKey(pool *v1alpha1.Pool) types.NamespacedName {
	return types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.ClusterRef.Name}
}

func (r *Reconciler) poolsOfCluster(ctx context.Context, obj client.Object) []reconcile.Request {
	var pools v1alpha1.PoolList
	if err := r.client.List(ctx, &pools, client.InNamespace(obj.GetNamespace()), client.MatchingFields{index.PoolCluster: obj.GetName()}); err != nil {
		return nil // the pools' own periodic look finds the change
	}
	var requests []reconcile.Request
	for i := range pools.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pools.Items[i])})
	}
	return requests
}

func poolOfContainer(_ context.Context, obj client.Object) []reconcile.Request {
	container, ok := obj.(*v1alpha1.Container)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: container.Namespace, Name: container.Spec.PoolRef.Name}}}
}

// engineCountChanged passes the changes of a StorageCluster that matter to its pools.
type engineCountChanged struct{ predicate.Funcs }

// Update implements predicate.Predicate.
func (engineCountChanged) Update(e event.UpdateEvent) bool {
	before, okBefore := e.ObjectOld.(*v1alpha1.StorageCluster)
	after, okAfter := e.ObjectNew.(*v1alpha1.StorageCluster)
	return okBefore && okAfter && before.Status.ReadyEngines != after.Status.ReadyEngines
}

// comesOrGoes passes creations and deletions only.
type comesOrGoes struct{ predicate.Funcs }

// Update implements predicate.Predicate.
func (comesOrGoes) Update(event.UpdateEvent) bool { return false }
