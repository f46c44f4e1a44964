package broker

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"weir.dev/weir/csi/internal/mounts"
)

// bind shows the mount at source at target.
func (s *Server) bind(source, target, mode string) error {
	if mode != "ro" && mode != "rw" {
		return refuse(unix.EINVAL, "mode %q: use rw or ro", mode)
	}
	entry, err := own(source)
	if err != nil {
		return err
	}
	from, err := s.open(source)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(from) }()
	to, err := s.open(target)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(to) }()
	tree, err := unix.OpenTree(from, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: source, Err: err}
	}
	defer func() { _ = unix.Close(tree) }()
	if err := ensureDevice(tree, entry.Device, source); err != nil {
		return err
	}
	if mode == "ro" {
		if err := makeReadOnly(tree, target); err != nil {
			return err
		}
	}
	if err := unix.MoveMount(tree, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "bind mount " + source + " at", Path: target, Err: err}
	}
	return nil
}

// ensureDevice checks that an open place lies in the file system that the mount table has shown: it may have changed since. The
// server of the file system is not asked.
func ensureDevice(fd int, device, path string) error {
	var status unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &status); err != nil {
		return &os.PathError{Op: "statx", Path: path, Err: err}
	}
	if found := fmt.Sprintf("%d:%d", status.Dev_major, status.Dev_minor); found != device {
		return refuse(unix.EBUSY, "%s has file system %s, and had %s just before: ask again", path, found, device)
	}
	return nil
}

// makeReadOnly makes one mount read-only, and leaves its other options as they are.
func makeReadOnly(tree int, path string) error {
	attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attributes); err != nil {
		return &os.PathError{Op: "make read-only", Path: path, Err: err}
	}
	return nil
}

// restrict makes the topmost mount at path read-only.
func (s *Server) restrict(path string) error {
	entry, err := own(path)
	if err != nil {
		return err
	}
	fd, err := s.open(path)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := ensureDevice(fd, entry.Device, path); err != nil {
		return err
	}
	return makeReadOnly(fd, path)
}

// unmount removes the topmost mount at path, and what is kept of it.
func (s *Server) unmount(path, mode string) error {
	flags := unix.UMOUNT_NOFOLLOW
	switch mode {
	case "clean":
	case "detach":
		flags |= unix.MNT_DETACH
	default:
		return refuse(unix.EINVAL, "mode %q: use clean or detach", mode)
	}
	parent, name, err := s.openParent(path)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(parent) }()
	entry, err := own(path)
	if err != nil {
		return err
	}
	// Without mu: it waits for the process that serves the mount to take what is dirty.
	if err := unix.Unmount(itself(parent)+"/"+name, flags); err != nil {
		return &os.PathError{Op: "unmount", Path: path, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.held[path]; ok && h.device == entry.Device {
		s.release(path)
	}
	return nil
}

// replace shows the mount at source in the place of a lost one, in all other mount namespaces of the node.
func (s *Server) replace(device, source string) (packet, error) {
	if _, _, err := s.place(source); err != nil {
		return packet{}, err
	}
	if _, err := own(source); err != nil {
		return packet{}, err
	}
	count, err := mounts.Linux{}.Replace(device, source)
	if err != nil {
		return packet{}, err
	}
	return packet{fields: []string{strconv.Itoa(count)}}, nil
}
