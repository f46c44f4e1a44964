package controller

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir.dev/weir/csi/internal/clusters"
	"weir.dev/weir/csi/volume"
	"weir.dev/weir/engine/proto/management/managementtest"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

const poolBytes = 100 << 30

// start returns a controller service of a system of three engines with the pool "tank".
func start(t *testing.T) (*Server, *managementtest.System) {
	t.Helper()
	system := managementtest.Start(t, 3)
	system.MakePool("tank", poolBytes)
	systems := clusters.New(filepath.Dir(system.AttachFile()))
	t.Cleanup(func() { _ = systems.Close() })
	return New(systems, nil, nil), system
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func capabilities(mode csi.VolumeCapability_AccessMode_Mode) []*csi.VolumeCapability {
	return []*csi.VolumeCapability{{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}}
}

// creation returns a request that succeeds, changed by change.
func creation(name string, change func(*csi.CreateVolumeRequest)) *csi.CreateVolumeRequest {
	request := &csi.CreateVolumeRequest{
		Name:               name,
		VolumeCapabilities: capabilities(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER),
		CapacityRange:      &csi.CapacityRange{RequiredBytes: 1 << 30},
		Parameters:         map[string]string{"pool": "tank"},
	}
	if change != nil {
		change(request)
	}
	return request
}

func mustCreate(t *testing.T, s *Server, request *csi.CreateVolumeRequest) *csi.Volume {
	t.Helper()
	answer, err := s.CreateVolume(bounded(t), request)
	if err != nil {
		t.Fatalf("create volume %s: %v", request.GetName(), err)
	}
	return answer.GetVolume()
}

func wantStatus(t *testing.T, err error, code codes.Code, parts ...string) {
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

func TestCreateVolumeMakesTheContainerThatTheStorageClassDescribes(t *testing.T) {
	s, system := start(t)
	made := mustCreate(t, s, creation("pvc-1", func(r *csi.CreateVolumeRequest) {
		r.Parameters = map[string]string{
			"pool": "tank", "objectClass": "S2", "chunkSize": "2Mi", "uid": "1000", "gid": "2000", "mode": "0770",
			"csi.storage.k8s.io/pvc/name": "home", "csi.storage.k8s.io/pvc/namespace": "lab",
		}
	}))
	if made.GetCapacityBytes() != 1<<30 || made.GetVolumeContext()["container"] != "pvc-1" {
		t.Errorf("got %v", made)
	}
	answer, err := system.Dial().Containers().Query(bounded(t), &managementv1.ContainerQueryRequest{Pool: "tank", Container: "pvc-1"})
	if err != nil {
		t.Fatal(err)
	}
	container := answer.GetContainer()
	if container.GetQuotaBytes() != 1<<30 || container.GetObjectClass() != "S2" || container.GetChunkSizeBytes() != 2<<20 ||
		container.GetType() != managementv1.ContainerType_CONTAINER_TYPE_POSIX {
		t.Errorf("got %v", container)
	}
	want := map[string]string{volume.AttributeName: "pvc-1", volume.AttributeClaimName: "home", volume.AttributeClaimNamespace: "lab"}
	for key, value := range want {
		if container.GetAttributes()[key] != value {
			t.Errorf("attribute %s is %q, want %q", key, container.GetAttributes()[key], value)
		}
	}
	if id := "weir/" + container.GetPoolUuid() + "/" + container.GetUuid(); made.GetVolumeId() != id {
		t.Errorf("volume id %q, want %q", made.GetVolumeId(), id)
	}
}

func TestAVolumeSaysWhetherItsFilesMayBeAccessedPastTheMount(t *testing.T) {
	s, _ := start(t)
	for value, want := range map[string]string{"": "", "false": "", "true": "true"} {
		made := mustCreate(t, s, creation("pvc-is-"+value+"-", func(r *csi.CreateVolumeRequest) {
			if value != "" {
				r.Parameters["intercept"] = value
			}
		}))
		if got := made.GetVolumeContext()["intercept"]; got != want {
			t.Errorf("parameter %q: the volume has %q, want %q", value, got, want)
		}
	}
}

func TestCreateVolumeRefuses(t *testing.T) {
	s, _ := start(t)
	tests := map[string]struct {
		change func(*csi.CreateVolumeRequest)
		code   codes.Code
		want   string
	}{
		"a volume without a name": {
			change: func(r *csi.CreateVolumeRequest) { r.Name = "" }, code: codes.InvalidArgument, want: "name",
		},
		"a StorageClass without a pool": {
			change: func(r *csi.CreateVolumeRequest) { r.Parameters = nil }, code: codes.InvalidArgument, want: `"pool"`,
		},
		"a pool that does not exist": {
			change: func(r *csi.CreateVolumeRequest) { r.Parameters["pool"] = "tnak" }, code: codes.InvalidArgument, want: `pool "tnak" does not exist`,
		},
		"a cluster that does not exist": {
			change: func(r *csi.CreateVolumeRequest) { r.Parameters["cluster"] = "other" }, code: codes.InvalidArgument, want: `cluster "other" is not served; served: weir: correct the parameter "cluster"`,
		},
		"a parameter that is not known": {
			change: func(r *csi.CreateVolumeRequest) { r.Parameters["replicas"] = "3" }, code: codes.InvalidArgument, want: `"replicas"`,
		},
		"an object class that engines do not know": {
			change: func(r *csi.CreateVolumeRequest) { r.Parameters["objectClass"] = "RP_9" }, code: codes.InvalidArgument, want: "RP_9",
		},
		"a volume larger than its pool": {
			change: func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 2 * poolBytes }, code: codes.OutOfRange, want: "200Gi is more than the 100Gi of pool tank",
		},
		"a raw block volume": {
			change: func(r *csi.CreateVolumeRequest) {
				r.VolumeCapabilities[0].AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
			},
			code: codes.InvalidArgument, want: "volumeMode Filesystem",
		},
		"a clone": {
			change: func(r *csi.CreateVolumeRequest) {
				r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
					Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "weir/a/b"},
				}}
			},
			code: codes.InvalidArgument, want: "dataSource",
		},
		"mutable parameters": {
			change: func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"iops": "1"} },
			code:   codes.InvalidArgument, want: "mutable",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := s.CreateVolume(bounded(t), creation("pvc-bad", tc.change))
			wantStatus(t, err, tc.code, tc.want)
		})
	}
}

