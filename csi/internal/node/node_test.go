package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir.dev/weir/csi/internal/mounts"
	"weir.dev/weir/csi/internal/mounttest"
)

const (
	oneVolume   = "weir/tank/home"
	writeMany   = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	readMany    = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	onePod      = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	oneNode     = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	ownDevices  = "0:101"
	stagingName = "staging"
)

// fixture is a node service on a node of its own.
type fixture struct {
	*Server

	t      *testing.T
	node   *mounttest.Node
	folder string
}

func start(t *testing.T) *fixture {
	t.Helper()
	machine := mounttest.New()
	return &fixture{Server: New("node-1", machine.Serve(t), machine), t: t, node: machine, folder: t.TempDir()}
}

func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(f.t.Context(), 20*time.Second)
	f.t.Cleanup(cancel)
	return ctx
}

func (f *fixture) path(name string) string { return filepath.Join(f.folder, name) }

func capability(mode csi.VolumeCapability_AccessMode_Mode, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: flags}},
	}
}

func (f *fixture) stageAs(capability *csi.VolumeCapability) error {
	_, err := f.NodeStageVolume(f.ctx(), &csi.NodeStageVolumeRequest{
		VolumeId: oneVolume, StagingTargetPath: f.path(stagingName), VolumeCapability: capability,
	})
	return err
}

func (f *fixture) publishAs(target string, capability *csi.VolumeCapability, readOnly bool) error {
	_, err := f.NodePublishVolume(f.ctx(), &csi.NodePublishVolumeRequest{
		VolumeId: oneVolume, StagingTargetPath: f.path(stagingName), TargetPath: f.path(target),
		VolumeCapability: capability, Readonly: readOnly,
	})
	return err
}

func (f *fixture) unpublish(target string) error {
	_, err := f.NodeUnpublishVolume(f.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: oneVolume, TargetPath: f.path(target)})
	return err
}

func (f *fixture) unstage() error {
	_, err := f.NodeUnstageVolume(f.ctx(), &csi.NodeUnstageVolumeRequest{VolumeId: oneVolume, StagingTargetPath: f.path(stagingName)})
	return err
}

func (f *fixture) mustServe(capability *csi.VolumeCapability, targets ...string) {
	f.t.Helper()
	want(f.t, f.stageAs(capability), codes.OK)
	for _, target := range targets {
		want(f.t, f.publishAs(target, capability, false), codes.OK)
	}
}

func want(t *testing.T, err error, code codes.Code, parts ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Fatalf("got %v, want %v", err, code)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

func TestEachStepMayBeRepeated(t *testing.T) {
	f := start(t)
	shared := capability(writeMany)
	for range 2 {
		want(t, f.stageAs(shared), codes.OK)
	}
	for range 2 {
		want(t, f.publishAs("pod", shared, false), codes.OK)
	}
	for range 2 {
		want(t, f.unpublish("pod"), codes.OK)
	}
	for range 2 {
		want(t, f.unstage(), codes.OK)
	}
	if entries, _ := f.node.List(); len(entries) != 0 {
		t.Errorf("mounts left: %+v", entries)
	}
	if _, err := os.Stat(f.path("pod")); !os.IsNotExist(err) {
		t.Errorf("the target directory is left: %v", err)
	}
}

func TestStageAsksTheDaemonForWhatTheVolumeIs(t *testing.T) {
	tests := map[string]struct {
		capability *csi.VolumeCapability
		readOnly   bool
		options    []string
		group      uint32
	}{
		"a shared volume is writable":            {capability: capability(writeMany)},
		"a volume for readers is read-only":      {capability: capability(readMany), readOnly: true},
		"the mount option ro makes it read-only": {capability: capability(writeMany, "ro"), readOnly: true},
		"other options are passed on in order":   {capability: capability(writeMany, "nosuid", "cache=none", "rw"), options: []string{"cache=none", "nosuid"}},
		"the group of the pod's files is passed on": {
			capability: &csi.VolumeCapability{
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: writeMany},
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: "2000"}},
			},
			group: 2000,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			want(t, f.stageAs(tc.capability), codes.OK)
			asked := f.node.Served(f.path(stagingName))
			if asked.GetSystem() != "weir" || asked.GetPool() != "tank" || asked.GetContainer() != "home" || asked.GetVolume() != oneVolume {
				t.Errorf("asked for %v", asked)
			}
			if asked.GetReadOnly() != tc.readOnly || strings.Join(asked.GetOptions(), ",") != strings.Join(tc.options, ",") || asked.GetFsGroup() != tc.group {
				t.Errorf("asked for %v, want read-only %t, options %v, group %d", asked, tc.readOnly, tc.options, tc.group)
			}
		})
	}
}

