// Package isolation proves that virtual networks are kept apart: it tries to get from one into others, and says what came of it.
package isolation

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Outcome is what came of an attempt to reach somebody over the fabric.
type Outcome int

const (
	// Refused says that the network let nothing through.
	Refused Outcome = iota
	// Reached says that the network carried packets both ways, whether or not anybody listens there.
	Reached
)

// Attempt tries to reach an address over the fabric, from the network namespace of the calling thread. No answer within the timeout
// means that the network refuses. An answer that nobody listens there comes from there, so that the network carried it. It fails
// when nothing could be tried.
func Attempt(ctx context.Context, target netip.AddrPort, timeout time.Duration) (Outcome, error) {
	dialer := net.Dialer{Timeout: timeout}
	connection, err := dialer.DialContext(ctx, "tcp", target.String())
	switch {
	case err == nil:
		return Reached, connection.Close()
	case ctx.Err() != nil:
		return Refused, fmt.Errorf("interrupted: %w", ctx.Err())
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET):
		return Reached, nil
	case errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EPERM):
		return Refused, nil
	default:
		return Refused, fmt.Errorf("try to reach %s: %w", target, err)
	}
}

func isTimeout(err error) bool {
	timeout, is := errors.AsType[net.Error](err)
	return is && timeout.Timeout()
}
