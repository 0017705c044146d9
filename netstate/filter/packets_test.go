package filter

import (
	"fmt"
	"net/netip"
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
		dropped, passed, err := f.Denied()
		if key := (netstate.Filter{Family: w.family, Name: "in-1"}).Key(); err != nil || dropped[key] < 2 || len(passed) > 0 {
			t.Errorf("%s: dropped %v, and %v have passed, %v: want two packets at least, and none", w.family, dropped, passed, err)
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
