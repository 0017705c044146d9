package probe

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/packet"
)

// mark begins the data of a probe that is sent in another host's name. The answer has it, too.
type mark [16]byte

// markPrefix begins all of them.
var markPrefix = []byte("twill-pr")

func newMark() (m mark) {
	copy(m[:], markPrefix)
	_, _ = rand.Read(m[len(markPrefix):]) // it never fails (crypto/rand)
	return m
}

// replies sees the answers to probes that were sent in the names of other hosts: they go to those hosts, which throw
// them away.
type replies struct {
	tap  *packet.Tap
	err  error // why there is no tap
	stop context.CancelFunc
	done chan struct{}

	mu   sync.Mutex
	open map[mark]chan struct{}
}

// newReplies begins to listen, if one of the tries needs it. All that do are sent from one namespace.
func newReplies(ctx context.Context, tries []Try) *replies {
	r := &replies{open: map[mark]chan struct{}{}, done: make(chan struct{})}
	ctx, r.stop = context.WithCancel(ctx)
	for _, t := range tries {
		if t.OnBehalf {
			r.err = t.From.Do(func() (err error) {
				if r.tap, err = packet.OpenTap(); err != nil {
					return err
				}
				return r.tap.OnlyICMP()
			})
			break
		}
	}
	if r.tap == nil || r.err != nil {
		close(r.done)
		return r
	}
	go func() {
		defer close(r.done)
		for ctx.Err() == nil {
			if packet.Wait([]*packet.Tap{r.tap}, pollInterval) != nil || r.tap.Each(r.look) != nil {
				return // and nobody gets an answer
			}
		}
	}()
	return r
}

// pollInterval is how long to wait for answers at a time.
const pollInterval = 20 * time.Millisecond

func (r *replies) close() {
	r.stop()
	<-r.done
	if r.tap != nil {
		_ = r.tap.Close()
	}
}

// look ends the wait for an answer that leaves to the host in whose name was asked.
func (r *replies) look(c packet.Captured) error {
	i := bytes.Index(c.Data, markPrefix)
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
func onBehalf(ctx context.Context, r *replies, t Try) error {
	if r.err != nil {
		return r.err
	}
	network, m := "ip6:ipv6-icmp", t.request()
	if t.Dst.Is4() {
		network = "ip4:icmp"
	}
	marked := newMark()
	echo, ok := m.Body.(*icmp.Echo)
	if !ok {
		return fmt.Errorf("ask %s: the request is no echo", t.Dst)
	}
	copy(echo.Data, marked[:])
	data, err := m.Marshal(nil)
	if err != nil {
		return err
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return errors.Join(forbidFragments(c, t.Dst), transparent(c, t.Dst.Is4()))
	}}
	var conn net.PacketConn
	err = t.From.Do(func() (err error) {
		conn, err = lc.ListenPacket(ctx, network, t.Src.String())
		return err
	})
	if err != nil {
		return fmt.Errorf("open a raw socket in the name of %s: %w", t.Src, cause(err))
	}
	defer conn.Close()
	seen := r.expect(marked)
	if _, err := conn.WriteTo(data, &net.IPAddr{IP: t.Dst.AsSlice()}); err != nil {
		return fmt.Errorf("send: %w", cause(err))
	}
	select {
	case <-seen:
		return nil
	case <-ctx.Done():
		return errNoAnswer
	}
}

// transparent lets a socket send from an address that is not the namespace's.
func transparent(c syscall.RawConn, is4 bool) (err error) {
	level, option := unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	if is4 {
		level, option = unix.SOL_IP, unix.IP_TRANSPARENT
	}
	return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }), err)
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
