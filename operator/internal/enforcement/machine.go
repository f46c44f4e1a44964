package enforcement

import (
	"context"
	"net/netip"

	"weir.dev/weir/operator/internal/fabric/namespaces"
	"weir.dev/weir/operator/internal/isolation"
)

// Machine is the node that the process runs on.
type Machine struct {
	// Folder has the network namespaces of pods, bound to files.
	Folder string
}

var _ Node = Machine{}

// Namespaces implements Node.
func (m Machine) Namespaces() ([]namespaces.Found, error) { return namespaces.Find(m.Folder) }

// Addresses implements Node.
func (m Machine) Addresses(of namespaces.Found) ([]netip.Addr, error) { return of.Addresses() }

// Attempt implements Node.
func (m Machine) Attempt(ctx context.Context, from namespaces.Found, to netip.AddrPort) (outcome isolation.Outcome, err error) {
	err = from.Do(func() (err error) {
		outcome, err = isolation.Attempt(ctx, to, attemptTimeout)
		return err
	})
	return outcome, err
}
