// Package isolation runs a test program in mount and process namespaces of its own: what its tests mount is seen by
// nobody else, and whatever they leave, mounts and processes, ends with the program. Without root it makes a user
// namespace, in which mounting is allowed.
package isolation

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// stage is the environment variable that tells a process which part it plays.
const stage = "WEIR_TEST_ISOLATION"

const (
	stageInit  = "init"
	stageTests = "tests"
)

// Main runs the tests of m isolated, then cleanUp, and ends the program. For TestMain.
func Main(m *testing.M, cleanUp func()) {
	switch os.Getenv(stage) {
	case stageTests:
		code := m.Run()
		cleanUp()
		os.Exit(code)
	case stageInit:
		os.Exit(runInit())
	default:
		os.Exit(enter())
	}
}

// again returns a command that runs this program in another stage.
func again(next string) *exec.Cmd {
	command := exec.Command("/proc/self/exe", os.Args[1:]...)
	command.Env = append(os.Environ(), stage+"="+next)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	return command
}

// enter makes the namespaces and waits for what runs in them.
func enter() int {
	// The child is killed when the thread that made it ends, so that thread must last.
	runtime.LockOSThread()
	command := again(stageInit)
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		command.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		command.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		command.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	if err := command.Run(); err != nil {
		if code := command.ProcessState.ExitCode(); code > 0 {
			return code
		}
		_, _ = fmt.Fprintln(os.Stderr, "run the tests in namespaces of their own:", err)
		return 1
	}
	return 0
}

// runInit is the first process of the namespaces: it prepares them, and reaps every process that loses its parent, which
// would else be taken for one that lives.
func runInit() int {
	for _, prepare := range []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount("proc", "/proc", "proc", 0, "") },
	} {
		if err := prepare(); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "prepare the namespaces:", err)
			return 1
		}
	}
	command := again(stageTests)
	if err := command.Start(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "start the tests:", err)
		return 1
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			_, _ = fmt.Fprintln(os.Stderr, "wait for the tests:", err)
			return 1
		case pid == command.Process.Pid && status.Exited():
			return status.ExitStatus()
		case pid == command.Process.Pid:
			_, _ = fmt.Fprintln(os.Stderr, "the tests ended by signal", status.Signal())
			return 1
		}
	}
}

// Processes returns the ids of the processes in the namespace whose command line contains all parts.
func Processes(parts ...string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		content, err := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		if err != nil {
			continue // It has ended since the folder was read.
		}
		line, all := strings.ReplaceAll(string(content), "\x00", " "), true
		for _, part := range parts {
			all = all && strings.Contains(line, part)
		}
		if all {
			found = append(found, pid)
		}
	}
	return found, nil
}
