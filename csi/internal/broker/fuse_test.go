package broker

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// Opcodes and sizes of the FUSE protocol (linux/fuse.h).
const (
	opGetattr = 3
	opStatfs  = 17
	opInit    = 26
	opDestroy = 38

	inHeader, outHeader = 40, 16
	attrSize            = 88
	// resent marks the number of a request that the kernel sends again.
	resent = 1 << 63
	// notifyResend asks the kernel to send what is unanswered again.
	notifyResend = 7
)

// request is one request of the kernel.
type request struct {
	opcode uint32
	unique uint64
}

// nextRequest reads a request from /dev/fuse; false after the file system is gone.
func nextRequest(t *testing.T, device int) (request, bool) {
	t.Helper()
	buffer := make([]byte, 1<<20)
	for {
		n, err := unix.Read(device, buffer)
		switch {
		case errors.Is(err, unix.ENODEV):
			return request{}, false
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT):
			continue
		case err != nil || n < inHeader:
			t.Errorf("read %d bytes of a request: %v", n, err)
			return request{}, false
		}
		return request{opcode: binary.LittleEndian.Uint32(buffer[4:]), unique: binary.LittleEndian.Uint64(buffer[8:])}, true
	}
}

// reply answers a request.
func reply(t *testing.T, device int, unique uint64, errno unix.Errno, body []byte) {
	t.Helper()
	answer := make([]byte, outHeader, outHeader+len(body))
	binary.LittleEndian.PutUint32(answer, uint32(outHeader+len(body)))
	binary.LittleEndian.PutUint32(answer[4:], uint32(-int32(errno)))
	binary.LittleEndian.PutUint64(answer[8:], unique)
	if _, err := unix.Write(device, append(answer, body...)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		t.Errorf("answer a request: %v", err)
	}
}

// answerOne answers one request as an empty file system does.
func answerOne(t *testing.T, device int, r request) {
	t.Helper()
	switch r.opcode {
	case opInit:
		body := make([]byte, 64)
		binary.LittleEndian.PutUint32(body, 7)
		binary.LittleEndian.PutUint32(body[4:], 31)
		binary.LittleEndian.PutUint32(body[20:], 1<<17)
		reply(t, device, r.unique, 0, body)
	case opGetattr:
		body := make([]byte, 16+attrSize)
		binary.LittleEndian.PutUint64(body[16:], 1)
		binary.LittleEndian.PutUint32(body[16+60:], unix.S_IFDIR|0o755)
		binary.LittleEndian.PutUint32(body[16+64:], 2)
		reply(t, device, r.unique, 0, body)
	case opStatfs:
		reply(t, device, r.unique, 0, make([]byte, 80))
	default:
		reply(t, device, r.unique, unix.ENOSYS, nil)
	}
}

// serveFUSE serves a mount until it is gone.
func serveFUSE(t *testing.T, device int) <-chan struct{} {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			r, ok := nextRequest(t, device)
			if !ok {
				return
			}
			answerOne(t, device, r)
			if r.opcode == opDestroy {
				return
			}
		}
	}()
	return ended
}
