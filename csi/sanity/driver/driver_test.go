// Package driver tests the CSI driver as it runs on a node: its programs, the mount daemon and three engines, each a
// process of its own, with files in the volumes. It needs /dev/fuse and the programs that cargo builds.
package driver

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir.dev/weir/csi/internal/mounts"
	"weir.dev/weir/csi/sanity"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

const mebibyte = 1 << 20

func TestSanityOfTheDriver(t *testing.T) {
	m := theMachine(t)
	sanity.Run(t, m.path("node.sock"), m.path("controller.sock"), m.path("sanity"))
	if t.Failed() {
		t.Logf("node plugin:\n%s\nmount daemon:\n%s\ncontroller:\n%s", m.node.tail(), m.mountd.tail(), m.controller.tail())
	}
	entries, err := mounts.Linux{}.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if filepath.Dir(entry.Path) == m.path("sanity") {
			t.Errorf("a mount is left: %+v", entry)
		}
	}
}

// pattern returns bytes that differ from place to place.
func pattern(length int) []byte {
	content := make([]byte, length)
	for i := range content {
		content[i] = byte(i*7 + i>>8)
	}
	return content
}

func TestWhatOneNodeWritesAnotherReads(t *testing.T) {
	v := newVolume(t, 256*mebibyte)
	// Two staging paths have two FUSE mounts, as two nodes do.
	first, second := v.mount("first", false), v.mount("second", false)
	content := pattern(3*mebibyte + 17)
	if err := os.WriteFile(filepath.Join(first, "file"), content, 0o640); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(second, "file"))
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("read %d bytes, %v; want the %d that were written", len(got), err, len(content))
	}
}

func TestAReadOnlyVolumeRefusesWrites(t *testing.T) {
	v := newVolume(t, 64*mebibyte)
	writable, readOnly := v.mount("writable", false), v.mount("read-only", true)
	if err := os.WriteFile(filepath.Join(writable, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(filepath.Join(readOnly, "file")); err != nil {
		t.Errorf("read: %v", err)
	}
	if err := os.WriteFile(filepath.Join(readOnly, "other"), []byte("x"), 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write: %v, want EROFS", err)
	}
}

func TestANewVolumeOfAFewBytesIsMountedReadOnlyFirst(t *testing.T) {
	v := newVolume(t, 1)
	readOnly := v.mount("read-only", true)
	if entries, err := os.ReadDir(readOnly); err != nil || len(entries) != 0 {
		t.Errorf("a new volume has %v, %v; want nothing", entries, err)
	}
	if err := os.WriteFile(filepath.Join(readOnly, "file"), []byte("x"), 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write: %v, want EROFS", err)
	}
	if err := os.WriteFile(filepath.Join(v.mount("writable", false), "file"), []byte("x"), 0o600); err != nil {
		t.Errorf("write through another mount: %v", err)
	}
}

func TestThePodsGroupOwnsTheVolume(t *testing.T) {
	const group = 2000
	v := newVolume(t, 64*mebibyte)
	v.capability.GetMount().VolumeMountGroup = "2000"
	target := v.mount("pod", false)
	if err := os.WriteFile(filepath.Join(target, "file"), []byte("x"), 0o660); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{target: os.ModeSetgid | 0o070, filepath.Join(target, "file"): 0o040} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t).Gid; owner != group || info.Mode()&mode != mode {
			t.Errorf("%s has group %d and mode %v, want group %d and at least %v", path, owner, info.Mode(), group, mode)
		}
	}
}

func TestAVolumeWithTheAttributeShowsPodsTheLibraryThatPassesIt(t *testing.T) {
	v := newVolumeOf(t, 64*mebibyte, map[string]string{"pool": sanity.Pool, "intercept": "true"})
	target := v.mount("pod", true)
	for _, name := range []string{"libweir_intercept.so", "libpil4dfs.so"} {
		library := filepath.Join(target, ".weir", name)
		content, err := os.ReadFile(library)
		if err != nil || !bytes.HasPrefix(content, []byte("\x7fELF")) {
			t.Fatalf("%s: %v, %d bytes", library, err, len(content))
		}
		command := exec.CommandContext(t.Context(), "cat", "/etc/hostname")
		command.Env = append(os.Environ(), "LD_PRELOAD="+library)
		if said, err := command.CombinedOutput(); err != nil || bytes.Contains(said, []byte("preload")) {
			t.Errorf("a program with %s: %v, %s", name, err, said)
		}
	}
	if entries, err := os.ReadDir(target); err != nil || len(entries) != 0 {
		t.Errorf("the volume has %v, %v; want nothing of its own", entries, err)
	}
}

