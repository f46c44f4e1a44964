package tests

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// seccompRule is a rule of a profile, as container runtimes read it.
type seccompRule struct {
	Names  []string `json:"names"`
	Action string   `json:"action"`
	Args   []struct {
		Index    int    `json:"index"`
		Value    uint64 `json:"value"`
		ValueTwo uint64 `json:"valueTwo"`
		Op       string `json:"op"`
	} `json:"args"`
}

const (
	allowed = "SCMP_ACT_ALLOW"
	refused = "SCMP_ACT_ERRNO"
	// namespaces are the flags of clone(2) that make one: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
	namespaces = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
)

// neverOfAnEngine are calls that change the machine, look into other processes, or have let containers out before.
var neverOfAnEngine = []string{
	"acct", "add_key", "bpf", "chroot", "clock_adjtime", "clock_settime", "clone3", "delete_module", "fanotify_init", "finit_module",
	"fsconfig", "fsmount", "fsopen", "fspick", "init_module", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "mknod", "mknodat",
	"modify_ldt", "mount", "mount_setattr", "move_mount", "name_to_handle_at", "open_by_handle_at", "open_tree", "perf_event_open", "personality",
	"pidfd_getfd", "pivot_root", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl", "reboot",
	"request_key", "setdomainname", "sethostname", "setns", "settimeofday", "swapoff", "swapon", "syslog", "umount2", "unshare",
	"userfaultfd", "vhangup",
}

func seccompProfile(t *testing.T) (raw []byte, fallback string, rules []seccompRule) {
	t.Helper()
	raw, err := os.ReadFile("../files/seccomp/engine.json")
	if err != nil {
		t.Fatal(err)
	}
	var profile struct {
		DefaultAction string        `json:"defaultAction"`
		Syscalls      []seccompRule `json:"syscalls"`
	}
	if err := json.Unmarshal(raw, &profile); err != nil {
		t.Fatal(err)
	}
	return raw, profile.DefaultAction, profile.Syscalls
}

func TestSeccompProfileIsTheOneOfTheImage(t *testing.T) {
	ours, _, _ := seccompProfile(t)
	image, err := os.ReadFile("../../../images/engine/seccomp.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(ours, image) {
		t.Error("charts/weir/files/seccomp/engine.json and images/engine/seccomp.json differ: copy the one that is meant")
	}
}

func TestSeccompProfileRefusesWhatItDoesNotName(t *testing.T) {
	_, fallback, rules := seccompProfile(t)
	if fallback != refused {
		t.Fatalf("what no rule names gets %s", fallback)
	}
	unconditional := map[string]bool{}
	for _, rule := range rules {
		for _, name := range rule.Names {
			switch {
			case rule.Action != allowed:
			case slices.Contains(neverOfAnEngine, name):
				t.Errorf("%s is allowed", name)
			case len(rule.Args) == 0 && unconditional[name]:
				t.Errorf("%s is named twice", name)
			case len(rule.Args) == 0:
				unconditional[name] = true
			case name == "clone" && (len(rule.Args) != 1 || rule.Args[0].Index != 0 || rule.Args[0].Op != "SCMP_CMP_MASKED_EQ" ||
				rule.Args[0].Value != namespaces || rule.Args[0].ValueTwo != 0):
				t.Errorf("clone may make namespaces: %+v", rule.Args)
			}
		}
	}
	for _, name := range []string{"io_uring_setup", "io_uring_enter", "io_uring_register", "epoll_pwait2", "futex", "execve"} {
		if !unconditional[name] {
			t.Errorf("engines need %s", name)
		}
	}
	for _, name := range []string{"clone", "socket"} {
		if unconditional[name] {
			t.Errorf("%s is allowed with all arguments", name)
		}
	}
}
