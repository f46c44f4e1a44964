package mounts

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// container runs a process with mounts of its own, and returns its process id.
func container(t *testing.T) string {
	t.Helper()
	command := exec.Command("sh", "-c", "echo started; read line")
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		_ = command.Wait()
	})
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(command.Process.Pid)
}

func TestReplaceReachesTheMountsOfOtherNamespaces(t *testing.T) {
	old, reader := mountable(t), t.TempDir()
	table := Linux{}
	if err := table.Bind(old, reader, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Unmount(reader) })
	entries, err := table.List()
	if err != nil {
		t.Fatal(err)
	}
	lost, _ := At(entries, old)
	process := container(t)
	source := mountable(t)
	if err := os.WriteFile(filepath.Join(source, "file"), []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	release, err := table.Pin(old)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if replaced, err := table.Replace(lost.Device, source); err != nil || replaced != 2 {
		t.Fatalf("replaced %d, %v; want 2", replaced, err)
	}
	for _, path := range []string{old, reader} {
		inside := filepath.Join("/proc", process, "root", path)
		if content, err := os.ReadFile(filepath.Join(inside, "file")); err != nil || string(content) != "new" {
			t.Errorf("the container reads %q, %v at %s", content, err, path)
		}
	}
	if err := os.WriteFile(filepath.Join("/proc", process, "root", reader, "file"), nil, 0o600); err == nil {
		t.Error("what was read-only has become writable")
	}
	if _, err := os.Stat(filepath.Join(old, "file")); err == nil {
		t.Error("the caller's own mounts were replaced, too")
	}
	if err := unix.Access(source, unix.F_OK); err != nil {
		t.Error(err)
	}
}
