package dial_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"weir.dev/weir/engine/proto/management/dial"
	"weir.dev/weir/engine/proto/management/managementtest"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

const createPool = "/weir.management.v1.Pools/Create"

func bounded(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestACallReachesAnotherEngineWhenTheFirstIsDown(t *testing.T) {
	system := managementtest.Start(t, 3)
	client := system.Dial()
	system.MakePool("tank", 1<<30)
	for _, down := range []int{0, 1} {
		system.StopEngine(down)
		answer, err := client.Pools().Query(bounded(t, 10*time.Second), &managementv1.PoolQueryRequest{Pool: "tank"})
		if err != nil {
			t.Fatalf("with engine %d down: %v", down, err)
		}
		if got := len(answer.GetPool().GetUnreachableRanks()); got != down+1 {
			t.Errorf("with engine %d down: %d unreachable ranks, want %d", down, got, down+1)
		}
	}
}

func TestACallWaitsForAnEngineThatComesBackWithinItsDeadline(t *testing.T) {
	system := managementtest.Start(t, 1)
	client := system.Dial()
	system.StopEngine(0)
	restarted := make(chan struct{})
	timer := time.AfterFunc(500*time.Millisecond, func() { system.StartEngine(0); close(restarted) })
	defer timer.Stop()
	if _, err := client.Pools().List(bounded(t, 20*time.Second), &managementv1.PoolListRequest{}); err != nil {
		t.Fatalf("list pools: %v", err)
	}
	<-restarted
}

func TestACallNamesTheReasonWhenNoEngineAnswersInTime(t *testing.T) {
	system := managementtest.Start(t, 2)
	client := system.Dial()
	system.StopEngine(0)
	system.StopEngine(1)
	_, err := client.Pools().List(bounded(t, time.Second), &managementv1.PoolListRequest{})
	if dial.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "none of 2 engines answered") {
		t.Fatalf("got %v (%v), want Unavailable naming both engines", err, dial.Code(err))
	}
}

func TestAHangingEngineCostsOneAttempt(t *testing.T) {
	system := managementtest.Start(t, 2)
	hung := false
	system.Intercept(func(ctx context.Context, _ string, _ any) error {
		if hung {
			return nil
		}
		hung = true
		<-ctx.Done()
		return ctx.Err()
	})
	client := system.Dial(dial.WithAttemptTimeout(300 * time.Millisecond))
	if _, err := client.Pools().List(bounded(t, 20*time.Second), &managementv1.PoolListRequest{}); err != nil {
		t.Fatalf("list pools: %v", err)
	}
}

func TestAnErrorCarriesTheDERNumberAndTheObject(t *testing.T) {
	system := managementtest.Start(t, 1)
	_, err := system.Dial().Pools().Query(bounded(t, 10*time.Second), &managementv1.PoolQueryRequest{Pool: "absent"})
	var failed *dial.Error
	if !errors.As(err, &failed) {
		t.Fatalf("got %T %v, want *dial.Error", err, err)
	}
	if failed.Code != codes.NotFound || failed.DER != dial.DERNonexistent || failed.Object != "pool absent" || failed.Engine == "" {
		t.Errorf("got %+v", failed)
	}
	passed, ok := status.FromError(err)
	if !ok || passed.Code() != codes.NotFound || len(passed.Details()) != 1 {
		t.Errorf("as a gRPC status: %v, details %v", passed, passed.Details())
	}
}

func TestALongAnswerIsTaken(t *testing.T) {
	system := managementtest.Start(t, 1)
	system.MakePool("tank", 1<<30)
	// The request is just below gRPC's own limit on a message, the answer just above.
	request := &managementv1.ContainerCreateRequest{Pool: "tank", Label: "box", Attributes: map[string]string{"a": ""}}
	request.Attributes["a"] = strings.Repeat("x", 4<<20-proto.Size(request)-10)
	if _, err := system.Dial().Containers().Create(bounded(t, 20*time.Second), request); err != nil {
		t.Errorf("an answer of more than 4 MiB: %v", err)
	}
}

