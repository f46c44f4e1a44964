package dial

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

const (
	// DefaultCallTimeout bounds a call whose context has no deadline: three attempts of DefaultAttemptTimeout.
	DefaultCallTimeout = 60 * time.Second
	// DefaultAttemptTimeout bounds one attempt at one engine, so that an engine that hangs costs a part of the
	// call's time and not all of it. A pool over many targets is created well within it.
	DefaultAttemptTimeout = 20 * time.Second
	// connectTimeout bounds a TCP and TLS handshake: 3 s lets one lost SYN be sent again (after 1 s) and still answers
	// before an attempt is over.
	connectTimeout = 3 * time.Second
	// reloadInterval is how often, at most, the attach file is read again. The kubelet takes longer to deliver one.
	reloadInterval = 2 * time.Second
	// messageBytes bounds an answer, as in the operator: 10,000 containers of 1 KiB each.
	messageBytes = 16 << 20
	// roundPauseMin and roundPauseMax bound the pause after every engine has been tried without an answer.
	roundPauseMin = 200 * time.Millisecond
	roundPauseMax = 5 * time.Second
	// keepaliveTimeout is how long sent data may stay unacknowledged before the connection is given up: half of an
	// attempt, so that a node that is gone leaves time for another engine. keepaliveInterval is longer than an
	// attempt: no ping is sent that an engine could think too frequent.
	keepaliveTimeout  = 10 * time.Second
	keepaliveInterval = 30 * time.Second
)

// System is a connection to the engines of one system. It implements grpc.ClientConnInterface for unary calls: a call
// goes to the engine that answered last and, when that one is not available, to the others in turn until one answers or
// the deadline passes. Every management call is idempotent, so that trying again is safe.
//
// The attach file is read again when it or a TLS file it names has changed. Safe for concurrent use.
type System struct {
	path           string
	callTimeout    time.Duration
	attemptTimeout time.Duration
	now            func() time.Time

	mu        sync.Mutex
	identity  *identity
	checked   time.Time
	reloadErr error
	conns     map[string]*grpc.ClientConn
	preferred string
	closed    bool
}

var _ grpc.ClientConnInterface = (*System)(nil)

// Option changes a System at construction.
type Option func(*System)

// WithCallTimeout sets the bound of calls whose context has no deadline.
func WithCallTimeout(d time.Duration) Option { return func(s *System) { s.callTimeout = d } }

// WithAttemptTimeout sets the bound of one attempt at one engine.
func WithAttemptTimeout(d time.Duration) Option { return func(s *System) { s.attemptTimeout = d } }

// Open reads the attach file at path and returns a System. No engine is contacted before the first call.
func Open(path string, options ...Option) (*System, error) {
	s := &System{
		path:           path,
		callTimeout:    DefaultCallTimeout,
		attemptTimeout: DefaultAttemptTimeout,
		now:            time.Now,
		conns:          map[string]*grpc.ClientConn{},
	}
	for _, option := range options {
		option(s)
	}
	loaded, err := load(path)
	if err != nil {
		return nil, err
	}
	s.identity, s.checked = loaded, s.now()
	return s, nil
}

// System returns the client of the System service.
func (s *System) System() managementv1.SystemClient { return managementv1.NewSystemClient(s) }

// Pools returns the client of the Pools service.
func (s *System) Pools() managementv1.PoolsClient { return managementv1.NewPoolsClient(s) }

// Containers returns the client of the Containers service.
func (s *System) Containers() managementv1.ContainersClient {
	return managementv1.NewContainersClient(s)
}

// Attachment returns the attachment in use: the newest that could be read.
func (s *System) Attachment() Attachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reload(false)
	return s.identity.attachment
}

// Close ends all connections. Calls under way fail with Canceled.
func (s *System) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.dropConnections()
}

// Invoke performs a unary call; it returns nil or an *Error.
func (s *System) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.callTimeout)
		defer cancel()
	}
	pause := roundPauseMin
	var last *Error
	for {
		addresses, err := s.order(last != nil)
		if err != nil {
			return err
		}
		for _, address := range addresses {
			failed := s.attempt(ctx, address, method, request, reply, options)
			if failed == nil {
				return nil
			}
			if !tryNext(ctx, failed) {
				return exhausted(failed, last, len(addresses))
			}
			last = failed
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return exhausted(last, last, len(addresses))
		case <-timer.C:
		}
		pause = min(2*pause, roundPauseMax)
	}
}

