package facts

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/doctor"
)

// replyIn is how long a round of probes waits. All of a round's are sent at once.
const replyIn = 300 * time.Millisecond

// mostProbed is how many peers are probed.
const mostProbed = 100

// probe sends packets: to each peer's bridge by the path of pods, small and of the full size. To those that do not
// answer it sends by the underlay too, and watches what leaves and what comes back.
func (g *gathering) probe() {
	for _, u := range g.Underlay.Underlays {
		is4 := u.Local.Is4()
		var all []doctor.Probe
		for _, w := range g.Ways {
			if w.Subnet.Addr().Is4() == is4 && len(all) < mostProbed {
				all = append(all, doctor.Probe{Node: w.Node, Kind: "overlay", To: backend.Gateway(w.Subnet), Size: smallest(is4), Sent: -1, Seen: -1})
			}
		}
		if len(all) == 0 {
			continue
		}
		if err := g.rounds(u, all); err != nil {
			g.unread("probes", err)
		}
	}
}

// smallest is the size of an echo request with eight bytes of data.
func smallest(is4 bool) int {
	if is4 {
		return 20 + 8 + 8
	}
	return 40 + 8 + 8
}

func (g *gathering) rounds(u backend.Underlay, overlay []doctor.Probe) error {
	if err := send(overlay); err != nil {
		return err
	}
	var large, silent []doctor.Probe
	for _, p := range overlay {
		if p.OK {
			p.Kind, p.Size, p.OK = "large", g.PodMTU, false
			large = append(large, p)
		} else {
			silent = append(silent, p)
		}
	}
	outer := make([]doctor.Probe, 0, len(silent))
	for _, p := range silent {
		outer = append(outer, doctor.Probe{Node: p.Node, Kind: "underlay", To: g.underlayOf(p), Size: p.Size, Sent: -1, Seen: -1})
	}
	if err := g.watched(u, silent, large, outer); err != nil {
		return err
	}
	g.tcp(large)
	for _, p := range [][]doctor.Probe{outer, silent, large} {
		g.Probes = append(g.Probes, p...)
	}
	return nil
}

// watched sends all three at once, and counts at the underlay's device what becomes of those to silent peers.
func (g *gathering) watched(u backend.Underlay, silent, large, outer []doctor.Probe) error {
	if len(silent) == 0 {
		return send(large)
	}
	w, err := watch(u.Dev)
	if err != nil {
		return err
	}
	defer w.close()
	w.proto, w.port = g.wrapped(u.Local.Is4())
	for i, p := range silent {
		if w.peers[p.To] = i; w.proto != "" { // else the echoes to the underlay's address would be counted too
			w.peers[g.underlayOf(p)] = i
		}
	}
	err = send(large, outer, silent)
	w.count(silent)
	return err
}

// closedPort is one that nothing listens on: a host answers a connection with a reset.
const closedPort = 1

// mostLost bounds the connections that are waited for.
const mostLost = 3

// tcp opens a connection to each peer that answers pings, by the path of pods. Only where the same host answers by the
// underlay it counts that it did not: many hosts drop what nobody listens for.
func (g *gathering) tcp(answering []doctor.Probe) {
	for lost, i := 0, 0; i < len(answering) && lost < mostLost; i++ {
		p := answering[i]
		if answers(p.To) || !answers(g.underlayOf(p)) {
			continue
		}
		lost++
		g.Probes = append(g.Probes, doctor.Probe{Node: p.Node, Kind: "tcp", To: p.To, Size: smallest(p.To.Is4()), Sent: -1, Seen: -1,
			Error: "no answer to a TCP connection, while pings are answered"})
	}
}

