package fastpath

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// edge is a thing that makes packets of an established UDP flow from node a to node b slow.
type edge struct {
	name   string
	do     func(a, b *node, e echo)
	at     func(a, b *node) *node // that counts it
	by     netstate.ProgramName
	result string
	size   int
	lost   bool // the kernel drops it
}

func first(a, _ *node) *node  { return a }
func second(_, b *node) *node { return b }

func sockopt(e echo, level, option, value int) {
	e.t.Helper()
	raw, err := e.client.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			if err := unix.SetsockoptInt(int(fd), level, option, value); err != nil {
				e.t.Error(err)
			}
		})
	}
	if err != nil {
		e.t.Error(err)
	}
}

func (n *node) put(o netstate.Object) {
	n.t.Helper()
	if err := n.p.Apply(netstate.Change{Want: o}); err != nil {
		n.t.Fatal(err)
	}
}

// alter writes the shortcuts to another node after f has altered them.
func (n *node) alter(o *node, f func(*netstate.Shortcut)) {
	n.t.Helper()
	for _, object := range n.shortcuts(o, netstate.Encapsulate) {
		s := object.(netstate.Shortcut)
		f(&s)
		n.put(s)
	}
}

var edges = []edge{
	{"deadline", func(a, _ *node, _ echo) { _ = a.p.maps[clockMap].Put(deadlineClock, uint64(1)) }, first, netstate.FromPod,
		"deadline", 100, false},
	{"deadline of the receiver", func(_, b *node, _ echo) { _ = b.p.maps[clockMap].Put(deadlineClock, uint64(1)) }, second,
		netstate.ToPod, "deadline", 100, false},
	{"paused", func(a, _ *node, _ echo) { _ = a.p.Pause(time.Now().Add(time.Hour)) }, first, netstate.FromPod, "paused", 100,
		false},
	{"no settings", func(a, _ *node, _ echo) { _ = a.p.maps[settingsMap].Put(uint32(0), parameters{}) }, first,
		netstate.FromPod, "paused", 100, false},
	{"deleted entry", func(a, _ *node, _ echo) { a.command("conntrack", "-D", "-p", "udp", "-s", a.pod4().String()) }, first,
		netstate.FromPod, "no-ct", 100, false},
	{"deleted entry of the receiver", func(_, b *node, e echo) {
		b.command("conntrack", "-D", "-p", "udp", "-s", strings.Split(e.client.LocalAddr().String(), ":")[0])
	}, second, netstate.ToPod, "no-ct", 100, false},
	{"mark", func(a, _ *node, _ echo) {
		a.command("conntrack", "-U", "-p", "udp", "-s", a.pod4().String(), "-m", "0x8000")
	},
		first, netstate.FromPod, "mark", 100, false},
	{"TTL 1", func(_, _ *node, e echo) { sockopt(e, unix.IPPROTO_IP, unix.IP_TTL, 1) }, first, netstate.FromPod, "ttl", 100,
		true},
	{"TTL 2", func(_, _ *node, e echo) { sockopt(e, unix.IPPROTO_IP, unix.IP_TTL, 2) }, second, netstate.ToPod, "ttl", 100,
		true},
	{"options", func(_, _ *node, e echo) { ipOptions(e, "\x01\x01\x01\x01") }, first, netstate.FromPod, "options", 100,
		false},
	{"fragments", func(_, _ *node, _ echo) {}, first, netstate.FromPod, "fragment", 4000, false},
	{"length", func(a, b *node, _ echo) { a.alter(b, func(s *netstate.Shortcut) { s.MTU = 1027 }) }, first, netstate.FromPod,
		"length", 1000, false},
	{"length of the receiver", func(_, b *node, _ echo) { b.ip("link set pod mtu 1027") }, second, netstate.ToPod, "length",
		1000, true},
	{"no shortcut", func(a, b *node, _ echo) {
		_ = a.p.maps[shortcutsMap].Delete(encodeKey(netip.PrefixFrom(b.addr("10.1.%d.0"), 24)))
	}, first, netstate.FromPod, "no-peer", 100, false},
	{"no pod", func(a, _ *node, _ echo) { _ = a.p.maps[podsMap].Delete(encodeAddr(a.pod4())) }, first, netstate.FromPod,
		"no-pod", 100, false},
	{"another pod's MAC", func(a, _ *node, _ echo) {
		a.put(netstate.PodPort{Addr: a.pod4(), Dev: "pod", MAC: a.mac(99), Bridge: a.mac(bridgeMAC)})
	}, first, netstate.FromPod, "wrong-mac", 100, false},
	{"another device", func(a, b *node, _ echo) { b.alter(a, func(s *netstate.Shortcut) { s.From = "eth0" }) }, second,
		netstate.ToPod, "wrong-device", 100, false},
	{"pod gone", func(_, b *node, _ echo) { b.ip("link del pod") }, second, netstate.ToPod, "gone", 100, true},
}

