// Package fabric gives network namespaces of a node access to virtual networks (VNIs), and takes it back. A Fabric does it; a Keeper
// has it done in such a way that nothing is left over when the agent ends in between.
package fabric

import (
	"context"
	"errors"
	"net/netip"
	"slices"
)

// ErrBusy is what Destroy returns while somebody still uses a service: it has to be tried again.
var ErrBusy = errors.New("the service is in use")

// VNIsMax is how many VNIs one service can have: as many as a descriptor of Cassini holds.
const VNIsMax = 4

// Fabric is what enforces virtual networks on a node. A service is access to some VNIs at one device; who uses it is decided by the
// network namespaces that are admitted. Each call takes effect as a whole or not at all.
type Fabric interface {
	// Allocate makes a service that nobody is admitted to, and returns its identity.
	Allocate(ctx context.Context, wanted Request) (ID, error)
	// Admit lets a network namespace use a service, and no other one. Doing it again changes nothing.
	Admit(ctx context.Context, id ID, namespace Namespace) error
	// Destroy ends a service. It succeeds when there is none, and fails with ErrBusy while the service is in use.
	Destroy(ctx context.Context, id ID) error
	// List returns every service of the node, also those of others.
	List(ctx context.Context) ([]Service, error)
}

// ID names a service until the node starts anew: numbers are given anew after that.
type ID struct {
	// Device that the service is of, such as cxi0.
	Device string `json:"device"`
	// Number of the service at its device.
	Number uint32 `json:"number"`
}

// Request is a service that somebody wants.
type Request struct {
	// Device that the service has to be of.
	Device string `json:"device"`
	// VNIs that the service gives access to, in order, without duplicates, VNIsMax at most.
	VNIs []uint16 `json:"vnis"`
	// TrafficClasses that may be used; none means the fabric's default ones.
	TrafficClasses []string `json:"trafficClasses,omitempty"`
}

// Namespace is a network namespace.
type Namespace struct {
	// Inode is what the kernel knows it by.
	Inode uint64 `json:"inode"`
	// Addresses of its interfaces that are reachable from elsewhere.
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// Equal tells whether two values stand for the same namespace with the same addresses.
func (n Namespace) Equal(other Namespace) bool {
	return n.Inode == other.Inode && slices.Equal(n.Addresses, other.Addresses)
}

// Service is a service that there is.
type Service struct {
	ID
	VNIs []uint16 `json:"vnis"`
}
