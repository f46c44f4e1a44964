// Package mounts reads and changes the mount table of a node.
package mounts

import (
	"errors"
	"slices"
)

// ErrNotMounted says that nothing is mounted at a path.
var ErrNotMounted = errors.New("not mounted")

// Mount is one entry of the mount table.
type Mount struct {
	// Path is where it is mounted.
	Path string
	// Device identifies the file system: bind mounts have the device of what they were made from.
	Device string
	// Root is the folder of the file system that is shown, "/" for all of it. Kubernetes mounts a pod's subPath so.
	Root string
	// FSType is the kernel's name of the file system's type, e.g. "fuse.weir".
	FSType string
	// Options are those of this mount, separated by commas, e.g. "rw,nosuid,nodev".
	Options string
	// ReadOnly tells whether this mount refuses changes, whatever others of the same file system allow.
	ReadOnly bool
}

// Usage is what statfs says of a file system.
type Usage struct {
	TotalBytes, FreeBytes, UsedBytes    uint64
	TotalInodes, FreeInodes, UsedInodes uint64
}

// Table is the mount table of a node. Paths are absolute.
type Table interface {
	// List returns the entries in the order of mounting.
	List() ([]Mount, error)
	// Bind shows the directory source at target, which exists. A read-only bind refuses changes below target.
	Bind(source, target string, readOnly bool) error
	// Restrict makes the topmost mount at path read-only.
	Restrict(path string) error
	// Unmount removes the topmost mount at path, also one whose server is dead. The error wraps ErrNotMounted if there
	// is none.
	Unmount(path string) error
	// Usage asks the file system at path. It may wait for the file system's server.
	Usage(path string) (Usage, error)
	// Group asks the file system at path for the group that owns its root and hands itself on, 0 for none. It may wait.
	Group(path string) (uint32, error)
	// SetGroup gives the root of the file system at path to a group, which hands itself on. It may wait.
	SetGroup(path string, group uint32) error
	// Pin keeps the file system at path, so that its device number stays its own until release.
	Pin(path string) (release func(), err error)
	// Replace mounts what is at source in place of the file system with this device number, in all other mount namespaces of
	// the node, such as those of running containers. It returns how many mounts it replaced.
	Replace(device, source string) (int, error)
}

// At returns the topmost mount at path in entries.
func At(entries []Mount, path string) (Mount, bool) {
	for _, entry := range slices.Backward(entries) {
		if entry.Path == path {
			return entry, true
		}
	}
	return Mount{}, false
}
