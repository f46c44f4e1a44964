// Package management reaches the engines of a StorageCluster: gRPC over mutual TLS, with a deadline on every call.
package management

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/manifest"
)

const (
	// readTimeout bounds questions. An engine answers them from memory; the rest is for one lost connection.
	readTimeout = 10 * time.Second
	// writeTimeout bounds requests that an engine agrees on with others and makes durable.
	writeTimeout = 30 * time.Second
	// keepaliveTimeout is how long sent data may stay unacknowledged before the connection is given up, so that a node
	// that lost its power costs one question. keepaliveInterval is longer than a call: no ping disturbs an engine that
	// answers.
	keepaliveTimeout  = readTimeout
	keepaliveInterval = 30 * time.Second
	// messageBytes bounds an answer: 10,000 containers of 1 KiB each.
	messageBytes = 16 << 20
	// scheme names our resolver, which knows every engine of one system.
	scheme = "weir"
)

// Engines are the services of one system. Any engine answers for all.
type Engines struct {
	System     managementv1.SystemClient
	Pools      managementv1.PoolsClient
	Containers managementv1.ContainersClient
	Tenants    managementv1.TenantsClient
}

// DialFunc opens a connection to host:port.
type DialFunc func(ctx context.Context, address string) (net.Conn, error)

// ObserveFunc learns of each call that failed.
type ObserveFunc func(method string, err error)

// Connections keeps one connection for each StorageCluster, made from the Secret with which its pools are managed. It is made anew when
// the Secret changes, and to another engine first when one does not answer in time.
type Connections struct {
	reader      client.Reader
	dial        DialFunc
	observe     ObserveFunc
	readTimeout time.Duration

	mu   sync.Mutex
	open map[types.NamespacedName]*connection
}

type connection struct {
	secret  [sha256.Size]byte
	conn    *grpc.ClientConn
	engines *Engines
	// first is the index of the engine that is asked first.
	first int
	// silent is set when a call ran out of time: the engine that it went to may hang, and others may not.
	silent atomic.Bool
}

// Option changes how connections are made.
type Option func(*Connections)

// WithDial replaces the way connections are opened; TLS is not affected.
func WithDial(dial DialFunc) Option {
	return func(c *Connections) { c.dial = dial }
}

// WithObserver reports calls that failed.
func WithObserver(observe ObserveFunc) Option {
	return func(c *Connections) { c.observe = observe }
}

// WithReadTimeout sets how long a question may take.
func WithReadTimeout(d time.Duration) Option {
	return func(c *Connections) { c.readTimeout = d }
}

// NewConnections makes an empty set of connections that reads Secrets through reader.
func NewConnections(reader client.Reader, options ...Option) *Connections {
	c := &Connections{
		reader:      reader,
		observe:     func(string, error) {},
		readTimeout: readTimeout,
		open:        map[types.NamespacedName]*connection{},
		dial: func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		},
	}
	for _, option := range options {
		option(c)
	}
	return c
}

// Connect returns the engines of a StorageCluster. It opens no connection by itself: the first call does.
//
// Without that Secret it fails with an error for which IsUnreachable is true, unless there is a connection from
// before: that one is good until the Secret is replaced.
func (c *Connections) Connect(ctx context.Context, cluster types.NamespacedName) (*Engines, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[cluster]
	var secret corev1.Secret
	name := types.NamespacedName{Namespace: cluster.Namespace, Name: manifest.ManagementName(cluster.Name)}
	if err := c.reader.Get(ctx, name, &secret); err != nil {
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read Secret %s to reach StorageCluster %s: %w", name, cluster, err)
		}
		if known != nil {
			return known.engines, nil
		}
		return nil, &unreachableError{fmt.Errorf("StorageCluster %s has no Secret %s yet: its engines were never set up", cluster, name)}
	}
	if owner := secret.Annotations[v1alpha1.AnnotationCluster]; owner != "" && owner != cluster.String() {
		return nil, &unreachableError{fmt.Errorf("secret %s belongs to StorageCluster %s, not to %s", name, owner, cluster)}
	}
	next := &connection{secret: secretSum(&secret)}
	if known != nil {
		if known.secret == next.secret && !known.silent.Load() {
			return known.engines, nil
		}
		next.first = known.first + 1
	}
	if err := c.dialEngines(next, &secret); err != nil {
		return nil, fmt.Errorf("reach StorageCluster %s with Secret %s: %w", cluster, name, err)
	}
	if known != nil {
		// Calls under way on it come to their end.
		time.AfterFunc(writeTimeout, func() { _ = known.conn.Close() })
	}
	c.open[cluster] = next
	return next.engines, nil
}

