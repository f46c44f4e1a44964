// Package oplock lets one operation at a time work on a volume.
package oplock

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Locks holds the volumes that operations work on. The zero value is ready.
type Locks struct {
	mu   sync.Mutex
	held map[string]*holder
}

type holder struct {
	operation string
	released  chan struct{}
}

// Acquire takes the lock of a volume for an operation and returns how to release it. If another operation keeps it for
// longer than patience, the error is Aborted, upon which a CSI caller tries again.
func (l *Locks) Acquire(ctx context.Context, volume, operation string, patience time.Duration) (release func(), err error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		own, other := l.try(volume, operation)
		if own != nil {
			return func() { l.release(volume, own) }, nil
		}
		select {
		case <-other.released:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-timer.C:
			return nil, status.Errorf(codes.Aborted, "%s of volume %s: %s is still under way; try again", operation, volume, other.operation)
		}
	}
}

// try returns the new holder of the lock, or the other one who has it.
func (l *Locks) try(volume, operation string) (own, other *holder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, busy := l.held[volume]; busy {
		return nil, other
	}
	if l.held == nil {
		l.held = map[string]*holder{}
	}
	own = &holder{operation: operation, released: make(chan struct{})}
	l.held[volume] = own
	return own, nil
}

func (l *Locks) release(volume string, own *holder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, volume)
	close(own.released)
}
