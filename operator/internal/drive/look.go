package drive

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"weir.dev/weir/operator/api/v1alpha1"
)

// Nodes makes device files of drives, by the numbers that sysfs tells: a container's /dev has only what was there when it was
// started.
type Nodes struct {
	// Folder for them. Its file system must not be mounted with nodev.
	Folder string
}

// Look fills in what is on a drive, whether somebody has it for himself, and what its health log says. owned is true for a drive that
// is an engine's: it isn't claimed then, not even for a moment.
func (n Nodes) Look(d *Drive, owned bool) {
	if d.Problem != "" {
		return
	}
	file, err := n.open(d)
	if err != nil {
		d.Problem = err.Error()
		return
	}
	defer func() { _ = file.Close() }() // it was only read
	// What an engine wrote past the kernel's cache of the drive is to be seen.
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		d.Problem = fmt.Sprintf("drop what the kernel has in memory of the drive: %v", err)
		return
	}
	if d.Content, err = ReadContent(file, d.Bytes); err != nil {
		d.Problem = err.Error()
		return
	}
	if d.Kind == v1alpha1.DriveNVMe {
		if d.Warnings, err = warnings(file); err != nil {
			d.Warnings = []string{"the log can't be read: " + err.Error()}
		}
	}
	if !owned {
		d.Claimed, err = n.isClaimed(d)
		if err != nil {
			d.Problem = err.Error()
		}
	}
}

// open a drive for reading, by a device file that is gone at once.
func (n Nodes) open(d *Drive) (*os.File, error) {
	path := filepath.Join(n.Folder, "look-"+d.KernelName)
	if err := n.make(path, d, 0o400); err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if removed := os.Remove(path); removed != nil && err == nil {
		_ = unix.Close(fd) // nothing was written
		return nil, fmt.Errorf("remove a device file: %w", removed)
	}
	if err != nil {
		return nil, fmt.Errorf("open drive %s: %w", d.KernelName, err)
	}
	return os.NewFile(uintptr(fd), d.KernelName), nil
}

// isClaimed tells whether somebody has a drive for himself: the kernel lets nobody claim it then.
func (n Nodes) isClaimed(d *Drive) (bool, error) {
	path := filepath.Join(n.Folder, "claim-"+d.KernelName)
	if err := n.make(path, d, 0o400); err != nil {
		return false, err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		err = unix.Close(fd)
	}
	if removed := os.Remove(path); removed != nil {
		return false, fmt.Errorf("remove a device file: %w", removed)
	}
	if errors.Is(err, unix.EBUSY) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("claim drive %s: %w", d.KernelName, err)
	}
	return false, nil
}

// make a device file of a drive in the place of any other.
func (n Nodes) make(path string, d *Drive, mode uint32) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove a device file: %w", err)
	}
	if err := unix.Mknod(path, unix.S_IFBLK|mode, int(unix.Mkdev(d.Major, d.Minor))); err != nil {
		return fmt.Errorf("make a device file of %s (needs CAP_MKNOD): %w", d.KernelName, err)
	}
	return nil
}

// Make makes the device file by which a container gets a drive: container runtimes give the container's own file the owner and the
// mode of this one. It returns the file's path.
func (n Nodes) Make(name string, d *Drive, user int) (string, error) {
	path := filepath.Join(n.Folder, name)
	if err := n.make(path+".new", d, 0o600); err != nil {
		return "", err
	}
	if err := os.Chown(path+".new", user, user); err != nil {
		return "", fmt.Errorf("give a device file to the engine: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return "", fmt.Errorf("put a device file in its place: %w", err)
	}
	return path, nil
}
