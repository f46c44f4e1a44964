package drive

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/operator/api/v1alpha1"
)

const (
	// attributeBytes is more than any attribute of sysfs has: the kernel writes at most a page.
	attributeBytes = 4096
	// textBytes bounds what drives say of themselves: NVMe has 40 bytes for the model.
	textBytes = 64
	// sectorBytes is the unit of sizes in sysfs, whatever the drive's own blocks are.
	sectorBytes = 512
	// mountinfoFields are what is read of a line of mountinfo: the third has the device's number, the fifth the directory.
	mountinfoFields = 5
)

// Tree is where a node's kernel tells of its devices.
type Tree struct {
	// Sys is the root of sysfs.
	Sys string
	// Mountinfo is the list of mounts of the node's first process; empty when it can't be seen.
	Mountinfo string
	// Loops is the directory whose files may stand in for drives by loop devices; empty for none.
	Loops string
}

var (
	nvmeName       = regexp.MustCompile(`^nvme[0-9]+n[0-9]+$`)
	controllerName = regexp.MustCompile(`^nvme[0-9]+$`)
	loopName       = regexp.MustCompile(`^loop[0-9]+$`)
	pciAddress     = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
)

// Find lists the drives of a node, by their kernel names. What is on them, and whether somebody has them, is not known yet.
func (t Tree) Find() ([]Drive, error) {
	entries, err := os.ReadDir(filepath.Join(t.Sys, "block"))
	if err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}
	mounts, err := t.mounts()
	if err != nil {
		return nil, err
	}
	var drives []Drive
	for _, entry := range entries {
		folder := filepath.Join(t.Sys, "block", entry.Name())
		found := Drive{KernelName: entry.Name()}
		switch {
		case nvmeName.MatchString(entry.Name()) && attribute(folder, "hidden") != "1":
			describeNVMe(folder, &found)
		case t.Loops != "" && loopName.MatchString(entry.Name()) && t.describeLoop(folder, &found):
		default:
			continue
		}
		describeBlock(folder, &found, mounts)
		drives = append(drives, found)
	}
	return drives, nil
}

// describeBlock fills in what all block devices have.
func describeBlock(folder string, d *Drive, mounts map[string][]string) {
	sectors, err := strconv.ParseInt(attribute(folder, "size"), 10, 64)
	if err != nil || sectors < 0 || sectors > (1<<63-1)/sectorBytes {
		d.Problem = "sysfs gives no size"
	} else {
		d.Bytes = sectors * sectorBytes
	}
	number := attribute(folder, "dev")
	if d.Major, d.Minor, err = parseNumber(number); err != nil {
		d.Problem = err.Error()
	}
	d.ReadOnly = attribute(folder, "ro") == "1"
	d.Holders = names(filepath.Join(folder, "holders"))
	d.Mounts = mounts[number]
	for _, name := range names(folder) {
		part := filepath.Join(folder, name)
		if attribute(part, "partition") == "" {
			continue
		}
		d.Partitions = append(d.Partitions, name)
		d.Holders = append(d.Holders, names(filepath.Join(part, "holders"))...)
		d.Mounts = append(d.Mounts, mounts[attribute(part, "dev")]...)
	}
}

// describeNVMe fills in what NVMe namespaces have. A namespace that is reached over several controllers is below their subsystem.
func describeNVMe(folder string, d *Drive) {
	d.Kind = v1alpha1.DriveNVMe
	d.Identity = identityOf(attribute(folder, "wwid"))
	device := filepath.Join(folder, "device")
	d.Model, d.Serial, d.Firmware = short(attribute(device, "model")), short(attribute(device, "serial")), short(attribute(device, "firmware_rev"))
	controllers := []string{device}
	if attribute(device, "state") == "" {
		controllers = nil
		for _, name := range names(device) {
			if controllerName.MatchString(name) {
				controllers = append(controllers, filepath.Join(device, name))
			}
		}
	}
	for _, controller := range controllers {
		d.States = append(d.States, short(attribute(controller, "state")))
		if d.PCIAddress != "" {
			continue
		}
		hardware := filepath.Join(controller, "device")
		if address := attribute(controller, "address"); pciAddress.MatchString(address) {
			d.PCIAddress = address
		}
		if driver, err := os.Readlink(filepath.Join(hardware, "driver")); err == nil {
			d.Driver = short(printable(filepath.Base(driver)))
		}
		if node, err := strconv.ParseInt(attribute(hardware, "numa_node"), 10, 32); err == nil && node >= 0 {
			d.NUMANode = new(int32(node))
		}
	}
}

// describeLoop fills in what loop devices have, and tells whether this one is on a file of the directory for them. The kernel
// shows every container the loop devices of all, so that the file has to be there too.
func (t Tree) describeLoop(folder string, d *Drive) bool {
	backing := attribute(folder, "loop/backing_file")
	base := filepath.Base(backing)
	if backing == "" || base == "." || base == "/" {
		return false
	}
	if info, err := os.Lstat(filepath.Join(t.Loops, base)); err != nil || !info.Mode().IsRegular() {
		return false
	}
	d.Kind, d.Identity, d.Model, d.Driver = v1alpha1.DriveLoop, loopIdentity(backing), "loop device", "loop"
	return true
}

// mounts maps device numbers to the directories at which they are mounted.
func (t Tree) mounts() (map[string][]string, error) {
	found := map[string][]string{}
	if t.Mountinfo == "" {
		return found, nil
	}
	file, err := os.Open(t.Mountinfo)
	if err != nil {
		return nil, fmt.Errorf("read the node's mounts: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < mountinfoFields {
			continue
		}
		number, at := fields[2], printable(fields[4])
		if !slices.Contains(found[number], at) {
			found[number] = append(found[number], at)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the node's mounts: %w", err)
	}
	return found, nil
}

func parseNumber(text string) (major, minor uint32, err error) {
	first, second, _ := strings.Cut(text, ":")
	a, errA := strconv.ParseUint(first, 10, 32)
	b, errB := strconv.ParseUint(second, 10, 32)
	if errA != nil || errB != nil {
		return 0, 0, fmt.Errorf("sysfs gives no device number: %q", text)
	}
	return uint32(a), uint32(b), nil
}

// attribute reads an attribute of sysfs; empty when there is none, as for many a drive.
func attribute(folder, name string) string {
	file, err := os.Open(filepath.Join(folder, name))
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(file, attributeBytes))
	if err != nil {
		return ""
	}
	return printable(string(text))
}

// printable is text that may stand in a log and in an object of Kubernetes.
func printable(text string) string {
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, text))
	if len(text) > attributeBytes {
		text = text[:attributeBytes]
	}
	return text
}

// short is what a drive says of itself, as far as NVMe has room for it.
func short(text string) string { return text[:min(len(text), textBytes)] }

// names of the entries of a directory; none when it isn't there.
func names(folder string) []string {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	list := make([]string, 0, len(entries))
	for _, entry := range entries {
		list = append(list, printable(entry.Name()))
	}
	return list
}