func TestCreateVolumeIsIdempotent(t *testing.T) {
	s, system := start(t)
	first := mustCreate(t, s, creation("pvc-1", nil))
	tests := map[string]struct {
		prepare func(t *testing.T)
		change  func(*csi.CreateVolumeRequest)
		code    codes.Code
	}{
		"the same request gives the same volume": {code: codes.OK},
		"a request after an expansion gives the same volume": {
			prepare: func(t *testing.T) {
				if _, err := s.ControllerExpandVolume(bounded(t), &csi.ControllerExpandVolumeRequest{
					VolumeId: first.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: 4 << 30},
				}); err != nil {
					t.Fatal(err)
				}
			},
			code: codes.OK,
		},
		"a request for more than the volume has is refused": {
			change: func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 8 << 30 }, code: codes.AlreadyExists,
		},
		"a request for another object class is refused": {
			change: func(r *csi.CreateVolumeRequest) { r.Parameters["objectClass"] = "S1" }, code: codes.AlreadyExists,
		},
		"a request for another chunk size is refused": {
			change: func(r *csi.CreateVolumeRequest) { r.Parameters["chunkSize"] = "64Ki" }, code: codes.AlreadyExists,
		},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		tc := tests[name]
		t.Run(name, func(t *testing.T) {
			if tc.prepare != nil {
				tc.prepare(t)
			}
			answer, err := s.CreateVolume(bounded(t), creation("pvc-1", tc.change))
			wantStatus(t, err, tc.code)
			if err == nil && answer.GetVolume().GetVolumeId() != first.GetVolumeId() {
				t.Errorf("got volume %s, want %s", answer.GetVolume().GetVolumeId(), first.GetVolumeId())
			}
		})
	}
	t.Run("a container that somebody else made under that label is not taken over", func(t *testing.T) {
		if _, err := system.Dial().Containers().Create(bounded(t), &managementv1.ContainerCreateRequest{
			Pool: "tank", Label: "home", Type: managementv1.ContainerType_CONTAINER_TYPE_POSIX, QuotaBytes: 1 << 30,
		}); err != nil {
			t.Fatal(err)
		}
		_, err := s.CreateVolume(bounded(t), creation("home", nil))
		wantStatus(t, err, codes.AlreadyExists, "not made for this volume")
	})
}