func TestADefiniteAnswerIsNotTriedAgain(t *testing.T) {
	system := managementtest.Start(t, 3)
	_, err := system.Dial().Pools().Create(bounded(t, 10*time.Second), &managementv1.PoolCreateRequest{Label: "tank"})
	if dial.Code(err) != codes.InvalidArgument || system.Calls(createPool) != 1 {
		t.Fatalf("got %v after %d calls, want InvalidArgument after 1", err, system.Calls(createPool))
	}
}

func TestAReplacedAttachFileIsUsed(t *testing.T) {
	system := managementtest.Start(t, 1)
	client := system.Dial()
	if _, err := client.Pools().List(bounded(t, 10*time.Second), &managementv1.PoolListRequest{}); err != nil {
		t.Fatal(err)
	}
	system.MoveEngine(0)
	system.WriteAttachFile()
	if _, err := client.Pools().List(bounded(t, 20*time.Second), &managementv1.PoolListRequest{}); err != nil {
		t.Fatalf("after the engine moved: %v", err)
	}
}

func TestAnAttachFileThatDisappearsKeepsTheClientWorking(t *testing.T) {
	system := managementtest.Start(t, 1)
	client := system.Dial()
	if err := os.Remove(system.AttachFile()); err != nil {
		t.Fatal(err)
	}
	system.StopEngine(0)
	system.StartEngine(0)
	if _, err := client.Pools().List(bounded(t, 20*time.Second), &managementv1.PoolListRequest{}); err != nil {
		t.Fatalf("list pools: %v", err)
	}
}

func TestAClosedClientRefusesCalls(t *testing.T) {
	client := managementtest.Start(t, 1).Dial()
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := client.Pools().List(bounded(t, 10*time.Second), &managementv1.PoolListRequest{})
	if dial.Code(err) != codes.Canceled {
		t.Fatalf("got %v, want Canceled", err)
	}
}

func TestAClientOfAnotherAuthorityIsRefused(t *testing.T) {
	system, foreign := managementtest.Start(t, 1), managementtest.Start(t, 1)
	stranger := foreign.Dial().Attachment()
	content, err := os.ReadFile(system.AttachFile())
	if err != nil {
		t.Fatal(err)
	}
	swapped := strings.NewReplacer(`"ca.crt"`, `"`+system.Dial().Attachment().TLS.CA+`"`,
		`"tls.crt"`, `"`+stranger.TLS.Cert+`"`, `"tls.key"`, `"`+stranger.TLS.Key+`"`).Replace(string(content))
	path := filepath.Join(t.TempDir(), "attach.json")
	if err := os.WriteFile(path, []byte(swapped), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := dial.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	_, err = client.Pools().List(bounded(t, time.Second), &managementv1.PoolListRequest{})
	if dial.Code(err) != codes.Unavailable {
		t.Fatalf("got %v, want Unavailable: the handshake must fail", err)
	}
}

func TestOpenRefusesAnAttachFileThatCannotServe(t *testing.T) {
	tests := map[string]struct {
		content string
		want    string
	}{
		"a file that is not JSON":                   {`engines: []`, "not valid JSON"},
		"a file without engines":                    {`{"tls":{"ca":"a","cert":"b","key":"c"}}`, `"engines" is empty`},
		"an engine without a management address":    {`{"engines":[{"rank":3}],"tls":{"ca":"a","cert":"b","key":"c"}}`, "rank 3"},
		"a file without a client certificate":       {`{"engines":[{"management":"h:1"}],"tls":{"ca":"a"}}`, `"tls" must name`},
		"a file whose TLS files are not there":      {`{"engines":[{"management":"h:1"}],"tls":{"ca":"/absent/ca","cert":"b","key":"c"}}`, "/absent/ca"},
		"a file larger than a Secret could ever be": {strings.Repeat(" ", 1<<20+1), "more than"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "attach.json")
			if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := dial.Open(path); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}
