package fabric

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/utils/clock"
)

// Keeper has a Fabric make, admit and destroy the services of this agent. It writes down each step before the fabric does it, so that
// an agent that ends at any moment leaves no service that its successor doesn't know. It never touches services of others.
type Keeper struct {
	fabric  Fabric
	clock   clock.PassiveClock
	journal journal
	// step is called between any two steps with the name of the one that is done. Tests end the process there.
	step func(name string)

	mu      sync.Mutex
	entries map[string]*Entry
}

// NewKeeper makes a keeper whose journal is in a folder. boot tells this start of the node from others. It takes up what an earlier
// agent left.
func NewKeeper(ctx context.Context, fabric Fabric, folder, boot string, passive clock.PassiveClock) (*Keeper, error) {
	return newKeeper(ctx, fabric, folder, boot, passive, func(string) {})
}

func newKeeper(ctx context.Context, fabric Fabric, folder, boot string, passive clock.PassiveClock, step func(string)) (*Keeper, error) {
	k := &Keeper{fabric: fabric, clock: passive, journal: journal{folder: folder, boot: boot}, step: step}
	return k, k.Refresh(ctx)
}

// Refresh reads the journal and compares it with the services that there are: those that somebody else has ended are forgotten, and
// what an earlier agent didn't finish is taken back.
func (k *Keeper) Refresh(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	entries, err := k.journal.read()
	if err != nil {
		return err
	}
	services, err := k.fabric.List(ctx)
	if err != nil {
		return fmt.Errorf("list the services of the node: %w", err)
	}
	k.entries = entries
	known := map[ID]bool{}
	for _, entry := range entries {
		if entry.State != StateAllocating {
			known[entry.ID] = true
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(entries)) {
		entry := entries[owner]
		if entry.State == StateAllocating {
			err = k.undo(ctx, entry, services, known)
		} else {
			err = k.compare(entry, services)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Lost tells whether a service that the agent keeps is not there: somebody has ended it behind the agent's back.
func (k *Keeper) Lost(ctx context.Context) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	services, err := k.fabric.List(ctx)
	if err != nil {
		return false, fmt.Errorf("list the services of the node: %w", err)
	}
	for _, entry := range k.entries {
		if entry.State == StateAdmitted && !slices.ContainsFunc(services, func(s Service) bool { return s.ID == entry.ID }) {
			return true, nil
		}
	}
	return false, nil
}

// undo ends an allocation that nobody knows the outcome of. The service, if there is one, has exactly the VNIs of the request, was not
// there when the allocation began, and is in no other entry: allocations are made one at a time.
func (k *Keeper) undo(ctx context.Context, entry *Entry, services []Service, known map[ID]bool) error {
	for _, s := range services {
		if s.Device != entry.Request.Device || known[s.ID] || slices.Contains(entry.Others, s.Number) || !slices.Equal(s.VNIs, entry.Request.VNIs) {
			continue
		}
		entry.State, entry.ID = StateDestroying, s.ID
		if err := k.journal.write(entry); err != nil {
			return err
		}
		k.step("undoing noted")
		err := k.destroy(ctx, entry)
		if errors.Is(err, ErrBusy) {
			return nil // Retry goes on with it
		}
		return err
	}
	return k.forget(entry)
}

// compare forgets an entry whose service is gone, or another's by now.
func (k *Keeper) compare(entry *Entry, services []Service) error {
	same := func(s Service) bool { return s.ID == entry.ID && slices.Equal(s.VNIs, entry.Request.VNIs) }
	if slices.ContainsFunc(services, same) {
		return nil
	}
	return k.forget(entry)
}

func (k *Keeper) forget(entry *Entry) error {
	delete(k.entries, entry.Owner)
	err := k.journal.remove(entry.Owner)
	k.step("forgotten")
	return err
}

// check says what is wrong with a request.
func check(owner string, wanted Request) error {
	switch {
	case !ownerName.MatchString(owner):
		return fmt.Errorf("%q can't be the owner of a service", owner)
	case len(wanted.VNIs) == 0 || len(wanted.VNIs) > VNIsMax:
		return fmt.Errorf("a service has 1 to %d VNIs, not %d", VNIsMax, len(wanted.VNIs))
	case wanted.VNIs[0] == 0 || !slices.IsSorted(wanted.VNIs) || len(slices.Compact(slices.Clone(wanted.VNIs))) != len(wanted.VNIs):
		return fmt.Errorf("the VNIs %v of a service are not in order, or 0 is among them", wanted.VNIs)
	default:
		return nil
	}
}

// Ensure gives an owner a service, and returns its identity. One that the owner has for another request is destroyed first: it fails
// with ErrBusy while somebody uses that.
func (k *Keeper) Ensure(ctx context.Context, owner string, wanted Request) (ID, error) {
	if err := check(owner, wanted); err != nil {
		return ID{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if entry := k.entries[owner]; entry != nil {
		if entry.State != StateDestroying && sameRequest(entry.Request, wanted) {
			return entry.ID, nil
		}
		if err := k.end(ctx, entry); err != nil {
			return ID{}, err
		}
	}
	services, err := k.fabric.List(ctx)
	if err != nil {
		return ID{}, fmt.Errorf("list the services of the node: %w", err)
	}
	entry := &Entry{Owner: owner, State: StateAllocating, Boot: k.journal.boot, Request: wanted}
	for _, s := range services {
		if s.Device == wanted.Device {
			entry.Others = append(entry.Others, s.Number)
		}
	}
	return k.allocate(ctx, entry)
}

func sameRequest(a, b Request) bool {
	return a.Device == b.Device && slices.Equal(a.VNIs, b.VNIs) && slices.Equal(a.TrafficClasses, b.TrafficClasses)
}

func (k *Keeper) allocate(ctx context.Context, entry *Entry) (ID, error) {
	k.step("begun")
	if err := k.journal.write(entry); err != nil {
		return ID{}, err
	}
	k.step("allocation noted")
	id, err := k.fabric.Allocate(ctx, entry.Request)
	if err != nil {
		err = fmt.Errorf("allocate a service with VNI %v of %s for %s: %w", entry.Request.VNIs, entry.Request.Device, entry.Owner, err)
		return ID{}, errors.Join(err, k.journal.remove(entry.Owner))
	}
	k.step("allocated")
	k.entries[entry.Owner] = entry
	entry.State, entry.ID, entry.Others = StateAllocated, id, nil
	if err := k.journal.write(entry); err != nil {
		return ID{}, err
	}
	k.step("identity noted")
	return id, nil
}

// Admit lets a network namespace use the service of an owner.
func (k *Keeper) Admit(ctx context.Context, owner string, namespace Namespace) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	entry := k.entries[owner]
	if entry == nil || entry.State == StateDestroying {
		return fmt.Errorf("%s has no service that a network namespace could be admitted to", owner)
	}
	if entry.State != StateAdmitted || !entry.Namespace.Equal(namespace) {
		entry.State, entry.Namespace = StateAdmitting, &namespace
		if err := k.journal.write(entry); err != nil {
			return err
		}
		k.step("admission noted")
	}
	// It is done again for one that is admitted: somebody may have taken the admission away behind the agent's back.
	if err := k.fabric.Admit(ctx, entry.ID, namespace); err != nil {
		return fmt.Errorf("admit network namespace %d to the service of %s: %w", namespace.Inode, owner, err)
	}
	k.step("admitted")
	if entry.State == StateAdmitted {
		return nil
	}
	entry.State = StateAdmitted
	if err := k.journal.write(entry); err != nil {
		return err
	}
	k.step("admittance noted")
	return nil
}

// End destroys the service of an owner. While somebody uses it, it fails with ErrBusy, and Retry tries again.
func (k *Keeper) End(ctx context.Context, owner string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	entry := k.entries[owner]
	if entry == nil {
		return nil
	}
	return k.end(ctx, entry)
}

func (k *Keeper) end(ctx context.Context, entry *Entry) error {
	if entry.State != StateDestroying {
		entry.State = StateDestroying
		if err := k.journal.write(entry); err != nil {
			return err
		}
		k.step("end noted")
	}
	return k.destroy(ctx, entry)
}

func (k *Keeper) destroy(ctx context.Context, entry *Entry) error {
	err := k.fabric.Destroy(ctx, entry.ID)
	if errors.Is(err, ErrBusy) && entry.BusySince == nil {
		now := k.clock.Now()
		entry.BusySince = &now
		err = errors.Join(err, k.journal.write(entry))
	}
	if err != nil {
		return fmt.Errorf("destroy service %d of %s, which is %s's: %w", entry.ID.Number, entry.ID.Device, entry.Owner, err)
	}
	k.step("destroyed")
	return k.forget(entry)
}

// Retry tries again to destroy the services that could not be destroyed so far. It returns why any is still there.
func (k *Keeper) Retry(ctx context.Context) error {
	return k.endWhere(ctx, func(entry *Entry) bool { return entry.State == StateDestroying })
}

// Collect destroys the services whose network namespaces are gone. alive has the inodes of all there are.
func (k *Keeper) Collect(ctx context.Context, alive map[uint64]bool) error {
	return k.endWhere(ctx, func(entry *Entry) bool { return entry.Namespace != nil && !alive[entry.Namespace.Inode] })
}

func (k *Keeper) endWhere(ctx context.Context, applies func(*Entry) bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var problems []error
	for _, owner := range slices.Sorted(maps.Keys(k.entries)) {
		if entry := k.entries[owner]; applies(entry) {
			problems = append(problems, k.end(ctx, entry))
		}
	}
	return errors.Join(problems...)
}

// Entries are the services of the agent, in order of their owners.
func (k *Keeper) Entries() []Entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]Entry, 0, len(k.entries))
	for _, entry := range k.entries {
		list = append(list, *entry)
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Owner, b.Owner) })
	return list
}
