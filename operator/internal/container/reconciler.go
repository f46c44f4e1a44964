// Package container makes Containers so: it asks the engines to create containers, to change their quota and to
// destroy them, and reports what they say.
package container

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	// waitingInterval is how often engines that did not answer, or refused, are asked again.
	waitingInterval = 5 * time.Second
	// defaultChunkBytes is the chunk size of a container that was given none.
	defaultChunkBytes = 1 << 20
	// reasonContainerLost says that the engines don't have the container of this object any more.
	reasonContainerLost = "ContainerLost"
)

// +kubebuilder:rbac:groups=storage.weir.dev,resources=containers,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=containers/status,verbs=patch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=pools,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get

// Connector reaches the engines of a StorageCluster.
type Connector interface {
	Connect(ctx context.Context, cluster types.NamespacedName) (*management.Engines, error)
}

// Reconciler makes Containers so.
type Reconciler struct {
	client   client.Client
	live     client.Reader
	engines  Connector
	reporter *status.Reporter
	course   lifecycle.Course[*v1alpha1.Container]
	// poll tells which containers to look at again.
	poll *poll
}

var _ reconcile.Reconciler = (*Reconciler)(nil)

// New makes a reconciler. live reads past the cache, for deletions.
func New(c client.Client, live client.Reader, engines Connector, recorder status.Recorder, passive clock.PassiveClock) *Reconciler {
	r := &Reconciler{client: c, live: live, engines: engines, reporter: status.NewReporter(recorder, passive), poll: newPoll(c, engines)}
	r.course = lifecycle.Course[*v1alpha1.Container]{
		Client: c, Live: live, Reporter: r.reporter,
		New:      func() *v1alpha1.Container { return &v1alpha1.Container{} },
		Status:   statusOf,
		Converge: r.converge, Blocker: r.blocker, BlockedInterval: blockedInterval,
	}
	return r
}

func statusOf(container *v1alpha1.Container) lifecycle.Status {
	return lifecycle.Status{
		ObservedGeneration: &container.Status.ObservedGeneration, Conditions: &container.Status.Conditions, UUID: &container.Status.UUID,
	}
}

// Reconcile moves one Container towards its spec.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	return r.course.Reconcile(ctx, request)
}

// converge brings the container in the engines in line with the spec, writes the status and says when to look again.
func (r *Reconciler) converge(ctx context.Context, container *v1alpha1.Container) (time.Duration, error) {
	r.report(ctx, container, status.Of(v1alpha1.ConditionDeletionBlocked, false, v1alpha1.ReasonNotDeleting, "the Container is not being deleted"))
	var pool v1alpha1.Pool
	err := r.client.Get(ctx, poolKey(container), &pool)
	if apierrors.IsNotFound(err) {
		r.notReady(ctx, container, v1alpha1.ReasonPoolNotFound, fmt.Sprintf(
			"Pool %s does not exist in namespace %s: create it, or make a Container with another poolRef", container.Spec.PoolRef.Name, container.Namespace))
		return 0, nil // the Pool's creation starts the next look
	}
	if err != nil {
		return 0, fmt.Errorf("read Pool %s: %w", poolKey(container), err)
	}
	if pool.Status.UUID == "" || !pool.DeletionTimestamp.IsZero() {
		r.notReady(ctx, container, v1alpha1.ReasonPoolNotReady, fmt.Sprintf("waiting for Pool %s: see its conditions", pool.Name))
		return 0, nil // the Pool's status starts the next look
	}
	if c := silence(&pool); c != nil && container.Status.UUID != "" {
		r.silent(ctx, container, c.Message)
		return 0, nil // the Pool's status starts the next look: one question to the engines is enough
	}
	err = r.reconcileEngines(ctx, container, &pool)
	switch {
	case err == nil:
		return 0, nil // the poll of the pool starts the next look
	case ctx.Err() != nil:
		return 0, fmt.Errorf("interrupted: %w", ctx.Err()) // says nothing of the engines
	case management.IsUnreachable(err):
		r.unreachable(ctx, container, &pool, err)
	case management.IsRejected(err):
		r.notReady(ctx, container, v1alpha1.ReasonRejected, "refused by the engines: "+management.Message(err))
	default:
		return 0, fmt.Errorf("container %s of Pool %s: %w", container.EngineLabel(), poolKey(container), err)
	}
	return waitingInterval, nil
}

