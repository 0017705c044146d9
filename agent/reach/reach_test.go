package reach

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/internal/testns"
	"github.com/twill-net/twill/internal/testwait"
)

// TestDraw: in each round every node asks count others and is asked by count others, whatever the order in which the agents
// know their peers, and over the rounds each pair comes up.
func TestDraw(t *testing.T) {
	const nodes, count, rounds = 40, 5, 200
	var all []Peer
	for i := range nodes {
		all = append(all, Peer{Node: fmt.Sprintf("node%d", i)})
	}
	pairs := map[string]bool{}
	for round := range int64(rounds) {
		asked := map[string]int{}
		for _, own := range all {
			others := slices.DeleteFunc(slices.Clone(all), func(p Peer) bool { return p.Node == own.Node })
			rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
			drawn := Draw(round, own.Node, others, count)
			if len(drawn) != count {
				t.Fatalf("%s asks %d", own.Node, len(drawn))
			}
			for _, p := range drawn {
				asked[p.Node]++
				pairs[own.Node+" "+p.Node] = true
			}
		}
		for _, p := range all {
			if asked[p.Node] != count {
				t.Fatalf("round %d: %d ask %s", round, asked[p.Node], p.Node)
			}
		}
	}
	if len(pairs) != nodes*(nodes-1) {
		t.Errorf("%d of %d pairs came up", len(pairs), nodes*(nodes-1))
	}
	if got := Draw(1, "node0", all[1:3], count); len(got) != 2 {
		t.Errorf("of two peers %d are asked", len(got))
	}
}

// TestProber: who does not answer twice is unreached, is asked until it answers, and forgotten when it is no peer any more.
func TestProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(s string) []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort(s)} }
		peers := []Peer{{Node: "node2", Addrs: at("10.244.2.1:0"), Sure: true}, {Node: "node3", Addrs: at("10.244.3.1:0")}}
		needs := []Peer{{Kind: API, Addrs: at("192.0.2.1:6443")}}
		var mu sync.Mutex
		silent, answer := map[string]bool{}, Answer{RoundTrip: time.Millisecond, Sent: small, Full: true}
		var told, states []string
		set := func(do func()) {
			mu.Lock()
			defer mu.Unlock()
			do()
		}
		registry := prometheus.NewRegistry()
		p := New(Config{Node: "node1", Peers: func() (now []Peer) { set(func() { now = peers }); return now },
			Needs: func() []Peer { return needs }, Count: 2, Round: time.Minute, Metrics: NewMetrics(registry),
			Ask: func(_ context.Context, what Kind, to netip.AddrPort) Answer {
				var a Answer
				set(func() {
					if a = answer; what != Node {
						a = Answer{}
					}
					if silent[to.Addr().String()] {
						a = Answer{Err: errNoAnswer}
					}
				})
				return a
			},
			State:   func(u []Unreached) { set(func() { states = slices.Compact(append(states, fmt.Sprint(u))) }) },
			Changed: func(u []Unreached) { set(func() { told = append(told, fmt.Sprint(len(u))) }) }})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = p.Run(ctx) }()
		after := func(d time.Duration, unreached int, want string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if r := p.Report(); len(r.Unreached) != unreached || strings.Join(told, " ") != want {
				t.Errorf("got %+v, told %q; want %d, %q", r, told, unreached, want)
			}
		}
		silence := func(addr string, is bool) { set(func() { silent[addr] = is }) }
		silence("10.244.3.1", true) // that never answered, and need not have the address
		after(3*time.Minute+time.Second, 0, "")
		if len(states) > 0 {
			t.Errorf("states %q before two rounds had answers", states)
		}
		silence("10.244.3.1", false)
		after(2*time.Minute, 0, "")
		if !slices.Equal(states, []string{"[]"}) {
			t.Errorf("states %q", states)
		}
		silence("10.244.2.1", true)
		after(2*time.Minute, 1, "1")
		if series := peerSeries(t, registry); series != "node2" {
			t.Errorf("got series of %q", series)
		}
		silence("10.244.3.1", true) // another one is news, too
		after(3*time.Minute, 2, "1 1")
		silence("10.244.2.1", false)
		after(2*time.Minute+30*time.Second, 1, "1 1")
		silence("10.244.3.1", false)
		after(2*time.Minute+30*time.Second, 0, "1 1 0")
		set(func() { answer.TooLarge = true })
		after(2*time.Minute, 0, "1 1 0")
		if r := p.Report(); !slices.Equal(r.TooLarge, []string{"node2", "node3"}) {
			t.Errorf("large packets do not pass: got %+v", r)
		}
		set(func() { answer.Full, answer.TooLarge = false, false }) // says nothing of large packets
		after(2*time.Minute, 0, "1 1 0")
		if r := p.Report(); len(r.TooLarge) != 2 {
			t.Errorf("no large packet was sent: got %+v", r)
		}
		set(func() { answer.Full = true })
		after(2*time.Minute, 0, "1 1 0")
		if r := p.Report(); len(r.TooLarge) != 0 {
			t.Errorf("large packets pass: got %+v", r)
		}
		set(func() { answer.Own = errors.New("cannot assign requested address") }) // nothing is said of the peers
		after(3*time.Minute, 0, "1 1 0")
		set(func() { answer.Own = nil })
		silence("10.244.3.1", true)
		after(3*time.Minute, 1, "1 1 0 1")
		set(func() { peers = peers[:1] }) // which is no answer
		after(time.Minute, 0, "1 1 0 1")
		if series := peerSeries(t, registry); series != "" {
			t.Errorf("got series of %q", series)
		}
		silence("192.0.2.1", true) // what the node needs
		after(2*time.Minute, 1, "1 1 0 1 1")
		if series := peerSeries(t, registry); series != "API server" || states[len(states)-1] != "[]" { // which it would be told of itself
			t.Errorf("got series of %q, states %q", series, states)
		}
		silence("192.0.2.1", false)
		after(2*time.Minute, 0, "1 1 0 1 1 0")
		if states[len(states)-1] != "[]" {
			t.Errorf("states %q", states)
		}
	})
}

