package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/csi/internal/mounts"
)

const (
	// fuseDevice is where descriptors of FUSE mounts come from.
	fuseDevice = "/dev/fuse"
	// readAheadKiB is what the kernel reads ahead of a mount: two requests of the largest size, so that one is under way while
	// the other is used. The kernel grants FUSE file systems 128 KiB, less than one request carries.
	readAheadKiB = 2048
	// sysfs is where the kernel shows what it reads ahead.
	sysfs = "/sys"
	// sourceMax bounds the text that the mount table shows as a mount's source.
	sourceMax = 512
)

// holding is what is kept of a mount.
type holding struct {
	device       string
	fuse, memory int
}

// packet is the answer that hands a mount's descriptors over: copies, since the mount may be removed before they are sent.
func (h holding) packet() (packet, error) {
	copied, err := copyOf(h.fuse, h.memory)
	return packet{fields: []string{h.device}, descriptors: copied}, err
}

// copyOf returns further descriptors of the same open files.
func copyOf(descriptors ...int) ([]int, error) {
	var copied packet
	for _, descriptor := range descriptors {
		another, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			copied.close()
			return nil, fmt.Errorf("copy a descriptor: %w", err)
		}
		copied.descriptors = append(copied.descriptors, another)
	}
	return copied.descriptors, nil
}

// release gives up what is kept of a mount. The caller holds mu.
func (s *Server) release(target string) {
	if h, ok := s.held[target]; ok {
		_ = unix.Close(h.fuse)
		_ = unix.Close(h.memory)
		delete(s.held, target)
	}
}

// topmost returns the mount on top at path.
func topmost(path string) (mounts.Mount, bool, error) {
	entries, err := mounts.Linux{}.List()
	if err != nil {
		return mounts.Mount{}, false, err
	}
	entry, ok := mounts.At(entries, path)
	return entry, ok, nil
}

// own returns the mount on top at path, which must be one of Weir's.
func own(path string) (mounts.Mount, error) {
	entry, ok, err := topmost(path)
	switch {
	case err != nil:
		return entry, err
	case !ok:
		return entry, refuse(unix.EINVAL, "nothing is mounted at %s", path)
	case entry.FSType != FileSystemType:
		return entry, refuse(unix.EPERM, "%s has a file system of type %s, which is not a broker's to change", path, entry.FSType)
	}
	return entry, nil
}

// mountFlags are for every mount: set-user-id programs and device files of a volume that others write to are never honoured.
const mountFlags = unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOATIME

func flagsOf(options string) (uintptr, error) {
	flags := uintptr(mountFlags)
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "":
		case "ro":
			flags |= unix.MS_RDONLY
		case "noexec":
			flags |= unix.MS_NOEXEC
		default:
			return 0, refuse(unix.EINVAL, "mount option %q: use ro and noexec", option)
		}
	}
	return flags, nil
}

// mount makes a FUSE mount and keeps its descriptor, and a memory file for whoever serves it.
func (s *Server) mount(target, source, options string) (packet, error) {
	flags, err := flagsOf(options)
	if err != nil {
		return packet{}, err
	}
	if source == "" || len(source) > sourceMax {
		return packet{}, refuse(unix.EINVAL, "the source has %d bytes, not 1 to %d", len(source), sourceMax)
	}
	place, err := s.open(target)
	if err != nil {
		return packet{}, err
	}
	defer func() { _ = unix.Close(place) }()
	s.mu.Lock()
	defer s.mu.Unlock()
	if present, ok, err := topmost(target); err != nil || ok {
		if ok {
			err = refuse(unix.EEXIST, "%s has a file system of type %s already", target, present.FSType)
		}
		return packet{}, err
	}
	s.release(target)
	h, err := openHolding()
	if err != nil {
		return packet{}, err
	}
	if err := h.mountAt(place, target, source, flags); err != nil {
		_, _ = unix.Close(h.fuse), unix.Close(h.memory)
		return packet{}, err
	}
	entry, err := own(target)
	if err != nil {
		_, _ = unix.Close(h.fuse), unix.Close(h.memory)
		return packet{}, err
	}
	h.device = entry.Device
	s.held[target] = h
	return h.packet()
}

