package filter

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// judging are tables of which replies ask who may begin a connection: only the friend may use port 80 of the server.
func judging(worlds []world) netstate.State {
	state := isolated(worlds)
	for _, w := range worlds {
		state.Add(
			netstate.Hook{Family: w.family, Rules: "ct related accept\nct reply established jump back\nct reply established accept\n" +
				"new tcp without syn jump back\njump ingress"},
			netstate.Filter{Family: w.family, Name: "back", Rules: "backwards daddr vmap @back"},
			netstate.Set{Family: w.family, Name: "back", Type: netstate.Verdicts},
			netstate.Element{Set: "back", Prefix: netstate.Host(w.server), Verdict: "goto in-1-back"},
			netstate.Filter{Family: w.family, Name: "in-1-back", Rules: "backwards saddr @pods-1 tcp dport 80 return\n" +
				"backwards saddr @pods-1 udp dport 80 return\nbackwards new counter reset\nbackwards counter drop"},
			netstate.Filter{Family: w.family, Name: "in-1", Rules: "saddr @pods-1 tcp dport 80 accept\n" +
				"saddr @pods-1 udp dport 80 accept\ncounter drop"})
	}
	return state
}

// TestReplies: a server's packets in an open connection that is not allowed any more do not pass, though the entry in conntrack
// stays, and they do again once it is allowed.
func TestReplies(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f, worlds := open(t), worlds(t)
	settle(t, f, judging(worlds))
	for _, w := range worlds {
		var server *net.UDPConn
		at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(w.server, 80))
		var err error
		w.serverSide.do(func() { server, err = net.ListenUDP("udp", at) })
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		client, err := w.clientSpace.dial("udp", w.friend, w.port(80))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		from := netip.MustParseAddrPort(client.LocalAddr().String())
		if _, err := client.Write([]byte("ask")); err != nil {
			t.Fatal(err)
		}
		testwait.Nil(t, "the server hears", func() error {
			b := make([]byte, 10)
			_, _, err := server.ReadFromUDPAddrPort(b)
			return err
		})
		heard := func(want bool) error {
			const packets = 20
			for range packets {
				if _, err := server.WriteToUDPAddrPort([]byte("news"), from); err != nil {
					return err
				}
			}
			_ = client.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			n, b := 0, make([]byte, 10)
			for n < packets {
				if _, err := client.Read(b); err != nil {
					break
				}
				n++
			}
			if (n > 0) != want {
				return fmt.Errorf("%s: %d of %d packets of the server's came, want any: %v", w.family, n, packets, want)
			}
			return nil
		}
		testwait.Nil(t, "replies", func() error { return heard(true) })
		apply(t, f, netstate.Plan{{Was: w.allow()}})
		if err := heard(false); err != nil {
			t.Error(err)
		}
		apply(t, f, netstate.Plan{{Want: w.allow()}})
		testwait.Nil(t, "replies again", func() error { return heard(true) })
	}
}

// TestResets: a connection of which conntrack knows nothing, and whose packets are not allowed in both directions, is answered
// with a reset when one of its packets comes.
func TestResets(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f, worlds := open(t), worlds(t)
	for _, w := range worlds {
		conn, err := w.clientSpace.dial("tcp", w.client, w.port(80)) // while nothing is judged, and nothing tracked
		if err != nil || !answers(conn, time.Second) {
			t.Fatal("without a table: ", err)
		}
		defer conn.Close()
		settle(t, f, judging(worlds))
		if answers(conn, time.Second) {
			t.Errorf("%s: a connection that is denied goes on", w.family)
		}
		settle(t, f, nil)
	}
}

// TestErrors: an ICMP error passes if rules let the connection through that it is about: by who answers, with protocol and port in
// one set, or by who began it and the port.
func TestErrors(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f, worlds := open(t), worlds(t)
	for _, rules := range []string{"errors daddr . proto . port @port return\nerrors counter drop",
		"errors saddr @from udp dport 9001 return\nerrors counter drop"} {
		state := netstate.State{}
		for _, w := range worlds {
			icmp := map[netstate.Family]int{netstate.IPv4: 1, netstate.IPv6: 58}[w.family]
			state.Add(
				netstate.Hook{Family: w.family, Rules: fmt.Sprintf("ct related proto %d goto errors", icmp)},
				netstate.Filter{Family: w.family, Name: "errors", Rules: rules})
			if strings.Contains(rules, "@port") {
				state.Add(netstate.Set{Family: w.family, Name: "port", Type: netstate.NamedPorts},
					netstate.Element{Set: "port", Prefix: netstate.Host(w.server), Protocol: 17, Port: 9001})
			} else {
				state.Add(netstate.Set{Family: w.family, Name: "from", Type: netstate.Addresses},
					netstate.Element{Set: "from", Prefix: netstate.Host(w.client)})
			}
		}
		settle(t, f, state)
		for _, w := range worlds {
			for port, want := range map[int]bool{9001: true, 9002: false} {
				if got := w.refused(t, port); got != want {
					t.Errorf("%s, port %d: with the rules\n%s\nan error of the server comes: %v, want %v", w.family, port, rules, got, want)
				}
			}
		}
	}
	settle(t, f, nil)
	for _, w := range worlds {
		if !w.refused(t, 9002) {
			t.Errorf("%s: without rules no error of the server comes", w.family)
		}
	}
}

// refused reports whether an ICMP error comes of a port on which nobody listens.
func (w world) refused(t *testing.T, port int) bool {
	t.Helper()
	conn, err := w.clientSpace.dial("udp", w.client, w.port(port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("ask")); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	_, err = conn.Read(make([]byte, 10))
	return errors.Is(err, unix.ECONNREFUSED)
}
