package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// connectionsMax bounds the peers at a time: each call of the CSI node plugin has a connection, and so has the mount daemon.
const connectionsMax = 128

// acceptPause is the pause after a connection could not be accepted.
const acceptPause = 100 * time.Millisecond

// refusal is an error with its errno.
type refusal struct {
	errno unix.Errno
	text  string
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) Unwrap() error { return r.errno }

func refuse(errno unix.Errno, format string, arguments ...any) error {
	return &refusal{errno: errno, text: fmt.Sprintf(format, arguments...)}
}

// Server is a broker.
type Server struct {
	logger *slog.Logger
	users  []uint32
	roots  []root
	verbs  map[string]verb

	// mu is held while the mounts that are held and the mount table change together.
	mu   sync.Mutex
	held map[string]holding
}

// verb is what a request asks for, by the number of its fields behind the verb.
type verb struct {
	fields, descriptors int
	serve               func(fields []string, descriptors []int) (packet, error)
}

// New returns a broker that mounts below folders, for processes of users.
func New(logger *slog.Logger, folders []string, users []uint32) (*Server, error) {
	s := &Server{logger: logger, users: users, held: map[string]holding{}}
	s.verbs = map[string]verb{
		"mount":    {3, 0, func(f []string, _ []int) (packet, error) { return s.mount(f[0], f[1], f[2]) }},
		"take":     {1, 0, func(f []string, _ []int) (packet, error) { return s.take(f[0]) }},
		"release":  {1, 0, func(f []string, _ []int) (packet, error) { return packet{}, s.forget(f[0]) }},
		"give":     {1, 2, func(f []string, d []int) (packet, error) { return s.give(f[0], d[0], d[1]) }},
		"ready":    {1, 0, func(f []string, _ []int) (packet, error) { return packet{}, s.ready(f[0]) }},
		"bind":     {3, 0, func(f []string, _ []int) (packet, error) { return packet{}, s.bind(f[0], f[1], f[2]) }},
		"restrict": {1, 0, func(f []string, _ []int) (packet, error) { return packet{}, s.restrict(f[0]) }},
		"unmount":  {2, 0, func(f []string, _ []int) (packet, error) { return packet{}, s.unmount(f[0], f[1]) }},
		"replace":  {2, 0, func(f []string, _ []int) (packet, error) { return s.replace(f[0], f[1]) }},
	}
	for _, folder := range folders {
		root, err := openRoot(folder)
		if err != nil {
			s.Close()
			return nil, err
		}
		s.roots = append(s.roots, root)
	}
	return s, nil
}

// Close gives up all descriptors: mounts whose process is gone, too, end with that.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for target := range s.held {
		s.release(target)
	}
	for _, root := range s.roots {
		_ = unix.Close(root.fd)
	}
	s.roots = nil
}

// Listen makes the socket. One that a broker left behind is replaced.
func Listen(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the socket's folder: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier broker: %w", err)
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	// Who may ask is checked by the peer's user id.
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(fmt.Errorf("open the socket to other users: %w", err), listener.Close())
	}
	return listener, nil
}

// Serve answers at a listener until ctx ends.
func (s *Server) Serve(ctx context.Context, listener *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	places := make(chan struct{}, connectionsMax)
	for {
		conn, err := listener.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			// Out of descriptors, most likely. Ending would give up those of all mounts.
			s.logger.Warn("accept", "error", err)
			time.Sleep(acceptPause)
			continue
		}
		places <- struct{}{}
		go func() {
			defer func() { <-places }()
			defer func() { _ = conn.Close() }()
			s.converse(conn)
		}()
	}
}

// converse answers one peer until it goes away.
func (s *Server) converse(conn *net.UnixConn) {
	refused := s.admit(conn)
	for {
		request, err := receive(conn)
		if errors.Is(err, errPacket) {
			s.logger.Warn("a request is refused", "error", err)
			_ = send(conn, failed(refuse(unix.EBADMSG, "%v", err)))
		}
		if err != nil {
			return
		}
		if refused != nil {
			request.close()
			s.logger.Warn("a peer is refused", "error", refused)
			// It finds the connection closed either way.
			_ = send(conn, failed(refused))
			return
		}
		answers := s.answer(request)
		for _, answer := range answers {
			err := send(conn, answer)
			answer.close()
			if err != nil {
				s.logger.Warn("a peer has gone before its answer", "error", err)
				return
			}
		}
	}
}

// admit checks who the peer is.
func (s *Server) admit(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var (
		peer *unix.Ucred
		bad  error
	)
	if err := raw.Control(func(fd uintptr) {
		peer, bad = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if bad != nil {
		return fmt.Errorf("the peer's credentials: %w", bad)
	}
	if slices.Contains(s.users, peer.Uid) {
		return nil
	}
	return refuse(unix.EPERM, "user %d (process %d) may not ask this broker", peer.Uid, peer.Pid)
}

// answer executes a request.
func (s *Server) answer(request packet) []packet {
	defer request.close()
	if len(request.fields) < 2 || request.fields[0] != version {
		return []packet{failed(refuse(unix.EPROTONOSUPPORT, "the request is not of version %s", version))}
	}
	name, fields := request.fields[1], request.fields[2:]
	if name == "list" && len(fields) == 0 && len(request.descriptors) == 0 {
		return s.list()
	}
	known, ok := s.verbs[name]
	if !ok || len(fields) != known.fields || len(request.descriptors) != known.descriptors {
		return []packet{failed(refuse(unix.EBADMSG, "no verb %q with %d fields and %d descriptors", name, len(fields), len(request.descriptors)))}
	}
	answer, err := known.serve(fields, request.descriptors)
	if err != nil {
		s.logger.Warn("refused", "verb", name, "fields", fields, "error", err)
		return []packet{failed(err)}
	}
	s.logger.Info(name, "fields", fields)
	answer.fields = append([]string{"ok"}, answer.fields...)
	return []packet{answer}
}

// textMax bounds the text of an error.
const textMax = 2048

// failed is the answer that tells of an error.
func failed(err error) packet {
	errno := unix.EIO
	// What an errno wraps decides; everything else is a fault of this machine.
	_ = errors.As(err, &errno)
	text := err.Error()
	return packet{fields: []string{"error", strconv.Itoa(int(errno)), text[:min(len(text), textMax)]}}
}
