package mounts

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// TestMain gives the tests a mount namespace of their own, and root in a user namespace where they lack it: mounting
// needs the privilege, and a test must leave no mount behind.
func TestMain(m *testing.M) {
	const inside = "WEIR_MOUNTS_TEST_NAMESPACE"
	if os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), inside+"=1")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		again.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		again.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		again.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	if err := again.Run(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