func TestDeleteVolume(t *testing.T) {
	s, system := start(t)
	made := mustCreate(t, s, creation("pvc-1", nil))
	if _, err := system.Dial().Containers().Create(bounded(t), &managementv1.ContainerCreateRequest{Pool: "tank", Label: "static"}); err != nil {
		t.Fatal(err)
	}
	remove := func(id string) error {
		_, err := s.DeleteVolume(bounded(t), &csi.DeleteVolumeRequest{VolumeId: id})
		return err
	}
	system.SetOpenHandles("tank", "pvc-1", 1)
	wantStatus(t, remove(made.GetVolumeId()), codes.FailedPrecondition, "open handles")
	system.SetOpenHandles("tank", "pvc-1", 0)
	for range 2 {
		wantStatus(t, remove(made.GetVolumeId()), codes.OK)
	}
	wantStatus(t, remove("weir/tank/static"), codes.FailedPrecondition, "Retain")
	wantStatus(t, remove("weir/tank/never-was"), codes.OK)
	wantStatus(t, remove("weir/gone/never-was"), codes.OK)
	// Of a cluster that is not served nobody knows whether the volume is there.
	wantStatus(t, remove("elsewhere/tank/pvc-1"), codes.Unavailable, `cluster "elsewhere" is not served`, "Retain")
	wantStatus(t, remove("not an id"), codes.OK)
	wantStatus(t, remove(""), codes.InvalidArgument)
}

// Kubernetes may have forgotten a pod that still runs: on a node that it can't reach, or after a forced deletion.
func TestAVolumeThatSomebodyHasOpenIsNeverDeletedByForce(t *testing.T) {
	s, system := start(t)
	made := mustCreate(t, s, creation("pvc-1", func(r *csi.CreateVolumeRequest) {
		r.Parameters["csi.storage.k8s.io/pvc/name"], r.Parameters["csi.storage.k8s.io/pvc/namespace"] = "home", "lab"
	}))
	var forced atomic.Bool
	system.Intercept(func(_ context.Context, _ string, request any) error {
		if destroy, is := request.(*managementv1.ContainerDestroyRequest); is && destroy.GetForce() {
			forced.Store(true)
		}
		return nil
	})
	system.SetOpenHandles("tank", "pvc-1", 1)
	remove := func() error {
		_, err := s.DeleteVolume(bounded(t), &csi.DeleteVolumeRequest{VolumeId: made.GetVolumeId()})
		return err
	}
	for range 3 {
		wantStatus(t, remove(), codes.FailedPrecondition, "open handles", "PersistentVolumeClaim lab/home")
	}
	system.SetOpenHandles("tank", "pvc-1", 0)
	wantStatus(t, remove(), codes.OK)
	if forced.Load() {
		t.Error("the engines were asked to destroy it by force")
	}
}

