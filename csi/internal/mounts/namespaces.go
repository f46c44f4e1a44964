package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// place is a mount in another mount namespace.
type place struct {
	// process is one that lives in the namespace.
	process string
	entry   Mount
}

// Pin keeps the file system at path, dead or alive, so that its device number is not given to another one before release.
func (Linux) Pin(path string) (release func(), err error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return func() { _ = unix.Close(fd) }, nil
}

// Replace looks through the mount namespaces of all processes that /proc shows, but for its own, and mounts there, in place of
// the file system with this device number, the one at source: the same folder of it, read-only where it was read-only. It
// returns how many mounts it replaced. Open files stay with the file system that they were opened in.
//
// A container has mounts of its own: what its node mounts later does not reach it, unless its pod asks for that.
func (l Linux) Replace(device, source string) (int, error) {
	places, err := placesOf(device)
	if err != nil {
		return 0, err
	}
	var (
		replaced int
		failures []error
	)
	for _, place := range places {
		if err := place.replace(source); err != nil {
			failures = append(failures, fmt.Errorf("%s in the mounts of process %s: %w", place.entry.Path, place.process, err))
			continue
		}
		replaced++
	}
	return replaced, errors.Join(failures...)
}

// placesOf finds where other mount namespaces have the file system of a device. Processes that end meanwhile are passed over.
func placesOf(device string) ([]place, error) {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return nil, fmt.Errorf("find the mount namespace: %w", err)
	}
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	seen := map[string]bool{own: true}
	var places []place
	for _, folder := range folders {
		namespace, err := os.Readlink(filepath.Join(folder, "ns/mnt"))
		if err != nil || seen[namespace] {
			continue
		}
		entries, err := tableOf(filepath.Join(folder, "mountinfo"))
		if err != nil {
			continue
		}
		seen[namespace] = true
		for _, entry := range entries {
			if entry.Device == device {
				places = append(places, place{process: filepath.Base(folder), entry: entry})
			}
		}
	}
	return places, nil
}

// replace mounts the folder of source that the place shows over it, and takes away what was there.
func (p place) replace(source string) error {
	tree, err := cloneTree(source, p.entry.Root)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(tree) }()
	if p.entry.ReadOnly {
		attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attributes); err != nil {
			return fmt.Errorf("make it read-only: %w", err)
		}
	}
	namespace, err := unix.Open(filepath.Join("/proc", p.process, "ns/mnt"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open its mount namespace: %w", err)
	}
	defer func() { _ = unix.Close(namespace) }()
	return inNamespace(namespace, func() error {
		if err := unix.Unmount(p.entry.Path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount: %w", err)
		}
		if err := unix.MoveMount(tree, "", unix.AT_FDCWD, p.entry.Path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		return nil
	})
}

// cloneTree returns a mount of its own of a folder of the file system at source. What the folder holds was made by others: no
// symbolic link in its path is followed.
func cloneTree(source, folder string) (int, error) {
	root, err := unix.Open(source, unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: source, Err: err}
	}
	defer func() { _ = unix.Close(root) }()
	if inner := strings.TrimPrefix(folder, "/"); inner != "" {
		how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
		fd, err := unix.Openat2(root, inner, &how)
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: filepath.Join(source, inner), Err: err}
		}
		defer func() { _ = unix.Close(fd) }()
		root = fd
	}
	tree, err := unix.OpenTree(root, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, &os.PathError{Op: "open_tree", Path: source, Err: err}
	}
	return tree, nil
}

// inNamespace runs work in a mount namespace, on a thread that ends with it.
func inNamespace(namespace int, work func() error) error {
	outcome := make(chan error, 1)
	go func() {
		// Never unlocked: the runtime ends the thread, which belongs to another namespace by then, with the goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			outcome <- fmt.Errorf("leave the file system context: %w", err)
			return
		}
		if err := unix.Setns(namespace, unix.CLONE_NEWNS); err != nil {
			outcome <- fmt.Errorf("enter the mount namespace: %w", err)
			return
		}
		outcome <- work()
	}()
	return <-outcome
}
