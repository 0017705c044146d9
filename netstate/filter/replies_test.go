package filter

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

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