func TestAMountLetsProgramsPassAsTheVolumeSays(t *testing.T) {
	for value, options := range map[string]string{"": "nosuid", "false": "nosuid", "true": "intercept,nosuid"} {
		f := start(t)
		attributes := map[string]string{"pool": "tank"}
		if value != "" {
			attributes["intercept"] = value
		}
		stage := &csi.NodeStageVolumeRequest{
			VolumeId: oneVolume, StagingTargetPath: f.path(stagingName), VolumeCapability: capability(writeMany, "nosuid"), VolumeContext: attributes,
		}
		_, err := f.NodeStageVolume(f.ctx(), stage)
		got := strings.Join(f.node.Served(f.path(stagingName)).GetOptions(), ",")
		if err != nil || got != options {
			t.Errorf("attribute %q: mounted with %s, %v, want %s", value, got, err, options)
		}
	}
	f := start(t)
	_, err := f.NodeStageVolume(f.ctx(), &csi.NodeStageVolumeRequest{
		VolumeId: oneVolume, StagingTargetPath: f.path(stagingName), VolumeCapability: capability(writeMany),
		VolumeContext: map[string]string{"intercept": "yes"},
	})
	want(t, err, codes.InvalidArgument, `"intercept"`)
}

func TestStageSaysWhyItCannot(t *testing.T) {
	tests := map[string]struct {
		prepare    func(f *fixture)
		capability *csi.VolumeCapability
		code       codes.Code
		want       []string
	}{
		"an unknown mount option is named": {
			capability: capability(writeMany, "sync"), code: codes.InvalidArgument, want: []string{`"sync"`},
		},
		"a group that is no number is refused": {
			capability: &csi.VolumeCapability{
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: writeMany},
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: "wheel"}},
			},
			code: codes.InvalidArgument, want: []string{`"wheel"`},
		},
		"a container that is gone keeps the daemon's words": {
			prepare: func(f *fixture) {
				f.node.Refuse(status.Error(codes.NotFound, "container home of pool tank does not exist"))
			},
			capability: capability(writeMany), code: codes.NotFound, want: []string{"container home", oneVolume},
		},
		"a daemon that is away is named": {
			prepare:    func(f *fixture) { f.node.Refuse(status.Error(codes.Unavailable, "connection refused")) },
			capability: capability(writeMany), code: codes.Unavailable, want: []string{"weir-mountd"},
		},
		"a mount that does not propagate is explained": {
			prepare: func(f *fixture) { f.node.Hide() }, capability: capability(writeMany), code: codes.Internal, want: []string{"Bidirectional"},
		},
		"a foreign mount at the staging path is refused": {
			prepare:    func(f *fixture) { f.node.Add(mounts.Mount{Path: f.path(stagingName), Device: "8:1"}) },
			capability: capability(writeMany), code: codes.FailedPrecondition, want: []string{"foreign"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			if tc.prepare != nil {
				tc.prepare(f)
			}
			want(t, f.stageAs(tc.capability), tc.code, tc.want...)
		})
	}
}