func TestUnknownMountOptionsAreRefusedByName(t *testing.T) {
	v := newVolume(t, 64*mebibyte)
	v.capability.GetMount().MountFlags = []string{"nodev", "sync"}
	_, err := v.nodes().NodeStageVolume(v.ctx(), &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.machine.path(v.name), VolumeCapability: v.capability,
	})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `"sync"`) {
		t.Errorf("got %v, want InvalidArgument that names the option", err)
	}
}

// fill writes MiB after MiB to a file until an error, and returns how many it wrote, and the error.
func fill(path string, most int) (int, error) {
	file, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	block := pattern(mebibyte)
	for written := range most {
		if _, err := file.Write(block); err != nil {
			return written, errors.Join(err, file.Close())
		}
		if err := file.Sync(); err != nil {
			return written, errors.Join(err, file.Close())
		}
	}
	return most, file.Close()
}

func TestAFullVolumeGivesENOSPCUntilSomethingIsDeletedOrItGrows(t *testing.T) {
	const size = 48
	v := newVolume(t, size*mebibyte)
	target := v.mount("pod", false)
	written, err := fill(filepath.Join(target, "first"), 2*size)
	if !errors.Is(err, syscall.ENOSPC) || written < size/2 || written > size {
		t.Fatalf("wrote %d MiB to a volume of %d MiB until %v, want ENOSPC when it is full", written, size, err)
	}
	if err := os.Remove(filepath.Join(target, "first")); err != nil {
		t.Fatalf("delete in a full volume: %v", err)
	}
	deadline := time.Now().Add(startLimit)
	for {
		written, err = fill(filepath.Join(target, "second"), size/2)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.ENOSPC) || time.Now().After(deadline) {
			t.Fatalf("after the deletion %d MiB could be written until %v", written, err)
		}
		time.Sleep(time.Second)
	}
	if _, err := v.controllers().ControllerExpandVolume(v.ctx(), &csi.ControllerExpandVolumeRequest{
		VolumeId: v.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 3 * size * mebibyte},
	}); err != nil {
		t.Fatal(err)
	}
	stats, err := v.nodes().NodeGetVolumeStats(v.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: target})
	if err != nil || stats.GetUsage()[0].GetTotal() != 3*size*mebibyte {
		t.Errorf("after it grew the volume has %v, %v; want %d bytes", stats.GetUsage(), err, 3*size*mebibyte)
	}
	if written, err := fill(filepath.Join(target, "third"), size); err != nil {
		t.Errorf("after it grew %d MiB could be written until %v", written, err)
	}
}

func TestRestartingTheNodePluginDisturbsNoWriter(t *testing.T) {
	v := newVolume(t, 256*mebibyte)
	target := v.mount("pod", false)
	file, err := os.Create(filepath.Join(target, "log"))
	if err != nil {
		t.Fatal(err)
	}
	stop, result := make(chan struct{}), make(chan error, 1)
	records := 0
	go func() {
		record := pattern(4096)
		for {
			select {
			case <-stop:
				result <- file.Close()
				return
			default:
			}
			if _, err := file.Write(record); err != nil {
				result <- err
				return
			}
			if err := file.Sync(); err != nil {
				result <- err
				return
			}
			records++
		}
	}()
	for range 3 {
		v.machine.node.kill()
		v.machine.startNode(t)
	}
	close(stop)
	if err := <-result; err != nil {
		t.Fatalf("the writer got an error after %d records: %v", records, err)
	}
	if info, err := os.Stat(filepath.Join(target, "log")); err != nil || info.Size() != int64(records)*4096 || records == 0 {
		t.Errorf("the file has %v, %v; want %d records", info, err, records)
	}
	// The plugin knows what was mounted before its restart.
	wantRefusal := v.capability
	v.capability = mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)
	if err := v.publish(v.stagings[0], target+"-2", false); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("publishing for a second pod gave %v, want FailedPrecondition", err)
	}
	v.capability = wantRefusal
}

func TestRestartingTheMountDaemonDisturbsNoMount(t *testing.T) {
	v := newVolume(t, 64*mebibyte)
	target := v.mount("pod", false)
	v.machine.mountd.kill()
	if err := os.WriteFile(filepath.Join(target, "without"), []byte("x"), 0o600); err != nil {
		t.Errorf("write while no daemon runs: %v", err)
	}
	v.machine.startMountd(t)
	v.machine.await(t, v.machine.node, "node.sock")
	if err := os.WriteFile(filepath.Join(target, "with"), []byte("x"), 0o600); err != nil {
		t.Errorf("write after the daemon's restart: %v", err)
	}
}

