package clusters

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir.dev/weir/engine/proto/management/managementtest"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// place links a system's folder into folder, as a Secret is mounted, with its attach file under the name given.
func place(t *testing.T, system *managementtest.System, folder, name string) {
	t.Helper()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	source := filepath.Dir(system.AttachFile())
	for link, target := range map[string]string{name: "attach.json", "ca.crt": "ca.crt", "tls.crt": "tls.crt", "tls.key": "tls.key"} {
		if err := os.Symlink(filepath.Join(source, target), filepath.Join(folder, link)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnAttachFileIsFoundUnderEitherName(t *testing.T) {
	for _, name := range []string{"attach.json", "client.json"} {
		folder := t.TempDir()
		place(t, managementtest.Start(t, 1), folder, name)
		systems := New(folder)
		defer func() { _ = systems.Close() }()
		for _, asked := range []string{"", "weir"} {
			system, err := systems.Get(asked)
			if err != nil {
				t.Fatalf("%s, asked for %q: %v", name, asked, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if _, err := system.Pools().List(ctx, &managementv1.PoolListRequest{}); err != nil {
				t.Errorf("list pools: %v", err)
			}
		}
	}
}

func TestWhatCannotBeFoundIsSaid(t *testing.T) {
	tests := map[string]struct {
		prepare func(t *testing.T, folder string)
		asked   string
		code    codes.Code
		want    string
	}{
		"no attach file yet": {
			prepare: func(*testing.T, string) {}, code: codes.Unavailable, want: "StorageCluster",
		},
		"an attach file that is malformed": {
			prepare: func(t *testing.T, folder string) {
				if err := os.WriteFile(filepath.Join(folder, "client.json"), []byte("{"), 0o600); err != nil {
					t.Fatal(err)
				}
			},
			code: codes.Unavailable, want: "not valid JSON",
		},
		"a cluster that is not served": {
			prepare: func(t *testing.T, folder string) { place(t, managementtest.Start(t, 1), folder, "client.json") },
			asked:   "other", code: codes.NotFound, want: "served: weir",
		},
		"a cluster that may be the one whose attach file can't be read": {
			prepare: func(t *testing.T, folder string) {
				place(t, managementtest.Start(t, 1), filepath.Join(folder, "a"), "client.json")
				if err := os.MkdirAll(filepath.Join(folder, "b"), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(folder, "b", "client.json"), []byte("{"), 0o600); err != nil {
					t.Fatal(err)
				}
			},
			asked: "other", code: codes.Unavailable, want: "not valid JSON",
		},
		"one of two clusters without a name": {
			prepare: func(t *testing.T, folder string) {
				place(t, managementtest.Start(t, 1), filepath.Join(folder, "a"), "client.json")
				place(t, managementtest.Start(t, 1), filepath.Join(folder, "b"), "client.json")
			},
			code: codes.InvalidArgument, want: `parameter "cluster"`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			tc.prepare(t, folder)
			systems := New(folder)
			defer func() { _ = systems.Close() }()
			_, err := systems.Get(tc.asked)
			if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %v with %q", err, tc.code, tc.want)
			}
		})
	}
}

func TestASystemMayComeAndGo(t *testing.T) {
	folder := t.TempDir()
	systems := New(filepath.Join(folder, "later"))
	defer func() { _ = systems.Close() }()
	if _, err := systems.All(); status.Code(err) != codes.Unavailable {
		t.Fatalf("before the folder is there: %v, want Unavailable", err)
	}
	place(t, managementtest.Start(t, 1), filepath.Join(folder, "later"), "client.json")
	if all, err := systems.All(); err != nil || len(all) != 1 {
		t.Fatalf("once it is there: %d systems, %v", len(all), err)
	}
	// As the operator names it in a Secret that has several.
	shared := filepath.Join(folder, "later", "weir.client.json")
	if err := os.Rename(filepath.Join(folder, "later", "client.json"), shared); err != nil {
		t.Fatal(err)
	}
	if all, err := systems.All(); err != nil || len(all) != 1 {
		t.Fatalf("under its name in a shared folder: %d systems, %v", len(all), err)
	}
	if err := os.Remove(shared); err != nil {
		t.Fatal(err)
	}
	if _, err := systems.All(); status.Code(err) != codes.Unavailable {
		t.Fatalf("after it has gone: %v, want Unavailable", err)
	}
}