// NewStream fails: the management protocol has no streams.
func (s *System) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, &Error{Code: codes.Unimplemented, Message: "the management protocol has no streaming calls"}
}

// attempt calls one engine.
func (s *System) attempt(ctx context.Context, address, method string, request, reply any, options []grpc.CallOption) *Error {
	conn, err := s.connection(address)
	if err != nil {
		return &Error{Code: codes.Unavailable, Message: fmt.Sprintf("connect to engine at %s: %v", address, err), Engine: address}
	}
	bounded, cancel := context.WithTimeout(ctx, s.attemptTimeout)
	defer cancel()
	if err := conn.Invoke(bounded, method, request, reply, options...); err != nil {
		failed := asError(address, err)
		if failed.Code == codes.Canceled && ctx.Err() == nil {
			// Not the caller but a reload ended the connection: the call may be tried on a new one.
			failed.Code = codes.Unavailable
		}
		return failed
	}
	s.mu.Lock()
	s.preferred = address
	s.mu.Unlock()
	return nil
}

// tryNext tells whether another engine may answer a call that failed so: the engine was not available, or one attempt
// ran out of time and the call has some left.
func tryNext(ctx context.Context, failed *Error) bool {
	if ctx.Err() != nil {
		return false
	}
	return failed.Code == codes.Unavailable || failed.Code == codes.DeadlineExceeded
}

// exhausted returns the error of a call that ended with failed. When the time ran out after engines had not been
// available, the reason that they gave says more than "deadline exceeded".
func exhausted(failed, last *Error, engines int) *Error {
	if last == nil || (failed.Code != codes.DeadlineExceeded && failed.Code != codes.Unavailable) {
		return failed
	}
	return &Error{
		Code:   codes.Unavailable,
		DER:    last.DER,
		Object: last.Object,
		Engine: last.Engine,
		Message: fmt.Sprintf("none of %d engines answered in time; the last tried, at %s, said: %s",
			engines, last.Engine, last.Message),
	}
}

// order returns the management addresses to try, the one that answered last first. With force the attach file is read
// again however recent the last reading.
func (s *System) order(force bool) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, &Error{Code: codes.Canceled, Message: "the connection to the system has been closed"}
	}
	s.reload(force)
	addresses := make([]string, 0, len(s.identity.attachment.Engines))
	for _, engine := range s.identity.attachment.Engines {
		if engine.Management == s.preferred {
			addresses = append([]string{engine.Management}, addresses...)
			continue
		}
		addresses = append(addresses, engine.Management)
	}
	return addresses, nil
}

// reload replaces the identity when the files have changed. A file that cannot be read keeps the identity in use: a
// Secret that is briefly absent must not stop a client that works. Callers hold mu.
func (s *System) reload(force bool) {
	if s.closed || (!force && s.now().Sub(s.checked) < reloadInterval) {
		return
	}
	s.checked = s.now()
	loaded, err := load(s.path)
	s.reloadErr = err
	if err != nil || loaded.digest == s.identity.digest {
		return
	}
	s.identity = loaded
	// Connections made with the old identity end; calls under way on them are tried again on new ones.
	_ = s.dropConnections()
}

// ReloadError returns why the newest attach file could not be used; nil when it is in use.
func (s *System) ReloadError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reloadErr
}

func (s *System) dropConnections() error {
	var failures []error
	for address, conn := range s.conns {
		failures = append(failures, conn.Close())
		delete(s.conns, address)
	}
	return errors.Join(failures...)
}

// connection returns the connection to address, made if need be.
func (s *System) connection(address string) (*grpc.ClientConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if conn, ok := s.conns[address]; ok {
		return conn, nil
	}
	if s.closed {
		return nil, errors.New("closed")
	}
	retry := backoff.DefaultConfig
	retry.MaxDelay = roundPauseMax
	conn, err := grpc.NewClient("dns:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(s.identity.tls.Clone())),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveInterval, Timeout: keepaliveTimeout}),
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytes)),
	)
	if err != nil {
		return nil, err
	}
	s.conns[address] = conn
	return conn, nil
}
