package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// root is a folder below which mounts may be made.
type root struct {
	path string
	fd   int
}

// openRoot opens a folder. Symbolic links in the path of the folder itself, which the administrator names, are followed.
func openRoot(path string) (root, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return root{}, fmt.Errorf("folder %q is not an absolute path below /", path)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return root{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return root{path: path, fd: fd}, nil
}

// place finds the root that has an absolute path, and the rest of the path.
func (s *Server) place(path string) (root, string, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || len(path) >= unix.PathMax {
		return root{}, "", refuse(unix.EINVAL, "%q is not an absolute path without '.', '..' and '//'", path)
	}
	for _, root := range s.roots {
		if rest, ok := strings.CutPrefix(path, root.path+"/"); ok {
			return root, rest, nil
		}
	}
	return root{}, "", refuse(unix.EPERM, "%s is not below a folder that this broker serves", path)
}

// beneath is how a path that a peer names is walked.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// open opens the directory at path as a place only (O_PATH).
func (s *Server) open(path string) (int, error) {
	root, rest, err := s.place(path)
	if err != nil {
		return -1, err
	}
	return openBeneath(root, rest, path)
}

// openParent opens the directory that has the last component of path, and returns that, too.
func (s *Server) openParent(path string) (int, string, error) {
	root, rest, err := s.place(path)
	if err != nil {
		return -1, "", err
	}
	parent, err := openBeneath(root, filepath.Dir(rest), filepath.Dir(path))
	return parent, filepath.Base(rest), err
}

func openBeneath(root root, rest, path string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: beneath}
	for {
		fd, err := unix.Openat2(root.fd, rest, &how)
		switch {
		case err == nil:
			return fd, nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			// A rename somewhere below the root made the kernel unsure whether the walk left it.
		default:
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// itself names an open descriptor of this process as a path.
func itself(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