func TestOneVolumeServesManyPodsOfANode(t *testing.T) {
	for name, mode := range map[string]csi.VolumeCapability_AccessMode_Mode{
		"shared by nodes": writeMany, "shared by readers": readMany, "of one node": oneNode,
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			f.mustServe(capability(mode), "pod-1", "pod-2", "pod-3")
			want(t, f.unpublish("pod-2"), codes.OK)
			want(t, f.unstage(), codes.FailedPrecondition, f.path("pod-1"), f.path("pod-3"))
			want(t, f.unpublish("pod-1"), codes.OK)
			want(t, f.unpublish("pod-3"), codes.OK)
			want(t, f.unstage(), codes.OK)
		})
	}
}

func TestPodsOfANodeThatStartTogetherSeeNoError(t *testing.T) {
	f := start(t)
	shared := capability(writeMany)
	want(t, f.stageAs(shared), codes.OK)
	var pods sync.WaitGroup
	for i := range 20 {
		pods.Go(func() {
			if err := f.publishAs(fmt.Sprintf("pod-%d", i), shared, false); err != nil {
				t.Errorf("pod %d: %v", i, err)
			}
		})
	}
	pods.Wait()
	if entries, _ := f.node.List(); len(entries) != 21 {
		t.Errorf("%d mounts, want the staging mount and 20 pods", len(entries))
	}
}

func TestASecondPodIsRefusedAVolumeForOnePod(t *testing.T) {
	f := start(t)
	f.mustServe(capability(onePod), "pod-1")
	want(t, f.publishAs("pod-2", capability(onePod), false), codes.FailedPrecondition, "ReadWriteOncePod", f.path("pod-1"))
	// What the pod mounts of the volume by subPath is no second pod.
	f.node.Add(mounts.Mount{Path: f.path("pod-1-subpath"), Device: ownDevices, Root: "/data"})
	want(t, f.publishAs("pod-1", capability(onePod), false), codes.OK)
	want(t, f.unpublish("pod-1-subpath"), codes.OK)
	// The plugin keeps nothing in memory: after its restart the second pod is refused all the same.
	f.Server = New("node-1", f.node.Serve(t), f.node)
	want(t, f.publishAs("pod-2", capability(onePod), false), codes.FailedPrecondition)
	want(t, f.unpublish("pod-1"), codes.OK)
	want(t, f.publishAs("pod-2", capability(onePod), false), codes.OK)
}

func TestPublishReadOnly(t *testing.T) {
	f := start(t)
	shared := capability(writeMany)
	f.mustServe(shared, "writer")
	want(t, f.publishAs("reader", shared, true), codes.OK)
	want(t, f.publishAs("reader", shared, true), codes.OK)
	want(t, f.publishAs("reader", shared, false), codes.AlreadyExists, "readonly true")
	entries, _ := f.node.List()
	for target, readOnly := range map[string]bool{"reader": true, "writer": false} {
		if entry, ok := mounts.At(entries, f.path(target)); !ok || entry.ReadOnly != readOnly {
			t.Errorf("%s is %+v, want read-only %t", target, entry, readOnly)
		}
	}
}

func TestAReadOnlyPublishThatWasCutOffIsFinished(t *testing.T) {
	f := start(t)
	shared := capability(writeMany)
	f.mustServe(shared, "writer")
	// A read-only bind takes two steps; the plugin was killed after the first.
	if err := f.node.Bind(f.path(stagingName), f.path("reader"), false); err != nil {
		t.Fatal(err)
	}
	want(t, f.publishAs("reader", shared, true), codes.OK)
	entries, _ := f.node.List()
	if entry, ok := mounts.At(entries, f.path("reader")); !ok || !entry.ReadOnly || len(entries) != 3 {
		t.Errorf("%+v of %d mounts, want one that is read-only of 3", entry, len(entries))
	}
}

