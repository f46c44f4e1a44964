package drive

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// adminCommand is NVME_IOCTL_ADMIN_CMD of linux/nvme_ioctl.h.
	adminCommand = 0xc0484e41
	// getLogPage is the command's opcode, healthLog the number of the page (NVMe base specification, "SMART / Health Information").
	getLogPage = 0x02
	healthLog  = 0x02
	// logBytes is the page's size.
	logBytes = 512
	// everyNamespace asks for the log of the whole drive.
	everyNamespace = 0xffffffff
	// commandMillis is how long the kernel waits for the answer.
	commandMillis = 5000
)

// passthrough is struct nvme_passthru_cmd of linux/nvme_ioctl.h.
type passthrough struct {
	opcode, _            uint8
	_                    uint16
	namespace            uint32
	_, _                 uint32
	_, data              uint64
	_, dataBytes         uint32
	cdw10, _, _, _, _, _ uint32
	timeoutMillis, _     uint32
}

// warnings are the critical warnings in the health log of an NVMe drive.
func warnings(file *os.File) ([]string, error) {
	page := make([]byte, logBytes)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(&page[0]) // the kernel gets its address as a number
	command := passthrough{
		opcode: getLogPage, namespace: everyNamespace, dataBytes: logBytes, timeoutMillis: commandMillis,
		data:  uint64(uintptr(unsafe.Pointer(&page[0]))),
		cdw10: healthLog | (logBytes/4-1)<<16,
	}
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), adminCommand, uintptr(unsafe.Pointer(&command)))
	if errors.Is(errno, unix.ENOTTY) {
		return nil, nil // no command for what stands in for a drive
	}
	if errno != 0 {
		return nil, fmt.Errorf("ask an NVMe drive for its health: %w", errno)
	}
	if status != 0 {
		return nil, fmt.Errorf("an NVMe drive refuses to tell its health: status %#x", status)
	}
	return warningsOf(page), nil
}

// warningsOf a health log: the bits of its first byte.
func warningsOf(page []byte) []string {
	texts := [8]string{
		"spare space is below its threshold", "too hot or too cold", "the drive is no longer reliable", "media are read-only",
		"its memory is not backed up any more", "its persistent memory is read-only or unreliable", "unknown warning 6", "unknown warning 7",
	}
	var found []string
	for bit, text := range texts {
		if len(page) > 0 && page[0]&(1<<bit) != 0 {
			found = append(found, text)
		}
	}
	return found
}
