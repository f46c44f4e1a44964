package simulated

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"
)

const (
	tableName = "weir-fabric"
	// servicesName is the set whose elements are the numbers of the services; the comment of each says what the service is.
	servicesName = "services"
	// peersPrefix begins the names of sets with the peers of a VNI: prefix, VNI, dash, 4 or 6.
	peersPrefix = "peers-"
	// membersPrefix begins the names of sets with everybody who belongs to a VNI, peers among them, named likewise.
	membersPrefix = "members-"
	portsName     = "ports"
	deniedName    = "denied"
	// elementsMax of a set go into one message: a netlink attribute has 64 KiB at most, and comments are long.
	elementsMax = 128
)

// state is what the table says.
type state struct {
	ports    []uint16
	services map[uint32]*service
	peers    map[uint16][]netip.Addr
	denied   nftables.CounterObj
}

// service is a service of the node, and the addresses that are admitted to it.
type service struct {
	vnis      []uint16
	addresses []netip.Addr
}

func table() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// members of each VNI.
func (s *state) members() map[uint16][]netip.Addr {
	all := map[uint16][]netip.Addr{}
	for vni, addresses := range s.peers {
		all[vni] = append(all[vni], addresses...)
	}
	for _, one := range s.services {
		for _, vni := range one.vnis {
			all[vni] = append(all[vni], one.addresses...)
		}
	}
	for vni, addresses := range all {
		slices.SortFunc(addresses, netip.Addr.Compare)
		all[vni] = slices.Compact(addresses)
	}
	return all
}

// format writes what a service is: VNIs, a semicolon, addresses.
func (s *service) format() string {
	vnis := make([]string, 0, len(s.vnis))
	for _, vni := range s.vnis {
		vnis = append(vnis, strconv.Itoa(int(vni)))
	}
	addresses := make([]string, 0, len(s.addresses))
	for _, address := range s.addresses {
		addresses = append(addresses, address.String())
	}
	return strings.Join(vnis, ",") + ";" + strings.Join(addresses, ",")
}

// parseService reads what format wrote.
func parseService(text string) (*service, error) {
	vnis, addresses, found := strings.Cut(text, ";")
	if !found {
		return nil, fmt.Errorf("%q is no service", text)
	}
	s := &service{}
	for part := range strings.SplitSeq(vnis, ",") {
		vni, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q is no service: %w", text, err)
		}
		s.vnis = append(s.vnis, uint16(vni))
	}
	if addresses == "" {
		return s, nil
	}
	for part := range strings.SplitSeq(addresses, ",") {
		address, err := netip.ParseAddr(part)
		if err != nil {
			return nil, fmt.Errorf("%q is no service: %w", text, err)
		}
		s.addresses = append(s.addresses, address)
	}
	return s, nil
}

// read reads the table. It is empty when there is none.
func (f *Fabric) read() (*state, error) {
	s := &state{services: map[uint32]*service{}, peers: map[uint16][]netip.Addr{}}
	c, err := nftables.New(f.options...)
	if err != nil {
		return nil, fmt.Errorf("reach nftables: %w", err)
	}
	if _, err := c.ListTableOfFamily(tableName, nftables.TableFamilyINet); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return s, nil
		}
		return nil, fmt.Errorf("read nftables of the fabric: %w", err)
	}
	sets, err := c.GetSets(table())
	if err != nil {
		return nil, fmt.Errorf("read nftables of the fabric: %w", err)
	}
	for _, set := range sets {
		if err := s.take(c, set); err != nil {
			return nil, fmt.Errorf("set %s of table %s: %w", set.Name, tableName, err)
		}
	}
	if found, err := c.GetObject(&nftables.CounterObj{Table: table(), Name: deniedName}); err == nil {
		if counter, is := found.(*nftables.CounterObj); is {
			s.denied = *counter
		}
	} // a table that somebody has changed is put back, with the count from 0
	return s, nil
}

// take adds what a set of the table says.
func (s *state) take(c *nftables.Conn, set *nftables.Set) error {
	elements := func() ([]nftables.SetElement, error) {
		set.Table = table()
		return c.GetSetElements(set)
	}
	if set.Name == servicesName {
		found, err := elements()
		for _, element := range found {
			one, wrong := parseService(element.Comment)
			if len(element.Key) != 4 || wrong != nil {
				return errors.Join(wrong, fmt.Errorf("the element % x is no service", element.Key))
			}
			s.services[binaryutil.BigEndian.Uint32(element.Key)] = one
		}
		return err
	}
	if text, is := strings.CutPrefix(set.Name, peersPrefix); is {
		text, _, _ = strings.Cut(text, "-")
		vni, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return err
		}
		found, err := elements()
		for _, element := range found {
			if address, is := netip.AddrFromSlice(element.Key); is {
				s.peers[uint16(vni)] = append(s.peers[uint16(vni)], address)
			}
		}
		return err
	}
	if set.Name == portsName {
		found, err := elements()
		for _, element := range found {
			if len(element.Key) >= 2 {
				s.ports = append(s.ports, uint16(element.Key[0])<<8|uint16(element.Key[1]))
			}
		}
		slices.Sort(s.ports)
		return err
	}
	return nil // what follows from the others
}
