package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/echo"
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
	limit := echo.NoLimit
	if p.DontFragment {
		limit = echo.PathMTU
	}
	s, err := h.openEcho(p.To, limit)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	echoes := round(ctx, s, []netip.Addr{p.To}, p.Size, timeoutOr(p.Timeout))
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
		s, err := h.openEcho(addrs[0], echo.NoLimit)
		if err != nil {
			return nil, err
		}
		for i, e := range round(ctx, s, addrs, 0, timeoutOr(timeout)) {
			echoes[at[i]] = e
		}
		_ = s.Close()
	}
	return echoes, nil
}

func timeoutOr(d time.Duration) time.Duration {
	if d <= 0 {
		return time.Second
	}
	return d
}

// room is for what comes while this program has no processor: one socket hears all that the namespace's pings are answered.
const room = 4 << 20

// openEcho opens a socket for the family of an address.
func (h Host) openEcho(to netip.Addr, limit echo.Limit) (s *echo.Socket, err error) {
	err = h.Do(func() error {
		s, err = echo.Open(to, echo.Options{Limit: limit, Room: room})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ping from %s: %w", h.Name, err)
	}
	return s, nil
}

func round(ctx context.Context, s *echo.Socket, to []netip.Addr, size int, timeout time.Duration) []Echo {
	echoes, sent, open := make([]Echo, len(to)), make([]time.Time, len(to)), 0
	for i, a := range to {
		echoes[i], sent[i] = Echo{To: a, Err: ErrNoReply}, time.Now()
		if err := s.Send(a, uint64(i), size); err != nil {
			echoes[i].Err = sendError(a, err)
			continue
		}
		open++
	}
	_ = s.SetReadDeadline(time.Now().Add(timeout)) // a socket that cannot have one ends reads at once
	stop := context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Now()) })
	defer stop()
	for open > 0 {
		from, n, err := s.Receive()
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
