package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"weir.dev/weir/operator/internal/fabric"
	"weir.dev/weir/operator/internal/fabric/cassini"
	"weir.dev/weir/operator/internal/fabric/simulated"
)

const (
	// crashVariable has the step after which the process kills itself, crashFolder the journal, crashFabric which fabric it is.
	crashVariable, crashFolder, crashFabric = "WEIR_TEST_CRASH", "WEIR_TEST_JOURNAL", "WEIR_TEST_FABRIC"
	boot                                    = "boot"
)

// life is all that happens to a service, and lifeSteps are its steps.
func life(ctx context.Context, place string, k *fabric.Keeper) error {
	if _, err := k.Ensure(ctx, "pod", deviceOf(place, wanted)); err != nil {
		return err
	}
	if err := k.Admit(ctx, "pod", namespace); err != nil {
		return err
	}
	return k.End(ctx, "pod")
}

var lifeSteps = []string{
	"begun", "allocation noted", "allocated", "identity noted", "admission noted", "admitted", "admittance noted", "end noted", "destroyed", "forgotten",
}

// undoSteps are those of taking back an allocation that nobody knows the outcome of.
var undoSteps = []string{"undoing noted", "destroyed", "forgotten"}

// deviceOf is a request at the device that the fabric under test has.
func deviceOf(place string, r fabric.Request) fabric.Request {
	r.Device = simulated.Device
	if strings.HasPrefix(place, cassiniPrefix) {
		r.Device = "cxi0"
	}
	return r
}

// cassiniPrefix begins the place of a fabric that is the double of a library, whose file follows.
const cassiniPrefix = "library:"

// open opens the fabric of a network namespace, or of a library. It stays open until the process ends.
func open(name string) (fabric.Fabric, error) {
	if library, is := strings.CutPrefix(name, cassiniPrefix); is {
		return cassini.Open(library)
	}
	handle, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return simulated.New(nftables.WithNetNSFd(handle)), nil
}

// TestMain is also the agent that is killed.
func TestMain(m *testing.M) {
	step := os.Getenv(crashVariable)
	if step == "" {
		os.Exit(m.Run())
	}
	err := func() error {
		place := os.Getenv(crashFabric)
		f, err := open(place)
		if err != nil {
			return err
		}
		ctx := context.Background()
		k, err := fabric.NewKeeperWithSteps(ctx, f, os.Getenv(crashFolder), boot, clock.RealClock{}, func(name string) {
			if name == step {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // it does not return
				select {}
			}
		})
		if err != nil {
			return err
		}
		return life(ctx, place, k)
	}()
	fmt.Fprintln(os.Stderr, "the agent was to be killed after the step", step, "but ended with", err)
	os.Exit(1)
}

// crash runs an agent that is killed after a step.
func crash(t *testing.T, place, folder, step string) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), crashVariable+"="+step, crashFolder+"="+folder, crashFabric+"="+place)
	out, err := command.CombinedOutput()
	ended, is := errors.AsType[*exec.ExitError](err)
	if !is || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("after the step %q: %v %s", step, err, out)
	}
}

// settle takes up what a killed agent left, and fails the test unless journal and fabric agree on the services, of which one is
// somebody else's.
func settle(t *testing.T, place, folder, step string, others fabric.Service) {
	t.Helper()
	f, err := open(place)
	if err != nil {
		t.Fatal(err)
	}
	k := keeper(t, f, folder, boot)
	services, err := f.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	services = ours(services, others)
	known := map[fabric.ID]bool{others.ID: true}
	for _, entry := range k.Entries() {
		known[entry.ID] = true
	}
	for _, s := range services {
		if !known[s.ID] {
			t.Errorf("killed after the step %q: nobody knows of service %d", step, s.Number)
		}
	}
	if len(services) != len(known) {
		t.Errorf("killed after the step %q: services %+v, known %v", step, services, known)
	}
	if err := k.Retry(t.Context()); err != nil {
		t.Errorf("killed after the step %q: %v", step, err)
	}
	if err := life(t.Context(), place, k); err != nil {
		t.Errorf("killed after the step %q: %v", step, err)
	}
	left, err := f.List(t.Context())
	left = ours(left, others)
	if err != nil || len(left) != 1 || left[0].ID != others.ID || len(k.Entries()) != 0 {
		t.Errorf("killed after the step %q: left are %+v and %+v (%v)", step, left, k.Entries(), err)
	}
	files, err := os.ReadDir(folder)
	if err != nil || slices.ContainsFunc(files, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), ".json") }) {
		t.Errorf("killed after the step %q: left in the journal: %v (%v)", step, files, err)
	}
}

// ours are the services with the VNIs of the test: a NIC has others.
func ours(services []fabric.Service, like fabric.Service) []fabric.Service {
	return slices.DeleteFunc(services, func(s fabric.Service) bool { return !slices.Equal(s.VNIs, like.VNIs) })
}

func TestAnAgentOfCassiniNICsThatIsKilledAtAnyStepLeavesNoService(t *testing.T) {
	folder := t.TempDir()
	library := filepath.Join(folder, "libcxi-double.so")
	command := exec.Command("cc", "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-o", library, "cassini/testdata/double.c")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("compile the double of libcxi: %v\n%s", err, out)
	}
	t.Setenv("WEIR_CXI_DOUBLE", filepath.Join(folder, "state"))
	killEverywhere(t, cassiniPrefix+library)
}

func TestAnAgentThatIsKilledAtAnyStepLeavesNoService(t *testing.T) {
	name := fmt.Sprintf("weir-crash-%d", os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "delete", name).CombinedOutput(); err != nil {
			t.Errorf("%v %s", err, out)
		}
	})
	killEverywhere(t, "/var/run/netns/"+name)
}

func killEverywhere(t *testing.T, place string) {
	t.Helper()
	f, err := open(place)
	if err != nil {
		t.Fatal(err)
	}
	others := fabric.Service{VNIs: wanted.VNIs}
	if others.ID, err = f.Allocate(t.Context(), deviceOf(place, wanted)); err != nil {
		t.Fatal(err)
	}
	for _, step := range lifeSteps {
		folder := t.TempDir()
		crash(t, place, folder, step)
		settle(t, place, folder, step, others)
	}
	// The successor is killed as well, while it takes back what it found.
	for _, step := range undoSteps {
		folder := t.TempDir()
		crash(t, place, folder, "allocated")
		crash(t, place, folder, step)
		settle(t, place, folder, step, others)
	}
}