// peerSeries returns the peers that have a series of their own.
func peerSeries(t *testing.T, g prometheus.Gatherer) string {
	t.Helper()
	all, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var peers []string
	for _, f := range all {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "peer" || l.GetName() == "target" {
					peers = append(peers, l.GetValue())
				}
			}
		}
	}
	return strings.Join(peers, " ")
}

// TestAsk: any answer counts. The peer is a namespace behind a cable.
func TestAsk(t *testing.T) {
	testns.Enter(t, "ip netns add reachtest", "ip link add reach0 type veth peer name eth0 netns reachtest",
		"ip addr add 10.9.0.2/24 dev reach0", "ip addr add fd09::2/64 dev reach0 nodad", "ip link set reach0 up", "ip link set lo up",
		"ip -n reachtest addr add 10.9.0.1/24 dev eth0", "ip -n reachtest addr add fd09::1/64 dev eth0 nodad",
		"ip -n reachtest link set eth0 up", "ip -n reachtest link set lo up")
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", "reachtest").Run() })
	own := map[bool]netip.Addr{true: netip.MustParseAddr("10.9.0.2"), false: netip.MustParseAddr("fd09::2")}
	asker := Asker{From: func(to netip.Addr) netip.Addr { return own[to.Is4()] }, MTU: func(netip.Addr) int { return 1500 }, Wait: 200 * time.Millisecond}
	at := func(to string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(to), 0) }
	ask := func(to, name string, answers, echoes, tooLarge bool, lines ...string) {
		t.Helper()
		for _, line := range lines {
			words := strings.Fields(line)
			if out, err := exec.Command("ip", append([]string{"netns", "exec", "reachtest"}, words...)...).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", line, err, out)
			}
		}
		a := asker.Ask(t.Context(), Node, at(to))
		if (a.Err == nil) != answers || a.RoundTrip > 0 != echoes || a.TooLarge != tooLarge {
			t.Errorf("%s: got %+v", name, a)
		}
		if !answers && !errors.Is(a.Err, errNoAnswer) {
			t.Errorf("%s: got %v", name, a.Err)
		}
	}
	testwait.Nil(t, "IPv6 is up", func() error { return asker.Ask(t.Context(), Node, at("fd09::1")).Err })
	const drops = "iptables -w -A INPUT -j DROP"
	ask("10.9.0.1", "healthy", true, true, false)
	ask("fd09::1", "healthy, IPv6", true, true, false)
	ask("10.9.0.1", "large packets are cut", true, true, true, "iptables -w -A INPUT -m length --length 1400: -j DROP")
	ask("10.9.0.1", "no echo replies", true, false, false, "iptables -w -F INPUT", "iptables -w -A INPUT -p icmp --icmp-type 8 -j DROP")
	ask("10.9.0.1", "nor TCP", true, false, false, "iptables -w -A INPUT -p tcp -j DROP")
	ask("10.9.0.1", "nothing at all", false, false, false, drops)
	ask("fd09::1", "IPv6 passes", true, true, false)
	ask("10.9.0.1", "again", true, true, false, "iptables -w -F INPUT")
	own[true] = netip.MustParseAddr("10.9.0.99")
	if a := asker.Ask(t.Context(), Node, at("10.9.0.1")); a.Own == nil || a.Err != nil {
		t.Errorf("an address that is not here: got %+v", a)
	}
	own[true] = netip.MustParseAddr("10.9.0.2")
	need := func(what Kind, to string, answers bool, rule string) {
		t.Helper()
		if out, err := exec.Command("ip", append([]string{"netns", "exec", "reachtest", "iptables", "-w"}, strings.Fields(rule)...)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", rule, err, out)
		}
		if a := asker.Ask(t.Context(), what, netip.MustParseAddrPort(to)); (a.Err == nil) != answers {
			t.Errorf("%s after %s: got %+v", what, rule, a)
		}
	}
	resolved := false
	asker.Resolved = func(netip.Addr) bool { return resolved }
	need(Gateway, "10.9.0.1:0", true, "-F INPUT")
	need(API, "10.9.0.1:6443", true, "-F INPUT") // it is refused
	need(DNS, "10.9.0.1:53", false, "-F INPUT")  // by the host, and not by a server
	need(Gateway, "10.9.0.1:0", false, "-A INPUT -j DROP")
	need(API, "10.9.0.1:6443", false, "-S INPUT")
	need(DNS, "10.9.0.1:53", false, "-S INPUT")
	resolved = true
	need(Gateway, "10.9.0.1:0", true, "-S INPUT")
	server, err := net.ListenPacket("udp", "10.9.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() { // any answer counts, as the question itself
		var b [512]byte
		if n, from, err := server.ReadFrom(b[:]); err == nil {
			_, _ = server.WriteTo(b[:n], from)
		}
	}()
	need(DNS, server.LocalAddr().String(), true, "-S INPUT")
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40001"), 0); err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{"40000", "40001"} {
		l, err := net.Listen("tcp4", ":"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	if a := asker.Ask(t.Context(), API, netip.MustParseAddrPort("10.9.0.1:6443")); a.Own == nil || a.Err != nil {
		t.Errorf("there is no port to connect from: got %+v", a)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	sockets, from := 0, asker.From
	asker.From = func(to netip.Addr) netip.Addr { sockets++; return from(to) }
	if asker.Ask(ended, Node, at("10.9.0.77")); sockets != 1 {
		t.Errorf("after its end it went on with %d more sockets", sockets-1)
	}
	if a := asker.Ask(t.Context(), Node, at("10.9.0.77")); a.Err == nil {
		t.Errorf("nobody is there: got %+v", a)
	}
}

// BenchmarkDraw is what each request of a round costs among so many nodes.
func BenchmarkDraw(b *testing.B) {
	var all []Peer
	for i := range 5000 {
		all = append(all, Peer{Node: fmt.Sprintf("node%d", i)})
	}
	for i := range b.N {
		Draw(int64(i), "node0", all[1:], 5)
	}
}
