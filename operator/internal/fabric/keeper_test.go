package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"weir.dev/weir/operator/internal/fabric"
)

// double is a fabric in memory.
type double struct {
	services []fabric.Service
	admitted map[fabric.ID]fabric.Namespace
	busy     bool
	// full makes allocations fail, as on a NIC without resources.
	full bool
	next uint32
}

var _ fabric.Fabric = (*double)(nil)

func (d *double) Allocate(_ context.Context, wanted fabric.Request) (fabric.ID, error) {
	if d.full {
		return fabric.ID{}, errors.New("no resources are left")
	}
	d.next++
	id := fabric.ID{Device: wanted.Device, Number: d.next}
	d.services = append(d.services, fabric.Service{ID: id, VNIs: wanted.VNIs})
	return id, nil
}

func (d *double) Admit(_ context.Context, id fabric.ID, namespace fabric.Namespace) error {
	if !slices.ContainsFunc(d.services, func(s fabric.Service) bool { return s.ID == id }) {
		return fmt.Errorf("there is no service %d", id.Number)
	}
	if d.admitted == nil {
		d.admitted = map[fabric.ID]fabric.Namespace{}
	}
	d.admitted[id] = namespace
	return nil
}

func (d *double) Destroy(_ context.Context, id fabric.ID) error {
	if d.busy {
		return fmt.Errorf("destroy service %d: %w", id.Number, fabric.ErrBusy)
	}
	d.services = slices.DeleteFunc(d.services, func(s fabric.Service) bool { return s.ID == id })
	delete(d.admitted, id)
	return nil
}

func (d *double) List(context.Context) ([]fabric.Service, error) {
	return slices.Clone(d.services), nil
}

