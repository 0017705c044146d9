package probe

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/internal/echo"
	"github.com/twill-net/twill/packet"
)

// mark begins the data of an echo request. The answer has it, too.
type mark [packet.EchoSize]byte

// markEnd ends all of them, after a number.
var markEnd = []byte("twill-pr")

func newMark() (m mark) {
	_, _ = rand.Read(m[:]) // it never fails (crypto/rand)
	copy(m[len(m)-len(markEnd):], markEnd)
	return m
}

// number is what tells it from others.
func (m mark) number() uint64 { return binary.BigEndian.Uint64(m[:]) }

// data is that of an echo request.
func (t Try) data(m mark) []byte {
	data := make([]byte, t.dataSize())
	copy(data, m[:])
	return data
}

// replies sees the answers to probes that were sent in the names of other hosts: they go to those hosts, which throw
// them away.
type replies struct {
	watch *watch.Watch
	err   error // why nothing is watched
	stop  context.CancelFunc
	done  chan struct{}

	mu   sync.Mutex
	open map[mark]chan struct{}
}

// newReplies begins to listen, if one of the tries needs it. All that do are sent from one namespace.
func newReplies(ctx context.Context, tries []Try) *replies {
	r := &replies{open: map[mark]chan struct{}{}, done: make(chan struct{})}
	ctx, r.stop = context.WithCancel(ctx)
	for _, t := range tries {
		if t.OnBehalf {
			r.watch, r.err = watch.Start(watch.Options{Places: []watch.Place{t.From}, ICMP: true})
			break
		}
	}
	if r.watch == nil {
		close(r.done)
		return r
	}
	go func() {
		defer close(r.done)
		_ = r.watch.Until(ctx, func() error { return r.watch.Frames(r.look) }) // else nobody gets an answer
	}()
	return r
}

func (r *replies) close() {
	r.stop()
	<-r.done
	if r.watch != nil {
		r.watch.Close()
	}
}

// look ends the wait for an answer that leaves to the host in whose name was asked.
func (r *replies) look(_ int, c packet.Captured) error {
	i := bytes.Index(c.Data, markEnd) + len(markEnd) - len(mark{})
	if i < 0 || len(c.Data) < i+len(mark{}) || c.Type != unix.PACKET_OUTGOING || !c.Decode().IsReply() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := mark(c.Data[i:])
	if seen := r.open[m]; seen != nil {
		close(seen)
		delete(r.open, m)
	}
	return nil
}

func (r *replies) expect(m mark) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := make(chan struct{})
	r.open[m] = seen
	return seen
}

// onBehalf sends one echo request in the name of another host of the sender's namespace, and waits until the reply is on
// its way to that host. It needs CAP_NET_RAW and CAP_NET_ADMIN there.
func onBehalf(ctx context.Context, r *replies, t Try, marked mark) error {
	if r.err != nil {
		return r.err
	}
	s, err := t.open(echo.Options{From: t.Src, Others: true})
	if err != nil {
		return fmt.Errorf("in the name of %s: %w", t.Src, err)
	}
	defer s.Close()
	seen := r.expect(marked)
	if err := s.SendData(t.Dst, t.data(marked)); err != nil {
		return fmt.Errorf("send: %w", cause(err))
	}
	select {
	case <-seen:
		return nil
	case <-ctx.Done():
		return errNoAnswer
	}
}

// MayActFor reports whether the calling thread may send in the name of the hosts of its namespace.
func MayActFor() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1) == nil
}
