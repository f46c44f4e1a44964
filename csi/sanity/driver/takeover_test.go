package driver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	mountv1 "weir.dev/weir/client/fuse/proto/mount/v1"
	"weir.dev/weir/csi/internal/broker"
	"weir.dev/weir/csi/internal/mounts"
)

// brokered is a mount daemon that mounts by a broker, which runs in the test's process.
type brokered struct {
	t       *testing.T
	machine *machine
	name    string
	daemon  *process
	mounts  mountv1.MountsClient
	stop    func()
}

// startBrokered starts a broker and a daemon with a folder of their own.
func startBrokered(t *testing.T) *brokered {
	t.Helper()
	m := theMachine(t)
	name := fmt.Sprintf("brokered-%d", time.Now().UnixNano()%1_000_000)
	b := &brokered{t: t, machine: m, name: name}
	if err := os.MkdirAll(b.path("root"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.startBroker()
	t.Cleanup(func() { b.stop() })
	b.startDaemon()
	t.Cleanup(func() {
		b.daemon.stop()
		if t.Failed() {
			t.Logf("mount daemon:\n%s", b.daemon.tail())
		}
	})
	conn, err := grpc.NewClient("unix://"+b.path("mountd.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	b.mounts = mountv1.NewMountsClient(conn)
	return b
}

func (b *brokered) path(name string) string { return b.machine.path(filepath.Join(b.name, name)) }

func (b *brokered) startBroker() {
	b.t.Helper()
	log, err := os.OpenFile(b.path("broker.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		b.t.Fatal(err)
	}
	server, err := broker.New(slog.New(slog.NewTextHandler(log, nil)), []string{b.path("root")}, []uint32{0})
	if err != nil {
		b.t.Fatal(err)
	}
	listener, err := broker.Listen(b.path("broker.sock"))
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener) }()
	b.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
		server.Close()
		_ = log.Close()
		b.stop = func() {}
	}
}

func (b *brokered) startDaemon() {
	b.t.Helper()
	var err error
	b.daemon, err = start(b.path(""), "mountd", nil, program(b.t, "weir-mountd"), "--socket", b.path("mountd.sock"),
		"--state", b.path("mountd"), "--attach", b.machine.path("dev"), "--root", b.path("root"), "--engine-wait", "60",
		"--broker", b.path("broker.sock"))
	if err != nil {
		b.t.Fatal(err)
	}
}

// mount mounts a new container and returns the path.
func (b *brokered) mount(container string) string {
	b.t.Helper()
	v := newVolume(b.t, 512*mebibyte)
	v.orphaned = true
	return b.mountAt(v, container)
}

// mountAt mounts a container at a path below the root.
func (b *brokered) mountAt(v *volume, name string) string {
	b.t.Helper()
	target := filepath.Join(b.path("root"), name)
	if err := os.MkdirAll(target, 0o755); err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	b.t.Cleanup(cancel)
	request := &mountv1.MountRequest{Pool: "tank", Container: v.name, TargetPath: target, Volume: v.id}
	if _, err := b.mounts.Mount(ctx, request, grpc.WaitForReady(true)); err != nil {
		b.t.Fatalf("mount: %v\n%s", err, b.daemon.tail())
	}
	b.guard(target)
	b.t.Cleanup(func() {
		if _, err := b.mounts.Unmount(context.Background(), &mountv1.UnmountRequest{TargetPath: target}); err != nil {
			b.t.Errorf("unmount: %v", err)
		}
	})
	return target
}

// testLimit bounds a test of this file.
const testLimit = 2 * time.Minute

// guard ends the mount at path when the test takes too long. Who waits for a mount that nobody serves can't be killed: the test, and
// whoever looks at its processes, would wait for ever.
func (b *brokered) guard(path string) {
	b.t.Helper()
	entries, err := mounts.Linux{}.List()
	if err != nil {
		b.t.Fatal(err)
	}
	entry, ok := mounts.At(entries, path)
	_, connection, isDevice := strings.Cut(entry.Device, ":")
	if !ok || !isDevice {
		b.t.Fatalf("no mount at %s", path)
	}
	control := b.path("connections-" + connection)
	if err := errors.Join(os.MkdirAll(control, 0o755), unix.Mount("none", control, "fusectl", 0, "")); err != nil {
		b.t.Fatal(err)
	}
	abort := time.AfterFunc(testLimit, func() {
		// It may have gone by itself.
		_ = os.WriteFile(filepath.Join(control, connection, "abort"), []byte("1"), 0)
	})
	b.t.Cleanup(func() {
		abort.Stop()
		if err := unix.Unmount(control, unix.MNT_DETACH); err != nil {
			b.t.Error(err)
		}
	})
}

// server returns the process that serves the mount at path.
func (b *brokered) server(path string) int {
	b.t.Helper()
	var pids []int
	b.eventually("one process serves "+path, func() bool {
		pids = mountServers(b.t, path)
		return len(pids) == 1
	})
	return pids[0]
}

func (b *brokered) eventually(what string, is func() bool) {
	b.t.Helper()
	for end := time.Now().Add(startLimit); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("not within %s: %s\n%s", startLimit, what, b.daemon.tail())
		}
	}
}

