package driver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"weir.dev/weir/csi/internal/isolation"
	"weir.dev/weir/csi/sanity"
	"weir.dev/weir/engine/proto/management/dial"
)

const (
	// startLimit bounds how long a program may take to serve; on a busy machine engines take a few seconds.
	startLimit = time.Minute
	// stopLimit bounds how long a program may take to end when it is asked to.
	stopLimit = 30 * time.Second
	// readyLine is how `weir dev up` begins the line that says that everything is up.
	readyLine = "weir dev is up"
)

// machine is a node with a system of three engines beside it: each program runs as its own process. The tests share one,
// since starting it takes seconds.
type machine struct {
	folder     string
	up         bool
	engines    *process
	mountd     *process
	node       *process
	controller *process
	// mountdMetrics and nodeMetrics are where the mount daemon and the node plugin serve metrics.
	mountdMetrics, nodeMetrics string
}

var shared *machine

func TestMain(m *testing.M) {
	isolation.Main(m, func() {
		if shared != nil {
			shared.stop()
		}
	})
}

// process is a program that runs.
type process struct {
	command *exec.Cmd
	log     string
	ended   chan struct{}
}

// start starts a program with its output in a log of the folder. What it prints on standard output goes to lines, too.
func start(folder, name string, lines io.Writer, program string, arguments ...string) (*process, error) {
	p := &process{command: exec.Command(program, arguments...), log: filepath.Join(folder, name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p.command.Stdout, p.command.Stderr = log, log
	if lines != nil {
		p.command.Stdout = lines
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.command.Wait()
		close(p.ended)
	}()
	return p, nil
}

// kill ends a process at once, as the kernel does when memory runs out.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// stop asks a process to end.
func (p *process) stop() {
	if p == nil {
		return
	}
	_ = p.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(stopLimit):
		p.kill()
	}
}

func (p *process) tail() string {
	content, _ := os.ReadFile(p.log)
	return string(content[max(0, len(content)-4096):])
}

func (m *machine) path(name string) string { return filepath.Join(m.folder, name) }

// stop ends what runs, in the order in which a node is taken down.
func (m *machine) stop() {
	for _, p := range []*process{m.node, m.controller, m.mountd, m.engines} {
		p.stop()
	}
	_ = os.RemoveAll(m.folder)
}

// theMachine returns the machine that the tests share, started by the first of them.
func theMachine(t testing.TB) *machine {
	t.Helper()
	if shared != nil {
		if !shared.up {
			t.Fatal("the machine did not start; the first test says why")
		}
		return shared
	}
	// Paths of unix sockets have at most 107 bytes: the folder's is short.
	folder, err := os.MkdirTemp("", "weir-csi-") //nolint:usetesting // it outlives the test that makes it
	if err != nil {
		t.Fatal(err)
	}
	shared = &machine{folder: folder, mountdMetrics: freeAddress(t), nodeMetrics: freeAddress(t)}
	build := exec.Command("go", "build", "-o", shared.path("weir-csi"), "weir.dev/weir/csi/cmd/weir-csi")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build weir-csi: %v\n%s", err, output)
	}
	shared.startEngines(t)
	shared.startMountd(t)
	shared.startNode(t)
	shared.controller, err = start(folder, "controller", nil, shared.path("weir-csi"), "controller",
		"--endpoint", shared.path("controller.sock"), "--attach-dir", shared.path("dev"), "--metrics-address", "", "--log-level", "debug")
	if err != nil {
		t.Fatal(err)
	}
	shared.await(t, shared.controller, "controller.sock")
	shared.up = true
	return shared
}

// freeAddress returns an address of this machine that nobody listens on.
func freeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// program returns the path of a program that cargo builds.
func program(t testing.TB, name string) string {
	t.Helper()
	target := os.Getenv("CARGO_TARGET_DIR")
	if target == "" {
		target = "../../../target"
	}
	path, err := filepath.Abs(filepath.Join(target, "debug", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: build the programs first: cargo build --workspace --bins", err)
	}
	return path
}

// startEngines starts three engines and makes the pool.
func (m *machine) startEngines(t testing.TB) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = write.Close() }()
	m.engines, err = start(m.folder, "engines", write, program(t, "weir"), "dev", "up", "--dir", m.path("dev"),
		"--engines", "3", "--targets", "1", "--size", "4GiB", "--redundancy", "0", "--engine", program(t, "weir-engine"))
	if err != nil {
		t.Fatal(err)
	}
	up := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(read)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), readyLine) {
				up <- true
			}
		}
		up <- false
	}()
	select {
	case ready := <-up:
		if !ready {
			t.Fatalf("weir dev ended:\n%s", m.engines.tail())
		}
	case <-m.engines.ended:
		t.Fatalf("weir dev ended:\n%s", m.engines.tail())
	case <-time.After(startLimit):
		t.Fatalf("the engines did not come up:\n%s", m.engines.tail())
	}
}

func (m *machine) startMountd(t testing.TB) {
	t.Helper()
	var err error
	m.mountd, err = start(m.folder, "mountd", nil, program(t, "weir-mountd"), "--socket", m.path("mountd.sock"),
		"--state", m.path("mountd"), "--attach", m.path("dev"), "--root", m.folder, "--engine-wait", "60",
		"--metrics", m.mountdMetrics)
	if err != nil {
		t.Fatal(err)
	}
}

