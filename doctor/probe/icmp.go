package probe

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/twill-net/twill/internal/echo"
)

// smallData is the size in bytes of the data of a packet that is not full.
const smallData = 32

// dataSize returns the size of the data after the header of ICMP or UDP; both headers have one size.
func (t Try) dataSize() int {
	switch {
	case t.Kind == UDPParts:
		return t.Size // with its headers it does not fit
	case t.Kind.isFull():
		return max(smallData, t.Size-echo.Headers(t.Dst))
	}
	return smallData
}

var (
	errNoAnswer = errors.New("no answer")

	// ErrTwice says that nothing was lost, and that an answer came twice.
	ErrTwice = errors.New("answered more than once")
)

// open opens the socket of an echo request.
func (t Try) open(o echo.Options) (s *echo.Socket, err error) {
	o.Limit = echo.DeviceMTU
	err = t.From.Do(func() error {
		s, err = echo.Open(t.Dst, o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a raw socket in %s: %w", t.From.Host, cause(err))
	}
	return s, nil
}

// ask sends one echo request and waits for its reply.
func ask(ctx context.Context, t Try, m mark) error {
	var o echo.Options
	if t.Bound {
		o.From = t.Src
	}
	s, err := t.open(o)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.SendData(t.Dst, t.data(m)); err != nil {
		return fmt.Errorf("send: %w", cause(err))
	}
	return onlyAnswer(ctx, s, func() (bool, error) {
		from, n, err := s.Receive()
		return n == m.number() && from == t.Dst, err
	})
}

// secondAnswer is how long another answer is waited for.
const secondAnswer = 20 * time.Millisecond

// onlyAnswer waits for an answer, and a little longer for another one, which there should not be. Next reads a packet, and
// reports whether it is one.
func onlyAnswer(ctx context.Context, conn deadliner, next func() (bool, error)) error {
	setDeadline(ctx, conn)
	for answered := false; ; {
		isAnswer, err := next()
		switch {
		case err != nil && !answered:
			return orNoAnswer(err)
		case err != nil:
			return nil
		case !isAnswer:
		case answered:
			return ErrTwice
		default:
			answered = true
			_ = conn.SetReadDeadline(time.Now().Add(secondAnswer))
		}
	}
}

// deadliner is a socket whose reads can end by themselves.
type deadliner interface{ SetReadDeadline(time.Time) error }

// setDeadline ends reads when the context does. A socket that cannot have a deadline ends them at once.
func setDeadline(ctx context.Context, conn deadliner) {
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(end)
	}
}

// cause returns the kernel's error without the addresses that Go adds.
func cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
