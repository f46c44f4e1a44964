// Package clusters finds the systems that a driver serves: one attach file each, in a folder and its subfolders.
package clusters

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir.dev/weir/engine/proto/management/dial"
)

// attachFileNames are what an attach file is called in its folder.
var attachFileNames = []string{"client.json", "attach.json"}

// attachFileSuffix ends the names of attach files that share a folder, such as weir.client.json.
const attachFileSuffix = ".client.json"

// Clusters holds the connections to the systems whose attach files lie in a folder or in its subfolders. Files may come,
// change and go at any time; what is there counts. Safe for concurrent use.
type Clusters struct {
	folder  string
	options []dial.Option

	mu   sync.Mutex
	open map[string]*dial.System
}

// New returns the systems of a folder. The folder need not exist yet.
func New(folder string, options ...dial.Option) *Clusters {
	return &Clusters{folder: folder, options: options, open: map[string]*dial.System{}}
}

// Close ends all connections.
func (c *Clusters) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var failures []error
	for path, system := range c.open {
		failures = append(failures, system.Close())
		delete(c.open, path)
	}
	return errors.Join(failures...)
}

// Get returns the system of a name. The empty name means the only system there is. The error is a gRPC status: NotFound
// only when every attach file could be read.
func (c *Clusters) Get(name string) (*dial.System, error) {
	systems, unreadable, err := c.systems()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, system := range systems {
		own := system.Attachment().System
		if own == name || (name == "" && len(systems) == 1 && unreadable == nil) {
			return system, nil
		}
		names = append(names, own)
	}
	served := strings.Join(names, ", ")
	switch {
	case name == "" && (len(systems) > 1 || unreadable != nil):
		return nil, status.Errorf(codes.InvalidArgument,
			"several clusters are served (%s): set the parameter \"cluster\" of the StorageClass to one", served)
	case unreadable != nil:
		return nil, status.Errorf(codes.Unavailable, "cluster %q is not one of those that can be reached (%s), and there are more: %v",
			name, served, unreadable)
	default:
		return nil, status.Errorf(codes.NotFound, "cluster %q is not served; served: %s", name, served)
	}
}

// All returns every system, in order of name.
func (c *Clusters) All() ([]*dial.System, error) {
	systems, _, err := c.systems()
	slices.SortFunc(systems, func(a, b *dial.System) int {
		return strings.Compare(a.Attachment().System, b.Attachment().System)
	})
	return systems, err
}

// systems opens what attach files there are and returns at least one system or an error. unreadable says why some attach
// files could not be used; nil when all could.
func (c *Clusters) systems() (systems []*dial.System, unreadable, err error) {
	paths, err := c.attachFiles()
	if err != nil {
		return nil, nil, status.Errorf(codes.Unavailable, "look for attach files: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var failures []error
	for _, path := range paths {
		system, known := c.open[path]
		if !known {
			if system, err = dial.Open(path, c.options...); err != nil {
				failures = append(failures, err)
				continue
			}
			c.open[path] = system
		}
		systems = append(systems, system)
	}
	c.forget(paths)
	if len(systems) > 0 {
		return systems, errors.Join(failures...), nil
	}
	if len(failures) > 0 {
		return nil, nil, status.Errorf(codes.Unavailable, "no cluster can be reached: %v", errors.Join(failures...))
	}
	return nil, nil, status.Errorf(codes.Unavailable,
		"no %s in %s yet: the operator writes it when a StorageCluster has engines; see its conditions", attachFileNames[0], c.folder)
}

// forget closes the systems whose attach file is gone. Callers hold mu.
func (c *Clusters) forget(present []string) {
	for path, system := range c.open {
		if !slices.Contains(present, path) {
			_ = system.Close()
			delete(c.open, path)
		}
	}
}

// attachFiles lists the attach files of the folder. Names that start with ".." belong to the kubelet's way of replacing
// a Secret in one step and would show each file twice.
func (c *Clusters) attachFiles() ([]string, error) {
	entries, err := os.ReadDir(c.folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", c.folder, err)
	}
	folders := []string{c.folder}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), "..") {
			folders = append(folders, filepath.Join(c.folder, entry.Name()))
		}
	}
	var paths []string
	for _, folder := range folders {
		for _, name := range attachFileNames {
			path := filepath.Join(folder, name)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				paths = append(paths, path)
				break
			}
		}
	}
	for _, entry := range entries {
		// The kubelet's files are links to where it has them at the time.
		path := filepath.Join(c.folder, entry.Name())
		if info, err := os.Stat(path); strings.HasSuffix(path, attachFileSuffix) && err == nil && info.Mode().IsRegular() {
			paths = append(paths, path)
		}
	}
	return paths, nil
}
