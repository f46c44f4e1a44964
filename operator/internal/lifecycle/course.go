package lifecycle

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"weir.dev/weir/operator/internal/status"
)

// Object is one of the operator's own kinds.
type Object[T any] interface {
	client.Object
	DeepCopy() T
}

// Course is how objects of one kind come to be as their spec wants, and how they go. Both ends are the same for all kinds:
// the finalizer before anything is made, and off it when nothing is left; the status written where it has changed.
type Course[T Object[T]] struct {
	// Client reads and writes the objects.
	Client client.Client
	// Live reads past the cache, which may lag behind what was written a moment before a deletion: what was made for an object,
	// or that it is to be kept. What a deletion destroys nothing brings back.
	Live client.Reader
	// Reporter writes their conditions.
	Reporter *status.Reporter
	// New makes an empty object.
	New func() T
	// Status finds what every status has.
	Status func(T) Status
	// Converge brings the world in line with an object's spec, writes its status and says when to look again.
	Converge func(context.Context, T) (time.Duration, error)
	// Blocker does what can be done towards a deletion, and returns what that has to wait for, nil for nothing.
	Blocker func(context.Context, T) (*status.Condition, error)
	// BlockedInterval, if set, says how often to look at what blocks a deletion, by the reason for that; 0 where watches tell of it.
	BlockedInterval func(reason string) time.Duration
	// BlockedFor, if set, says instead when to look again at what blocks the deletion of an object; 0 where watches tell of it.
	BlockedFor func(context.Context, T) (time.Duration, error)
}

// Status is what the statuses of all kinds have.
type Status struct {
	ObservedGeneration *int64
	Conditions         *[]metav1.Condition
	// UUID of what the engines made for the object; nil for a kind that the engines know nothing of.
	UUID *string
}

// Reconcile moves one object towards its spec, or its end.
func (c *Course[T]) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	obj := c.New()
	if err := c.Client.Get(ctx, request.NamespacedName, obj); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !obj.GetDeletionTimestamp().IsZero() {
		return c.finalize(ctx, obj)
	}
	if err := hold(ctx, c.Client, obj); err != nil {
		return reconcile.Result{}, err
	}
	base := c.begin(obj)
	after, err := c.Converge(ctx, obj)
	if err != nil {
		c.Reporter.Failed(ctx, obj, c.Status(obj).Conditions, err)
	}
	written := patchStatus(ctx, c.Client, obj, base)
	if apierrors.IsConflict(written) {
		written = errors.Join(written, c.remember(ctx, obj, base))
	}
	if err := errors.Join(err, written); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

// remember writes down what the engines just made for an object that somebody has changed, or deleted, meanwhile. Were it
// forgotten, the deletion would leave it in the engines.
func (c *Course[T]) remember(ctx context.Context, obj, base T) error {
	uuid := c.Status(obj).UUID
	if uuid == nil || *uuid == *c.Status(base).UUID {
		return nil
	}
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now := c.New()
		if err := c.Live.Get(ctx, client.ObjectKeyFromObject(obj), now); err != nil || now.GetUID() != obj.GetUID() {
			return client.IgnoreNotFound(err)
		}
		before := now.DeepCopy()
		*c.Status(now).UUID = *uuid
		return patchStatus(ctx, c.Client, now, before)
	})
}

// finalize lets an object go when nothing blocks that any more. The DeletionBlocked condition says what it waits for.
func (c *Course[T]) finalize(ctx context.Context, obj T) (reconcile.Result, error) {
	if !held(obj) {
		return reconcile.Result{}, nil
	}
	cached := obj
	obj = c.New()
	if err := c.Live.Get(ctx, client.ObjectKeyFromObject(cached), obj); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if obj.GetUID() != cached.GetUID() || !held(obj) {
		return reconcile.Result{}, nil // let go already; another object of that name has its own turn
	}
	base := c.begin(obj)
	blocked, err := c.Blocker(ctx, obj)
	switch {
	case err != nil:
		c.Reporter.Failed(ctx, obj, c.Status(obj).Conditions, err)
	case blocked != nil:
		c.Reporter.Blocked(ctx, obj, c.Status(obj).Conditions, *blocked)
	default:
		return reconcile.Result{}, release(ctx, c.Client, obj)
	}
	if err := errors.Join(err, patchStatus(ctx, c.Client, obj, base)); err != nil {
		return reconcile.Result{}, err
	}
	var after time.Duration
	switch {
	case c.BlockedFor != nil:
		if after, err = c.BlockedFor(ctx, obj); err != nil {
			return reconcile.Result{}, err
		}
	case c.BlockedInterval != nil:
		after = c.BlockedInterval(blocked.Reason)
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

// begin notes which generation of an object is dealt with, and returns the object as it was.
func (c *Course[T]) begin(obj T) T {
	base := obj.DeepCopy()
	*c.Status(obj).ObservedGeneration = obj.GetGeneration()
	return base
}
