// Package simulated is a fabric of an ordinary network. nftables of the node drop what pods send to the fabric's ports unless
// sender and receiver have a VNI in common: outside of both ends, as the switches and NICs of Slingshot do. The table in the
// kernel is all there is to it: it holds the services, and each change replaces it as a whole.
package simulated

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"weir.dev/weir/operator/internal/fabric"
)

const (
	// Device is the name of the only device of the fabric.
	Device = "sim0"
	// addressesMax is how many addresses a network namespace can have here: they have to fit the comment of an element.
	addressesMax = 4
	// bufferBytes of a socket take the largest table in one transaction, and its answers: some 100 bytes for each of 64,000 addresses,
	// which stand in two sets.
	bufferBytes = 16 << 20
)

// Fabric is the simulated fabric of a network namespace, which is the node's own.
type Fabric struct {
	options []nftables.ConnOption

	mu sync.Mutex
}

var _ fabric.Fabric = (*Fabric)(nil)

// New makes a fabric. Options name another network namespace than the process's.
func New(options ...nftables.ConnOption) *Fabric {
	return &Fabric{options: append(slices.Clone(options), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(bufferBytes), c.SetReadBuffer(bufferBytes))
	}))}
}

// Configuration is what the fabric has to know beside the services of its node.
type Configuration struct {
	// Ports are the fabric's: nothing else of the cluster uses them.
	Ports []uint16
	// Peers are the addresses that belong to a VNI and are not admitted by a service of this node.
	Peers map[uint16][]netip.Addr
}

// Configure sets ports and peers. It also puts the table back if somebody has removed or changed it.
func (f *Fabric) Configure(_ context.Context, wanted Configuration) error {
	return f.change(func(s *state) error {
		s.ports = slices.Compact(slices.Sorted(slices.Values(wanted.Ports)))
		s.peers = map[uint16][]netip.Addr{}
		for vni, addresses := range wanted.Peers {
			s.peers[vni] = slices.Clone(addresses)
		}
		return nil
	})
}

// Allocate implements fabric.Fabric.
func (f *Fabric) Allocate(_ context.Context, wanted fabric.Request) (fabric.ID, error) {
	id := fabric.ID{Device: Device}
	if wanted.Device != Device {
		return id, fmt.Errorf("the simulated fabric has no device %s", wanted.Device)
	}
	err := f.change(func(s *state) error {
		for number := range s.services {
			id.Number = max(id.Number, number)
		}
		id.Number++
		s.services[id.Number] = &service{vnis: slices.Clone(wanted.VNIs)}
		return nil
	})
	return id, err
}

// Admit implements fabric.Fabric.
func (f *Fabric) Admit(_ context.Context, id fabric.ID, namespace fabric.Namespace) error {
	if len(namespace.Addresses) > addressesMax {
		return fmt.Errorf("network namespace %d has %d addresses; the simulated fabric takes %d at most", namespace.Inode, len(namespace.Addresses), addressesMax)
	}
	return f.change(func(s *state) error {
		found := s.services[id.Number]
		if found == nil || id.Device != Device {
			return fmt.Errorf("there is no service %d of %s", id.Number, id.Device)
		}
		found.addresses = slices.Clone(namespace.Addresses)
		return nil
	})
}

// Destroy implements fabric.Fabric. Nothing is ever in use here: what a service admitted is cut off at once.
func (f *Fabric) Destroy(_ context.Context, id fabric.ID) error {
	return f.change(func(s *state) error {
		delete(s.services, id.Number)
		return nil
	})
}

// List implements fabric.Fabric.
func (f *Fabric) List(context.Context) ([]fabric.Service, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.read()
	if err != nil {
		return nil, err
	}
	list := make([]fabric.Service, 0, len(s.services))
	for _, number := range sortedKeys(s.services) {
		list = append(list, fabric.Service{ID: fabric.ID{Device: Device, Number: number}, VNIs: s.services[number].vnis})
	}
	return list, nil
}

// Denied is how many packets the fabric has dropped.
func (f *Fabric) Denied(context.Context) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.read()
	if err != nil {
		return 0, err
	}
	return s.denied.Packets, nil
}

// Remove takes the whole table away, and with it what keeps VNIs apart.
func (f *Fabric) Remove(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := nftables.New(f.options...)
	if err != nil {
		return fmt.Errorf("reach nftables: %w", err)
	}
	c.AddTable(table()) // deleting one that is not there is an error
	c.DelTable(table())
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove nftables of the fabric: %w", err)
	}
	return nil
}

// change reads the table, and replaces it by one that is changed.
func (f *Fabric) change(how func(*state) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.read()
	if err != nil {
		return err
	}
	if err := how(s); err != nil {
		return err
	}
	return f.write(s)
}
