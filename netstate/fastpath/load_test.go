package fastpath

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

func dial(t *testing.T, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestSwitching: attaching, replacing by another version and detaching loses nothing of a running flow.
func TestSwitching(t *testing.T) {
	for _, way := range []struct {
		mode    netstate.ShortcutMode
		classic bool
	}{{netstate.Encapsulate, false}, {netstate.ThroughVTEP, false}, {netstate.NextHop, false}, {netstate.Encapsulate, true}} {
		mode := way.mode
		t.Run(fmt.Sprintf("%s/cls_bpf: %t", mode, way.classic), func(t *testing.T) {
			a, b := fastBy(t, mode, way.classic)
			for _, addr := range []netip.Addr{b.pod4(), b.pod6()} {
				e := newEcho(t, a.pod, b.pod, addr)
				_ = e.client.SetReadBuffer(8 << 20)
				_ = e.server.SetReadBuffer(8 << 20)
				e.assured()
				const datagrams = 5000
				came := make(chan int)
				go func() { came <- receive(e.client, datagrams) }()
				over := make(chan struct{})
				go func() { send(e.client, datagrams); close(over) }()
				rounds := 0
				for ; ; rounds++ {
					select {
					case <-over:
					default:
						a.upgrade(b, mode)
						b.upgrade(a, mode)
						continue
					}
					break
				}
				if n := <-came; n != datagrams || rounds == 0 {
					t.Errorf("%d of %d datagrams came back in %d rounds; %s; %s", n, datagrams, rounds, a.counted(), b.counted())
				}
				t.Logf("%d rounds", rounds)
			}
		})
	}
}

// upgrade replaces the programs and maps by others of their kind, as another version would, and then takes them away for a
// moment.
func (n *node) upgrade(o *node, mode netstate.ShortcutMode) {
	n.t.Helper()
	for _, sub := range []string{"progs", "maps"} {
		n.command("rm", "-r", n.p.folder+"/"+sub)
	}
	n.open()
	n.bring(n.want(o, mode))
	n.bring(nil)
	if n.p.tcx { // nothing has to stay for the next time
		n.do(func() {
			if err := Clean(n.dir); err != nil {
				n.t.Error(err)
			}
		})
		n.open()
	}
	n.bring(n.want(o, mode))
}

// send paces datagrams: queues must not be what loses them.
func send(c *net.UDPConn, n int) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := range n {
		if i%5 == 0 {
			<-tick.C
		}
		_, _ = c.Write(binary.BigEndian.AppendUint64(make([]byte, 200), uint64(i)))
	}
}

// receive returns how many different datagrams came.
func receive(c *net.UDPConn, n int) int {
	seen := map[uint64]bool{}
	buffer := make([]byte, 2000)
	for len(seen) < n {
		_ = c.SetReadDeadline(time.Now().Add(testwait.Limit))
		size, err := c.Read(buffer)
		if err != nil {
			break
		}
		if size > 200 {
			seen[binary.BigEndian.Uint64(buffer[200:size])] = true
		}
	}
	return len(seen)
}

// TestSegments: data is intact where the kernel must cut large packets before the device, and where they are smaller.
func TestSegments(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	for _, limit := range []string{"gso_max_segs 1", "gso_max_size 3000", "mtu 1500"} {
		for _, addr := range []netip.Addr{b.pod4(), b.pod6()} {
			t.Run(fmt.Sprintf("%s/%s", limit, addr), func(t *testing.T) {
				for _, n := range []*node{a, b} {
					n.ip("link set eth0 %s", limit)
				}
				before := a.fastPackets(netstate.Encapsulate)
				client, server := connection(t, a.pod, b.pod, addr)
				transfer(t, client, server, 20<<20)
				transfer(t, server, client, 20<<20)
				if n := a.fastPackets(netstate.Encapsulate) - before; n < 500 {
					t.Errorf("%d packets were fast", n)
				}
			})
		}
	}
}

// TestDatagramSegments: datagrams that a pod hands over together, as QUIC does, arrive apart.
func TestDatagramSegments(t *testing.T) {
	for _, mode := range modes {
		a, b := fast(t, mode)
		for _, addr := range []netip.Addr{b.pod4(), b.pod6()} {
			t.Run(fmt.Sprintf("%s/%s", mode, addr), func(t *testing.T) {
				e := newEcho(t, a.pod, b.pod, addr)
				e.assured()
				const size, n = 1000, 20
				sockopt(e, unix.IPPROTO_UDP, unix.UDP_SEGMENT, size)
				before := a.count(netstate.FromPod, string(mode))
				if _, err := e.client.Write(make([]byte, n*size)); err != nil {
					t.Fatal(err)
				}
				for i := range n {
					_ = e.client.SetReadDeadline(time.Now().Add(testwait.Limit))
					if got, err := e.client.Read(make([]byte, 65536)); err != nil || got != size {
						t.Fatalf("datagram %d has %d bytes, %v; %s; %s", i, got, err, a.counted(), b.counted())
					}
				}
				if got := a.count(netstate.FromPod, string(mode)) - before; got == 0 {
					t.Errorf("nothing was fast; %s", a.counted())
				}
			})
		}
	}
}