// reconcileEngines creates, adopts or resizes the container. An impossible container is a condition, not an error.
func (r *Reconciler) reconcileEngines(ctx context.Context, container *v1alpha1.Container, pool *v1alpha1.Pool) error {
	engines, err := r.engines.Connect(ctx, clusterKey(pool))
	if err != nil {
		return err
	}
	label := container.EngineLabel()
	answer, err := engines.Containers.Query(ctx, &managementv1.ContainerQueryRequest{Pool: pool.Status.UUID, Container: label})
	missing := management.IsNotFound(err)
	if err != nil && !missing {
		return err
	}
	known := answer.GetContainer()
	if container.Status.UUID != "" && (missing || known.GetUuid() != container.Status.UUID) {
		r.notReady(ctx, container, reasonContainerLost, fmt.Sprintf(
			"container %s (%s) is not in pool %s any more: somebody destroyed it there. Delete this Container; a new one starts empty",
			label, container.Status.UUID, pool.EngineLabel()))
		return nil
	}
	refusal, err := r.refusal(ctx, container, pool)
	if err != nil {
		return err
	}
	if refusal != nil {
		r.report(ctx, container, *refusal)
		if container.Status.UUID == "" {
			return nil
		}
	}
	quota := quotaBytes(container)
	if unlike := difference(container, pool, known); container.Status.UUID == "" && unlike != "" {
		r.notReady(ctx, container, v1alpha1.ReasonRejected, fmt.Sprintf(
			"pool %s has a container %s already, %s: make a Container that agrees with it, or one with another label", pool.EngineLabel(), label, unlike))
		return nil
	}
	if missing {
		request, err := createRequest(container, pool)
		if err != nil {
			return err
		}
		made, err := engines.Containers.Create(ctx, request)
		if err != nil {
			return err
		}
		known = made.GetContainer()
	}
	if refusal == nil && known.GetQuotaBytes() != quota {
		set, err := engines.Containers.SetQuota(ctx, &managementv1.ContainerSetQuotaRequest{
			Pool: pool.Status.UUID, Container: known.GetUuid(), QuotaBytes: quota,
		})
		if err != nil {
			r.describe(ctx, container, pool, known, false)
			return err
		}
		known = set.GetContainer()
	}
	r.describe(ctx, container, pool, known, refusal == nil)
	return nil
}

// difference says what forbids to take over a container that the pool has, "" for nothing. Its quota is set afterwards; its
// owner and attributes are its own.
func difference(container *v1alpha1.Container, pool *v1alpha1.Pool, known *managementv1.ContainerInfo) string {
	if known == nil {
		return ""
	}
	kind := v1alpha1.ContainerPosix
	if known.GetType() == managementv1.ContainerType_CONTAINER_TYPE_OBJECT {
		kind = v1alpha1.ContainerObject
	}
	class, chunk := cmp.Or(container.Spec.ObjectClass, pool.Spec.ObjectClass, policy.DefaultClass(pool.Spec.RedundancyFactor)), int64(defaultChunkBytes)
	if container.Spec.ChunkSize != nil {
		chunk = container.Spec.ChunkSize.Value()
	}
	switch {
	case kind != container.Spec.Type:
		return fmt.Sprintf("of type %s, not %s", kind, container.Spec.Type)
	case known.GetObjectClass() != class:
		return fmt.Sprintf("of object class %s, not %s", known.GetObjectClass(), class)
	case int64(known.GetChunkSizeBytes()) != chunk:
		return fmt.Sprintf("in chunks of %s, not %s", policy.Bytes(int64(known.GetChunkSizeBytes())), policy.Bytes(chunk))
	default:
		return ""
	}
}

