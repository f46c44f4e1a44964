package resourceclaim

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/drive"
	"weir.dev/weir/operator/internal/inventory"
)

func seen(name string, target int32, obstacles ...drive.Finding) inventory.Seen {
	return inventory.Seen{
		Name: name, Drive: drive.Drive{Kind: v1alpha1.DriveNVMe, Model: "Ultra", Serial: strings.Repeat("x", 99), Bytes: 1 << 40, Major: 259, Minor: 7, NUMANode: new(int32(1))},
		Assignment: &v1alpha1.DeviceAssignment{Namespace: "storage", Cluster: "weir", Rank: 2, Target: target}, Obstacles: obstacles,
	}
}

func TestOnlyDrivesThatAreAssignedAndFitAreOffered(t *testing.T) {
	d := New("n", t.TempDir(), nil)
	resources := d.Resources([]inventory.Seen{seen("a", 0), {Name: "nobodys"}, seen("ill", 1, drive.Finding{Reason: v1alpha1.ReasonControllerDown})})
	offered := resources.Pools["n"].Slices
	if len(offered) != 1 || len(offered[0].Devices) != 1 || offered[0].Devices[0].Name != "a" {
		t.Fatalf("%+v", offered)
	}
	attributes := offered[0].Devices[0].Attributes
	if *attributes["engine"].StringValue != drive.Engine("storage", "weir", 2) || *attributes["target"].IntValue != 0 || *attributes["numaNode"].IntValue != 1 {
		t.Errorf("%+v", attributes)
	}
	if _, has := attributes["serial"]; has {
		t.Error("the API server refuses the length of an attribute")
	}
	if size := offered[0].Devices[0].Capacity["size"].Value; size.String() != "1Ti" {
		t.Error(size.String())
	}
	many := make([]inventory.Seen, 0, 300)
	for range 300 {
		many = append(many, seen("a", 0))
	}
	if got := d.Resources(many).Pools["n"].Slices; len(got) != 3 || len(got[2].Devices) != 300-2*resourceapi.ResourceSliceMaxDevices {
		t.Errorf("%d slices", len(got))
	}
	if got := d.Resources(nil).Pools["n"].Slices; len(got) != 1 {
		t.Errorf("a node without drives has no slice that says so: %+v", got)
	}
}

func claim(namespace string, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "drives", UID: "1-2-3"}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	results := []resourceapi.DeviceRequestAllocationResult{{Driver: "gpu.example", Pool: "n", Device: "gpu"}}
	for _, name := range devices {
		results = append(results, resourceapi.DeviceRequestAllocationResult{Driver: drive.Driver, Pool: "n", Device: name, Request: "target-1"})
	}
	c.Status.Allocation.Devices.Results = results
	return c
}

func take(_ context.Context, name string) (*inventory.Seen, string, error) {
	if name == "foreign" {
		return nil, "", errors.New("ForeignSignature: holds an ext4 file system")
	}
	found := seen(name, 1)
	return &found, "/state/" + name, nil
}

func TestAClaimIsPreparedByCDI(t *testing.T) {
	folder := t.TempDir()
	d := New("n", folder, take)
	path := filepath.Join(folder, "nvme.weir.dev-1-2-3.json")
	for range 2 { // the kubelet may ask again
		results, err := d.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim("storage", "a")})
		if err != nil || results["1-2-3"].Err != nil {
			t.Fatal(err, results)
		}
		devices := results["1-2-3"].Devices
		if len(devices) != 1 || !slices.Equal(devices[0].CDIDeviceIDs, []string{"nvme.weir.dev/drive=1-2-3-a"}) || devices[0].Requests[0] != "target-1" {
			t.Errorf("%+v", devices)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var spec cdi.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	node := spec.Devices[0].ContainerEdits.DeviceNodes[0]
	if spec.Kind != "nvme.weir.dev/drive" || node.Path != "/dev/weir/target-1" || node.HostPath != "/state/a" || node.Minor != 7 || *node.UID != drive.EngineUser {
		t.Errorf("%s", text)
	}
	object := kubeletplugin.NamespacedObject{UID: types.UID("1-2-3")}
	for range 2 {
		if results, err := d.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{object}); err != nil || results["1-2-3"] != nil {
			t.Error(err, results)
		}
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v %v", entries, err)
	}
}

func TestAClaimThatMustNotHaveADriveSaysWhy(t *testing.T) {
	folder := t.TempDir()
	d := New("n", folder, take)
	unallocated := claim("storage")
	unallocated.Status.Allocation = nil
	for want, c := range map[string]*resourceapi.ResourceClaim{
		"ext4": claim("storage", "a", "foreign"), "namespace storage": claim("others", "a"), "no drive of node n": claim("storage"), "nothing is allocated": unallocated,
	} {
		results, err := d.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{c})
		if err != nil || results["1-2-3"].Err == nil || !strings.Contains(results["1-2-3"].Err.Error(), want) {
			t.Errorf("want %q: %v %v", want, results, err)
		}
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 0 {
		t.Errorf("written all the same: %v %v", entries, err)
	}
}
