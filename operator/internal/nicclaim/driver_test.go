package nicclaim

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	clocktesting "k8s.io/utils/clock/testing"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"weir.dev/weir/operator/internal/fabric"
	"weir.dev/weir/operator/internal/fabric/cassini"
)

// nics are NICs in memory.
type nics struct {
	services []fabric.Service
	busy     bool
}

func (n *nics) Allocate(_ context.Context, wanted fabric.Request) (fabric.ID, error) {
	if wanted.Device == "cxi9" {
		return fabric.ID{}, errors.New("the node has no NIC cxi9")
	}
	id := fabric.ID{Device: wanted.Device, Number: uint32(len(n.services) + 2)}
	n.services = append(n.services, fabric.Service{ID: id, VNIs: wanted.VNIs})
	return id, nil
}

func (n *nics) Admit(context.Context, fabric.ID, fabric.Namespace) error { return nil }

func (n *nics) Destroy(_ context.Context, id fabric.ID) error {
	if n.busy {
		return fabric.ErrBusy
	}
	n.services = slices.DeleteFunc(n.services, func(s fabric.Service) bool { return s.ID == id })
	return nil
}

func (n *nics) List(context.Context) ([]fabric.Service, error) { return slices.Clone(n.services), nil }

// vnis of the only tenant.
func vnis(_ context.Context, namespace string) ([]uint16, error) {
	if namespace != "climate" {
		return nil, errors.New("namespace " + namespace + " is no tenant's")
	}
	return []uint16{1024, 1025}, nil
}

func newDriver(t *testing.T, n *nics) (*Driver, *fabric.Keeper, string) {
	t.Helper()
	keeper, err := fabric.NewKeeper(t.Context(), n, t.TempDir(), "boot", clocktesting.NewFakePassiveClock(time.Unix(0, 0)))
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	return New("n", folder, keeper, vnis), keeper, folder
}

func TestNICsAreOfferedWithWhereTheyAre(t *testing.T) {
	t.Parallel()
	d, _, _ := newDriver(t, &nics{})
	resources := d.Resources([]NIC{
		{Device: cassini.Device{Name: "cxi0", NID: 5<<11 | 3<<6 | 1, LinkUp: true, MegabitsPerSecond: 200_000, PCIAddress: "0000:21:00.0"}, NUMANode: new(int32(2)), PCIeRoot: "pci0000:20"},
		{Device: cassini.Device{Name: "cxi1", Virtual: true, MegabitsPerSecond: 200_000}},
	})
	offered := resources.Pools["n"].Slices[0].Devices
	if len(offered) != 2 || offered[0].Name != "cxi0" || !*offered[0].AllowMultipleAllocations {
		t.Fatalf("%+v", offered)
	}
	attributes, speed := offered[0].Attributes, offered[0].Capacity[bandwidth].Value
	if *attributes["switchGroup"].IntValue != 5 || *attributes["numaNode"].IntValue != 2 || *attributes["resource.kubernetes.io/pcieRoot"].StringValue != "pci0000:20" ||
		!*attributes["linkUp"].BoolValue || *attributes["virtual"].BoolValue || speed.String() != "200G" || len(offered[0].Taints) != 0 {
		t.Errorf("%+v %s", attributes, speed.String())
	}
	if taints := offered[1].Taints; len(taints) != 1 || taints[0].Key != TaintLink || taints[0].Effect != resourceapi.DeviceTaintEffectNoSchedule || !*offered[1].Attributes["virtual"].BoolValue {
		t.Errorf("%+v", offered[1])
	}
	if _, has := offered[1].Attributes["numaNode"]; has {
		t.Error("a NIC is somewhere that nobody has said")
	}
}

func claim(namespace string, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nics", UID: "1-2-3"}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	results := []resourceapi.DeviceRequestAllocationResult{{Driver: "gpu.example", Pool: "n", Device: "gpu"}}
	for i, name := range devices {
		results = append(results, resourceapi.DeviceRequestAllocationResult{
			Driver: DriverName, Pool: "n", Device: name, Request: "nic", ShareID: new(types.UID(string(rune('a' + i)))),
		})
	}
	c.Status.Allocation.Devices.Results = results
	return c
}

func TestAClaimGetsServicesWithItsTenantsVNIs(t *testing.T) {
	t.Parallel()
	n := &nics{}
	d, keeper, folder := newDriver(t, n)
	for range 2 { // the kubelet may ask again
		results, err := d.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim("climate", "cxi0", "cxi1", "cxi0")})
		if err != nil || results["1-2-3"].Err != nil {
			t.Fatal(err, results)
		}
		devices := results["1-2-3"].Devices
		if len(devices) != 3 || devices[1].CDIDeviceIDs[0] != "cxi.weir.dev/nic=1-2-3-cxi1" || *devices[2].ShareID != "c" {
			t.Errorf("%+v", devices)
		}
	}
	if len(n.services) != 2 || !slices.Equal(n.services[0].VNIs, []uint16{1024, 1025}) {
		t.Errorf("%+v", n.services)
	}
	text, err := os.ReadFile(filepath.Join(folder, "cxi.weir.dev-1-2-3.json"))
	if err != nil {
		t.Fatal(err)
	}
	var spec cdi.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	want := []string{"SLINGSHOT_VNIS=1024,1025", "SLINGSHOT_DEVICES=cxi0,cxi1", "SLINGSHOT_SVC_IDS=2,3", "SLINGSHOT_TCS=0xf"}
	if !slices.Equal(spec.ContainerEdits.Env, want) || len(spec.Devices) != 2 || spec.Devices[1].ContainerEdits.DeviceNodes[0].Path != "/dev/cxi1" {
		t.Errorf("%s", text)
	}
	// One that is in use strands no pod.
	n.busy = true
	object := kubeletplugin.NamespacedObject{UID: "1-2-3"}
	for range 2 {
		if results, err := d.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{object}); err != nil || results["1-2-3"] != nil {
			t.Error(err, results)
		}
	}
	n.busy = false
	if err := keeper.Retry(t.Context()); err != nil || len(n.services) != 0 || len(keeper.Entries()) != 0 {
		t.Errorf("%v %v %v", err, n.services, keeper.Entries())
	}
	if files, err := os.ReadDir(folder); err != nil || len(files) != 0 {
		t.Errorf("%v %v", files, err)
	}
}

func TestAClaimThatGetsNoNICSaysWhy(t *testing.T) {
	t.Parallel()
	d, _, _ := newDriver(t, &nics{})
	unallocated := claim("climate")
	unallocated.Status.Allocation = nil
	for want, c := range map[string]*resourceapi.ResourceClaim{
		"nothing is allocated": unallocated, "namespace default is no tenant's": claim("default", "cxi0"), "no NIC cxi9": claim("climate", "cxi9"),
		"no NIC of node n": claim("climate"),
	} {
		results, err := d.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{c})
		if err != nil || results["1-2-3"].Err == nil || !strings.Contains(results["1-2-3"].Err.Error(), want) {
			t.Errorf("%v %v, want %q", err, results, want)
		}
	}
}