func TestPublishSaysWhyItCannot(t *testing.T) {
	tests := map[string]struct {
		change  func(f *fixture, r *csi.NodePublishVolumeRequest)
		code    codes.Code
		message string
	}{
		"without a staging path":      {change: func(_ *fixture, r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "" }, code: codes.FailedPrecondition, message: "stage"},
		"with a relative target path": {change: func(_ *fixture, r *csi.NodePublishVolumeRequest) { r.TargetPath = "pod" }, code: codes.InvalidArgument, message: "absolute"},
		"with a target path that climbs": {
			change: func(_ *fixture, r *csi.NodePublishVolumeRequest) { r.TargetPath = "/var/lib/../../etc" }, code: codes.InvalidArgument, message: "absolute",
		},
		"as a block device": {
			change: func(_ *fixture, r *csi.NodePublishVolumeRequest) {
				r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
			},
			code: codes.InvalidArgument, message: "Filesystem",
		},
		"where something else is mounted": {
			change: func(f *fixture, r *csi.NodePublishVolumeRequest) {
				f.node.Add(mounts.Mount{Path: r.GetTargetPath(), Device: "8:1"})
			},
			code: codes.AlreadyExists, message: "something else",
		},
		"with an id of another driver": {
			change: func(_ *fixture, r *csi.NodePublishVolumeRequest) { r.VolumeId = "vol-0123" }, code: codes.NotFound, message: "vol-0123",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			f.mustServe(capability(writeMany))
			request := &csi.NodePublishVolumeRequest{
				VolumeId: oneVolume, StagingTargetPath: f.path(stagingName), TargetPath: f.path("pod"), VolumeCapability: capability(writeMany),
			}
			tc.change(f, request)
			_, err := f.NodePublishVolume(f.ctx(), request)
			want(t, err, tc.code, tc.message)
		})
	}
}

func TestAMountWhoseServerIsGoneIsReplacedOrRemoved(t *testing.T) {
	shared := capability(writeMany)
	t.Run("a new pod of the node gets a working volume", func(t *testing.T) {
		f := start(t)
		f.mustServe(shared, "pod-1")
		f.node.Kill()
		want(t, f.publishAs("pod-2", shared, false), codes.OK)
		if _, err := f.node.Usage(f.path("pod-2")); err != nil {
			t.Errorf("the new pod's volume does not work: %v", err)
		}
	})
	t.Run("publishing again for the same pod repairs its volume", func(t *testing.T) {
		f := start(t)
		f.mustServe(shared, "pod-1")
		f.node.Kill()
		want(t, f.publishAs("pod-1", shared, false), codes.OK)
		if _, err := f.node.Usage(f.path("pod-1")); err != nil {
			t.Errorf("the pod's volume does not work: %v", err)
		}
	})
	t.Run("it can be taken down while no daemon runs", func(t *testing.T) {
		f := start(t)
		f.mustServe(shared, "pod-1")
		f.node.Kill()
		f.node.Refuse(status.Error(codes.Unavailable, "connection refused"))
		want(t, f.unpublish("pod-1"), codes.OK)
		want(t, f.unstage(), codes.OK)
		if entries, _ := f.node.List(); len(entries) != 0 {
			t.Errorf("mounts left: %+v", entries)
		}
	})
	t.Run("one that hangs is given up when the caller's time is over", func(t *testing.T) {
		f := start(t)
		f.mustServe(shared, "pod-1")
		f.node.Hang(t)
		f.node.Refuse(status.Error(codes.Unavailable, "connection refused"))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := f.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "weir/tank/other", StagingTargetPath: f.path(stagingName)})
		want(t, err, codes.FailedPrecondition, "still published")
		_, err = f.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: oneVolume, StagingTargetPath: f.path(stagingName), TargetPath: f.path("pod-1"), VolumeCapability: shared,
		})
		want(t, err, codes.Unavailable, "does not answer")
		want(t, f.unpublish("pod-1"), codes.OK)
		want(t, f.unstage(), codes.Unavailable, "weir-mountd")
	})
	t.Run("one that lives waits for the daemon", func(t *testing.T) {
		f := start(t)
		f.mustServe(shared)
		f.node.Refuse(status.Error(codes.Unavailable, "connection refused"))
		want(t, f.unstage(), codes.Unavailable, "weir-mountd")
	})
}