// startNode starts the node plugin and waits until it is ready, which it is when the mount daemon is.
func (m *machine) startNode(t testing.TB) {
	t.Helper()
	var err error
	m.node, err = start(m.folder, "node", nil, m.path("weir-csi"), "node", "--endpoint", m.path("node.sock"), "--node-name", "node-1",
		"--mountd-socket", m.path("mountd.sock"), "--registration-socket", m.path("reg/csi.weir.dev-reg.sock"),
		"--metrics-address", m.nodeMetrics, "--log-level", "debug")
	if err != nil {
		t.Fatal(err)
	}
	m.await(t, m.node, "node.sock")
}

// await waits until the plugin that serves on socket says that it is ready.
func (m *machine) await(t testing.TB, p *process, socket string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	identity := csi.NewIdentityClient(m.dial(t, socket))
	for {
		probe, err := identity.Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
		if err == nil && probe.GetReady().GetValue() {
			return
		}
		select {
		case <-p.ended:
			t.Fatalf("the plugin ended:\n%s", p.tail())
		case <-ctx.Done():
			t.Fatalf("the plugin at %s is not ready: %v\n%s\n%s", socket, err, p.tail(), m.mountd.tail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (m *machine) dial(t testing.TB, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+m.path(socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// management connects to the engines.
func (m *machine) management(t testing.TB) *dial.System {
	t.Helper()
	system, err := dial.Open(m.path("dev/client.json"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = system.Close() })
	return system
}

// mountServers returns the processes that serve the mount at path.
func mountServers(t testing.TB, path string) []int {
	t.Helper()
	pids, err := isolation.Processes("weir-mountd", "serve", path)
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

// volume is a volume of the machine's pool, staged and published for the length of a test.
type volume struct {
	t       testing.TB
	machine *machine
	id      string
	// name is the container's label.
	name       string
	capability *csi.VolumeCapability
	attributes map[string]string
	targets    []string
	stagings   []string
	// orphaned says that a client was killed that had the volume open, so that it counts as open for a while.
	orphaned bool
}

// ctx returns a context with the time that a call may take.
func (v *volume) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	v.t.Cleanup(cancel)
	return ctx
}

func (v *volume) nodes() csi.NodeClient {
	return csi.NewNodeClient(v.machine.dial(v.t, "node.sock"))
}

func (v *volume) controllers() csi.ControllerClient {
	return csi.NewControllerClient(v.machine.dial(v.t, "controller.sock"))
}

func mountCapability(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

// newVolume makes a volume that is taken down and deleted when the test ends.
func newVolume(t testing.TB, bytes int64) *volume {
	t.Helper()
	return newVolumeOf(t, bytes, map[string]string{"pool": sanity.Pool})
}

// newVolumeOf is newVolume with the parameters of a StorageClass.
func newVolumeOf(t testing.TB, bytes int64, parameters map[string]string) *volume {
	t.Helper()
	v := &volume{
		t: t, machine: theMachine(t), name: "pvc-" + strings.ToLower(t.Name()),
		capability: mountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER),
	}
	made, err := v.controllers().CreateVolume(v.ctx(), &csi.CreateVolumeRequest{
		Name: v.name, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
		VolumeCapabilities: []*csi.VolumeCapability{v.capability}, Parameters: parameters,
	})
	if err != nil {
		t.Fatalf("create volume: %v\n%s", err, v.machine.controller.tail())
	}
	v.id, v.attributes = made.GetVolume().GetVolumeId(), made.GetVolume().GetVolumeContext()
	t.Cleanup(func() {
		v.takeDown()
		_, err := v.controllers().DeleteVolume(v.ctx(), &csi.DeleteVolumeRequest{VolumeId: v.id})
		want := codes.OK
		if v.orphaned {
			want = codes.FailedPrecondition
		}
		if status.Code(err) != want {
			t.Errorf("delete volume: %v, want %v", err, want)
		}
	})
	return v
}

// mount stages the volume at a staging path of its own and publishes it, and returns the path that a pod would see.
func (v *volume) mount(name string, readOnly bool) string {
	v.t.Helper()
	staging, target := v.machine.path(v.name+"-"+name+"-staging"), v.machine.path(v.name+"-"+name)
	if _, err := v.nodes().NodeStageVolume(v.ctx(), &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: staging, VolumeCapability: v.capability, VolumeContext: v.attributes,
	}); err != nil {
		v.t.Fatalf("stage volume: %v\n%s", err, v.machine.mountd.tail())
	}
	v.stagings = append(v.stagings, staging)
	if err := v.publish(staging, target, readOnly); err != nil {
		v.t.Fatal(err)
	}
	return target
}

func (v *volume) publish(staging, target string, readOnly bool) error {
	_, err := v.nodes().NodePublishVolume(v.ctx(), &csi.NodePublishVolumeRequest{
		VolumeId: v.id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: v.capability, Readonly: readOnly,
		VolumeContext: v.attributes,
	})
	if err == nil {
		v.targets = append(v.targets, target)
	}
	return err
}

// takeDown unpublishes and unstages the volume everywhere.
func (v *volume) takeDown() {
	v.t.Helper()
	for _, target := range v.targets {
		if _, err := v.nodes().NodeUnpublishVolume(v.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: target}); err != nil {
			v.t.Errorf("unpublish volume: %v", err)
		}
		if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
			v.t.Errorf("%s is left: %v", target, err)
		}
	}
	for _, staging := range v.stagings {
		if _, err := v.nodes().NodeUnstageVolume(v.ctx(), &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: staging}); err != nil {
			v.t.Errorf("unstage volume: %v", err)
		}
	}
	v.targets, v.stagings = nil, nil
}