func TestAVolumeWhoseIDWouldBeTooLongIsNotMade(t *testing.T) {
	s, system := start(t)
	attached, err := os.ReadFile(system.AttachFile())
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Replace(string(attached), `"weir"`, `"`+strings.Repeat("w", 64)+`"`, 1)
	if err := os.WriteFile(system.AttachFile(), []byte(long), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = s.CreateVolume(bounded(t), creation("pvc-1", nil))
	wantStatus(t, err, codes.InvalidArgument, "name is too long")
	list, err := system.Dial().Containers().List(bounded(t), &managementv1.ContainerListRequest{Pool: "tank"})
	if err != nil || len(list.GetContainers()) != 0 {
		t.Errorf("made %v, %v", list, err)
	}
}

func TestExpandVolume(t *testing.T) {
	s, _ := start(t)
	made := mustCreate(t, s, creation("pvc-1", nil))
	tests := []struct {
		name     string
		id       string
		required int64
		want     int64
		code     codes.Code
	}{
		{name: "a larger size is given", id: made.GetVolumeId(), required: 3 << 30, want: 3 << 30},
		{name: "the same size again is given", id: made.GetVolumeId(), required: 3 << 30, want: 3 << 30},
		{name: "a smaller size takes nothing away", id: made.GetVolumeId(), required: 1 << 30, want: 3 << 30},
		{name: "more than the pool is refused", id: made.GetVolumeId(), required: poolBytes + 1, code: codes.OutOfRange},
		{name: "a volume that does not exist is refused", id: "weir/tank/absent", required: 1, code: codes.NotFound},
		{name: "a missing id is refused", required: 1, code: codes.InvalidArgument},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			answer, err := s.ControllerExpandVolume(bounded(t), &csi.ControllerExpandVolumeRequest{
				VolumeId: tc.id, CapacityRange: &csi.CapacityRange{RequiredBytes: tc.required},
			})
			wantStatus(t, err, tc.code)
			if answer.GetCapacityBytes() != tc.want || answer.GetNodeExpansionRequired() {
				t.Errorf("got %v, want %d bytes and no work for the node", answer, tc.want)
			}
		})
	}
}

func TestListVolumesInPagesSeesEachVolumeOnceThoughOthersGo(t *testing.T) {
	s, system := start(t)
	system.MakePool("second", 10<<30)
	want := map[string]bool{}
	for i := range 7 {
		pool := []string{"tank", "second"}[i%2]
		made := mustCreate(t, s, creation(fmt.Sprintf("pvc-%d", i), func(r *csi.CreateVolumeRequest) { r.Parameters["pool"] = pool }))
		want[made.GetVolumeId()] = true
	}
	seen, token := map[string]int{}, ""
	for page := 0; ; page++ {
		answer, err := s.ListVolumes(bounded(t), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		if err != nil {
			t.Fatal(err)
		}
		if len(answer.GetEntries()) > 2 {
			t.Fatalf("a page of %d volumes", len(answer.GetEntries()))
		}
		for _, entry := range answer.GetEntries() {
			seen[entry.GetVolume().GetVolumeId()]++
		}
		if token = answer.GetNextToken(); token == "" {
			break
		}
		// The volume that the token names goes: the next page must start after it all the same.
		if _, err := s.DeleteVolume(bounded(t), &csi.DeleteVolumeRequest{VolumeId: token}); err != nil {
			t.Fatal(err)
		}
	}
	for id := range want {
		if seen[id] != 1 {
			t.Errorf("volume %s was listed %d times", id, seen[id])
		}
	}
	_, err := s.ListVolumes(bounded(t), &csi.ListVolumesRequest{StartingToken: "junk"})
	wantStatus(t, err, codes.Aborted, "junk")
}

func TestHealthFollowsThePoolsEngines(t *testing.T) {
	s, system := start(t)
	made := mustCreate(t, s, creation("pvc-1", nil))
	check := func(want csi.VolumeHealthErrorType, entries int) {
		t.Helper()
		one, err := s.ControllerGetVolumeHealth(bounded(t), &csi.ControllerGetVolumeHealthRequest{VolumeId: made.GetVolumeId()})
		if err != nil {
			t.Fatal(err)
		}
		if got := one.GetVolumeHealth().GetHealthStatuses(); len(got) != entries || (entries > 0 && got[0].GetStatus() != want) {
			t.Errorf("health is %v, want %d entries of %v", got, entries, want)
		}
		all, err := s.ControllerListVolumeHealth(bounded(t), &csi.ControllerListVolumeHealthRequest{})
		if err != nil || len(all.GetEntries()) != entries {
			t.Errorf("listed %v, %v; want %d volumes", all.GetEntries(), err, entries)
		}
	}
	check(csi.VolumeHealthErrorType_UNKNOWN_VOLUME_HEALTH_TYPE, 0)
	system.StopEngine(2)
	check(csi.VolumeHealthErrorType_DEGRADED, 1)
}

func TestGetCapacity(t *testing.T) {
	s, system := start(t)
	system.MakePool("second", 10<<30)
	mustCreate(t, s, creation("pvc-1", nil))
	system.SetUsed("tank", "pvc-1", 1<<30)
	tests := map[string]struct {
		parameters   map[string]string
		capabilities []*csi.VolumeCapability
		free, most   int64
		code         codes.Code
	}{
		"a pool's free space":                  {parameters: map[string]string{"pool": "tank"}, free: poolBytes - 1<<30, most: poolBytes},
		"all pools' free space":                {free: poolBytes - 1<<30 + 10<<30, most: poolBytes},
		"no space for what is not served":      {parameters: map[string]string{"pool": "tank"}, capabilities: []*csi.VolumeCapability{{}}},
		"no space in a pool that is not there": {parameters: map[string]string{"pool": "absent"}},
		"an error for a bad parameter":         {parameters: map[string]string{"size": "1"}, code: codes.InvalidArgument},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer, err := s.GetCapacity(bounded(t), &csi.GetCapacityRequest{Parameters: tc.parameters, VolumeCapabilities: tc.capabilities})
			wantStatus(t, err, tc.code)
			if answer.GetAvailableCapacity() != tc.free || answer.GetMaximumVolumeSize().GetValue() != tc.most {
				t.Errorf("got %v, want %d free and volumes of at most %d", answer, tc.free, tc.most)
			}
		})
	}
}

