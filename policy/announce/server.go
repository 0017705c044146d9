package announce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/causes"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/policy/announce/message"
)

const (
	// limit is how long a request may take. It ends before the plugin does, which can then say why.
	limit = message.AddLimit - toSayWhy

	toSayWhy    = 100 * time.Millisecond
	atOnce      = 64 // requests
	acceptAgain = time.Second
)

// Server answers the CNI plugin.
type Server struct {
	Pods *Source
	// Subnets returns what this node's pods get addresses from. Others' addresses are refused.
	Subnets func() []netip.Prefix
	// Flush waits until the kernel enforces what Pods told.
	Flush func(context.Context) error
	Log   *slog.Logger

	within time.Duration // for a request; 0: limit
	causes causes.Log
}

// Listen makes the socket, in place of one that an earlier agent left. Only root may connect.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen for the CNI plugin: remove an earlier socket: %w", err)
	}
	control := func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}
	l, err := (&net.ListenConfig{Control: control}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for the CNI plugin: %w", err)
	}
	return l, nil
}

// Serve answers until ctx is done, and closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var requests errgroup.Group
	requests.SetLimit(atOnce)
	for ctx.Err() == nil {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			s.causes.Error(s.Log, "accept a connection of the CNI plugin", err)
			loop.Sleep(ctx, acceptAgain)
			continue
		}
		requests.Go(func() error { s.serve(ctx, conn); return nil })
	}
	return requests.Wait()
}

// serve answers one request.
func (s *Server) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	within := cmp.Or(s.within, limit)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	_ = conn.SetWriteDeadline(time.Now().Add(within + toSayWhy))
	answer := message.OK
	if err := s.handle(ctx, conn); err != nil {
		answer = err.Error()
		s.causes.Add(s.Log, slog.LevelWarn, "what the CNI plugin tells of a pod has no effect", "", "err", err)
	}
	_, _ = conn.Write([]byte(answer + "\n")) // the plugin may be gone
}

// handle does what a request asks for.
func (s *Server) handle(ctx context.Context, conn net.Conn) error {
	p, err := read(conn)
	if err != nil {
		return err
	}
	if hungUp(conn) { // what it says may not be so any more
		return fmt.Errorf("pod %s/%s: the CNI plugin did not wait for the agent", p.Namespace, p.Name)
	}
	if p.Gone {
		s.Pods.Remove(p)
		return nil
	}
	subnets := s.Subnets()
	if len(subnets) == 0 {
		return errors.New("the agent has no lease yet")
	}
	if err := within(subnets, p.Addresses); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("pod %s/%s: its policies are not known yet", p.Namespace, p.Name)
	case <-s.Pods.Add(p):
	}
	if err := s.Flush(ctx); err != nil {
		return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	s.Log.Debug("a pod starts", "pod", p.Namespace+"/"+p.Name, "addresses", p.Addresses)
	return nil
}

// hungUp reports whether the other end has closed the connection.
func hungUp(conn net.Conn) (closed bool) {
	raw, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	c, err := raw.SyscallConn()
	if err != nil {
		return true
	}
	err = c.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		closed = n == 0 && err == nil
		return true
	})
	return closed || err != nil
}
