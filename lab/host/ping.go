package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// ErrNoReply is a ping that nothing answered in time.
var ErrNoReply = errors.New("no reply")

// ErrTooLong is a packet that may not be fragmented and is larger than the MTU of the path.
var ErrTooLong = errors.New("packet is larger than the MTU")

// Ping is one address to ask, and how.
type Ping struct {
	To           netip.Addr
	Size         int // of the whole IP packet in bytes; 0: the smallest
	DontFragment bool
	Timeout      time.Duration // 0: one second
}

// Echo is what came of one Ping.
type Echo struct {
	To  netip.Addr
	RTT time.Duration
	Err error // ErrNoReply, ErrTooLong or why the request could not be sent
}

// Ping sends one echo request and returns how long the reply took.
func (h Host) Ping(ctx context.Context, p Ping) (time.Duration, error) {
	s, err := h.openEcho(netstate.FamilyOf(p.To), p.DontFragment)
	if err != nil {
		return 0, err
	}
	defer s.close()
	echoes := s.round(ctx, []netip.Addr{p.To}, p.Size, timeoutOr(p.Timeout))
	return echoes[0].RTT, echoes[0].Err
}

// PingAll sends one echo request to each address, all at once, and waits for all replies. The answers are in
// the order of the addresses.
func (h Host) PingAll(ctx context.Context, to []netip.Addr, timeout time.Duration) ([]Echo, error) {
	echoes := make([]Echo, len(to))
	for _, f := range netstate.Families {
		var addrs []netip.Addr
		var at []int
		for i, a := range to {
			if netstate.FamilyOf(a) == f {
				addrs, at = append(addrs, a), append(at, i)
			}
		}
		if len(addrs) == 0 {
			continue
		}
		s, err := h.openEcho(f, false)
		if err != nil {
			return nil, err
		}
		for i, e := range s.round(ctx, addrs, 0, timeoutOr(timeout)) {
			echoes[at[i]] = e
		}
		s.close()
	}
	return echoes, nil
}

func timeoutOr(d time.Duration) time.Duration {
	if d <= 0 {
		return time.Second
	}
	return d
}

func (s *echoSocket) round(ctx context.Context, to []netip.Addr, size int, timeout time.Duration) []Echo {
	echoes, sent, open := make([]Echo, len(to)), make([]time.Time, len(to)), 0
	for i, a := range to {
		echoes[i], sent[i] = Echo{To: a, Err: ErrNoReply}, time.Now()
		if err := s.send(a, uint64(i), size); err != nil {
			echoes[i].Err = sendError(a, err)
			continue
		}
		open++
	}
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetReadDeadline(time.Now()) })
	defer stop()
	for deadline := time.Now().Add(timeout); open > 0 && ctx.Err() == nil; {
		from, n, err := s.receive(deadline)
		if err != nil {
			break
		}
		if i := int(n); i < len(to) && to[i] == from && errors.Is(echoes[i].Err, ErrNoReply) {
			echoes[i] = Echo{To: from, RTT: time.Since(sent[i])}
			open--
		}
	}
	return slices.Clip(echoes)
}

func sendError(to netip.Addr, err error) error {
	if errors.Is(err, unix.EMSGSIZE) {
		return ErrTooLong
	}
	return fmt.Errorf("ping %s: %w", to, err)
}
