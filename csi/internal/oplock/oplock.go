// Package oplock lets one operation at a time work on a volume.
package oplock

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Locks holds the volumes that operations work on. The zero value is ready.
type Locks struct {
	mu   sync.Mutex
	held map[string]string
}

// Acquire takes the lock of a volume for an operation and returns how to release it. If another operation has it, the
// error is Aborted, upon which a CSI caller tries again.
func (l *Locks) Acquire(volume, operation string) (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, busy := l.held[volume]; busy {
		return nil, status.Errorf(codes.Aborted, "%s of volume %s: %s is still under way; try again", operation, volume, other)
	}
	if l.held == nil {
		l.held = map[string]string{}
	}
	l.held[volume] = operation
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, volume)
	}, nil
}
