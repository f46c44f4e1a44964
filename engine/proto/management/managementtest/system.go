package managementtest

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"weir.dev/weir/engine/proto/management/dial"
	"weir.dev/weir/engine/proto/management/roles"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// DefaultEngineBytes is the capacity of an engine of a test system.
const DefaultEngineBytes = 64 << 30

// System is a set of engines that share one state.
type System struct {
	t         testing.TB
	folder    string
	authority *authority
	// tls is the configuration of the engines' listeners.
	tls     *tls.Config
	engines []*engine
	state   *state

	mu sync.Mutex
	// intercept, when set, sees each call first and may answer it with an error.
	intercept func(ctx context.Context, method string, request any) error
	calls     map[string]int
}

type engine struct {
	rank    uint32
	address string
	server  *grpc.Server
	done    chan struct{}
}

// Option changes a system before its engines start.
type Option func(*System)

// WithTLS replaces the certificates of the engines, for tests in which somebody else is their authority.
func WithTLS(config *tls.Config) Option {
	return func(s *System) { s.tls = config }
}

// Start runs engines of a system on loopback until the test ends.
func Start(t testing.TB, engines int, options ...Option) *System {
	t.Helper()
	authority, err := newAuthority()
	if err != nil {
		t.Fatalf("make the test authority: %v", err)
	}
	s := &System{t: t, folder: t.TempDir(), authority: authority, state: newState(engines), calls: map[string]int{}}
	if err := authority.writeClient(s.folder, roles.Role{Name: roles.Operator}); err != nil {
		t.Fatal(err)
	}
	if s.tls, err = authority.serverTLS(); err != nil {
		t.Fatal(err)
	}
	for _, option := range options {
		option(s)
	}
	for rank := range engines {
		s.engines = append(s.engines, &engine{rank: uint32(rank), address: "127.0.0.1:0"})
		s.StartEngine(rank)
	}
	s.WriteAttachFile()
	t.Cleanup(func() {
		for rank := range s.engines {
			s.StopEngine(rank)
		}
	})
	return s
}

// AttachFile returns the path of the system's attach file.
func (s *System) AttachFile() string { return filepath.Join(s.folder, "attach.json") }

// WriteAttachFile writes the attach file anew, in one step.
func (s *System) WriteAttachFile() {
	s.t.Helper()
	attachment := dial.Attachment{
		System:   "weir",
		Provider: "tcp",
		TLS:      dial.TLSFiles{CA: "ca.crt", Cert: "tls.crt", Key: "tls.key"},
	}
	for _, e := range s.engines {
		attachment.Engines = append(attachment.Engines, dial.Engine{
			Rank: e.rank, Host: "127.0.0.1", FabricPort: 10100, Targets: targetsPerEngine, Management: e.address,
		})
	}
	content, err := json.Marshal(attachment)
	if err != nil {
		s.t.Fatal(err)
	}
	next := s.AttachFile() + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(next, s.AttachFile()); err != nil {
		s.t.Fatal(err)
	}
}

// Address returns host:port of an engine's management service.
func (s *System) Address(rank int) string { return s.engines[rank].address }

// MoveEngine stops an engine and starts it at another port. The attach file stays as it is.
func (s *System) MoveEngine(rank int) {
	s.t.Helper()
	s.StopEngine(rank)
	s.engines[rank].address = "127.0.0.1:0"
	s.StartEngine(rank)
}

// StartEngine starts an engine that is stopped, at the port it had.
func (s *System) StartEngine(rank int) {
	s.t.Helper()
	e := s.engines[rank]
	listener, err := net.Listen("tcp", e.address)
	if err != nil {
		s.t.Fatalf("engine %d: %v", rank, err)
	}
	e.address = listener.Addr().String()
	e.done = make(chan struct{})
	e.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(s.tls)), grpc.UnaryInterceptor(s.observe))
	managementv1.RegisterSystemServer(e.server, systemService{state: s.state, system: s})
	managementv1.RegisterPoolsServer(e.server, poolsService{state: s.state})
	managementv1.RegisterContainersServer(e.server, containersService{state: s.state})
	managementv1.RegisterTenantsServer(e.server, tenantsService{state: s.state})
	s.state.setUp(rank, true)
	go func(server *grpc.Server, done chan struct{}) {
		defer close(done)
		_ = server.Serve(listener)
	}(e.server, e.done)
}

