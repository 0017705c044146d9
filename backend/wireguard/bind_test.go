package wireguard

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/backendtest"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// TestBind: packets of both families go where they should, in turn, and what comes back is answered from the
// address that it was sent to. wireguard-go's own sockets fail here: after an IPv4 packet they send IPv6
// ones elsewhere.
func TestBind(t *testing.T) {
	m := newMachine(t, 1, "")
	m.Command("ip link set lo up", "ip addr add fd00::1/128 dev lo nodad", "ip addr add fd00::2/128 dev lo nodad")
	for _, to := range []string{"fd00::1", "fd00::2"} {
		testwait.Until(t, "the kernel has put the route in to "+to, func() bool {
			out, _ := m.Try("ip route get " + to)
			return strings.HasPrefix(out, "local ")
		})
	}
	in(m, func() {
		b := &bind{}
		receive, port, err := b.Open(0)
		if err != nil || len(receive) != 2 {
			t.Errorf("%d sockets, %v", len(receive), err)
			return
		}
		defer b.Close()
		if _, _, err := b.Open(port); err == nil {
			t.Error("opened twice")
		}
		for i := range 4 { // 127.0.0.1, fd00::1, 127.0.0.2, fd00::2
			addr := netip.MustParseAddr([]string{fmt.Sprintf("127.0.0.%d", i/2+1), fmt.Sprintf("fd00::%d", i/2+1)}[i%2])
			bothWays(t, b, receive[i%2], port, addr)
		}
		twoAddresses(t, receive[0], port)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if _, _, err := b.Open(port); err != nil {
			t.Errorf("open again: %v", err)
		}
	})
}

// in runs f on a thread in the machine's namespace.
func in(m *machine, f func()) {
	m.Helper()
	if err := m.Do(func() error { f(); return nil }); err != nil {
		m.Fatal(err)
	}
}

// bothWays sends three packets to a peer at addr, and answers one that the peer sends to the same address.
func bothWays(t *testing.T, b conn.Bind, receive conn.ReceiveFunc, port uint16, addr netip.Addr) {
	peer, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		t.Error(err)
		return
	}
	defer peer.Close()
	_ = peer.SetDeadline(time.Now().Add(testwait.Limit))
	end, err := b.ParseEndpoint(peer.LocalAddr().String())
	if err != nil {
		t.Error(err)
		return
	}
	hear := func(want string) {
		buf := make([]byte, 99)
		n, from, err := peer.ReadFromUDPAddrPort(buf)
		if err != nil || string(buf[:n]) != want || from.Port() != port {
			t.Errorf("%s got %q from %s, %v, want %q", addr, buf[:n], from, err, want)
		}
	}
	if err := b.Send([][]byte{[]byte("one"), []byte("two"), []byte("3")}, end); err != nil {
		t.Error(err)
	}
	hear("one")
	hear("two")
	hear("3")
	if _, err := peer.WriteToUDPAddrPort([]byte("hello"), netip.AddrPortFrom(addr, port)); err != nil {
		t.Error(err)
		return
	}
	packets, sizes, ends := [][]byte{make([]byte, 99)}, []int{0}, []conn.Endpoint{nil}
	if n, err := receive(packets, sizes, ends); n != 1 || err != nil || string(packets[0][:sizes[0]]) != "hello" || ends[0].SrcIP() != addr || ends[0].DstToString() != end.DstToString() {
		t.Errorf("%d packets, %v: %q from %v to %v", n, err, packets[0][:sizes[0]], ends[0].DstToString(), ends[0].SrcToString())
	}
	if err := b.Send([][]byte{[]byte("yes")}, ends[0]); err != nil {
		t.Error(err)
	}
	hear("yes")
}

// twoAddresses: a peer that sends to two addresses of this host is answered from the one that each packet came to.
func twoAddresses(t *testing.T, receive conn.ReceiveFunc, port uint16) {
	peer, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 9)})
	if err != nil {
		t.Error(err)
		return
	}
	defer peer.Close()
	to := []string{"127.0.0.1", "127.0.0.2", "127.0.0.1"}
	for _, a := range to {
		if _, err := peer.WriteToUDPAddrPort([]byte(a), netip.AddrPortFrom(netip.MustParseAddr(a), port)); err != nil {
			t.Error(err)
			return
		}
	}
	for len(to) > 0 {
		packets, sizes, ends := [][]byte{make([]byte, 99), make([]byte, 99), make([]byte, 99)}, make([]int, 3), make([]conn.Endpoint, 3)
		n, err := receive(packets, sizes, ends)
		if err != nil || n == 0 || n > len(to) {
			t.Errorf("%d packets, %v, want %d", n, err, len(to))
			return
		}
		for i := range n {
			if got := string(packets[i][:sizes[i]]); got != to[i] || ends[i].SrcToString() != to[i] || ends[i].DstToString() != peer.LocalAddr().String() {
				t.Errorf("packet to %s: %q from %s to %s", to[i], got, ends[i].DstToString(), ends[i].SrcToString())
			}
		}
		to = to[n:]
	}
}

// TestOneDevice: one device for both families reaches a peer by IPv4 and another by IPv6, in turn.
func TestOneDevice(t *testing.T) {
	a, b, c := newMachineWith(t, 1, `{"Mode":"auto"}`), newMachineWith(t, 2, `{"Mode":"auto"}`), newMachineWith(t, 3, `{"Mode":"auto"}`)
	for i, peer := range []*machine{b, c} {
		backendtest.Cable(a.Machine, peer.Machine, fmt.Sprintf("u%d", i))
	}
	a.Command("ip addr add 192.0.2.1/24 dev u0", "ip addr add 2001:db8::1/64 dev u1 nodad")
	b.Command("ip addr add 192.0.2.2/24 dev u0")
	c.Command("ip addr add 2001:db8::3/64 dev u1 nodad")
	only := func(m *machine, f netstate.Family) subnet.Lease {
		l := m.lease()
		for _, s := range l.Stacks {
			if s.Family() == f {
				l.Stacks = []subnet.Stack{s}
				break
			}
		}
		return l
	}
	for _, m := range []*machine{a, b, c} {
		m.Command("ip tuntap add "+device4+" mode tun", "ip link set "+device4+" mtu 1420 up",
			fmt.Sprintf("ip addr add 10.244.%d.0/32 dev %s", m.N, device4), fmt.Sprintf("ip addr add fc00:0:0:%d::/128 dev %s nodad", m.N, device4),
			"ip route add 10.244.0.0/16 dev "+device4, "ip route add fc00::/48 dev "+device4)
		m.start()
		defer func() { m.stop() }()
	}
	a.show(only(b, netstate.IPv4), only(c, netstate.IPv6))
	b.views <- backend.Input{Node: bothFamilies(2), Snapshot: subnet.Snapshot{Local: b.lease(), Peers: []subnet.Lease{only(a, netstate.IPv4)}}}
	c.views <- backend.Input{Node: bothFamilies(3), Snapshot: subnet.Snapshot{Local: c.lease(), Peers: []subnet.Lease{only(a, netstate.IPv6)}}}
	peers := []string{"10.244.2.0", "fc00:0:0:3::"}
	for _, to := range peers {
		if !a.Pings(to) {
			t.Fatalf("no answer from %s", to)
		}
	}
	for range 20 {
		for _, to := range peers {
			if out, err := a.Try("ping -c 1 -W 2 " + to); err != nil {
				t.Fatalf("one packet to %s, after one to the other: %v: %s", to, err, out)
			}
		}
	}
}