// killServer kills the process that serves the mount at path, and waits for another one.
func (b *brokered) killServer(path string) {
	b.t.Helper()
	old := b.server(path)
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
	b.eventually("a successor of the process", func() bool {
		pids := mountServers(b.t, path)
		return len(pids) == 1 && pids[0] != old
	})
}

func write(t *testing.T, file *os.File, text string) {
	t.Helper()
	if _, err := file.WriteString(text); err != nil {
		t.Errorf("write to %s: %v", file.Name(), err)
	}
}

func content(t *testing.T, file *os.File) string {
	t.Helper()
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		t.Error(err)
	}
	all, err := io.ReadAll(file)
	if err != nil {
		t.Errorf("read %s: %v", file.Name(), err)
	}
	return string(all)
}

// What is open stays open when the process is killed that serves the mount: files, their locks, a removed file, a directory that
// is being listed, a working directory.
func TestWhatIsOpenOutlivesTheProcessOfItsMount(t *testing.T) {
	b := startBrokered(t)
	mount := b.mount("open")
	folder := filepath.Join(mount, "folder")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("file-%03d", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("folder", filepath.Join(mount, "link")); err != nil {
		t.Fatal(err)
	}
	open := func(name string) *os.File {
		file, err := os.OpenFile(filepath.Join(mount, name), os.O_RDWR|os.O_CREATE, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		return file
	}
	kept, removed, renamed := open("kept"), open("removed"), open("old")
	for _, file := range []*os.File{kept, removed, renamed} {
		write(t, file, "before ")
	}
	if err := unix.Flock(int(kept.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(removed.Name()), os.Rename(renamed.Name(), filepath.Join(mount, "new"))); err != nil {
		t.Fatal(err)
	}
	listing, err := os.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listing.Close() }()
	first, err := listing.Readdirnames(10)
	if err != nil {
		t.Fatal(err)
	}

	for round := range 2 {
		b.killServer(mount)
		for _, file := range []*os.File{kept, removed, renamed} {
			write(t, file, fmt.Sprint(round, " "))
			if got, want := content(t, file), "before 0 1 "[:9+2*round]; got != want {
				t.Errorf("round %d: %s has %q, want %q", round, file.Name(), got, want)
			}
		}
		if target, err := os.Readlink(filepath.Join(mount, "link")); err != nil || target != "folder" {
			t.Errorf("the link leads to %q: %v", target, err)
		}
		if second, err := os.OpenFile(kept.Name(), os.O_RDWR, 0); err != nil {
			t.Error(err)
		} else {
			if err := unix.Flock(int(second.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
				t.Errorf("a lock that is held: %v, want EWOULDBLOCK", err)
			}
			_ = second.Close()
		}
	}
	rest, err := listing.Readdirnames(-1)
	if err != nil || len(first)+len(rest) != 500 {
		t.Errorf("listed %d and %d names of 500: %v", len(first), len(rest), err)
	}
	if got, err := os.ReadFile(filepath.Join(mount, "new")); err != nil || string(got) != "before 0 1 " {
		t.Errorf("the renamed file has %q: %v", got, err)
	}
}

// blockSize is what writers write at a time.
const blockSize = 16 << 10

// block is what a writer writes at a place, different from place to place and from pass to pass.
func block(writer, number, pass uint64) []byte {
	var seed [24]byte
	for i, value := range []uint64{writer, number, pass} {
		binary.LittleEndian.PutUint64(seed[8*i:], value)
	}
	sum := sha256.Sum256(seed[:])
	return bytes.Repeat(sum[:], blockSize/len(sum))
}

// writer writes and reads back until told to stop, makes names and removes them, and returns the longest call.
func writer(mount string, number uint64, stop *atomic.Bool) (longest time.Duration, calls int, err error) {
	const blocks = 64
	timed := func(call func() error) error {
		began := time.Now()
		err := call()
		longest, calls = max(longest, time.Since(began)), calls+1
		return err
	}
	var file *os.File
	err = timed(func() error {
		file, err = os.OpenFile(filepath.Join(mount, fmt.Sprint("writer-", number)), os.O_RDWR|os.O_CREATE, 0o600)
		return err
	})
	if err != nil {
		return longest, calls, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	got := make([]byte, blockSize)
	for pass := uint64(0); !stop.Load(); pass++ {
		for at := range uint64(blocks) {
			if err := timed(func() error { _, err := file.WriteAt(block(number, at, pass), int64(at*blockSize)); return err }); err != nil {
				return longest, calls, fmt.Errorf("write %d of pass %d: %w", at, pass, err)
			}
		}
		if err := timed(file.Sync); err != nil {
			return longest, calls, fmt.Errorf("sync of pass %d: %w", pass, err)
		}
		for at := range uint64(blocks) {
			if err := timed(func() error { _, err := file.ReadAt(got, int64(at*blockSize)); return err }); err != nil {
				return longest, calls, fmt.Errorf("read %d of pass %d: %w", at, pass, err)
			}
			if !bytes.Equal(got, block(number, at, pass)) {
				return longest, calls, fmt.Errorf("block %d of pass %d is not what was written", at, pass)
			}
		}
	}
	return longest, calls, nil
}

// Writers that verify what they wrote see no error while the process of their mount is killed again and again.
func TestWritersSeeNoErrorWhenTheProcessOfTheirMountIsKilled(t *testing.T) {
	b := startBrokered(t)
	mount := b.mount("writers")
	const writers, kills = 4, 5
	var (
		stop    atomic.Bool
		group   sync.WaitGroup
		mu      sync.Mutex
		longest time.Duration
		calls   int
	)
	for number := range uint64(writers) {
		group.Go(func() {
			slowest, made, err := writer(mount, number, &stop)
			mu.Lock()
			defer mu.Unlock()
			longest, calls = max(longest, slowest), calls+made
			if err != nil {
				t.Errorf("writer %d: %v", number, err)
			}
		})
	}
	for range kills {
		time.Sleep(300 * time.Millisecond)
		b.killServer(mount)
	}
	stop.Store(true)
	group.Wait()
	t.Logf("%d calls over %d kills without an error; the longest took %s", calls, kills, longest)
}

// A daemon that is killed with all processes of its mounts, as a container is, goes on with them when it starts again; and so does
// a broker that is restarted meanwhile.
func TestMountsOutliveTheirDaemonAndTheirBroker(t *testing.T) {
	b := startBrokered(t)
	mount := b.mount("daemon")
	path := filepath.Join(mount, "file")
	// In a process of its own: each process that starts another one has a copy of its open files closed on the way, which waits for the
	// mount, so that this one could not start the daemon.
	writer := exec.Command("sh", "-c", `exec 3>"$0"; printf 'first ' >&3; echo; read -r _; printf second >&3`, path)
	tell, err := writer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	told, err := writer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := told.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	b.stop()
	b.startBroker()
	list := broker.NewTable(b.path("broker.sock"))
	b.eventually("the broker has the mount again", func() bool {
		held, err := list.Held()
		return err == nil && len(held) == 1 && held[0] == mount
	})
	server := b.server(mount)
	b.daemon.kill()
	if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := tell.Close(); err != nil {
		t.Error(err)
	}
	b.startDaemon()
	if err := writer.Wait(); err != nil {
		t.Errorf("the writer of a mount that nobody served for a while: %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "first second" {
		t.Errorf("the file has %q: %v", got, err)
	}
}

// A mount whose descriptors nobody has any more, since broker and daemon were killed at once, is said to be dead, so that it is made
// again: nobody waits for a successor.
func TestAMountThatNobodyHasAnyMoreIsDead(t *testing.T) {
	b := startBrokered(t)
	mount := b.mount("nobody")
	server := b.server(mount)
	b.daemon.kill()
	if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.stop()
	b.startBroker()
	b.startDaemon()
	b.eventually("the daemon lists the mount as dead", func() bool {
		list, err := b.mounts.List(t.Context(), &mountv1.ListRequest{}, grpc.WaitForReady(true))
		return err == nil && len(list.GetMounts()) == 1 && list.GetMounts()[0].GetHealth() == mountv1.MountHealth_MOUNT_HEALTH_DEAD
	})
	if _, err := os.Stat(mount); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("look at it: %v, want ENOTCONN", err)
	}
}
