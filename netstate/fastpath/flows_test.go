package fastpath

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// data is what a test sends: more than queues hold, and the same each time.
func data(size int64) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{1}), size) }

// connection makes a TCP connection from a pod to another.
func connection(t *testing.T, from, to *space, addr netip.Addr) (client, server net.Conn) {
	t.Helper()
	var l net.Listener
	var err error
	to.do(func() { l, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	from.do(func() { client, err = net.DialTimeout("tcp", l.Addr().String(), testwait.Limit) })
	if err != nil {
		l.Close()
		t.Fatal(err)
	}
	server = <-accepted
	t.Cleanup(func() { client.Close(); server.Close() })
	deadline := time.Now().Add(2 * testwait.Limit)
	_ = client.SetDeadline(deadline)
	_ = server.SetDeadline(deadline)
	return client, server
}

// transfer sends data and compares what arrives.
func transfer(t *testing.T, from, to net.Conn, size int64) {
	t.Helper()
	want := sha256.New()
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(from, io.TeeReader(data(size), want))
		sent <- err
	}()
	have := sha256.New()
	if n, err := io.CopyN(have, to, size); err != nil {
		t.Fatalf("%d of %d bytes arrived: %v", n, size, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if string(have.Sum(nil)) != string(want.Sum(nil)) {
		t.Fatal("other data arrived than was sent")
	}
}

// echo is a UDP flow between two pods.
type echo struct {
	t              *testing.T
	client, server *net.UDPConn
}

func newEcho(t *testing.T, from, to *space, addr netip.Addr) echo {
	t.Helper()
	e := echo{t: t}
	var err error
	to.do(func() { e.server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0))) })
	if err == nil {
		from.do(func() { e.client, err = net.DialUDP("udp", nil, e.server.LocalAddr().(*net.UDPAddr)) })
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.client.Close(); e.server.Close() })
	go func() {
		buffer := make([]byte, 65536)
		for {
			n, from, err := e.server.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = e.server.WriteToUDPAddrPort(buffer[:n], from)
		}
	}()
	return e
}

// once sends a datagram, and reports whether it came back within a time.
func (e echo) once(size int, within time.Duration) bool {
	e.t.Helper()
	if _, err := e.client.Write(make([]byte, size)); err != nil {
		return false
	}
	_ = e.client.SetReadDeadline(time.Now().Add(within))
	n, err := e.client.Read(make([]byte, 65536))
	return err == nil && n == size
}

func (e echo) must(size int) {
	e.t.Helper()
	if !e.once(size, testwait.Limit) {
		e.t.Fatalf("a datagram of %d bytes did not come back", size)
	}
}

// assured makes conntrack take the flow for a stream.
func (e echo) assured() {
	e.t.Helper()
	e.must(100)
	testwait.Pause(e.t, 2200*time.Millisecond, "a flow is a stream when it is two seconds old")
	for range 10 {
		e.must(100)
	}
}

// TestFlows: a TCP and a UDP flow take the fast path in both directions, and arrive whole.
func TestFlows(t *testing.T) {
	for _, mode := range modes {
		a, b := fast(t, mode)
		a.bridgeFilter("1")
		for _, family := range []string{"IPv4", "IPv6"} {
			t.Run(fmt.Sprintf("%s/%s", mode, family), func(t *testing.T) {
				addr := b.pod4()
				if family == "IPv6" {
					addr = b.pod6()
				}
				before := a.fastPackets(mode) + b.fastPackets(mode)
				client, server := connection(t, a.pod, b.pod, addr)
				a.slow()
				b.slow()
				transfer(t, client, server, 50<<20)
				transfer(t, server, client, 50<<20)
				tcp := a.fastPackets(mode) + b.fastPackets(mode) - before
				if slow := a.slow() + b.slow(); tcp < 1000 || slow > 40 {
					t.Errorf("%d packets were fast, %d slow; %s; %s", tcp, slow, a.counted(), b.counted())
				}
				e := newEcho(t, a.pod, b.pod, addr)
				e.assured()
				all := []uint64{a.count(netstate.FromPod, string(mode)), a.count(netstate.ToPod, string(mode)),
					b.count(netstate.FromPod, string(mode)), b.count(netstate.ToPod, string(mode))}
				for range 10 {
					e.must(1000)
				}
				for i, n := range []uint64{a.count(netstate.FromPod, string(mode)), a.count(netstate.ToPod, string(mode)),
					b.count(netstate.FromPod, string(mode)), b.count(netstate.ToPod, string(mode))} {
					if n-all[i] != 10 {
						t.Errorf("%d of 10 datagrams were fast at place %d; %s; %s", n-all[i], i, a.counted(), b.counted())
					}
				}
			})
		}
		t.Log(a.counted())
		t.Log(b.counted())
	}
}

// fastPackets returns how many packets went fast in a mode, both ways.
func (n *node) fastPackets(mode netstate.ShortcutMode) uint64 {
	n.t.Helper()
	return n.count(netstate.FromPod, string(mode)) + n.count(netstate.ToPod, string(mode))
}

// slow returns how many packets the kernel forwarded since the last question.
func (n *node) slow() (packets int) {
	n.t.Helper()
	text := n.command("nft", "reset", "counter", "inet", "t", "slow")
	if _, err := fmt.Sscanf(text[indexOf(text, "packets"):], "packets %d", &packets); err != nil {
		n.t.Fatalf("%v: %s", err, text)
	}
	return packets
}

func indexOf(text, word string) int { return max(strings.Index(text, word), 0) }

// TestRefresh: conntrack's entry lives as long as the flow, though conntrack sees none of its packets, and it sees the end.
func TestRefresh(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	for _, n := range []*node{a, b} {
		n.sysctl(tcpTimeout, "8")                             // a busy machine may stop for some seconds
		n.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0") // an entry that was lost would not come again
	}
	a.become(b, netstate.Encapsulate)
	b.become(a, netstate.Encapsulate)
	client, server := connection(t, a.pod, b.pod, b.pod4())
	transfer(t, client, server, 50<<20)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for range 60 { // much longer than conntrack keeps a flow that it does not see
		<-tick.C
		transfer(t, client, server, 1000)
	}
	for _, n := range []*node{a, b} {
		for _, program := range programs {
			if lost := n.count(program, "no-ct"); lost > 1 { // the first packet
				t.Errorf("the entry was not there for %d packets; %s", lost, n.counted())
			}
		}
		if c, err := n.p.Counts(); err != nil || c.Refreshes < 5 || c.Failures > 0 {
			t.Errorf("%v; %s", err, n.counted())
		}
	}
	client.Close()
	server.Close()
	testwait.Until(t, "the connection is over on both nodes", func() bool {
		return strings.Contains(a.command("conntrack", "-L", "-p", "tcp"), "TIME_WAIT") &&
			strings.Contains(b.command("conntrack", "-L", "-p", "tcp"), "TIME_WAIT")
	})
}
