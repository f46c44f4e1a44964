package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/csi/internal/isolation"
	"weir.dev/weir/csi/internal/mounts"
)

func TestMain(m *testing.M) { isolation.Main(m, func() {}) }

// bench is a broker with one folder, and a connection to it.
type bench struct {
	t      *testing.T
	root   string
	socket string
	stop   func()
	conn   *net.UnixConn
}

// start starts a broker for users of these ids on a folder.
func start(t *testing.T, root string, users ...uint32) *bench {
	t.Helper()
	server, err := New(slog.New(slog.DiscardHandler), []string{root}, users)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, root: root, socket: filepath.Join(t.TempDir(), "broker.sock")}
	listener, err := Listen(b.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener) }()
	b.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		server.Close()
		b.stop = func() {}
	}
	t.Cleanup(func() { b.stop() })
	b.conn, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: b.socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.conn.Close() })
	return b
}

func (b *bench) ask(verb string, fields ...string) (packet, error) {
	return b.askWith(nil, verb, fields...)
}

func (b *bench) askWith(descriptors []int, verb string, fields ...string) (packet, error) {
	return exchange(b.conn, packet{fields: append([]string{version, verb}, fields...), descriptors: descriptors})
}

// folder makes a folder below the root.
func (b *bench) folder(name string) string {
	b.t.Helper()
	path := filepath.Join(b.root, name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// mounted mounts at a folder below the root and serves the mount. It returns the path and the descriptors.
func (b *bench) mounted(name string) (string, []int) {
	b.t.Helper()
	path := b.folder(name)
	answer, err := b.ask("mount", path, "weir:tank/home", "")
	if err != nil {
		b.t.Fatal(err)
	}
	if len(answer.descriptors) != 2 || len(answer.fields) != 1 {
		b.t.Fatalf("the answer has %d descriptors and fields %q", len(answer.descriptors), answer.fields)
	}
	b.t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return path, answer.descriptors
}

func (b *bench) states() []string {
	b.t.Helper()
	if err := send(b.conn, packet{fields: []string{version, "list"}}); err != nil {
		b.t.Fatal(err)
	}
	head, err := receive(b.conn)
	if err != nil || len(head.fields) != 2 || head.fields[0] != "ok" {
		b.t.Fatalf("list: %v %v", head, err)
	}
	var states []string
	for range int(head.fields[1][0] - '0') {
		entry, err := receive(b.conn)
		if err != nil || len(entry.fields) != 3 {
			b.t.Fatalf("entry of the list: %v %v", entry, err)
		}
		states = append(states, strings.TrimPrefix(entry.fields[0], b.root)+" "+entry.fields[2])
	}
	slices.Sort(states)
	return states
}

func refused(t *testing.T, what string, err error, errno unix.Errno) {
	t.Helper()
	if !errors.Is(err, errno) {
		t.Errorf("%s: %v, want %v", what, err, errno)
	}
}

func TestAMountIsMadeShownAndTakenAway(t *testing.T) {
	b := start(t, t.TempDir(), 0)
	path, descriptors := b.mounted("staging")
	ended := serveFUSE(t, descriptors[0])
	if entry, ok, err := topmost(path); err != nil || !ok || entry.FSType != FileSystemType || !strings.Contains(entry.Options, "nosuid,nodev") {
		t.Fatalf("mounted %+v %t %v", entry, ok, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	// As a container's runtime may show it.
	if err := unix.Mount("", "/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ask("ready", path); err != nil {
		t.Error(err)
	}
	if ahead, err := os.ReadFile("/sys/class/bdi/" + deviceOf(t, path) + "/read_ahead_kb"); err != nil || string(ahead) != "2048\n" {
		t.Errorf("read-ahead is %q KiB: %v", ahead, err)
	}
	table, target := NewTable(b.socket), b.folder("pod")
	for _, readOnly := range []bool{true, false} {
		if err := table.Bind(path, target, readOnly); err != nil {
			t.Fatal(err)
		}
		if entry, _, err := topmost(target); err != nil || entry.ReadOnly != readOnly || entry.Device != deviceOf(t, path) {
			t.Fatalf("bound %+v, want read-only %t: %v", entry, readOnly, err)
		}
		if readOnly {
			if err := table.Unmount(target); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := table.Restrict(target); err != nil {
		t.Fatal(err)
	}
	if entry, _, _ := topmost(target); !entry.ReadOnly || !strings.Contains(entry.Options, "nosuid") {
		t.Errorf("restricted %+v", entry)
	}
	if got, want := b.states(), []string{"/pod lost", "/staging held"}; !slices.Equal(got, want) {
		t.Errorf("list %q, want %q", got, want)
	}
	for _, each := range []string{target, path} {
		if err := table.Unmount(each); err != nil {
			t.Fatal(err)
		}
		if err := table.Unmount(each); !errors.Is(err, mounts.ErrNotMounted) {
			t.Errorf("unmount %s again: %v", each, err)
		}
	}
	<-ended
	if _, err := b.ask("take", path); !errors.Is(err, unix.ESTALE) {
		t.Errorf("take what is gone: %v", err)
	}
}

func deviceOf(t *testing.T, path string) string {
	t.Helper()
	entry, _, err := topmost(path)
	if err != nil {
		t.Fatal(err)
	}
	return entry.Device
}

// A process that serves a mount dies with a request unanswered. Nothing fails: its successor answers.
func TestASuccessorTakesTheMountWithWhatIsUnanswered(t *testing.T) {
	b := start(t, t.TempDir(), 0)
	path, first := b.mounted("staging")
	init, ok := nextRequest(t, first[0])
	if !ok || init.opcode != opInit {
		t.Fatalf("the first request is %+v", init)
	}
	answerOne(t, first[0], init)
	if _, err := unix.Pwrite(first[1], []byte("unsent"), 4096); err != nil {
		t.Fatal(err)
	}
	looked := make(chan error, 1)
	go func() {
		_, err := os.Stat(path)
		looked <- err
	}()
	asked, ok := nextRequest(t, first[0])
	if !ok || asked.opcode != opGetattr {
		t.Fatalf("the second request is %+v", asked)
	}
	_, _ = unix.Close(first[0]), unix.Close(first[1])

	answer, err := b.ask("take", path)
	if err != nil {
		t.Fatal(err)
	}
	second := answer.descriptors
	kept := make([]byte, 6)
	if _, err := unix.Pread(second[1], kept, 4096); err != nil || string(kept) != "unsent" {
		t.Errorf("the memory has %q: %v", kept, err)
	}
	notice := make([]byte, outHeader)
	binary.LittleEndian.PutUint32(notice, outHeader)
	binary.LittleEndian.PutUint32(notice[4:], notifyResend)
	if _, err := unix.Write(second[0], notice); errors.Is(err, unix.EINVAL) {
		t.Skip("the kernel sends nothing again (Linux 6.9 does)")
	} else if err != nil {
		t.Fatal(err)
	}
	again, ok := nextRequest(t, second[0])
	if !ok || again.opcode != opGetattr || again.unique != asked.unique|resent {
		t.Fatalf("%+v was sent again as %+v", asked, again)
	}
	answerOne(t, second[0], again)
	ended := serveFUSE(t, second[0])
	if err := <-looked; err != nil {
		t.Errorf("the look that was under way: %v", err)
	}
	if _, err := os.ReadDir(b.root); err != nil {
		t.Error(err)
	}
	if _, err := b.ask("unmount", path, "clean"); err != nil {
		t.Fatal(err)
	}
	<-ended
}

func TestARestartedBrokerTakesMountsBack(t *testing.T) {
	root := t.TempDir()
	b := start(t, root, 0)
	path, descriptors := b.mounted("staging")
	ended := serveFUSE(t, descriptors[0])
	b.stop()

	b = start(t, root, 0)
	if got := b.states(); !slices.Equal(got, []string{"/staging lost"}) {
		t.Fatalf("list %q", got)
	}
	_, err := b.ask("take", path)
	refused(t, "take before it is given", err, unix.ESTALE)
	_, err = b.askWith([]int{descriptors[1], descriptors[1]}, "give", path)
	refused(t, "give a memory file for the device", err, unix.EINVAL)
	_, err = b.askWith([]int{descriptors[0], descriptors[0]}, "give", path)
	refused(t, "give a device for the memory file", err, unix.EINVAL)
	_, err = b.askWith(descriptors, "give", b.folder("nothing"))
	refused(t, "give for what is not mounted", err, unix.EINVAL)
	if _, err = b.askWith(descriptors, "give", path); err != nil {
		t.Fatal(err)
	}
	_, err = b.askWith(descriptors, "give", path)
	refused(t, "give twice", err, unix.EEXIST)
	if got := b.states(); !slices.Equal(got, []string{"/staging held"}) {
		t.Fatalf("list %q", got)
	}
	if _, err := b.ask("take", path); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	if _, err := b.ask("unmount", path, "detach"); err != nil {
		t.Fatal(err)
	}
	<-ended
}

func TestHostileRequestsAreRefused(t *testing.T) {
	b := start(t, t.TempDir(), 0)
	outside, foreign := t.TempDir(), b.folder("foreign")
	path, descriptors := b.mounted("staging")
	serveFUSE(t, descriptors[0])
	if err := unix.Mount("weir-test", foreign, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(foreign, unix.MNT_DETACH) })
	link := filepath.Join(b.root, "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	inner := b.folder("inner")
	if err := os.Symlink(inner, filepath.Join(b.root, "near")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(b.root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for target, errno := range map[string]unix.Errno{
		outside: unix.EPERM, "/": unix.EPERM, b.root: unix.EPERM, b.root + "x/y": unix.EPERM, "inner": unix.EINVAL, "": unix.EINVAL,
		b.root + "/inner/../../etc": unix.EINVAL, b.root + "//inner": unix.EINVAL, b.root + "/" + strings.Repeat("a/", 2100): unix.EINVAL,
		link: unix.ELOOP, filepath.Join(link, "x"): unix.ELOOP, filepath.Join(b.root, "near"): unix.ELOOP,
		file: unix.ENOTDIR, filepath.Join(b.root, "absent"): unix.ENOENT, foreign: unix.EEXIST, path: unix.EEXIST,
	} {
		_, err := b.ask("mount", target, "weir:a/b", "")
		refused(t, "mount at "+target, err, errno)
	}
	for name, request := range map[string][]string{
		"an option":      {"mount", inner, "weir:a/b", "suid"},
		"options":        {"mount", inner, "weir:a/b", "ro,fd=3"},
		"no source":      {"mount", inner, "", ""},
		"a long source":  {"mount", inner, strings.Repeat("s", sourceMax+1), ""},
		"a mode":         {"bind", path, inner, "shared"},
		"another mode":   {"unmount", path, "force"},
		"what is absent": {"unmount", inner, "clean"},
	} {
		_, err := b.ask(request[0], request[1:]...)
		refused(t, name, err, unix.EINVAL)
	}
	for name, request := range map[string][]string{
		"bind what isn't Weir's":       {"bind", foreign, inner, "rw"},
		"restrict what isn't Weir's":   {"restrict", foreign},
		"unmount what isn't Weir's":    {"unmount", foreign, "detach"},
		"replace by what isn't Weir's": {"replace", "0:1", foreign},
		"bind to the outside":          {"bind", path, outside, "rw"},
		"announce what isn't Weir's":   {"ready", foreign},
		"unmount outside":              {"unmount", "/proc", "detach"},
	} {
		_, err := b.ask(request[0], request[1:]...)
		refused(t, name, err, unix.EPERM)
	}
	_, err := b.ask("bind", path, link, "rw")
	refused(t, "bind at a link", err, unix.ELOOP)
	_, err = b.ask("unmount", filepath.Join(link, "x"), "clean")
	refused(t, "unmount behind a link", err, unix.ELOOP)
	for _, request := range [][]string{{"give", path}, {"take"}, {"take", path, "more"}, {"exec", "sh"}, {""}} {
		_, err := b.ask(request[0], request[1:]...)
		refused(t, strings.Join(request, " "), err, unix.EBADMSG)
	}
	_, err = b.askWith([]int{0}, "take", path)
	refused(t, "a descriptor too many", err, unix.EBADMSG)
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the mount has suffered: %v", err)
	}
}

func TestMalformedPacketsEndTheConversation(t *testing.T) {
	b := start(t, t.TempDir(), 0)
	for name, data := range map[string]string{
		"too many fields": strings.Repeat("x\x00", fieldsMax+2), "too long": strings.Repeat("x", packetMax+1),
	} {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: b.socket, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(data)); err != nil {
			t.Fatal(err)
		}
		if answer, err := receive(conn); err != nil || answer.fields[0] != "error" {
			t.Errorf("%s: %v %v", name, answer, err)
		}
		if _, err := receive(conn); !errors.Is(err, net.ErrClosed) && err == nil {
			t.Errorf("%s: the broker still listens", name)
		}
		_ = conn.Close()
	}
	_, err := exchange(b.conn, packet{fields: []string{"2", "list"}})
	refused(t, "another version", err, unix.EPROTONOSUPPORT)
}

func TestOnlyUsersThatMayAskGetAnswers(t *testing.T) {
	b := start(t, t.TempDir(), 12345)
	_, err := b.ask("list")
	refused(t, "a peer of another user", err, unix.EPERM)
}