func TestADeadMountIsRepairedForTheNextPodAndCanBeTakenDown(t *testing.T) {
	v := newVolume(t, 64*mebibyte)
	target := v.mount("pod", false)
	if err := os.WriteFile(filepath.Join(target, "file"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	servers := mountServers(t, v.stagings[0])
	if len(servers) == 0 {
		t.Fatalf("no process serves %s", v.stagings[0])
	}
	for _, pid := range servers {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	v.orphaned = true
	if _, err := (mounts.Linux{}).Usage(target); !mounts.Dead(err) {
		t.Fatalf("the mount is not dead: %v", err)
	}
	if err := v.publish(v.stagings[0], target+"-2", false); err != nil {
		t.Fatalf("publish for another pod: %v\n%s", err, v.machine.mountd.tail())
	}
	if content, err := os.ReadFile(filepath.Join(target+"-2", "file")); err != nil || string(content) != "kept" {
		t.Errorf("the other pod reads %q, %v", content, err)
	}
	// The first pod's mount is dead still; taking everything down, at the end of the test, must succeed.
}

func TestAStaticVolumeIsNamedByItsLabelsAndOutlivesItsPersistentVolume(t *testing.T) {
	m := theMachine(t)
	system := m.management(t)
	v := &volume{t: t, machine: m, name: "static", capability: mountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)}
	if _, err := system.Containers().Create(v.ctx(), &managementv1.ContainerCreateRequest{
		Pool: sanity.Pool, Label: "static", Type: managementv1.ContainerType_CONTAINER_TYPE_POSIX, QuotaBytes: 64 * mebibyte,
	}); err != nil {
		t.Fatal(err)
	}
	v.id = system.Attachment().System + "/" + sanity.Pool + "/static"
	target := v.mount("pod", false)
	if err := os.WriteFile(filepath.Join(target, "file"), []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
	v.takeDown()
	// Engines find it equal to what is asked for.
	if made, err := v.controllers().CreateVolume(v.ctx(), &csi.CreateVolumeRequest{
		Name: "static", Parameters: map[string]string{"pool": sanity.Pool}, CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mebibyte},
		VolumeCapabilities: []*csi.VolumeCapability{v.capability},
	}); status.Code(err) != codes.AlreadyExists {
		t.Errorf("it became a volume: %v, %v", made, err)
	}
	if _, err := v.controllers().DeleteVolume(v.ctx(), &csi.DeleteVolumeRequest{VolumeId: v.id}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("deleting it gave %v, want FailedPrecondition", err)
	}
	if _, err := system.Containers().Destroy(v.ctx(), &managementv1.ContainerDestroyRequest{Pool: sanity.Pool, Container: "static"}); err != nil {
		t.Errorf("destroy the container: %v", err)
	}
}

func TestDeletingAVolumeReturnsItsSpace(t *testing.T) {
	v := newVolume(t, 256*mebibyte)
	target := v.mount("pod", false)
	free := func() int64 {
		answer, err := v.controllers().GetCapacity(v.ctx(), &csi.GetCapacityRequest{Parameters: map[string]string{"pool": sanity.Pool}})
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetAvailableCapacity()
	}
	before := free()
	const size = 96
	if written, err := fill(filepath.Join(target, "file"), size); err != nil {
		t.Fatalf("wrote %d MiB: %v", written, err)
	}
	if taken := before - free(); taken < size*mebibyte {
		t.Errorf("%d bytes were taken, want at least %d", taken, size*mebibyte)
	}
	v.takeDown()
	begin := time.Now()
	if _, err := v.controllers().DeleteVolume(v.ctx(), &csi.DeleteVolumeRequest{VolumeId: v.id}); err != nil {
		t.Fatal(err)
	}
	t.Logf("deleted %d MiB in %v", size, time.Since(begin))
	deadline := time.Now().Add(startLimit)
	// A twentieth may remain in metadata and rounding.
	for before-free() > size*mebibyte/20 {
		if time.Now().After(deadline) {
			t.Fatalf("of %d bytes free before, %d are free a minute after the deletion", before, free())
		}
		time.Sleep(500 * time.Millisecond)
	}
}