func TestAStaticVolumeIsValidatedByItsLabels(t *testing.T) {
	s, system := start(t)
	if _, err := system.Dial().Containers().Create(bounded(t), &managementv1.ContainerCreateRequest{Pool: "tank", Label: "home"}); err != nil {
		t.Fatal(err)
	}
	answer, err := s.ValidateVolumeCapabilities(bounded(t), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: "weir/tank/home", VolumeCapabilities: capabilities(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY),
	})
	if err != nil || answer.GetConfirmed() == nil {
		t.Errorf("got %v, %v; want it confirmed", answer, err)
	}
	got, err := s.ControllerGetVolume(bounded(t), &csi.ControllerGetVolumeRequest{VolumeId: "weir/tank/home"})
	if err != nil || got.GetVolume().GetVolumeId() != "weir/tank/home" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestTwoOperationsOnOneVolumeAreNotRunAtOnce(t *testing.T) {
	s, system := start(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	system.Intercept(func(_ context.Context, method string, _ any) error {
		if method == managementv1.Containers_Create_FullMethodName {
			once.Do(func() { close(entered); <-leave })
		}
		return nil
	})
	first := make(chan error, 1)
	ctx := bounded(t)
	go func() {
		_, err := s.CreateVolume(ctx, creation("pvc-1", nil))
		first <- err
	}()
	<-entered
	_, err := s.CreateVolume(bounded(t), creation("pvc-1", nil))
	wantStatus(t, err, codes.Aborted, "CreateVolume is still under way")
	close(leave)
	wantStatus(t, <-first, codes.OK)
	mustCreate(t, s, creation("pvc-1", nil))
}

func TestEnginesThatAreAwayMakeACallUnavailable(t *testing.T) {
	s, system := start(t)
	for rank := range 3 {
		system.StopEngine(rank)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := s.CreateVolume(ctx, creation("pvc-1", nil))
	wantStatus(t, err, codes.Unavailable, "none of 3 engines")
}
