package namespaces_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/operator/internal/fabric/namespaces"
)

// A network namespace that is bound to a file is found, and what runs there sees its interfaces only.
func TestABoundNamespaceIsFoundAndEntered(t *testing.T) {
	folder := t.TempDir()
	name := fmt.Sprintf("weir-bound-%d", os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	path := filepath.Join(folder, "bound")
	for _, file := range []string{path, filepath.Join(folder, "not-bound")} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("/var/run/netns/"+name, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ip", "netns", "delete", name).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	found, err := namespaces.Find(folder)
	if err != nil || len(found) != 1 || found[0].Path != path {
		t.Fatalf("%+v %v", found, err)
	}
	var names []string
	err = found[0].Do(func() error {
		all, err := net.Interfaces()
		for _, one := range all {
			names = append(names, one.Name)
		}
		return err
	})
	if err != nil || slices.Contains(names, "eth0") || !slices.Contains(names, "lo") {
		t.Errorf("%v %v", names, err)
	}
	if addresses, err := found[0].Addresses(); err != nil || len(addresses) != 0 {
		t.Errorf("%v %v", addresses, err)
	}
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := found[0].Do(func() error { return nil }); err == nil {
		t.Error("a namespace that is gone is entered")
	}
	if left, err := namespaces.Find(folder); err != nil || len(left) != 0 {
		t.Errorf("%+v %v", left, err)
	}
}
