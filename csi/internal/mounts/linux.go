package mounts

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// mountInfo lists the mounts of the process' mount namespace, see proc_pid_mountinfo(5).
const mountInfo = "/proc/self/mountinfo"

// maxMountLine bounds a line of the mount table: a path (4096) in octal escapes, twice, with its options.
const maxMountLine = 64 << 10

// Linux is the mount table of this process' mount namespace.
type Linux struct{}

var _ Table = Linux{}

// List reads the mount table.
func (Linux) List() ([]Mount, error) { return tableOf(mountInfo) }

// tableOf reads the mount table at path.
func tableOf(path string) ([]Mount, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	defer func() { _ = file.Close() }()
	return parse(file)
}

// parse reads the format of mountinfo: "36 35 98:0 /mnt1 /mnt/parent rw,noatime master:1 - ext3 /dev/root rw".
func parse(table io.Reader) ([]Mount, error) {
	var entries []Mount
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, maxMountLine)
	for lines.Scan() {
		own, super, separated := strings.Cut(lines.Text(), " - ")
		fields, superFields := strings.Fields(own), strings.Fields(super)
		if !separated || len(fields) < 6 || len(superFields) < 1 {
			return nil, fmt.Errorf("mount table: line %q is malformed", lines.Text())
		}
		entries = append(entries, Mount{
			Path:     unescape(fields[4]),
			Device:   fields[2],
			Root:     unescape(fields[3]),
			FSType:   superFields[0],
			Options:  fields[5],
			ReadOnly: strings.HasPrefix(fields[5], "ro,") || fields[5] == "ro",
		})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return entries, nil
}

// unescape turns the kernel's three-digit octal escapes (of space, tab, newline and backslash) into what they stand for.
func unescape(path string) string {
	if !strings.Contains(path, `\`) {
		return path
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// Bind makes a bind mount. Its read-only state takes a second step, without which the kernel ignores it; if that fails
// the first one is undone.
func (l Linux) Bind(source, target string, readOnly bool) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind mount " + source + " at", Path: target, Err: err}
	}
	if !readOnly {
		return nil
	}
	if err := l.Restrict(target); err != nil {
		return errors.Join(err, l.Unmount(target))
	}
	return nil
}

// kept are the options of a mount that making it read-only must not take away, with their flags. The kernel sets all of
// them anew: what is not named is gone.
var kept = map[string]uintptr{
	"nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "nosymfollow": unix.MS_NOSYMFOLLOW,
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
}

// Restrict makes the topmost mount at path read-only, and leaves its other options as they are.
func (l Linux) Restrict(path string) error {
	entries, err := l.List()
	if err != nil {
		return err
	}
	present, ok := At(entries, path)
	if !ok {
		return fmt.Errorf("make %s read-only: %w", path, ErrNotMounted)
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY)
	for option := range strings.SplitSeq(present.Options, ",") {
		flags |= kept[option]
	}
	if err := unix.Mount("", path, "", flags, ""); err != nil {
		return &os.PathError{Op: "make read-only", Path: path, Err: err}
	}
	return nil
}

// Unmount removes the topmost mount at path. A symbolic link is not followed.
func (l Linux) Unmount(path string) error {
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%s: %w", path, ErrNotMounted)
	case errors.Is(err, unix.EBUSY) && l.dead(path):
		// Whoever still holds files there gets nothing but errors: detaching takes nothing from them.
		err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if err != nil {
		return &os.PathError{Op: "unmount", Path: path, Err: err}
	}
	return nil
}

func (l Linux) dead(path string) bool {
	_, err := l.Usage(path)
	return Dead(err)
}

// Usage asks the file system by statfs.
func (Linux) Usage(path string) (Usage, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Usage{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	block := uint64(s.Bsize)
	return Usage{
		TotalBytes: s.Blocks * block, FreeBytes: s.Bavail * block, UsedBytes: (s.Blocks - min(s.Bfree, s.Blocks)) * block,
		TotalInodes: s.Files, FreeInodes: s.Ffree, UsedInodes: s.Files - min(s.Ffree, s.Files),
	}, nil
}

// Group asks the file system for the group of its root, 0 for none: the owning group, if what is made there gets it.
func (Linux) Group(path string) (uint32, error) {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if s.Mode&unix.S_ISGID == 0 {
		return 0, nil
	}
	return s.Gid, nil
}

// groupAccess are the mode bits with which a group may use a directory, and hands itself on to what is made there.
const groupAccess = unix.S_ISGID | unix.S_IRWXG

// SetGroup gives the root of the file system at path to a group.
func (Linux) SetGroup(path string, group uint32) error {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := unix.Chown(path, -1, int(group)); err != nil {
		return &os.PathError{Op: "chown", Path: path, Err: err}
	}
	if err := unix.Chmod(path, s.Mode&0o7777|groupAccess); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return nil
}

// Dead tells whether an error of Usage means that the server of a mount is gone for good.
func Dead(err error) bool {
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ESTALE)
}
