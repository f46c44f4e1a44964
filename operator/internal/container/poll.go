package container

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/management"
)

const (
	// settledInterval is how often a pool is asked for its containers.
	settledInterval = 15 * time.Second
	// closingInterval is how often it is while Containers of it are being deleted: closed handles let them go.
	closingInterval = 5 * time.Second
	// DefaultUsageRate is how many Containers a second are looked at only because their usage has changed.
	DefaultUsageRate = 5
)

// poll looks at the containers of a pool all at once, by one question to the engines, and has the reconciler look at those that differ
// from what their objects say. What was made or changed by objects is no news: their own changes start their reconciliation.
type poll struct {
	client  client.Client
	engines Connector
	// changed takes the Containers that are to be looked at.
	changed chan event.TypedGenericEvent[*v1alpha1.Container]
	// usage bounds the looks at Containers of which nothing but the usage has changed. Each of them is a write.
	usage *rate.Limiter

	mu sync.Mutex
	// pools have what is known of the last look at each pool.
	pools map[types.NamespacedName]*looked
}

// looked is what a look at a pool leaves to the next one.
type looked struct {
	// last is the name of the last Container that was looked at for its usage: the next look begins behind it.
	last string
	// handles are the open handles of Containers that are being deleted.
	handles map[types.UID]uint32
}

func newPoll(c client.Client, engines Connector) *poll {
	return &poll{
		client: c, engines: engines,
		changed: make(chan event.TypedGenericEvent[*v1alpha1.Container]),
		usage:   usageLimiter(DefaultUsageRate),
		pools:   map[types.NamespacedName]*looked{},
	}
}

// SetUsageRate bounds how many Containers a second are looked at only because their usage has changed.
func (r *Reconciler) SetUsageRate(perSecond float64) {
	r.poll.usage = usageLimiter(perSecond)
}

// usageLimiter lets through at once what the rate allows between two looks at a pool: those at several may fall together.
func usageLimiter(perSecond float64) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond*settledInterval.Seconds())))
}

// Reconcile looks at the containers of one pool.
func (p *poll) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var pool v1alpha1.Pool
	if err := p.client.Get(ctx, request.NamespacedName, &pool); err != nil {
		if err = client.IgnoreNotFound(err); err == nil {
			p.forget(request.NamespacedName)
		}
		return reconcile.Result{}, err
	}
	if pool.Status.UUID == "" {
		return reconcile.Result{}, nil // the Pool's status starts the next look
	}
	containers, err := ofPool(ctx, p.client, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	after := settledInterval
	if slices.ContainsFunc(containers, func(c v1alpha1.Container) bool { return !c.DeletionTimestamp.IsZero() }) {
		after = closingInterval
	}
	if len(containers) == 0 {
		return reconcile.Result{RequeueAfter: after}, nil
	}
	listed, err := p.list(ctx, &pool)
	switch {
	case ctx.Err() != nil:
		return reconcile.Result{}, fmt.Errorf("interrupted: %w", ctx.Err())
	case management.IsUnreachable(err) || management.IsRejected(err) || management.IsNotFound(err):
		return reconcile.Result{RequeueAfter: after}, nil // the Pool's conditions say so
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("list containers of Pool %s: %w", request.NamespacedName, err)
	}
	for _, container := range p.choose(request.NamespacedName, containers, listed) {
		select {
		case p.changed <- event.TypedGenericEvent[*v1alpha1.Container]{Object: container}:
		case <-ctx.Done():
			return reconcile.Result{}, fmt.Errorf("interrupted: %w", ctx.Err())
		}
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

func (p *poll) list(ctx context.Context, pool *v1alpha1.Pool) ([]*managementv1.ContainerInfo, error) {
	engines, err := p.engines.Connect(ctx, clusterKey(pool))
	if err != nil {
		return nil, err
	}
	answer, err := engines.Containers.List(ctx, &managementv1.ContainerListRequest{Pool: pool.Status.UUID})
	return answer.GetContainers(), err
}

// choose returns the Containers to look at: all that differ in anything but usage, and as many of the others as the rate allows.
func (p *poll) choose(pool types.NamespacedName, containers []v1alpha1.Container, listed []*managementv1.ContainerInfo) []*v1alpha1.Container {
	infos := make(map[string]*managementv1.ContainerInfo, len(listed))
	for _, info := range listed {
		infos[info.GetUuid()] = info
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.pools[pool]
	if before == nil {
		before = &looked{}
	}
	next := &looked{last: before.last, handles: map[types.UID]uint32{}}
	p.pools[pool] = next
	var chosen, used []*v1alpha1.Container
	for i := range containers {
		container := &containers[i]
		info := infos[container.Status.UUID]
		switch {
		case !container.DeletionTimestamp.IsZero():
			handles, known := before.handles[container.UID]
			next.handles[container.UID] = info.GetOpenHandles()
			if !known || handles != info.GetOpenHandles() {
				chosen = append(chosen, container)
			}
		case news(container, info):
			chosen = append(chosen, container)
		case usageChanged(container, info):
			used = append(used, container)
		}
	}
	// The one behind the last comes first, so that each has its turn.
	slices.SortFunc(used, func(a, b *v1alpha1.Container) int { return strings.Compare(a.Name, b.Name) })
	first, _ := slices.BinarySearchFunc(used, next.last+"\x00", func(c *v1alpha1.Container, name string) int { return strings.Compare(c.Name, name) })
	for _, container := range slices.Concat(used[first:], used[:first]) {
		if !p.usage.Allow() {
			break
		}
		chosen, next.last = append(chosen, container), container.Name
	}
	return chosen
}

// news tells whether a container is to be looked at whatever others are: it is not as its object wants it, or was not ready. info is what
// the engines say of it; nil if they don't have it.
func news(container *v1alpha1.Container, info *managementv1.ContainerInfo) bool {
	return info == nil || info.GetQuotaBytes() != quotaBytes(container) ||
		!meta.IsStatusConditionTrue(container.Status.Conditions, v1alpha1.ConditionReady)
}

// usageChanged tells whether the usage of a container is to be written down.
func usageChanged(container *v1alpha1.Container, info *managementv1.ContainerInfo) bool {
	return container.Status.OpenHandles != int32(info.GetOpenHandles()) || usedChanged(container.Status.Used, int64(info.GetUsedBytes()))
}

// forget drops what is known of a pool that is gone.
func (p *poll) forget(pool types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pools, pool)
}