func TestUnpublishRemovesNoFiles(t *testing.T) {
	f := start(t)
	if err := os.MkdirAll(f.path("pod/data"), 0o700); err != nil {
		t.Fatal(err)
	}
	want(t, f.unpublish("pod"), codes.Internal, "pod")
	if _, err := os.Stat(f.path("pod/data")); err != nil {
		t.Errorf("what lay in the target directory is gone: %v", err)
	}
	if err := os.WriteFile(f.path("file"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, f.unpublish("file"), codes.Internal, "file", "not a directory")
	if _, err := os.Stat(f.path("file")); err != nil {
		t.Errorf("the file at the target path is gone: %v", err)
	}
}

func TestUnpublishRemovesMountsThatLieOnOneAnother(t *testing.T) {
	f := start(t)
	f.mustServe(capability(writeMany), "pod")
	f.node.Add(mounts.Mount{Path: f.path("pod"), Device: ownDevices, Root: "/"})
	want(t, f.unpublish("pod"), codes.OK)
	entries, _ := f.node.List()
	if _, ok := mounts.At(entries, f.path("pod")); ok {
		t.Errorf("mounts left: %+v", entries)
	}
}

func TestVolumeStats(t *testing.T) {
	f := start(t)
	f.mustServe(capability(writeMany), "pod")
	get := func(path string) (*csi.NodeGetVolumeStatsResponse, error) {
		return f.NodeGetVolumeStats(f.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: oneVolume, VolumePath: path})
	}
	answer, err := get(f.path("pod"))
	want(t, err, codes.OK)
	for _, usage := range answer.GetUsage() {
		if usage.GetTotal() == 0 || usage.GetUsed()+usage.GetAvailable() != usage.GetTotal() {
			t.Errorf("usage %v does not add up", usage)
		}
	}
	if len(answer.GetUsage()) != 2 {
		t.Errorf("got %v, want bytes and inodes", answer.GetUsage())
	}
	_, err = get(f.path("elsewhere"))
	want(t, err, codes.NotFound, "nothing is mounted")
	_, err = get("")
	want(t, err, codes.InvalidArgument)
	f.node.Kill()
	_, err = get(f.path("pod"))
	want(t, err, codes.Internal, "not connected")
}

func TestStatsOfAFileSystemThatHangsCostOneThread(t *testing.T) {
	f := start(t)
	f.mustServe(capability(writeMany), "pod")
	f.node.Hang(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	request := &csi.NodeGetVolumeStatsRequest{VolumeId: oneVolume, VolumePath: f.path("pod")}
	_, err := f.NodeGetVolumeStats(ctx, request)
	want(t, err, codes.DeadlineExceeded, "does not answer")
	_, err = f.NodeGetVolumeStats(f.ctx(), request)
	want(t, err, codes.Unavailable, "earlier question")
}

func TestHealth(t *testing.T) {
	f := start(t)
	f.mustServe(capability(writeMany))
	check := func(volumeEntries, storageEntries int) {
		t.Helper()
		storage, err := f.NodeGetStorageHealth(f.ctx(), &csi.NodeGetStorageHealthRequest{})
		if err != nil || len(storage.GetBackendHealth()) != storageEntries {
			t.Errorf("storage health %v, %v; want %d entries", storage, err, storageEntries)
		}
		if storageEntries > 0 {
			return
		}
		one, err := f.NodeGetVolumeHealth(f.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: oneVolume})
		if err != nil || len(one.GetVolumeHealth().GetHealthStatuses()) != volumeEntries {
			t.Errorf("volume health %v, %v; want %d entries", one, err, volumeEntries)
		}
	}
	check(0, 0)
	f.node.Degrade("rank 1 does not answer")
	check(1, 0)
	f.node.Refuse(status.Error(codes.Unavailable, "connection refused"))
	check(0, 1)
}
