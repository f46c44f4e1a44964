package drive

import (
	"slices"
	"testing"
	"unsafe"
)

func TestCriticalWarningsAreRead(t *testing.T) {
	page := make([]byte, logBytes)
	if got := warningsOf(page); got != nil {
		t.Errorf("no bit is set: %v", got)
	}
	page[0] = 1<<3 | 1<<0
	if got := warningsOf(page); !slices.Equal(got, []string{"spare space is below its threshold", "media are read-only"}) {
		t.Errorf("%v", got)
	}
	page[0] = 0xff
	if got := warningsOf(page); len(got) != 8 {
		t.Errorf("%v", got)
	}
	if got := warningsOf(nil); got != nil {
		t.Errorf("an empty page: %v", got)
	}
	if bytes := unsafe.Sizeof(passthrough{}); bytes != adminCommand>>16&0x3fff {
		t.Errorf("the command has %d bytes, the kernel's has %d", bytes, adminCommand>>16&0x3fff)
	}
}

func TestADriveThatCanNotBeOpenedSaysWhy(t *testing.T) {
	d := Drive{KernelName: "nvme0n1", Major: 259, Bytes: size}
	Nodes{Folder: t.TempDir() + "/gone"}.Look(&d, false)
	if f := d.Health(); f == nil || f.Message == "" || d.Content.Kind != ContentUnknown {
		t.Errorf("%+v %v", d, f)
	}
	before := Drive{Problem: "sysfs gives no size"}
	Nodes{Folder: t.TempDir()}.Look(&before, false)
	if before.Problem != "sysfs gives no size" {
		t.Errorf("%q", before.Problem)
	}
}
