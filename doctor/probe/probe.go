// Package probe sends real packets between pods, from inside their network namespaces, and tells which are answered.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/twill-net/twill/doctor/watch"
)

// Kind is what is sent.
type Kind string

// The kinds. Full ones are as large as a pod may send, and may not be fragmented. UDPParts is larger: the sender's kernel
// sends fragments, as it does for QUIC's, DNS's and NFS's large datagrams.
const (
	ICMP     Kind = "ICMP"
	ICMPFull Kind = "full-size ICMP"
	TCP      Kind = "TCP"
	UDP      Kind = "UDP"
	UDPFull  Kind = "full-size UDP"
	UDPParts Kind = "fragmented UDP"
)

// Kinds are all of them.
var Kinds = []Kind{ICMP, ICMPFull, TCP, UDP, UDPFull, UDPParts}

// isFull reports whether packets of this kind are as large as a pod may send.
func (k Kind) isFull() bool { return k == ICMPFull || k == UDPFull }

// Proto returns the name of the protocol: icmp, tcp, udp.
func (k Kind) Proto() string {
	switch k {
	case ICMP, ICMPFull:
		return "icmp"
	case TCP:
		return "tcp"
	}
	return "udp"
}

// Try is one exchange of packets between two places.
type Try struct {
	From, To watch.Place // where To cannot be entered, any answer to TCP counts
	Src, Dst netip.Addr
	Bound    bool // the sender insists on Src; else its kernel chooses, as for most programs
	OnBehalf bool // Src is another host's behind From's namespace, which sends in its name; of ICMP only
	Kind     Kind
	Size     int // bytes of the largest IP packet that is not fragmented
}

// local returns the address that the sender's socket is bound to; nil: none.
func (t Try) local() net.IP {
	if !t.Bound {
		return nil
	}
	return t.Src.AsSlice()
}

// Source returns the address that a place sends from to another address, which its kernel chooses. No packet is sent.
func Source(from watch.Place, dst netip.Addr) (src netip.Addr, err error) {
	var conn *net.UDPConn
	err = from.Do(func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, discard)))
		return err
	})
	if err != nil {
		return src, fmt.Errorf("choose a source address for %s in %s: %w", dst, from.Host, cause(err))
	}
	defer conn.Close()
	if a, ok := conn.LocalAddr().(*net.UDPAddr); ok {
		src = a.AddrPort().Addr().Unmap().WithZone("")
	}
	return src, nil
}

// discard is the port of RFC 863.
const discard = 9

func (t Try) String() string {
	return fmt.Sprintf("%s from %s (%s) to %s (%s)", t.Kind, t.From.Host, t.Src, t.To.Host, t.Dst)
}

// Result is what came of a Try; the error is nil if packets came back.
type Result struct {
	Try
	Port uint16 // of the receiver; 0: none
	Echo string // how the data of an echo request begins; empty: it is none
	Err  error
}

// Lost reports whether packets did not come back.
func (r Result) Lost() bool { return r.Err != nil && !errors.Is(r.Err, ErrTwice) }

// Stalled reports whether a connection was made, and then did not carry all of its bytes.
func (r Result) Stalled() bool { return errors.As(r.Err, new(stalledError)) }

// Patience is how long an answer usually may take. A connection's first packet is repeated only after a second.
const Patience = 500 * time.Millisecond

// Send makes all tries at once, and waits so long for their answers. The results are in the order of the tries.
func Send(ctx context.Context, tries []Try, patience time.Duration) []Result {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	results := make([]Result, len(tries))
	servers := newServers(ctx)
	defer servers.close()
	replies := newReplies(ctx, tries)
	defer replies.close()
	var wait sync.WaitGroup
	for i, t := range tries {
		results[i].Try = t
		wait.Go(func() { results[i].send(ctx, servers, replies) })
	}
	wait.Wait()
	return results
}

// send makes the try.
func (r *Result) send(ctx context.Context, servers *servers, replies *replies) {
	t, m := r.Try, newMark()
	switch proto := t.Kind.Proto(); {
	case t.OnBehalf:
		r.Echo, r.Err = string(m[:]), onBehalf(ctx, replies, t, m)
	case proto == "icmp":
		r.Echo, r.Err = string(m[:]), ask(ctx, t, m)
	case proto == "udp":
		r.Port, r.Err = datagram(ctx, servers, t)
	case t.To.Do == nil:
		r.Port, r.Err = httpsPort, knock(ctx, t.From, netip.AddrPortFrom(t.Dst, httpsPort))
	default:
		r.Port, r.Err = stream(ctx, servers, t)
	}
}
