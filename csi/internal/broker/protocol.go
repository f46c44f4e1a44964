// Package broker makes and removes the mounts of a node for programs without privileges, and keeps what a mount must not
// lose with the process that serves it: its /dev/fuse descriptor and a memory file.
//
// # Interface
//
// A unix socket of type SOCK_SEQPACKET. A request is one packet of text fields, separated by NUL, and the answer is one packet,
// too: "ok" and fields, or "error", an errno number and a text. Descriptors travel beside a packet (SCM_RIGHTS). The
// first field of a request is the version, "1", the second is the verb:
//
//	mount TARGET SOURCE OPTIONS   mounts a FUSE file system; ok DEVICE with two descriptors: /dev/fuse, memory.
//	                              OPTIONS are any of "ro" and "noexec", separated by commas.
//	ready TARGET                  the mount answers: it gets its read-ahead, which the answer to FUSE_INIT had set
//	take TARGET                   ok DEVICE with the two descriptors of a mount that was made before
//	release TARGET                gives up the descriptors: without a process that has them, too, the mount ends
//	give TARGET                   with the two descriptors, takes back what an earlier broker held; ok DEVICE
//	bind SOURCE TARGET MODE       shows the mount at SOURCE at TARGET; MODE is "rw" or "ro"
//	restrict PATH                 makes the mount at PATH read-only
//	unmount PATH MODE             MODE is "clean", which fails with EBUSY while it is in use, or "detach"
//	replace DEVICE SOURCE         shows the mount at SOURCE in running containers that have the file system DEVICE; ok COUNT
//	list                          ok COUNT, and then COUNT packets: TARGET DEVICE, and "held" or "lost"
//
// Who may ask is checked by the peer's user id. Paths are absolute and below a configured folder; no symbolic link in
// them is followed. Only file systems of type fuse.weir are mounted, shown or removed: whoever may ask can't get
// anything else of the node mounted into a pod, nor take a mount away that isn't Weir's. Data of file systems and of the
// memory files is never looked at.
package broker

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"
)

// FileSystemType is the type of the mounts that a broker makes.
const FileSystemType = "fuse.weir"

const (
	version = "1"
	// packetMax bounds a packet: two paths of PATH_MAX and some short fields.
	packetMax = 3 * unix.PathMax
	// fieldsMax bounds the fields of a packet.
	fieldsMax = 6
	// descriptorsMax bounds the descriptors beside a packet.
	descriptorsMax = 2
)

// errPacket is wrapped by errors of malformed packets.
var errPacket = errors.New("malformed packet")

// packet is what both sides send.
type packet struct {
	fields      []string
	descriptors []int
}

// close closes the descriptors.
func (p *packet) close() {
	for _, descriptor := range p.descriptors {
		_ = unix.Close(descriptor)
	}
	p.descriptors = nil
}

// receive reads a packet. Its descriptors belong to the caller.
func receive(conn *net.UnixConn) (packet, error) {
	data, control := make([]byte, packetMax), make([]byte, unix.CmsgSpace(4*descriptorsMax))
	n, controlled, flags, _, err := conn.ReadMsgUnix(data, control)
	if err != nil {
		return packet{}, err
	}
	descriptors, err := descriptorsOf(control[:controlled])
	p := packet{descriptors: descriptors}
	switch {
	case err != nil:
	case n == 0 && controlled == 0:
		err = net.ErrClosed
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = fmt.Errorf("%w: longer than %d bytes or more than %d descriptors", errPacket, packetMax, descriptorsMax)
	default:
		p.fields = strings.SplitN(string(data[:n]), "\x00", fieldsMax+1)
		if len(p.fields) > fieldsMax {
			err = fmt.Errorf("%w: more than %d fields", errPacket, fieldsMax)
		}
	}
	if err != nil {
		p.close()
		return packet{}, err
	}
	return p, nil
}

// descriptorsOf takes the descriptors out of control messages. Descriptors are closed on exec: the net package asks for that.
func descriptorsOf(control []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPacket, err)
	}
	var descriptors []int
	for _, message := range messages {
		rights, err := unix.ParseUnixRights(&message)
		if err != nil {
			return descriptors, fmt.Errorf("%w: %w", errPacket, err)
		}
		descriptors = append(descriptors, rights...)
	}
	return descriptors, nil
}

// send writes a packet. Its descriptors stay the caller's.
func send(conn *net.UnixConn, p packet) error {
	for _, field := range p.fields {
		if strings.Contains(field, "\x00") {
			return fmt.Errorf("%w: a field with a NUL", errPacket)
		}
	}
	text := strings.Join(p.fields, "\x00")
	if len(text) > packetMax {
		return fmt.Errorf("%w: longer than %d bytes", errPacket, packetMax)
	}
	var control []byte
	if len(p.descriptors) > 0 {
		control = unix.UnixRights(p.descriptors...)
	}
	_, _, err := conn.WriteMsgUnix([]byte(text), control, nil)
	return err
}