// answers says whether a host accepts or refuses a connection, as opposed to silence.
func answers(a netip.Addr) bool {
	conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(a, closedPort).String(), replyIn)
	if err == nil {
		conn.Close()
		return true
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

func (g *gathering) underlayOf(p doctor.Probe) netip.Addr {
	for _, w := range g.Ways {
		if w.Node == p.Node && w.Underlay.Is4() == p.To.Is4() {
			return w.Underlay
		}
	}
	return netip.Addr{}
}

// wrapped is how one family's packets to peers look on the underlay, by the first peer whose packets are wrapped.
func (g *gathering) wrapped(is4 bool) (proto string, port int) {
	for _, w := range g.Ways {
		if w.Underlay.Is4() != is4 {
			continue
		}
		if proto, port = g.Wrapped(w); proto != "" {
			break
		}
	}
	return proto, port
}

// send sends each probe of the groups once and notes which are answered. The probes of a group are of one family.
func send(groups ...[]doctor.Probe) error {
	conns := make([]*net.IPConn, len(groups))
	for n, probes := range groups {
		if len(probes) == 0 {
			continue
		}
		conn, err := open(probes[0].To.Is4())
		if err != nil {
			return err
		}
		defer conn.Close()
		conns[n] = conn
		for i := range probes {
			p := &probes[i]
			p.Error = "no reply"
			if err := request(conn, *p, echoID(n), i); err != nil {
				p.Error = err.Error()
			}
		}
	}
	deadline := time.Now().Add(replyIn)
	for n, probes := range groups {
		if conns[n] != nil {
			receive(conns[n], probes, echoID(n), deadline)
		}
	}
	return nil
}

// echoID tells the replies to groups apart: a raw socket gets those to all.
func echoID(group int) int { return (os.Getpid() + group) & 0xffff }

// grace is for replies that wait already when the time is over.
const grace = 5 * time.Millisecond

// open opens a socket in the calling thread's network namespace. It never fragments.
func open(is4 bool) (*net.IPConn, error) {
	network, any := "ip6:ipv6-icmp", net.IPv6unspecified
	level, option, value := unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	if is4 {
		network, any = "ip4:icmp", net.IPv4zero
		level, option, value = unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	}
	conn, err := net.ListenIP(network, &net.IPAddr{IP: any})
	if err != nil {
		return nil, fmt.Errorf("open a socket for probes: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		var set error
		err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, value) })
		err = errors.Join(err, set)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("forbid fragments of probes: %w", err), conn.Close())
	}
	return conn, nil
}

func request(conn *net.IPConn, p doctor.Probe, id, seq int) error {
	m := icmp.Message{Type: ipv6.ICMPTypeEchoRequest}
	if p.To.Is4() {
		m.Type = ipv4.ICMPTypeEcho
	}
	m.Body = &icmp.Echo{ID: id, Seq: seq, Data: make([]byte, p.Size-smallest(p.To.Is4())+8)}
	data, err := m.Marshal(nil)
	if err != nil {
		return err
	}
	_, err = conn.WriteToIP(data, &net.IPAddr{IP: p.To.AsSlice()})
	switch {
	case errors.Is(err, unix.EMSGSIZE):
		return fmt.Errorf("%d bytes are more than this node's own MTU towards %s", p.Size, p.To)
	case err != nil:
		return err
	}
	return nil
}

// receive notes the replies until all have come or the time is over.
func receive(conn *net.IPConn, probes []doctor.Probe, id int, deadline time.Time) {
	if soon := time.Now().Add(grace); deadline.Before(soon) {
		deadline = soon
	}
	_ = conn.SetReadDeadline(deadline) // a socket that cannot have one ends the read at once
	protocol := unix.IPPROTO_ICMPV6
	if probes[0].To.Is4() {
		protocol = unix.IPPROTO_ICMP
	}
	buf := make([]byte, 1<<16)
	for open := len(probes); open > 0; {
		n, from, err := conn.ReadFromIP(buf)
		if err != nil {
			return
		}
		m, err := icmp.ParseMessage(protocol, buf[:n])
		if err != nil || m.Type != ipv4.ICMPTypeEchoReply && m.Type != ipv6.ICMPTypeEchoReply {
			continue
		}
		echo, ok := m.Body.(*icmp.Echo)
		addr, _ := netip.AddrFromSlice(from.IP)
		if !ok || echo.ID != id || echo.Seq >= len(probes) || probes[echo.Seq].To != addr.Unmap() || probes[echo.Seq].OK {
			continue
		}
		probes[echo.Seq].OK, probes[echo.Seq].Error = true, ""
		open--
	}
}
