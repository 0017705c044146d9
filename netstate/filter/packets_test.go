package filter

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate"
)

// world is two hosts and the router between them, which is the test's own namespace.
type world struct {
	family                  netstate.Family
	client, friend, server  netip.Addr // the first host has the first two addresses
	clientSpace, serverSide *space
}

func (w world) port(n int) string { return netip.AddrPortFrom(w.server, uint16(n)).String() }

// worlds makes the hosts, and returns them with their addresses of each family.
func worlds(t *testing.T) []world {
	t.Helper()
	need(t, "ip", "nsenter")
	client, server := newSpace(t), newSpace(t)
	const noDAD = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad\n"
	client.sh(t, noDAD)
	server.sh(t, noDAD)
	sh(t, "set -e\n"+noDAD+`
		ip link add left type veth peer name eth0 netns `+client.path+`
		ip link add right type veth peer name eth0 netns `+server.path+`
		ip link set left up; ip link set right up
		ip addr add 10.1.0.1/24 dev left; ip addr add 10.2.0.1/24 dev right
		ip addr add fd01::1/64 dev left nodad; ip addr add fd02::1/64 dev right nodad
		echo 1 > /proc/sys/net/ipv4/ip_forward
		echo 1 > /proc/sys/net/ipv6/conf/all/forwarding`)
	client.sh(t, `ip link set eth0 up
		ip addr add 10.1.0.2/24 dev eth0; ip addr add 10.1.0.3/24 dev eth0; ip route add default via 10.1.0.1
		ip addr add fd01::2/64 dev eth0 nodad; ip addr add fd01::3/64 dev eth0 nodad; ip route add default via fd01::1`)
	server.sh(t, `ip link set eth0 up
		ip addr add 10.2.0.2/24 dev eth0; ip route add default via 10.2.0.1
		ip addr add fd02::2/64 dev eth0 nodad; ip route add default via fd02::1`)
	a := netip.MustParseAddr
	all := []world{
		{netstate.IPv4, a("10.1.0.2"), a("10.1.0.3"), a("10.2.0.2"), client, server},
		{netstate.IPv6, a("fd01::2"), a("fd01::3"), a("fd02::2"), client, server},
	}
	for _, w := range all {
		for _, port := range []int{80, 81} {
			server.echo(t, w.port(port))
		}
	}
	return all
}

// isolated isolates the server of each world: only the friend may use port 80.
func isolated(worlds []world) netstate.State {
	state := netstate.State{}
	for _, w := range worlds {
		state.Add(
			netstate.Hook{Family: w.family, Rules: "ct reply established accept\nct related accept\njump ingress"},
			netstate.Filter{Family: w.family, Name: "ingress",
				Rules: fmt.Sprintf("daddr vmap @ingress\ndaddr %s counter drop", netstate.Host(w.server))},
			netstate.Filter{Family: w.family, Name: "in-1", Rules: "saddr @pods-1 tcp dport 80 accept\ncounter drop"},
			netstate.Set{Family: w.family, Name: "ingress", Type: netstate.Verdicts},
			netstate.Set{Family: w.family, Name: pods, Type: netstate.Addresses},
			netstate.Element{Set: "ingress", Prefix: netstate.Host(w.server), Verdict: "goto in-1"},
			w.allow())
	}
	return state
}

// allow is the element that lets the friend in.
func (w world) allow() netstate.Element {
	return netstate.Element{Set: pods, Prefix: netstate.Host(w.friend)}
}