func createRequest(container *v1alpha1.Container, pool *v1alpha1.Pool) (*managementv1.ContainerCreateRequest, error) {
	request := &managementv1.ContainerCreateRequest{
		Pool:        pool.Status.UUID,
		Label:       container.EngineLabel(),
		Type:        managementv1.ContainerType_CONTAINER_TYPE_POSIX,
		QuotaBytes:  quotaBytes(container),
		ObjectClass: container.Spec.ObjectClass,
		Uuid:        string(container.UID),
	}
	if container.Spec.Type == v1alpha1.ContainerObject {
		request.Type = managementv1.ContainerType_CONTAINER_TYPE_OBJECT
	}
	if container.Spec.ChunkSize != nil {
		request.ChunkSizeBytes = uint64(container.Spec.ChunkSize.Value())
	}
	if len(container.Spec.Attributes) > 0 {
		request.Attributes = make(map[string]string, len(container.Spec.Attributes))
		for name, value := range container.Spec.Attributes {
			request.Attributes[name] = string(value)
		}
	}
	if owner := container.Spec.Owner; owner != nil {
		mode, err := strconv.ParseUint(owner.Mode, 8, 32)
		if err != nil {
			return nil, fmt.Errorf("spec.owner.mode %q of Container %s/%s is not octal: %w", owner.Mode, container.Namespace, container.Name, err)
		}
		request.Uid, request.Gid, request.Mode = uint32(owner.UID), uint32(owner.GID), uint32(mode)
	}
	return request, nil
}

// quotaBytes is the quota of the spec; 0 means none.
func quotaBytes(container *v1alpha1.Container) uint64 {
	if container.Spec.Quota == nil {
		return 0
	}
	return uint64(container.Spec.Quota.Value())
}

// refusal asks the policy whether the container can be made.
func (r *Reconciler) refusal(ctx context.Context, container *v1alpha1.Container, pool *v1alpha1.Pool) (*status.Condition, error) {
	twin, err := r.twin(ctx, container)
	if err != nil {
		return nil, err
	}
	facts := policy.Container{
		Label:       container.EngineLabel(),
		Pool:        pool.Name,
		Twin:        twin,
		Quota:       int64(quotaBytes(container)),
		PoolSize:    pool.Spec.Size.Value(),
		PoolRanks:   len(pool.Status.Ranks),
		ObjectClass: container.Spec.ObjectClass,

		RedundancyFactor: pool.Spec.RedundancyFactor,
	}
	reason, message, failed := policy.ContainerAcceptable.Evaluate(facts)
	if !failed {
		return nil, nil // nothing is wrong
	}
	c := status.Of(v1alpha1.ConditionReady, false, reason, message)
	return &c, nil
}

// twin returns the name of an older Container for the same label in the same pool, "" when there is none.
func (r *Reconciler) twin(ctx context.Context, container *v1alpha1.Container) (string, error) {
	var same v1alpha1.ContainerList
	err := r.client.List(ctx, &same, client.InNamespace(container.Namespace), client.MatchingFields{index.ContainerLabel: index.EngineContainer(container)})
	if err != nil {
		return "", fmt.Errorf("list Containers of container %s in namespace %s: %w", container.EngineLabel(), container.Namespace, err)
	}
	for i := range same.Items {
		if other := &same.Items[i]; other.UID != container.UID && v1alpha1.Older(other, container) {
			return other.Name, nil
		}
	}
	return "", nil
}

func poolKey(container *v1alpha1.Container) types.NamespacedName {
	return types.NamespacedName{Namespace: container.Namespace, Name: container.Spec.PoolRef.Name}
}

func clusterKey(pool *v1alpha1.Pool) types.NamespacedName {
	return types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.ClusterRef.Name}
}