func keeper(t *testing.T, d fabric.Fabric, folder, boot string) *fabric.Keeper {
	t.Helper()
	k, err := fabric.NewKeeper(t.Context(), d, folder, boot, clocktesting.NewFakePassiveClock(time.Unix(1_000, 0)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var (
	wanted    = fabric.Request{Device: "nic", VNIs: []uint16{7, 9}}
	namespace = fabric.Namespace{Inode: 4026531840, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}
)

func TestAServiceIsMadeOnceAndSurvivesItsAgent(t *testing.T) {
	t.Parallel()
	d, folder := &double{}, t.TempDir()
	k := keeper(t, d, folder, "boot")
	id, err := k.Ensure(t.Context(), "pod", wanted)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Admit(t.Context(), "pod", namespace); err != nil {
		t.Fatal(err)
	}
	k = keeper(t, d, folder, "boot")
	again, err := k.Ensure(t.Context(), "pod", wanted)
	if err != nil || again != id || len(d.services) != 1 {
		t.Errorf("%v %v, %d services", again, err, len(d.services))
	}
	// One for other VNIs takes its place.
	other, err := k.Ensure(t.Context(), "pod", fabric.Request{Device: "nic", VNIs: []uint16{7}})
	if err != nil || other == id || len(d.services) != 1 {
		t.Errorf("%v %v, %d services", other, err, len(d.services))
	}
	if entries := k.Entries(); len(entries) != 1 || entries[0].State != fabric.StateAllocated || entries[0].Namespace != nil {
		t.Errorf("%+v", entries)
	}
}

func TestWhatTheFabricRefusesLeavesNothing(t *testing.T) {
	t.Parallel()
	d, folder := &double{full: true}, t.TempDir()
	k := keeper(t, d, folder, "boot")
	if _, err := k.Ensure(t.Context(), "pod", wanted); err == nil || !strings.Contains(err.Error(), "no resources are left") {
		t.Error(err)
	}
	for owner, request := range map[string]fabric.Request{
		"../etc": wanted, "none": {Device: "nic"}, "zero": {Device: "nic", VNIs: []uint16{0}}, "twice": {Device: "nic", VNIs: []uint16{7, 7}},
		"disorder": {Device: "nic", VNIs: []uint16{9, 7}}, "many": {Device: "nic", VNIs: []uint16{1, 2, 3, 4, 5}},
	} {
		if _, err := k.Ensure(t.Context(), owner, request); err == nil {
			t.Errorf("%s is accepted", owner)
		}
	}
	if err := k.Admit(t.Context(), "nobody", namespace); err == nil {
		t.Error("somebody without a service is admitted")
	}
	if files, err := os.ReadDir(folder); err != nil || len(files) != 0 || len(k.Entries()) != 0 {
		t.Errorf("left: %v %v %v", files, err, k.Entries())
	}
}

func TestABusyServiceIsDestroyedOnceNobodyUsesIt(t *testing.T) {
	t.Parallel()
	d, folder := &double{}, t.TempDir()
	k := keeper(t, d, folder, "boot")
	if _, err := k.Ensure(t.Context(), "pod", wanted); err != nil {
		t.Fatal(err)
	}
	d.busy = true
	for _, k := range []*fabric.Keeper{k, keeper(t, d, folder, "boot")} {
		if err := k.End(t.Context(), "pod"); !errors.Is(err, fabric.ErrBusy) {
			t.Error(err)
		}
		if entries := k.Entries(); len(entries) != 1 || entries[0].State != fabric.StateDestroying || entries[0].BusySince.Unix() != 1_000 {
			t.Errorf("%+v", entries)
		}
		if err := k.Retry(t.Context()); !errors.Is(err, fabric.ErrBusy) {
			t.Error(err)
		}
		if err := k.Admit(t.Context(), "pod", namespace); err == nil {
			t.Error("somebody is admitted to a service that ends")
		}
	}
	d.busy = false
	k = keeper(t, d, folder, "boot")
	if err := k.Retry(t.Context()); err != nil || len(d.services) != 0 || len(k.Entries()) != 0 {
		t.Errorf("%v %v %v", err, d.services, k.Entries())
	}
}

func TestServicesOfNamespacesThatAreGoneAreCollected(t *testing.T) {
	t.Parallel()
	d := &double{}
	k := keeper(t, d, t.TempDir(), "boot")
	for _, owner := range []string{"gone", "alive", "waiting"} {
		if _, err := k.Ensure(t.Context(), owner, wanted); err != nil {
			t.Fatal(err)
		}
	}
	for owner, inode := range map[string]uint64{"gone": 1, "alive": 2} {
		if err := k.Admit(t.Context(), owner, fabric.Namespace{Inode: inode}); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Collect(t.Context(), map[uint64]bool{2: true}); err != nil {
		t.Fatal(err)
	}
	var owners []string
	for _, entry := range k.Entries() {
		owners = append(owners, entry.Owner)
	}
	if !slices.Equal(owners, []string{"alive", "waiting"}) || len(d.services) != 2 {
		t.Errorf("%v %v", owners, d.services)
	}
}

func TestServicesOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	d, folder := &double{}, t.TempDir()
	k := keeper(t, d, folder, "before")
	if _, err := k.Ensure(t.Context(), "pod", wanted); err != nil {
		t.Fatal(err)
	}
	// The node starts anew: the number is another's now.
	d.services = []fabric.Service{{ID: fabric.ID{Device: "nic", Number: 1}, VNIs: []uint16{7, 9}}}
	k = keeper(t, d, folder, "after")
	if err := errors.Join(k.End(t.Context(), "pod"), k.Retry(t.Context())); err != nil || len(d.services) != 1 {
		t.Errorf("%v %v", err, d.services)
	}
	// Somebody ends a service behind the agent's back, and the number becomes another's.
	d.services = nil
	if _, err := k.Ensure(t.Context(), "pod", wanted); err != nil {
		t.Fatal(err)
	}
	d.services[0].VNIs = []uint16{8}
	if err := k.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := k.End(t.Context(), "pod"); err != nil || len(d.services) != 1 || len(k.Entries()) != 0 {
		t.Errorf("%v %v %v", err, d.services, k.Entries())
	}
}

func TestADamagedJournalStopsTheAgent(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"half": `{"owner": "pod`, "renamed": `{"owner": "other", "state": "Allocated", "boot": "boot"}`,
	} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, "pod.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := fabric.NewKeeper(t.Context(), &double{}, folder, "boot", clocktesting.NewFakePassiveClock(time.Time{})); err == nil {
			t.Errorf("a journal that is %s is taken", name)
		}
	}
}