// TestPackets: what the table says is what happens to packets.
func TestPackets(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f, worlds := open(t), worlds(t)
	expect := func(when string, w world, from netip.Addr, port int, want bool) {
		t.Helper()
		conn, err := w.clientSpace.dial("tcp", from, w.port(port))
		if got := err == nil && answers(conn, time.Second); got != want {
			t.Errorf("%s: %s to %s: got %v (%v), want %v", when, from, w.port(port), got, err, want)
		}
		if err == nil {
			conn.Close()
		}
	}
	for _, w := range worlds {
		for _, from := range []netip.Addr{w.client, w.friend} {
			expect("without a table", w, from, 80, true)
		}
	}
	want := isolated(worlds)
	settle(t, f, want)
	for _, w := range worlds {
		expect("isolated", w, w.friend, 80, true)
		expect("isolated", w, w.friend, 81, false)
		expect("isolated", w, w.client, 80, false)
		drops, err := f.Dropped()
		if key := (netstate.Filter{Family: w.family, Name: "in-1"}).Key(); err != nil || drops[key] < 2 {
			t.Errorf("%s: dropped %v, %v: want two packets at least", w.family, drops, err)
		}
		conn, err := w.clientSpace.dial("tcp", w.friend, w.port(80))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if !answers(conn, time.Second) {
			t.Errorf("%s: the connection does not work", w.family)
		}
		apply(t, f, netstate.Plan{{Was: w.allow()}})
		if answers(conn, 500*time.Millisecond) {
			t.Errorf("%s: the connection works on, and is not allowed any more", w.family)
		}
		expect("not allowed any more", w, w.friend, 80, false)
		apply(t, f, netstate.Plan{{Want: w.allow()}})
		if !answers(conn, 10*time.Second) {
			t.Errorf("%s: the connection does not work again", w.family)
		}
		apply(t, f, netstate.Plan{{
			Was:  netstate.Element{Set: "ingress", Prefix: netstate.Host(w.server), Verdict: "goto in-1"},
			Want: netstate.Element{Set: "ingress", Prefix: netstate.Host(w.server), Verdict: "return"},
		}})
		expect("not isolated any more", w, w.client, 81, true)
	}
}

// TestNothingLeaks: while chains are replaced, pods go to other chains and the table is made again, not one packet
// passes that may not, and almost every one that may: a packet on its way through the old chains sees that the old sets are
// empty from the moment of the change on. So who is not found in the map must be dropped, as tables of policies do.
func TestNothingLeaks(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	f, worlds := open(t), worlds(t)
	want := isolated(worlds)
	for _, w := range worlds {
		want.Add(netstate.Filter{Family: w.family, Name: "in-1", Rules: "saddr @pods-1 udp dport 9 accept\ncounter drop"},
			netstate.Filter{Family: w.family, Name: "in-2", Rules: "saddr @pods-1 accept\ndrop"})
	}
	settle(t, f, want)
	w := worlds[0]
	var leaked, passed atomic.Int64
	w.serverSide.do(func() {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: 9})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetReadBuffer(16 << 20)
		go func() {
			for {
				_, from, err := conn.ReadFromUDPAddrPort(make([]byte, 64))
				if err != nil {
					return
				} else if from.Addr().Unmap() == w.client {
					leaked.Add(1)
				} else {
					passed.Add(1)
				}
			}
		}()
	})
	done := make(chan struct{})
	sent := make(chan int64, 1)
	stranger, err := w.clientSpace.dial("udp", w.client, w.port(9))
	if err != nil {
		t.Fatal(err)
	}
	friend, err := w.clientSpace.dial("udp", w.friend, w.port(9))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		count := int64(0)
		for ; ; count++ {
			select {
			case <-done:
				sent <- count
				return
			default:
				for range 20 {
					stranger.Write([]byte("x"))
				}
				friend.Write([]byte("x"))
			}
		}
	}()
	for i := range 60 {
		next := fmt.Sprintf("goto in-%d", 1+i%2)
		for _, w := range worlds {
			want.Add(netstate.Element{Set: "ingress", Prefix: netstate.Host(w.server), Verdict: next},
				netstate.Hook{Family: w.family, Rules: fmt.Sprintf("udp dport %d drop\njump ingress", 1000+i)})
		}
		if i%3 == 0 {
			sh(t, "nft 'add set ip twill-policy other { type mark; }'")
		}
		settle(t, f, want)
	}
	close(done)
	count := <-sent
	for deadline := time.Now().Add(5 * time.Second); passed.Load() < enough(count) && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond) // the receiver still reads
	}
	if leaked.Load() > 0 || passed.Load() < enough(count) || count < 100 {
		t.Errorf("%d packets leaked; %d of %d passed", leaked.Load(), passed.Load(), count)
	}
	t.Logf("%d packets passed, %d were dropped", passed.Load(), 20*count)
}

// enough are 99 of 100.
func enough(count int64) int64 { return count * 99 / 100 }
