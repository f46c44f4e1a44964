// Package nicclaim gives Cassini NICs to pods by dynamic resource allocation: it is the driver cxi.weir.dev on a node. A claim gets a
// service of each NIC with the VNIs of its namespace's tenant; several claims share a NIC by bandwidth. No program runs it yet: the
// network namespace of a pod has to be admitted before its containers start, which takes a hook of the container runtime.
package nicclaim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"sigs.k8s.io/controller-runtime/pkg/log"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"weir.dev/weir/operator/internal/cdifile"
	"weir.dev/weir/operator/internal/fabric"
	"weir.dev/weir/operator/internal/fabric/cassini"
)

const (
	// DriverName is the name of the driver.
	DriverName = "cxi.weir.dev"
	// cdiKind is the vendor and the class of NICs in CDI.
	cdiKind = DriverName + "/nic"
	// TaintLink is the taint of a NIC without a link.
	TaintLink = DriverName + "/link"
	// groupShift and groupMask are where the number of the group of switches stands in a NIC's address: above six bits for the port
	// and five for the switch. Inferred from published addresses; to be confirmed on hardware.
	groupShift, groupMask = 11, 0x1ff
	// bandwidth is the capacity that claims consume, in bits per second.
	bandwidth = "bandwidth"
	// bitsPerMegabit of a link's speed.
	bitsPerMegabit = 1_000_000
)

// NIC is a NIC with what the platform says of it.
type NIC struct {
	cassini.Device
	// NUMANode that it is attached to; nil when the platform names none.
	NUMANode *int32
	// PCIeRoot is the root complex that it is below, such as pci0000:20; empty when that is not known.
	PCIeRoot string
}

// VNIs tells which VNIs the tenant of a namespace has, or why it has none.
type VNIs func(ctx context.Context, namespace string) ([]uint16, error)

// Driver gives NICs to pods.
type Driver struct {
	node   string
	specs  cdifile.Folder
	keeper *fabric.Keeper
	vnis   VNIs
}

var _ kubeletplugin.DRAPlugin = (*Driver)(nil)

// New makes a driver for a node, whose container runtime reads CDI specifications from a folder.
func New(node, folder string, keeper *fabric.Keeper, vnis VNIs) *Driver {
	return &Driver{node: node, specs: cdifile.Folder{Path: folder, Driver: DriverName}, keeper: keeper, vnis: vnis}
}

// Resources are the NICs of the node as the scheduler sees them. One without a link is tainted.
func (d *Driver) Resources(nics []NIC) resourceslice.DriverResources {
	var slice resourceslice.Slice
	for i := range nics {
		slice.Devices = append(slice.Devices, device(&nics[i]))
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.node: {Slices: []resourceslice.Slice{slice}}}}
}

func device(nic *NIC) resourceapi.Device {
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"linkUp":      {BoolValue: &nic.LinkUp},
		"virtual":     {BoolValue: &nic.Virtual},
		"nid":         {IntValue: new(int64(nic.NID))},
		"switchGroup": {IntValue: new(int64(nic.NID >> groupShift & groupMask))},
		"pciAddress":  {StringValue: &nic.PCIAddress},
	}
	if nic.NUMANode != nil {
		attributes["numaNode"] = resourceapi.DeviceAttribute{IntValue: new(int64(*nic.NUMANode))}
	}
	if nic.PCIeRoot != "" {
		attributes["resource.kubernetes.io/pcieRoot"] = resourceapi.DeviceAttribute{StringValue: &nic.PCIeRoot}
	}
	made := resourceapi.Device{
		Name: nic.Name, Attributes: attributes, AllowMultipleAllocations: new(true),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			bandwidth: {Value: *resource.NewQuantity(int64(nic.MegabitsPerSecond)*bitsPerMegabit, resource.DecimalSI)},
		},
	}
	if !nic.LinkUp {
		made.Taints = []resourceapi.DeviceTaint{{Key: TaintLink, Value: "down", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return made
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	return cdifile.PrepareEach(ctx, claims, d.prepare), nil
}

// owner of the service that a claim has at a NIC.
func owner(claim types.UID, nic string) string { return string(claim) + "." + nic }

// prepare makes the services of a claim, and the CDI specification with device files and environment. It gives the same again when it
// is asked again.
func (d *Driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	if claim.Status.Allocation == nil {
		return nil, errors.New("nothing is allocated")
	}
	vnis, err := d.vnis(ctx, claim.Namespace)
	if err != nil {
		return nil, err
	}
	spec := cdi.Spec{Version: cdifile.Version, Kind: cdiKind}
	var devices []kubeletplugin.Device
	var nics, services []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != DriverName || result.Pool != d.node {
			continue
		}
		id, err := d.keeper.Ensure(ctx, owner(claim.UID, result.Device), fabric.Request{Device: result.Device, VNIs: vnis})
		if err != nil {
			return nil, err
		}
		name := string(claim.UID) + "-" + result.Device
		file := "/dev/" + result.Device
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device, ShareID: result.ShareID,
			CDIDeviceIDs: []string{cdiKind + "=" + name},
		})
		if slices.Contains(nics, result.Device) {
			continue // two requests share the NIC, and its service
		}
		spec.Devices = append(spec.Devices, cdi.Device{Name: name, ContainerEdits: cdi.ContainerEdits{DeviceNodes: []*cdi.DeviceNode{{Path: file, HostPath: file, Permissions: "rw"}}}})
		nics = append(nics, result.Device)
		services = append(services, strconv.FormatUint(uint64(id.Number), 10))
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("no NIC of node %s is allocated", d.node)
	}
	spec.ContainerEdits.Env = environment(vnis, nics, services)
	return devices, d.specs.Write(claim.UID, spec)
}

// environment is where libfabric finds NICs and services, as launchers of Slingshot set it.
func environment(vnis []uint16, nics, services []string) []string {
	numbers := make([]string, 0, len(vnis))
	for _, vni := range vnis {
		numbers = append(numbers, strconv.Itoa(int(vni)))
	}
	return []string{
		"SLINGSHOT_VNIS=" + strings.Join(numbers, ","), "SLINGSHOT_DEVICES=" + strings.Join(nics, ","),
		"SLINGSHOT_SVC_IDS=" + strings.Join(services, ","), "SLINGSHOT_TCS=" + allClasses,
	}
}

// allClasses is a mask with the four traffic classes: services are not restricted in them.
const allClasses = "0xf"

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin. A service that is still in use strands no pod: the keeper tries again.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		problems := []error{d.specs.Remove(claim.UID)}
		for _, entry := range d.keeper.Entries() {
			if !strings.HasPrefix(entry.Owner, owner(claim.UID, "")) {
				continue
			}
			if err := d.keeper.End(ctx, entry.Owner); err != nil && !errors.Is(err, fabric.ErrBusy) {
				problems = append(problems, err)
			}
		}
		results[claim.UID] = errors.Join(problems...)
	}
	return results, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *Driver) HandleError(ctx context.Context, err error, message string) {
	log.FromContext(ctx).Error(err, "Dynamic resource allocation of NICs: "+message)
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (d *Driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
