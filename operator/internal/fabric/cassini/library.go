// Package cassini is the fabric of nodes with Cassini NICs (Slingshot). It has the vendor's library libcxi make services; the library is
// loaded when the process starts, so that a program without it needs none. What is stated here of the library's interface is from
// its public headers (libcxi 1.x, x86-64). None of it has been run on a NIC.
package cassini

import (
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

const (
	// membersMax and classesMax are how many members and traffic classes a descriptor of a service holds, resourcesMax how many
	// kinds of resources a NIC has, vnisMax how many VNIs the descriptor has space for.
	membersMax, classesMax, resourcesMax, vnisMax = 2, 5, 8, 4
	// restrictedMembers, restrictedVNIs, restrictedClasses and enabled are bits of serviceDescriptor.flags: only members, only the
	// listed VNIs, only the listed classes; the service can be used.
	restrictedMembers, restrictedVNIs, restrictedClasses, enabled = 1 << 0, 1 << 1, 1 << 2, 1 << 4
	// memberNamespace is the kind of a member that is a network namespace, named by its inode. It follows user (1) and group (2).
	memberNamespace = 3
)

// serviceDescriptor is what a service is, as library and kernel take it (struct cxi_svc_desc).
type serviceDescriptor struct {
	flags     uint8
	validVNIs uint8
	vnis      [vnisMax]uint16
	classes   [classesMax]bool
	_         [1]byte
	members   [membersMax]struct {
		value uint32
		kind  int32
	}
	limits [resourcesMax]struct{ most, reserved uint16 } //nolint:unused // goes back to the NIC as it came
	number uint32
}

// deviceInfo is what the library says of a NIC (struct cxil_devinfo).
type deviceInfo struct {
	number    uint32
	nid       uint32
	_         [5]uint32 // process identifiers, and what depends on them
	name      [14]byte
	_         [9]byte // driver
	_         [1]byte
	_         [5]uint32 // vendor, device and revisions
	_         [8]uint16 // resources
	pciDomain uint16
	pciBus    uint8
	pciDevice uint8
	pciFn     uint8
	_         [3]byte
	_         uint64 // greatest packet
	linkSpeed uint64
	linkState uint8
	_         [3]byte
	_         int32    // unicast NIC
	_         uint32   // event queue
	_         int32    // version
	_         [16]byte // board
	isVirtual bool
	_         [3]byte
	_         int32 // kind of system
}

// deviceList is a list of NICs that the library allocates; as many follow as count says.
type deviceList struct {
	count uint32
	_     uint32
	first deviceInfo
}

// serviceList is a list of services that the library allocates; as many follow as count says.
type serviceList struct {
	count uint32
	first serviceDescriptor
}

// device is the library's own of an opened NIC.
type device struct{ _ deviceInfo }

// library has the functions that are used. Each returns 0 or a number above, or the negative of an errno.
type library struct {
	getDeviceList   func(list **deviceList) int32
	freeDeviceList  func(list *deviceList)
	openDevice      func(number uint32, opened **device) int32
	closeDevice     func(opened *device)
	allocService    func(of *device, wanted *serviceDescriptor, fail unsafe.Pointer) int32
	updateService   func(of *device, wanted *serviceDescriptor, fail unsafe.Pointer) int32
	destroyService  func(of *device, number uint32) int32
	getServiceList  func(of *device, list **serviceList) int32
	freeServiceList func(list *serviceList)
}

// load loads the library of a name or path.
func load(name string) (*library, error) {
	handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("load the library of Cassini NICs: %w", err)
	}
	l := &library{}
	for symbol, function := range map[string]any{
		"cxil_get_device_list": &l.getDeviceList, "cxil_free_device_list": &l.freeDeviceList,
		"cxil_open_device": &l.openDevice, "cxil_close_device": &l.closeDevice,
		"cxil_alloc_svc": &l.allocService, "cxil_update_svc": &l.updateService, "cxil_destroy_svc": &l.destroyService,
		"cxil_get_svc_list": &l.getServiceList, "cxil_free_svc_list": &l.freeServiceList,
	} {
		address, err := purego.Dlsym(handle, symbol)
		if err != nil {
			return nil, fmt.Errorf("library %s lacks %s: it is older than what is needed: %w", name, symbol, err)
		}
		purego.RegisterFunc(function, address)
	}
	return l, nil
}

// failed turns what a function returned into an error; nil for success.
func failed(result int32) error {
	if result >= 0 {
		return nil
	}
	return unix.Errno(-result)
}