// openHolding opens the descriptors of a mount that is to be made.
func openHolding() (holding, error) {
	fuse, err := unix.Open(fuseDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return holding{}, &os.PathError{Op: "open", Path: fuseDevice, Err: err}
	}
	memory, err := unix.MemfdCreate("weir-mount", unix.MFD_CLOEXEC)
	if err != nil {
		_ = unix.Close(fuse)
		return holding{}, fmt.Errorf("make a memory file: %w", err)
	}
	return holding{fuse: fuse, memory: memory}, nil
}

// mountAt mounts at an open directory.
func (h holding) mountAt(place int, target, source string, flags uintptr) error {
	var folder unix.Stat_t
	if err := unix.Fstat(place, &folder); err != nil {
		return &os.PathError{Op: "stat", Path: target, Err: err}
	}
	data := fmt.Sprintf("fd=%d,rootmode=%o,user_id=%d,group_id=%d,default_permissions,allow_other",
		h.fuse, folder.Mode&unix.S_IFMT, folder.Uid, folder.Gid)
	if err := unix.Mount(source, itself(place), FileSystemType, flags, data); err != nil {
		return &os.PathError{Op: "mount", Path: target, Err: err}
	}
	return nil
}

// ready sets the read-ahead of a mount.
func (s *Server) ready(target string) error {
	if _, _, err := s.place(target); err != nil {
		return err
	}
	entry, err := own(target)
	if err != nil {
		return err
	}
	path := filepath.Join(sysfs, "class/bdi", entry.Device, "read_ahead_kb")
	err = os.WriteFile(path, []byte(strconv.Itoa(readAheadKiB)), 0)
	if !errors.Is(err, unix.EROFS) {
		return err
	}
	// Some container runtimes show sysfs read-only to privileged containers, too. It is made writable for this container alone.
	const sysfsFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("sysfs", sysfs, "", unix.MS_REMOUNT|sysfsFlags, ""); err != nil {
		return &os.PathError{Op: "make writable", Path: sysfs, Err: err}
	}
	return os.WriteFile(path, []byte(strconv.Itoa(readAheadKiB)), 0)
}

// take returns what is kept of a mount. Its refusal tells that nothing is kept here, for ever unless it is given, from an absent broker.
func (s *Server) take(target string) (packet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.held[target]
	if !ok {
		return packet{}, refuse(unix.ESTALE, "no descriptor of a mount at %s is kept here", target)
	}
	return h.packet()
}

// forget gives up what is kept of a mount, if anything.
func (s *Server) forget(target string) error {
	if _, _, err := s.place(target); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(target)
	return nil
}

// give takes descriptors that an earlier broker kept.
func (s *Server) give(target string, fuse, memory int) (packet, error) {
	if _, _, err := s.place(target); err != nil {
		return packet{}, err
	}
	var file unix.Stat_t
	if err := unix.Fstat(fuse, &file); err != nil {
		return packet{}, err
	}
	// Device numbers of /dev/fuse (the kernel's list of devices).
	if file.Mode&unix.S_IFMT != unix.S_IFCHR || file.Rdev != unix.Mkdev(10, 229) {
		return packet{}, refuse(unix.EINVAL, "the first descriptor is not one of %s", fuseDevice)
	}
	if _, err := unix.FcntlInt(uintptr(memory), unix.F_GET_SEALS, 0); err != nil {
		return packet{}, refuse(unix.EINVAL, "the second descriptor is not a memory file")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	entry, err := own(target)
	if err != nil {
		return packet{}, err
	}
	if _, ok := s.held[target]; ok {
		return packet{}, refuse(unix.EEXIST, "the mount at %s is kept here already", target)
	}
	copied, err := copyOf(fuse, memory)
	if err != nil {
		return packet{}, err
	}
	s.held[target] = holding{device: entry.Device, fuse: copied[0], memory: copied[1]}
	return packet{fields: []string{entry.Device}}, nil
}

// list answers with all mounts of Weir's below the roots. One that is shown at several paths is listed at each.
func (s *Server) list() []packet {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := mounts.Linux{}.List()
	if err != nil {
		return []packet{failed(err)}
	}
	answers := []packet{{}}
	for _, entry := range entries {
		if _, _, err := s.place(entry.Path); err != nil || entry.FSType != FileSystemType {
			continue
		}
		state := "lost"
		if h, ok := s.held[entry.Path]; ok && h.device == entry.Device {
			state = "held"
		}
		answers = append(answers, packet{fields: []string{entry.Path, entry.Device, state}})
	}
	answers[0].fields = []string{"ok", strconv.Itoa(len(answers) - 1)}
	return answers
}
