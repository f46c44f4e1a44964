// Package resourceclaim gives drives to pods by dynamic resource allocation: it is the driver nvme.weir.dev on a node. It offers
// the drives that are assigned to engines, each to its engine only, and gives them to containers by CDI.
package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"sigs.k8s.io/controller-runtime/pkg/log"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"weir.dev/weir/operator/internal/cdifile"
	"weir.dev/weir/operator/internal/drive"
	"weir.dev/weir/operator/internal/inventory"
)

// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceslices,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims,verbs=get
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

const (
	// cdiKind is the vendor and the class of drives in CDI.
	cdiKind = drive.Driver + "/drive"
	// nodeMode lets only the engine's user open a drive.
	nodeMode = os.FileMode(0o600)
)

// Taker looks at a drive that is about to be given away, and makes its device file.
type Taker func(ctx context.Context, name string) (seen *inventory.Seen, file string, err error)

// Publisher makes known what drives there are.
type Publisher interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
}

// Driver gives drives to pods.
type Driver struct {
	node  string
	specs cdifile.Folder
	take  Taker
}

var _ kubeletplugin.DRAPlugin = (*Driver)(nil)

// New makes a driver for a node, whose container runtime reads CDI specifications from a folder.
func New(node, folder string, take Taker) *Driver {
	return &Driver{node: node, specs: cdifile.Folder{Path: folder, Driver: drive.Driver}, take: take}
}

// Offer tells the scheduler of the drives that the node has now.
func (d *Driver) Offer(publisher Publisher) func(context.Context, []inventory.Seen) {
	return func(ctx context.Context, drives []inventory.Seen) {
		if err := publisher.PublishResources(ctx, d.Resources(drives)); err != nil {
			log.FromContext(ctx).Error(err, "Drives can't be offered to the scheduler")
		}
	}
}

// Resources are the drives that engines may be given: those that are assigned and fit.
func (d *Driver) Resources(drives []inventory.Seen) resourceslice.DriverResources {
	slices := []resourceslice.Slice{{}}
	for i := range drives {
		seen := &drives[i]
		if seen.Assignment == nil || len(seen.Obstacles) > 0 {
			continue
		}
		last := &slices[len(slices)-1]
		if len(last.Devices) == resourceapi.ResourceSliceMaxDevices {
			slices = append(slices, resourceslice.Slice{})
			last = &slices[len(slices)-1]
		}
		last.Devices = append(last.Devices, device(seen))
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.node: {Slices: slices}}}
}

// device is a drive as the scheduler sees it.
func device(seen *inventory.Seen) resourceapi.Device {
	text := func(value string) resourceapi.DeviceAttribute {
		return resourceapi.DeviceAttribute{StringValue: &value}
	}
	at := seen.Assignment
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		drive.AttributeEngine: text(drive.Engine(at.Namespace, at.Cluster, at.Rank)),
		drive.AttributeTarget: {IntValue: new(int64(at.Target))},
		"kind":                text(string(seen.Drive.Kind)),
	}
	for name, value := range map[resourceapi.QualifiedName]string{"model": seen.Drive.Model, "serial": seen.Drive.Serial, "pciAddress": seen.Drive.PCIAddress} {
		if value != "" && len(value) <= resourceapi.DeviceAttributeMaxValueLength {
			attributes[name] = text(value)
		}
	}
	if node := seen.Drive.NUMANode; node != nil {
		attributes["numaNode"] = resourceapi.DeviceAttribute{IntValue: new(int64(*node))}
	}
	return resourceapi.Device{
		Name: seen.Name, Attributes: attributes,
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"size": {Value: *resource.NewQuantity(seen.Drive.Bytes, resource.BinarySI)}},
	}
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	return cdifile.PrepareEach(ctx, claims, d.prepare), nil
}

// prepare makes the CDI specification of a claim's drives. It gives the same again when it is asked again.
func (d *Driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	if claim.Status.Allocation == nil {
		return nil, errors.New("nothing is allocated")
	}
	spec := cdi.Spec{Version: cdifile.Version, Kind: cdiKind}
	var devices []kubeletplugin.Device
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != drive.Driver || result.Pool != d.node {
			continue
		}
		seen, file, err := d.take(ctx, result.Device)
		if err != nil {
			return nil, err
		}
		if seen.Assignment.Namespace != claim.Namespace {
			return nil, fmt.Errorf("drive %s is of a StorageCluster in namespace %s", result.Device, seen.Assignment.Namespace)
		}
		name := string(claim.UID) + "-" + result.Device
		spec.Devices = append(spec.Devices, cdi.Device{Name: name, ContainerEdits: cdi.ContainerEdits{DeviceNodes: []*cdi.DeviceNode{{
			Path: drive.ContainerPath(seen.Assignment.Target), HostPath: file, Type: "b",
			Major: int64(seen.Drive.Major), Minor: int64(seen.Drive.Minor), FileMode: new(nodeMode), Permissions: "rw",
			UID: new(uint32(drive.EngineUser)), GID: new(uint32(drive.EngineUser)),
		}}}})
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device, CDIDeviceIDs: []string{cdiKind + "=" + name},
		})
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("no drive of node %s is allocated", d.node)
	}
	return devices, d.specs.Write(claim.UID, spec)
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.specs.Remove(claim.UID)
	}
	return results, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *Driver) HandleError(ctx context.Context, err error, message string) {
	log.FromContext(ctx).Error(err, "Dynamic resource allocation: "+message)
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin. The health of drives is in their NodeDevices.
func (d *Driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
