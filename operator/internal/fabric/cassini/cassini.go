package cassini

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/operator/internal/fabric"
)

// Fabric is the Cassini NICs of a node.
type Fabric struct {
	library *library

	mu      sync.Mutex
	devices map[string]*device
}

var _ fabric.Fabric = (*Fabric)(nil)

// Device is a Cassini NIC: a physical one, or a virtual function of one.
type Device struct {
	// Name such as cxi0. Its device file is /dev/ and the name.
	Name string
	// NID is the NIC's address on the fabric.
	NID uint32
	// LinkUp is false while the NIC has no link.
	LinkUp bool
	// MegabitsPerSecond of the link.
	MegabitsPerSecond uint64
	// Virtual is true for a virtual function.
	Virtual bool
	// PCIAddress such as 0000:21:00.0.
	PCIAddress string
}

// Open loads the library of a name or path, such as libcxi.so.1, and finds the NICs.
func Open(name string) (*Fabric, error) {
	l, err := load(name)
	if err != nil {
		return nil, err
	}
	return &Fabric{library: l, devices: map[string]*device{}}, nil
}

// Close lets go of the NICs. Services stay.
func (f *Fabric) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, opened := range f.devices {
		f.library.closeDevice(opened)
		delete(f.devices, name)
	}
}

// Devices are the NICs of the node, in order of their names.
func (f *Fabric) Devices() ([]Device, error) {
	infos, err := f.infos()
	if err != nil {
		return nil, err
	}
	list := make([]Device, 0, len(infos))
	for _, info := range infos {
		list = append(list, Device{
			Name: nameOf(&info), NID: info.nid, LinkUp: info.linkState != 0, MegabitsPerSecond: info.linkSpeed, Virtual: info.isVirtual,
			PCIAddress: fmt.Sprintf("%04x:%02x:%02x.%x", info.pciDomain, info.pciBus, info.pciDevice, info.pciFn),
		})
	}
	slices.SortFunc(list, func(a, b Device) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return list, nil
}

func (f *Fabric) infos() ([]deviceInfo, error) {
	var list *deviceList
	if err := failed(f.library.getDeviceList(&list)); err != nil {
		return nil, fmt.Errorf("list the Cassini NICs: %w", err)
	}
	defer f.library.freeDeviceList(list)
	return slices.Clone(unsafe.Slice(&list.first, list.count)), nil
}

func nameOf(info *deviceInfo) string {
	name, _, _ := bytes.Cut(info.name[:], []byte{0})
	return string(name)
}

// opened is an open NIC. The caller holds the lock.
func (f *Fabric) opened(name string) (*device, error) {
	if one := f.devices[name]; one != nil {
		return one, nil
	}
	infos, err := f.infos()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(infos, func(info deviceInfo) bool { return nameOf(&info) == name })
	if i < 0 {
		return nil, fmt.Errorf("the node has no NIC %s", name)
	}
	var one *device
	if err := failed(f.library.openDevice(infos[i].number, &one)); err != nil {
		return nil, fmt.Errorf("open NIC %s: %w", name, err)
	}
	f.devices[name] = one
	return one, nil
}

// classNumbers are the traffic classes by the names that libfabric gives them.
var classNumbers = map[string]int{"dedicated_access": 0, "low_latency": 1, "bulk_data": 2, "best_effort": 3}

// Allocate implements fabric.Fabric. The service is restricted to members and has none, so that nobody can use it.
func (f *Fabric) Allocate(_ context.Context, wanted fabric.Request) (fabric.ID, error) {
	id := fabric.ID{Device: wanted.Device}
	if len(wanted.VNIs) > vnisMax {
		return id, fmt.Errorf("a service has %d VNIs at most", vnisMax)
	}
	d := serviceDescriptor{flags: restrictedMembers | restrictedVNIs | enabled, validVNIs: uint8(len(wanted.VNIs))}
	copy(d.vnis[:], wanted.VNIs)
	for _, name := range wanted.TrafficClasses {
		number, known := classNumbers[name]
		if !known {
			return id, fmt.Errorf("there is no traffic class %q", name)
		}
		d.flags |= restrictedClasses
		d.classes[number] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	nic, err := f.opened(wanted.Device)
	if err != nil {
		return id, err
	}
	number := f.library.allocService(nic, &d, nil)
	switch {
	case number < 0:
		return id, failed(number)
	case number == 0:
		return id, errors.New("the library gave the service no number")
	}
	id.Number = uint32(number)
	return id, nil
}

// Admit implements fabric.Fabric.
func (f *Fabric) Admit(_ context.Context, id fabric.ID, namespace fabric.Namespace) error {
	if namespace.Inode == 0 || namespace.Inode > math.MaxUint32 {
		return fmt.Errorf("the NIC can't tell network namespace %d from others", namespace.Inode)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	nic, services, err := f.services(id.Device)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(services, func(d serviceDescriptor) bool { return d.number == id.Number })
	if i < 0 {
		return fmt.Errorf("NIC %s has no service %d", id.Device, id.Number)
	}
	d := services[i]
	clear(d.members[:])
	d.members[0].kind, d.members[0].value = memberNamespace, uint32(namespace.Inode)
	d.flags |= restrictedMembers | enabled
	if d == services[i] {
		return nil // a service in use can't be updated, and need not be
	}
	return busy(failed(f.library.updateService(nic, &d, nil)))
}

// Destroy implements fabric.Fabric.
func (f *Fabric) Destroy(_ context.Context, id fabric.ID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	nic, services, err := f.services(id.Device)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(services, func(d serviceDescriptor) bool { return d.number == id.Number }) {
		return nil
	}
	return busy(failed(f.library.destroyService(nic, id.Number)))
}

// busy says of what is in use that it has to be tried again.
func busy(err error) error {
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %w", fabric.ErrBusy, err)
	}
	return err
}

// services are those of a NIC. The caller holds the lock.
func (f *Fabric) services(name string) (*device, []serviceDescriptor, error) {
	nic, err := f.opened(name)
	if err != nil {
		return nil, nil, err
	}
	var list *serviceList
	if err := failed(f.library.getServiceList(nic, &list)); err != nil {
		return nil, nil, fmt.Errorf("list the services of NIC %s: %w", name, err)
	}
	defer f.library.freeServiceList(list)
	return nic, slices.Clone(unsafe.Slice(&list.first, list.count)), nil
}

// List implements fabric.Fabric.
func (f *Fabric) List(context.Context) ([]fabric.Service, error) {
	infos, err := f.infos()
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []fabric.Service
	for i := range infos {
		name := nameOf(&infos[i])
		_, services, err := f.services(name)
		if err != nil {
			return nil, err
		}
		for _, d := range services {
			if d.validVNIs > vnisMax {
				return nil, fmt.Errorf("service %d of NIC %s has %d VNIs: the library is newer than what is known of it", d.number, name, d.validVNIs)
			}
			list = append(list, fabric.Service{ID: fabric.ID{Device: name, Number: d.number}, VNIs: slices.Clone(d.vnis[:d.validVNIs])})
		}
	}
	return list, nil
}
