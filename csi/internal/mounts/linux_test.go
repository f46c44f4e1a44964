package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		table string
		want  []Mount
		bad   bool
	}{
		"a FUSE mount and its read-only bind": {
			table: "36 35 0:98 / /var/lib/kubelet/staging rw,nosuid shared:1 - fuse.weir weir rw,user_id=0\n" +
				"37 35 0:98 / /var/lib/kubelet/pods/a/mount ro,nosuid - fuse.weir weir rw\n",
			want: []Mount{
				{Path: "/var/lib/kubelet/staging", Device: "0:98", Root: "/", FSType: "fuse.weir", Options: "rw,nosuid"},
				{Path: "/var/lib/kubelet/pods/a/mount", Device: "0:98", Root: "/", FSType: "fuse.weir", Options: "ro,nosuid", ReadOnly: true},
			},
		},
		"a pod's subPath": {
			table: "38 35 0:98 /data/a\\040b /var/lib/kubelet/pods/a/volume-subpaths/v/c/0 rw - fuse.weir weir rw\n",
			want:  []Mount{{Path: "/var/lib/kubelet/pods/a/volume-subpaths/v/c/0", Device: "0:98", Root: "/data/a b", FSType: "fuse.weir", Options: "rw"}},
		},
		"a path with escaped characters": {
			table: `36 35 8:1 / /a\040b\134c rw - ext4 /dev/sda1 rw`, want: []Mount{{Path: `/a b\c`, Device: "8:1", Root: "/", FSType: "ext4", Options: "rw"}},
		},
		"an empty table":           {},
		"a line without separator": {table: "36 35 0:98 / /a rw", bad: true},
		"a line with few fields":   {table: "36 35 - fuse", bad: true},
		"a line without end":       {table: strings.Repeat("a", maxMountLine+1), bad: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parse(strings.NewReader(tc.table))
			if (err != nil) != tc.bad || !slices.Equal(got, tc.want) {
				t.Errorf("got %+v, %v; want %+v, an error: %t", got, err, tc.want, tc.bad)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("36 35 0:98 / /a rw shared:1 - fuse.weir weir rw\n")
	f.Fuzz(func(_ *testing.T, table string) { _, _ = parse(strings.NewReader(table)) })
}

func TestAt(t *testing.T) {
	entries := []Mount{{Path: "/a", Device: "1"}, {Path: "/b", Device: "2"}, {Path: "/a", Device: "3"}}
	if top, ok := At(entries, "/a"); !ok || top.Device != "3" {
		t.Errorf("got %+v, want the topmost mount", top)
	}
	if _, ok := At(entries, "/c"); ok {
		t.Error("found a mount where there is none")
	}
}

func TestWhatIsNotMountedIsNotUnmounted(t *testing.T) {
	folder := t.TempDir()
	for _, path := range []string{folder, filepath.Join(folder, "absent")} {
		if err := (Linux{}).Unmount(path); !errors.Is(err, ErrNotMounted) {
			t.Errorf("unmount %s: %v, want ErrNotMounted", path, err)
		}
	}
}

// mountable makes a folder on a file system of its own.
func mountable(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := unix.Mount("weir-test", folder, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(folder, unix.MNT_DETACH) })
	return folder
}

// What a volume holds was written by others: its programs must not gain rights, nor its device files be opened.
func TestAReadOnlyBindKeepsTheOtherOptions(t *testing.T) {
	source, target := mountable(t), t.TempDir()
	table := Linux{}
	options := func(path string) string {
		entries, err := table.List()
		if err != nil {
			t.Fatal(err)
		}
		entry, _ := At(entries, path)
		return entry.Options
	}
	if err := unix.Mount("", source, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOATIME, ""); err != nil {
		t.Fatal(err)
	}
	if err := table.Bind(source, target, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Unmount(target) })
	if got, want := options(target), strings.Replace(options(source), "rw,", "ro,", 1); got != want {
		t.Errorf("the bind has %q, want %q", got, want)
	}
	if err := table.Restrict(t.TempDir()); !errors.Is(err, ErrNotMounted) {
		t.Errorf("restrict what is not mounted: %v, want ErrNotMounted", err)
	}
}

func TestBind(t *testing.T) {
	source, target := mountable(t), t.TempDir()
	table := Linux{}
	for name, readOnly := range map[string]bool{"a writable bind takes writes": false, "a read-only bind refuses them": true} {
		t.Run(name, func(t *testing.T) {
			if err := table.Bind(source, target, readOnly); err != nil {
				t.Fatal(err)
			}
			entries, err := table.List()
			if err != nil {
				t.Fatal(err)
			}
			origin, _ := At(entries, source)
			bound, ok := At(entries, target)
			if !ok || bound.Device != origin.Device || bound.ReadOnly != readOnly || origin.ReadOnly {
				t.Errorf("bind is %+v of %+v", bound, origin)
			}
			err = os.WriteFile(filepath.Join(target, "file"), []byte("x"), 0o600)
			if errors.Is(err, unix.EROFS) != readOnly {
				t.Errorf("write through the bind: %v", err)
			}
			if usage, err := table.Usage(target); err != nil || usage.TotalBytes != 1<<20 {
				t.Errorf("usage %+v, %v; want 1 MiB", usage, err)
			}
			if err := table.Unmount(target); err != nil {
				t.Fatal(err)
			}
			if err := table.Unmount(target); !errors.Is(err, ErrNotMounted) {
				t.Errorf("unmount again: %v, want ErrNotMounted", err)
			}
		})
	}
}
