package management

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"weir.dev/weir/engine/proto/management/managementtest"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/manifest"
)

var weir = types.NamespacedName{Namespace: "storage", Name: "weir"}

// secretOf is the Secret with which the pools of a test system are managed.
func secretOf(t *testing.T, system *managementtest.System) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: weir.Namespace, Name: manifest.ManagementName(weir.Name)},
		Data:       map[string][]byte{},
	}
	for key, file := range map[string]string{
		manifest.KeyClient: "attach.json", manifest.KeyCA: "ca.crt", manifest.KeyCert: "tls.crt", manifest.KeyPrivate: "tls.key",
	} {
		content, err := os.ReadFile(filepath.Join(filepath.Dir(system.AttachFile()), file))
		if err != nil {
			t.Fatal(err)
		}
		secret.Data[key] = content
	}
	return secret
}

func query(t *testing.T, c *Connections) (*managementv1.SystemQueryResponse, error) {
	t.Helper()
	engines, err := c.Connect(t.Context(), weir)
	if err != nil {
		return nil, err
	}
	return engines.System.Query(t.Context(), &managementv1.SystemQueryRequest{})
}

func TestAnyEngineAnswers(t *testing.T) {
	system := managementtest.Start(t, 3)
	connections := NewConnections(fake.NewFakeClient(secretOf(t, system)))
	defer connections.Close()
	for stopped := range 2 {
		if answer, err := query(t, connections); err != nil || len(answer.GetEngines()) != 3 {
			t.Fatalf("with %d engines stopped: %v %v", stopped, answer, err)
		}
		system.StopEngine(stopped)
		time.Sleep(50 * time.Millisecond) // the client learns of the closed connection
	}
}

func TestNobodyAnswers(t *testing.T) {
	var failed []string
	system := managementtest.Start(t, 1)
	connections := NewConnections(fake.NewFakeClient(secretOf(t, system)),
		WithObserver(func(method string, _ error) { failed = append(failed, method) }),
		WithDial(func(context.Context, string) (net.Conn, error) { return nil, errors.New("no route") }))
	defer connections.Close()
	_, err := query(t, connections)
	if !IsUnreachable(err) || len(failed) != 1 || !strings.HasSuffix(failed[0], "System/Query") {
		t.Errorf("error %v, observed %v", err, failed)
	}
}

