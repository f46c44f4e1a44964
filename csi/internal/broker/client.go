package broker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/csi/internal/mounts"
)

// patience is how long a broker may take. An unmount waits for the process of the mount to take what is dirty; the kubelet
// gives up a call after two minutes.
const patience = 100 * time.Second

// Table is the mount table of a node, which a broker changes.
type Table struct {
	mounts.Linux
	socket string
}

var _ mounts.Table = Table{}

// NewTable returns the table of the broker at a socket.
func NewTable(socket string) Table { return Table{socket: socket} }

// Bind shows the directory source at target.
func (t Table) Bind(source, target string, readOnly bool) error {
	mode := "rw"
	if readOnly {
		mode = "ro"
	}
	_, err := t.ask("bind", source, target, mode)
	return err
}

// Restrict makes the topmost mount at path read-only.
func (t Table) Restrict(path string) error {
	_, err := t.ask("restrict", path)
	return notMounted(path, err)
}

// Unmount removes the topmost mount at path.
func (t Table) Unmount(path string) error {
	_, err := t.ask("unmount", path, "clean")
	if errors.Is(err, unix.EBUSY) {
		if _, dead := t.Usage(path); mounts.Dead(dead) {
			// Whoever still holds files there gets nothing but errors: detaching takes nothing from them.
			_, err = t.ask("unmount", path, "detach")
		}
	}
	return notMounted(path, err)
}

// notMounted gives what the kernel says of a path without a mount the meaning that callers know.
func notMounted(path string, err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%s: %w", path, mounts.ErrNotMounted)
	}
	return err
}

// Replace mounts what is at source in place of the file system with this device number, in running containers.
func (t Table) Replace(device, source string) (int, error) {
	fields, err := t.ask("replace", device, source)
	if err != nil {
		return 0, err
	}
	if len(fields) != 1 {
		return 0, fmt.Errorf("mount broker: %w: %d fields, not one", errPacket, len(fields))
	}
	return strconv.Atoi(fields[0])
}

// Held returns the paths of the mounts whose descriptors the broker keeps.
func (t Table) Held() ([]string, error) {
	conn, err := t.connect()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	head, err := exchange(conn, packet{fields: []string{version, "list"}})
	if err != nil {
		return nil, fmt.Errorf("mount broker: list: %w", err)
	}
	if len(head.fields) != 1 {
		return nil, fmt.Errorf("mount broker: %w: a list without a length", errPacket)
	}
	count, err := strconv.Atoi(head.fields[0])
	if err != nil {
		return nil, fmt.Errorf("mount broker: %w: a list of length %q", errPacket, head.fields[0])
	}
	var held []string
	for range count {
		entry, err := receive(conn)
		entry.close()
		if err != nil {
			return nil, fmt.Errorf("mount broker: list: %w", err)
		}
		if len(entry.fields) == 3 && entry.fields[2] == "held" {
			held = append(held, entry.fields[0])
		}
	}
	return held, nil
}

// connect opens a connection for one request.
func (t Table) connect() (*net.UnixConn, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: t.socket, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("mount broker: %w: does its pod run on this node?", err)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// ask makes one request, and returns the fields of its answer.
func (t Table) ask(verb string, fields ...string) ([]string, error) {
	conn, err := t.connect()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	answer, err := exchange(conn, packet{fields: append([]string{version, verb}, fields...)})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("mount broker: %s %q takes longer than %s: do the engines answer?", verb, fields, patience)
	}
	answer.close()
	if err != nil {
		return nil, fmt.Errorf("mount broker: %s: %w", verb, err)
	}
	return answer.fields, nil
}

// exchange sends a request and returns its answer, without the "ok". Descriptors of the answer belong to the caller.
func exchange(conn *net.UnixConn, request packet) (packet, error) {
	if err := send(conn, request); err != nil {
		return packet{}, err
	}
	answer, err := receive(conn)
	if err != nil {
		return packet{}, err
	}
	switch {
	case answer.fields[0] == "ok":
		answer.fields = answer.fields[1:]
		return answer, nil
	case answer.fields[0] == "error" && len(answer.fields) == 3:
		answer.close()
		errno, err := strconv.ParseUint(answer.fields[1], 10, 16)
		if err != nil {
			return packet{}, fmt.Errorf("%w: errno %q", errPacket, answer.fields[1])
		}
		return packet{}, &refusal{errno: unix.Errno(errno), text: answer.fields[2]}
	default:
		answer.close()
		return packet{}, fmt.Errorf("%w: it begins with %q", errPacket, answer.fields[0])
	}
}
