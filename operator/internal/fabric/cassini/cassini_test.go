package cassini_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/operator/internal/fabric"
	"weir.dev/weir/operator/internal/fabric/cassini"
)

// build compiles the double of the library.
func build(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "libcxi-double.so")
	command := exec.Command("cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-o", file, "testdata/double.c")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("compile the double of libcxi: %v\n%s", err, out)
	}
	return file
}

func open(t *testing.T) (*cassini.Fabric, *cassini.Double, string) {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	t.Setenv("WEIR_CXI_DOUBLE", state)
	file := build(t)
	f, err := cassini.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	d, err := cassini.NewDouble(f, file)
	if err != nil {
		t.Fatal(err)
	}
	return f, d, state
}

func flag(t *testing.T, path string, set bool) {
	t.Helper()
	var err error
	if set {
		err = os.WriteFile(path, nil, 0o600)
	} else {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheNICsOfANodeAreFound(t *testing.T) {
	f, d, _ := open(t)
	devices, err := f.Devices()
	want := []cassini.Device{
		{Name: "cxi0", NID: 0x12345, LinkUp: true, MegabitsPerSecond: 200000, PCIAddress: "0000:21:00.0"},
		{Name: "cxi1", NID: 0x12346, MegabitsPerSecond: 200000, Virtual: true, PCIAddress: "0000:21:00.1"},
	}
	if err != nil || !slices.Equal(devices, want) {
		t.Errorf("%+v %v", devices, err)
	}
	if d.Handles() != 0 {
		t.Errorf("%d handles are left", d.Handles())
	}
}

func TestAServiceIsForOneNetworkNamespace(t *testing.T) {
	f, d, state := open(t)
	for _, device := range []string{"cxi0", "cxi1"} { // a virtual function is a device as any other
		id, err := f.Allocate(t.Context(), fabric.Request{Device: device, VNIs: []uint16{1024, 1025}, TrafficClasses: []string{"low_latency", "best_effort"}})
		if err != nil || id.Device != device || id.Number < 2 {
			t.Fatal(id, err)
		}
		admits := func(network uint32) bool {
			admits, err := d.Admits(device, id.Number, network)
			if err != nil {
				t.Fatal(err)
			}
			return admits
		}
		if admits(0) || admits(4026531840) {
			t.Error("a service that nobody is admitted to can be used")
		}
		if classes, err := d.Classes(device, id.Number); err != nil || classes != 1<<1|1<<3 {
			t.Errorf("classes %b %v", classes, err)
		}
		for _, inode := range []uint64{4026531840, 4026532000} {
			if err := f.Admit(t.Context(), id, fabric.Namespace{Inode: inode}); err != nil {
				t.Fatal(err)
			}
		}
		if admits(4026531840) || !admits(4026532000) {
			t.Error("the service is not the namespace's alone")
		}
		services, err := f.List(t.Context())
		if err != nil || !slices.ContainsFunc(services, func(s fabric.Service) bool { return s.ID == id && slices.Equal(s.VNIs, []uint16{1024, 1025}) }) {
			t.Errorf("%+v %v", services, err)
		}
		flag(t, state+".busy", true)
		if err := f.Destroy(t.Context(), id); !errors.Is(err, fabric.ErrBusy) {
			t.Error(err)
		}
		if err := f.Admit(t.Context(), id, fabric.Namespace{Inode: 4026532000}); err != nil {
			t.Errorf("an admission that holds is asked for again: %v", err)
		}
		if err := f.Admit(t.Context(), id, fabric.Namespace{Inode: 4026531840}); !errors.Is(err, fabric.ErrBusy) {
			t.Error(err)
		}
		flag(t, state+".busy", false)
		for range 2 {
			if err := f.Destroy(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	}
	services, err := f.List(t.Context())
	if err != nil || len(services) != 2 || services[0].Number != 1 || !slices.Equal(services[0].VNIs, []uint16{1, 10}) {
		t.Errorf("beside the default services are left %+v %v", services, err)
	}
	f.Close()
	if d.Handles() != 0 {
		t.Errorf("%d handles are left", d.Handles())
	}
	text, err := os.ReadFile(state + ".calls")
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range []string{
		"get_device_list", "free_device_list", "open_device", "close_device", "alloc_svc", "update_svc", "destroy_svc", "get_svc_list", "free_svc_list",
	} {
		if !slices.Contains(strings.Fields(string(text)), call) {
			t.Errorf("cxil_%s was not called", call)
		}
	}
}

func TestWhatTheNICRefusesIsSaid(t *testing.T) {
	f, _, state := open(t)
	for name, request := range map[string]fabric.Request{
		"a NIC that is not there": {Device: "cxi7", VNIs: []uint16{1}}, "VNI 0": {Device: "cxi0", VNIs: []uint16{0}},
		"an unknown class": {Device: "cxi0", VNIs: []uint16{5}, TrafficClasses: []string{"fast"}}, "too many VNIs": {Device: "cxi0", VNIs: []uint16{1, 2, 3, 4, 5}},
	} {
		if _, err := f.Allocate(t.Context(), request); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	flag(t, state+".full", true)
	if _, err := f.Allocate(t.Context(), fabric.Request{Device: "cxi0", VNIs: []uint16{5}}); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	id := fabric.ID{Device: "cxi0", Number: 9}
	for _, inode := range []uint64{0, 1 << 32, 4026531840} {
		if err := f.Admit(t.Context(), id, fabric.Namespace{Inode: inode}); err == nil {
			t.Errorf("network namespace %d is admitted to a service that is not there", inode)
		}
	}
	if _, err := cassini.Open(filepath.Join(t.TempDir(), "libcxi.so.1")); err == nil {
		t.Error("a library that is not there is loaded")
	}
	if _, err := cassini.Open("libc.so.6"); err == nil || !strings.Contains(err.Error(), "lacks cxil_") {
		t.Error(err)
	}
}