// TestEdges: what the programs must not judge takes the kernel's path, and arrives where it does without them.
func TestEdges(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	e := newEcho(t, a.pod, b.pod, b.pod4())
	e.assured()
	for _, x := range edges {
		for _, n := range []*node{a, b} {
			n.restore()
		}
		if !established(a, b, e, 2*time.Second) {
			e = newEcho(t, a.pod, b.pod, b.pod4())
			e.assured()
		}
		t.Run(x.name, func(t *testing.T) {
			if !established(a, b, e, testwait.Limit) {
				t.Fatalf("a packet is slow before anything happened: %s; %s", a.counted(), b.counted())
			}
			x.do(a, b, e)
			at := x.at(a, b)
			before := at.count(x.by, x.result)
			within := testwait.Limit
			if x.lost {
				within = 2 * time.Second
			}
			if came := e.once(x.size, within); came == x.lost {
				t.Errorf("it arrived: %t", came)
			}
			if n := at.count(x.by, x.result); n == before {
				t.Errorf("%s %s: not counted; %s; %s", x.by, x.result, a.counted(), b.counted())
			}
		})
		sockopt(e, unix.IPPROTO_IP, unix.IP_TTL, 64)
		ipOptions(e, "")
		if x.result != "gone" {
			b.ip("link set pod mtu 1430")
		}
		drain(e)
	}
}

// ipOptions sets IPv4 options, or none.
func ipOptions(e echo, options string) {
	e.t.Helper()
	raw, err := e.client.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			if err := unix.SetsockoptString(int(fd), unix.IPPROTO_IP, unix.IP_OPTIONS, options); err != nil {
				e.t.Error(err)
			}
		})
	}
	if err != nil {
		e.t.Error(err)
	}
}

// drain throws away answers that came late.
func drain(e echo) {
	_ = e.client.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	for {
		if _, err := e.client.Read(make([]byte, 65536)); err != nil {
			return
		}
	}
}

// restore repairs what an edge has altered.
func (n *node) restore() {
	n.t.Helper()
	peer := &node{space: n.space, n: 3 - n.n}
	n.bring(n.want(peer, netstate.Encapsulate))
	if err := n.p.Extend(); err != nil {
		n.t.Fatal(err)
	}
	if err := n.p.Pause(time.Time{}); err != nil {
		n.t.Fatal(err)
	}
}

// established reports whether a datagram of the flow comes back within a time, and is fast in both nodes.
func established(a, b *node, e echo, within time.Duration) bool {
	before := []uint64{a.count(netstate.ToPod, "encap"), b.count(netstate.ToPod, "encap")}
	return e.once(100, within) && slices.Equal([]uint64{before[0] + 1, before[1] + 1},
		[]uint64{a.count(netstate.ToPod, "encap"), b.count(netstate.ToPod, "encap")})
}

// TestSlow: pings, single datagrams, opening and closing connections are the kernel's.
func TestSlow(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	for _, size := range []int{0, 1, 56, 1402, 1403, 8000, 65507} {
		for _, addr := range []netip.Addr{b.pod4(), b.pod6()} {
			if addr.Is6() && size > 65487 {
				size = 65487
			}
			a.pod.command("ping", "-q", "-c", "1", "-W", "5", "-s", fmt.Sprint(size), addr.String())
		}
	}
	for range 20 {
		e := newEcho(t, a.pod, b.pod, b.pod4())
		e.must(60)
	}
	for range 20 {
		client, server := connection(t, a.pod, b.pod, b.pod4())
		client.Close()
		server.Close()
	}
	testwait.Until(t, "all connections are over on both nodes", func() bool {
		for _, n := range []*node{a, b} {
			text := n.command("conntrack", "-L", "-p", "tcp")
			if strings.Count(text, "TIME_WAIT") != 20 || strings.Contains(text, "ESTABLISHED") {
				return false
			}
		}
		return true
	})
	for _, n := range []*node{a, b} {
		if flags := n.count(netstate.FromPod, "flags"); flags < 40 {
			t.Errorf("%d packets had flags; %s", flags, n.counted())
		}
	}
	// With netfilter on the bridge, conntrack has seen the last packet of the handshake before the program.
	if n := a.count(netstate.FromPod, "encap"); n > 20 {
		t.Errorf("%d packets were fast; %s", n, a.counted())
	}
}