// StopEngine ends an engine at once, as a kill would. A stopped engine stays stopped.
func (s *System) StopEngine(rank int) {
	e := s.engines[rank]
	if e.server == nil {
		return
	}
	e.server.Stop()
	<-e.done
	e.server = nil
	s.state.setUp(rank, false)
}

// TakeEngineAway stops an engine, of which the others don't know until it is started again, as one that is added.
func (s *System) TakeEngineAway(rank int) {
	s.t.Helper()
	s.StopEngine(rank)
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.absent[rank] = true
}

// Intercept lets f see each call before it is served; an error from f is the call's answer. nil removes f.
func (s *System) Intercept(f func(ctx context.Context, method string, request any) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// Calls returns how often a method (e.g. "/weir.management.v1.Pools/Create") was called.
func (s *System) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// Dial opens a client of the system that is closed when the test ends.
func (s *System) Dial(options ...dial.Option) *dial.System {
	s.t.Helper()
	client, err := dial.Open(s.AttachFile(), options...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// MakePool makes a pool over all engines and fails the test if it cannot.
func (s *System) MakePool(label string, bytes uint64) *managementv1.PoolInfo {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	created, err := s.Dial().Pools().Create(ctx, &managementv1.PoolCreateRequest{Label: label, SizeBytes: bytes})
	if err != nil {
		s.t.Fatalf("make pool %s: %v", label, err)
	}
	return created.GetPool()
}

// SetUsed sets what a container holds, as if an application had written it.
func (s *System) SetUsed(pool, container string, bytes uint64) {
	s.t.Helper()
	if err := s.state.setUsed(pool, container, bytes); err != nil {
		s.t.Fatal(err)
	}
}

// Settle has engines that have joined a pool have their share of its data.
func (s *System) Settle(pool string) {
	s.t.Helper()
	if err := s.state.settle(pool); err != nil {
		s.t.Fatal(err)
	}
}

// SetOpenHandles sets how many clients have a container open.
func (s *System) SetOpenHandles(pool, container string, handles uint32) {
	s.t.Helper()
	if err := s.state.setOpenHandles(pool, container, handles); err != nil {
		s.t.Fatal(err)
	}
}

// SetHandles sets which handles a container, by its label, has of clients that have said where they are.
func (s *System) SetHandles(pool, container string, handles ...*managementv1.OpenHandle) {
	s.t.Helper()
	if err := s.state.setHandles(pool, container, handles); err != nil {
		s.t.Fatal(err)
	}
}

func (s *System) observe(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	s.mu.Lock()
	s.calls[info.FullMethod]++
	intercept := s.intercept
	s.mu.Unlock()
	if err := checkRole(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	if intercept != nil {
		if err := intercept(ctx, info.FullMethod, request); err != nil {
			return nil, err
		}
	}
	return handler(ctx, request)
}

// checkRole refuses a call that the role in the caller's certificate may not make.
func checkRole(ctx context.Context, method string) error {
	var role roles.Role
	if caller, ok := peer.FromContext(ctx); ok {
		if shown, ok := caller.AuthInfo.(credentials.TLSInfo); ok && len(shown.State.PeerCertificates) > 0 {
			role = roles.Of(shown.State.PeerCertificates[0])
		}
	}
	call := strings.TrimPrefix(method, "/weir.management.v1.")
	if err := role.Check(call); err != nil {
		return fail(codes.PermissionDenied, dial.DERNoPermission, call, "%v", err)
	}
	return nil
}

// fail makes the error of an engine: a code, a DER number, the object and what to say.
func fail(code codes.Code, der dial.DER, object, format string, arguments ...any) error {
	answer := status.New(code, object+": "+fmt.Sprintf(format, arguments...))
	detailed, err := answer.WithDetails(&managementv1.ErrorDetail{Der: uint32(der), Object: object})
	if err != nil {
		return answer.Err()
	}
	return detailed.Err()
}
