// Package namespaces finds the network namespaces of a node, and runs functions in them.
package namespaces

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Found is a network namespace that is bound to a file.
type Found struct {
	// Inode is what the kernel knows it by.
	Inode uint64
	// Path by which it can be opened.
	Path string
}

// Find lists the network namespaces that are bound to files in a folder, such as /var/run/netns: CNI plugins and container runtimes bind
// those of pods there, and unbind them when the pods are gone. It looks at no process: one that hangs would have the caller hang.
func Find(folder string) ([]Found, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("list the network namespaces of pods: %w", err)
	}
	var list []Found
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		var system unix.Statfs_t
		var stat unix.Stat_t
		err := unix.Statfs(path, &system)
		if err == nil {
			err = unix.Stat(path, &stat)
		}
		if errors.Is(err, unix.ENOENT) {
			continue // it went in between
		}
		if err != nil {
			return nil, fmt.Errorf("look at network namespace %s: %w", path, err)
		}
		if system.Type == unix.NSFS_MAGIC { // another is not bound yet, or no more
			list = append(list, Found{Inode: stat.Ino, Path: path})
		}
	}
	return list, nil
}

// errGone says that a namespace is not what it was when it was found.
var errGone = errors.New("the network namespace is gone")

// Do runs a function in a network namespace. What it starts as a goroutine is not in it. It fails when the path leads to
// another namespace by now.
func (f Found) Do(do func() error) error {
	target, err := os.Open(f.Path)
	if err != nil {
		return fmt.Errorf("open network namespace %d: %w", f.Inode, err)
	}
	defer func() { _ = target.Close() }() // it was only read
	var stat unix.Stat_t
	if err := unix.Fstat(int(target.Fd()), &stat); err != nil {
		return fmt.Errorf("look at network namespace %d: %w", f.Inode, err)
	}
	if stat.Ino != f.Inode {
		return errGone
	}
	ended := make(chan error, 1)
	go func() { ended <- inside(target, do) }()
	return <-ended
}

// inside enters a namespace with the thread of its goroutine. A thread that can't be brought back ends with the goroutine, since it
// stays locked.
func inside(target *os.File, do func() error) error {
	runtime.LockOSThread()
	own, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		return fmt.Errorf("open the agent's network namespace: %w", err)
	}
	defer func() { _ = own.Close() }() // it was only read
	if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter a network namespace: %w", err)
	}
	problem := do()
	if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); err != nil {
		return errors.Join(problem, fmt.Errorf("leave a network namespace: %w", err))
	}
	runtime.UnlockOSThread()
	return problem
}

// Addresses are those of a namespace that can be reached from elsewhere, in order.
func (f Found) Addresses() ([]netip.Addr, error) {
	var addresses []netip.Addr
	err := f.Do(func() error {
		all, err := net.InterfaceAddrs()
		if err != nil {
			return fmt.Errorf("list the addresses of network namespace %d: %w", f.Inode, err)
		}
		for _, one := range all {
			prefix, err := netip.ParsePrefix(one.String())
			if err != nil {
				return fmt.Errorf("read an address of network namespace %d: %w", f.Inode, err)
			}
			if address := prefix.Addr().Unmap(); address.IsGlobalUnicast() {
				addresses = append(addresses, address)
			}
		}
		return nil
	})
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses), err
}