// TestNAT: a flow to a service stays slow where its addresses are translated.
func TestNAT(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	a.command("nft", "add chain inet t n { type nat hook prerouting priority -100; }; "+
		"add rule inet t n ip daddr 10.96.0.1 dnat ip to "+b.pod4().String())
	e := newEcho(t, a.pod, b.pod, b.pod4())
	port := e.server.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort().Port()
	var client echo
	client.t = t
	a.pod.do(func() { client.client = dial(t, netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), port)) })
	client.assured()
	before := a.count(netstate.ToPod, "nat")
	for range 10 {
		client.must(100)
	}
	if n := a.count(netstate.ToPod, "nat") - before; n != 10 {
		t.Errorf("%d answers were slow for NAT, want 10; %s", n, a.counted())
	}
}

// TestReusedAddress: a pod that takes over the address of another that is gone gets its packets before the agent knows.
func TestReusedAddress(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	e := newEcho(t, a.pod, b.pod, b.pod4())
	e.assured()
	b.ip("link del pod")
	next := newSpace(t)
	b.plug("pod", next, podMAC)
	next.ip("addr add %s/24 dev eth0", b.pod4())
	next.ip("route add default via 10.1.2.1")
	again := newEcho(t, a.pod, next, b.pod4())
	again.assured()
	plan := b.diff(b.want(a, netstate.Encapsulate)).String()
	if !strings.Contains(plan, "is gone)") || strings.Count(plan, "\n") != 2 {
		t.Errorf("the plan is\n%s", plan)
	}
	b.bring(b.want(a, netstate.Encapsulate))
	before := b.count(netstate.ToPod, "encap")
	again.must(100)
	if b.count(netstate.ToPod, "encap") != before+1 {
		t.Errorf("still slow: %s", b.counted())
	}
}

// TestOuter: the encapsulation is the one that the kernel makes, whatever the packet says of congestion.
func TestOuter(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	for _, addr := range []netip.Addr{b.pod4(), b.pod6()} {
		e := newEcho(t, a.pod, b.pod, addr)
		e.assured()
		for _, class := range []int{0xb8, 0xb9, 0xba, 0xbb} { // its last two bits are ECN
			e.trafficClass(class)
			quick := b.outer(e)
			if err := a.p.Pause(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			slow := b.outer(e)
			if err := a.p.Pause(time.Time{}); err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(quick[4:6], slow[4:6]) {
				t.Error("two packets have the same ID")
			}
			for _, p := range [][]byte{quick, slow} { // the IDs, hence the checksums; inner UDP data is the same
				clear(p[4:6])
				clear(p[10:12])
				clear(p[26:28]) // an outer checksum of UDP is optional
				if inner := p[50:]; inner[0]>>4 == 4 {
					clear(inner[4:6])
					clear(inner[10:12])
				}
			}
			if !bytes.Equal(quick, slow) {
				t.Errorf("to %s, traffic class %#x:\nfast %x\nslow %x", addr, class, quick, slow)
			}
		}
	}
}

// trafficClass sets IPv4's TOS or IPv6's traffic class.
func (e echo) trafficClass(class int) {
	e.t.Helper()
	if e.client.RemoteAddr().(*net.UDPAddr).IP.To4() != nil {
		sockopt(e, unix.IPPROTO_IP, unix.IP_TOS, class)
	} else {
		sockopt(e, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, class)
	}
}

// outer returns what one datagram is on the wire, from the outer IP header on.
func (n *node) outer(e echo) []byte {
	n.t.Helper()
	const ip = unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8
	var fd int
	var err error
	n.do(func() { fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, ip) })
	if err != nil {
		n.t.Fatal(err)
	}
	defer unix.Close(fd)
	e.must(77)
	buffer := make([]byte, 2000)
	for {
		size, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		if err != nil {
			n.t.Fatal(err)
		}
		if p := buffer[:size]; size > 100 && p[9] == unix.IPPROTO_UDP && bytes.Equal(p[16:20], n.addr("192.0.2.%d").AsSlice()) {
			return p
		}
	}
}