// Forget closes the connection to a StorageCluster that is gone.
func (c *Connections) Forget(cluster types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.open[cluster]; ok {
		_ = known.conn.Close()
		delete(c.open, cluster)
	}
}

// Close closes every connection.
func (c *Connections) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cluster, known := range c.open {
		_ = known.conn.Close()
		delete(c.open, cluster)
	}
}

func secretSum(secret *corev1.Secret) [sha256.Size]byte {
	h := sha256.New()
	for _, key := range []string{manifest.KeyClient, manifest.KeyCA, manifest.KeyCert, manifest.KeyPrivate} {
		_, _ = fmt.Fprintf(h, "%d:", len(secret.Data[key]))
		h.Write(secret.Data[key])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// dialEngines prepares a connection to the engines that a Secret lists.
func (c *Connections) dialEngines(to *connection, secret *corev1.Secret) error {
	var attach manifest.Attach
	if err := json.Unmarshal(secret.Data[manifest.KeyClient], &attach); err != nil {
		return fmt.Errorf("read %s: %w", manifest.KeyClient, err)
	}
	if len(attach.Engines) == 0 {
		return fmt.Errorf("%s lists no engines", manifest.KeyClient)
	}
	to.first %= len(attach.Engines)
	var state resolver.State
	for _, e := range slices.Concat(attach.Engines[to.first:], attach.Engines[:to.first]) {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: e.Management, ServerName: e.Host})
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(secret.Data[manifest.KeyCA]) {
		return errors.New(manifest.KeyCA + " holds no certificate")
	}
	cert, err := tls.X509KeyPair(secret.Data[manifest.KeyCert], secret.Data[manifest.KeyPrivate])
	if err != nil {
		return fmt.Errorf("read %s and %s: %w", manifest.KeyCert, manifest.KeyPrivate, err)
	}
	engines := manual.NewBuilderWithScheme(scheme)
	engines.InitialState(state)
	// pick_first goes to the next engine when one can't be connected to.
	to.conn, err = grpc.NewClient(scheme+":///"+attach.System,
		grpc.WithResolvers(engines),
		grpc.WithContextDialer(c.dial),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			MinVersion:   tls.VersionTLS13,
			RootCAs:      roots,
			Certificates: []tls.Certificate{cert},
		})),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveInterval, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytes)),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
			invoker grpc.UnaryInvoker, options ...grpc.CallOption,
		) error {
			outOfTime, err := c.call(ctx, method, request, func(ctx context.Context) error {
				return invoker(ctx, method, request, reply, conn, options...)
			})
			if outOfTime {
				to.silent.Store(true)
			}
			return err
		}),
	)
	if err != nil {
		return fmt.Errorf("prepare the connection: %w", err)
	}
	to.engines = &Engines{
		System:     managementv1.NewSystemClient(to.conn),
		Pools:      managementv1.NewPoolsClient(to.conn),
		Containers: managementv1.NewContainersClient(to.conn),
		Tenants:    managementv1.NewTenantsClient(to.conn),
	}
	return nil
}

// call bounds one call, reports its failure, and tells whether it was not answered in the time that it had.
func (c *Connections) call(ctx context.Context, method string, request any, invoke func(context.Context) error) (outOfTime bool, err error) {
	timeout := c.readTimeout
	switch request.(type) {
	case *managementv1.PoolCreateRequest, *managementv1.PoolResizeRequest, *managementv1.PoolDestroyRequest,
		*managementv1.PoolExcludeRequest, *managementv1.PoolReintegrateRequest, *managementv1.PoolDrainRequest,
		*managementv1.PoolExtendRequest, *managementv1.PoolSetPropertiesRequest,
		*managementv1.ContainerCreateRequest, *managementv1.ContainerSetQuotaRequest, *managementv1.ContainerDestroyRequest:
		timeout = writeTimeout
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err = invoke(bounded); err != nil {
		c.observe(method, err)
	}
	// The other side may notice the end of the time first, and say so.
	late := bounded.Err() != nil || (status.Code(err) == codes.DeadlineExceeded && !toldByEngine(err))
	return late && ctx.Err() == nil, err
}