func TestAnEngineThatHangsCostsOneCall(t *testing.T) {
	system := managementtest.Start(t, 2)
	var dialled []string
	var mu sync.Mutex
	connections := NewConnections(fake.NewFakeClient(secretOf(t, system)), WithReadTimeout(200*time.Millisecond),
		WithDial(func(ctx context.Context, address string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			dialled = append(dialled, address)
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}))
	defer connections.Close()
	hangs := true
	system.Intercept(func(ctx context.Context, _ string, _ any) error {
		if hangs {
			hangs = false
			<-ctx.Done()
		}
		return ctx.Err()
	})
	if _, err := query(t, connections); !IsUnreachable(err) {
		t.Fatalf("of an engine that hangs: %v", err)
	}
	if _, err := query(t, connections); err != nil {
		t.Fatalf("of the other engine: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{system.Address(0), system.Address(1)}; !slices.Equal(dialled, want) {
		t.Errorf("asked %v, want %v", dialled, want)
	}
}

func TestTheSecretOfANamesakeIsNotUsed(t *testing.T) {
	secret := secretOf(t, managementtest.Start(t, 1))
	secret.Annotations = map[string]string{v1alpha1.AnnotationCluster: "elsewhere/weir"}
	connections := NewConnections(fake.NewFakeClient(secret))
	defer connections.Close()
	if _, err := query(t, connections); !IsUnreachable(err) || !strings.Contains(err.Error(), "belongs to StorageCluster elsewhere/weir") {
		t.Errorf("error %v", err)
	}
}

func TestUnreachableSaysWhoIs(t *testing.T) {
	told, err := status.New(codes.Unavailable, "pool tank needs rank 2, which does not answer").
		WithDetails(&managementv1.ErrorDetail{Der: 1006, Object: "pool tank"})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"an engine that speaks of another is quoted": {told.Err(), "pool tank needs rank 2, which does not answer"},
		"without an answer it is all of them":        {status.Error(codes.Unavailable, "no route"), "no engine of StorageCluster weir answers, see its conditions (no route)"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Unreachable("weir", tc.err); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestBeforeTheSecretNobodyCanBeAsked(t *testing.T) {
	connections := NewConnections(fake.NewFakeClient())
	if _, err := query(t, connections); !IsUnreachable(err) || !strings.Contains(err.Error(), "storage/weir-management") {
		t.Errorf("error %v", err)
	}
}

func TestConnectionOutlivesItsSecretAndFollowsItsReplacement(t *testing.T) {
	first, second := managementtest.Start(t, 1), managementtest.Start(t, 2)
	secret := secretOf(t, first)
	reader := fake.NewFakeClient(secret)
	connections := NewConnections(reader)
	defer connections.Close()
	count := func() int {
		t.Helper()
		answer, err := query(t, connections)
		if err != nil {
			t.Fatal(err)
		}
		return len(answer.GetEngines())
	}
	if got := count(); got != 1 {
		t.Fatalf("%d engines", got)
	}
	if err := reader.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if got := count(); got != 1 {
		t.Fatalf("without its Secret: %d engines", got)
	}
	if err := reader.Create(t.Context(), secretOf(t, second)); err != nil {
		t.Fatal(err)
	}
	if got := count(); got != 2 {
		t.Fatalf("with another Secret: %d engines", got)
	}
	connections.Forget(weir)
	if err := reader.Delete(t.Context(), secretOf(t, second)); err != nil {
		t.Fatal(err)
	}
	if _, err := query(t, connections); !IsUnreachable(err) {
		t.Fatalf("after Forget: %v", err)
	}
}

func TestForeignAuthorityIsRefused(t *testing.T) {
	system, other := managementtest.Start(t, 1), managementtest.Start(t, 1)
	secret := secretOf(t, system)
	secret.Data[manifest.KeyCA] = secretOf(t, other).Data[manifest.KeyCA]
	connections := NewConnections(fake.NewFakeClient(secret))
	defer connections.Close()
	if _, err := query(t, connections); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("error %v", err)
	}
}

func TestBrokenSecretSaysWhichKey(t *testing.T) {
	system := managementtest.Start(t, 1)
	for key, want := range map[string]string{
		manifest.KeyClient: "client.json", manifest.KeyCA: "ca.crt", manifest.KeyCert: "tls.crt", manifest.KeyPrivate: "tls.key",
	} {
		secret := secretOf(t, system)
		secret.Data[key] = []byte("junk")
		var reader client.Reader = fake.NewFakeClient(secret)
		if _, err := query(t, NewConnections(reader)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("broken %s: %v", key, err)
		}
	}
}

func TestErrorKinds(t *testing.T) {
	kinds := []struct {
		name string
		is   func(error) bool
	}{{"unreachable", IsUnreachable}, {"not found", IsNotFound}, {"precondition", IsPrecondition}, {"rejected", IsRejected}}
	tests := map[codes.Code]string{
		codes.Unavailable: "unreachable", codes.DeadlineExceeded: "unreachable", codes.NotFound: "not found",
		codes.FailedPrecondition: "precondition, rejected", codes.AlreadyExists: "rejected", codes.InvalidArgument: "rejected",
		codes.ResourceExhausted: "rejected", codes.Unimplemented: "rejected", codes.Internal: "",
	}
	for code, want := range tests {
		var got []string
		for _, kind := range kinds {
			if kind.is(status.Error(code, "why")) {
				got = append(got, kind.name)
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s is %v, want %s", code, got, want)
		}
	}
	if got := Message(status.Error(codes.Internal, "why")); got != "why" {
		t.Errorf("message %q", got)
	}
}
