package simulated

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	// priority of the chains: before those of Kubernetes, which may accept what is none of theirs.
	priority nftables.ChainPriority = -10
	// checkName is the chain that decides whether two addresses may talk; genuineName the one that looks whether an address is
	// where it belongs, first.
	checkName, genuineName = "check", "genuine"
	register               = 1
)

// family is how the addresses of an IP version are found in a packet.
type family struct {
	name                       string
	protocol                   byte
	key                        nftables.SetDatatype
	source, destination, bytes uint32
}

var families = []family{
	{name: "4", protocol: unix.NFPROTO_IPV4, key: nftables.TypeIPAddr, source: 12, destination: 16, bytes: 4},
	{name: "6", protocol: unix.NFPROTO_IPV6, key: nftables.TypeIP6Addr, source: 8, destination: 24, bytes: 16},
}

// write replaces the table in one transaction: packets meet the rules of before or those of after.
func (f *Fabric) write(s *state) error {
	c, err := nftables.New(f.options...)
	if err != nil {
		return fmt.Errorf("reach nftables: %w", err)
	}
	c.AddTable(table()) // deleting one that is not there is an error
	c.DelTable(table())
	w := writer{conn: c, table: c.AddTable(table())}
	if err := w.all(s); err != nil {
		return fmt.Errorf("make nftables of the fabric: %w", err)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write nftables of the fabric: %w", err)
	}
	return nil
}

type writer struct {
	conn  *nftables.Conn
	table *nftables.Table
}

func (w *writer) all(s *state) error {
	services := make([]nftables.SetElement, 0, len(s.services))
	for _, number := range sortedKeys(s.services) {
		services = append(services, nftables.SetElement{Key: binaryutil.BigEndian.PutUint32(number), Comment: s.services[number].format()})
	}
	if _, err := w.set(servicesName, nftables.TypeMark, services); err != nil {
		return err
	}
	ports := make([]nftables.SetElement, 0, len(s.ports))
	for _, port := range s.ports {
		ports = append(ports, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(port)})
	}
	portSet, err := w.set(portsName, nftables.TypeInetService, ports)
	if err != nil {
		return err
	}
	for _, vni := range sortedKeys(s.peers) {
		for _, f := range families {
			if _, err := w.addresses(peersPrefix, vni, f, s.peers[vni]); err != nil {
				return err
			}
		}
	}
	w.conn.AddObj(&nftables.CounterObj{Table: w.table, Name: deniedName, Packets: s.denied.Packets, Bytes: s.denied.Bytes})
	check, err := w.check(s.members())
	if err != nil {
		return err
	}
	w.hooks(check, portSet)
	return nil
}

// set adds a set with its elements.
func (w *writer) set(name string, key nftables.SetDatatype, elements []nftables.SetElement) (*nftables.Set, error) {
	set := &nftables.Set{Table: w.table, Name: name, KeyType: key}
	if err := w.conn.AddSet(set, nil); err != nil {
		return nil, err
	}
	for part := range slices.Chunk(elements, elementsMax) {
		if err := w.conn.SetAddElements(set, part); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// addresses adds the set of those addresses of a VNI that are of a family.
func (w *writer) addresses(prefix string, vni uint16, f family, all []netip.Addr) (*nftables.Set, error) {
	var elements []nftables.SetElement
	for _, address := range all {
		if key := address.Unmap().AsSlice(); len(key) == int(f.bytes) {
			elements = append(elements, nftables.SetElement{Key: key})
		}
	}
	return w.set(fmt.Sprintf("%s%d-%s", prefix, vni, f.name), f.key, elements)
}

// check makes the chain that accepts a packet between members of one VNI, and drops any other.
func (w *writer) check(members map[uint16][]netip.Addr) (*nftables.Chain, error) {
	chain := w.conn.AddChain(&nftables.Chain{Table: w.table, Name: checkName})
	for _, vni := range sortedKeys(members) {
		for _, f := range families {
			set, err := w.addresses(membersPrefix, vni, f, members[vni])
			if err != nil {
				return nil, err
			}
			in := func(offset uint32) []expr.Any {
				return []expr.Any{
					&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.bytes},
					&expr.Lookup{SourceRegister: register, SetName: set.Name, SetID: set.ID},
				}
			}
			w.rule(chain, same(expr.MetaKeyNFPROTO, f.protocol), in(f.source), in(f.destination), verdict(expr.VerdictAccept, ""))
		}
	}
	w.drop(chain)
	return chain, nil
}

// drop ends a chain: it counts and drops what is left.
func (w *writer) drop(chain *nftables.Chain, when ...expr.Any) {
	w.rule(chain, when, []expr.Any{&expr.Objref{Type: int(nftables.ObjTypeCounter), Name: deniedName}}, verdict(expr.VerdictDrop, ""))
}

// hooks has packets looked at wherever they pass the node: between pods, from pods to the node, and from the node to pods.
func (w *writer) hooks(check *nftables.Chain, ports *nftables.Set) {
	genuine := w.conn.AddChain(&nftables.Chain{Table: w.table, Name: genuineName})
	// A source address that the node would not answer through the interface that the packet came from is made up.
	w.drop(genuine,
		&expr.Fib{Register: register, FlagSADDR: true, FlagIIF: true, ResultOIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: binaryutil.NativeEndian.PutUint32(0)})
	w.rule(genuine, verdict(expr.VerdictJump, check.Name))
	for _, hook := range []struct {
		name string
		at   *nftables.ChainHook
		to   *nftables.Chain
		key  expr.MetaKey
	}{
		{"forward", nftables.ChainHookForward, genuine, 0},
		{"input", nftables.ChainHookInput, genuine, expr.MetaKeyIIFNAME},
		{"output", nftables.ChainHookOutput, check, expr.MetaKeyOIFNAME},
	} {
		chain := w.conn.AddChain(&nftables.Chain{
			Table: w.table, Name: hook.name, Type: nftables.ChainTypeFilter, Hooknum: hook.at, Priority: new(priority),
			Policy: new(nftables.ChainPolicyAccept),
		})
		if hook.at != nftables.ChainHookForward { // what the node says to itself crosses no fabric
			w.rule(chain, []expr.Any{
				&expr.Meta{Key: hook.key, Register: register},
				&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: interfaceName("lo")},
			}, verdict(expr.VerdictAccept, ""))
		}
		for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			for _, offset := range []uint32{0, 2} { // source port, destination port
				w.rule(chain, same(expr.MetaKeyL4PROTO, protocol), []expr.Any{
					&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
					&expr.Lookup{SourceRegister: register, SetName: ports.Name, SetID: ports.ID},
				}, verdict(expr.VerdictJump, hook.to.Name))
			}
		}
	}
}

func (w *writer) rule(chain *nftables.Chain, parts ...[]expr.Any) {
	w.conn.AddRule(&nftables.Rule{Table: w.table, Chain: chain, Exprs: slices.Concat(parts...)})
}

func same(key expr.MetaKey, value byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: register}, &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{value}}}
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

// interfaceName as the kernel compares it: with zeros up to its greatest length.
func interfaceName(name string) []byte {
	text := make([]byte, unix.IFNAMSIZ)
	copy(text, name)
	return text
}
