package enforced

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

// denied isolates a server from all.
const denied = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: denied}
spec:
  podSelector: {matchLabels: {pod: server}}
  policyTypes: [Ingress]
`

// tracking are rules of others that have the kernel track connections.
const tracking = `table inet others {
	chain other { type filter hook forward priority 0; ct state established accept; }
}
`

// TestNothingLivesOn: connections that began while the node had no rules end when it has them again, if policies deny them: also
// where the first packet that the rules see is the server's, which may send to the client. What tracks connections was away, too, or
// was not.
func TestNothingLivesOn(t *testing.T) {
	for what, rules := range map[string]string{"nothing is tracked": "", "tracked": tracking} {
		t.Run(what, func(t *testing.T) {
			l := labtest.Start(t, lab.Spec{Name: "tgap", Nodes: 2, Family: lab.Dual, Store: lab.File, NetworkPolicy: true})
			node := l.Nodes()[0]
			server, near, far := addPod(t, node, "server"), addPod(t, node, "near"), addPod(t, l.Nodes()[1], "far")
			if err := l.ApplyManifest("denied.yaml", []byte(denied)); err != nil {
				t.Fatal(err)
			}
			settled(t, l)
			if err := node.StopAgent(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := node.Exec(t.Context(), "nft", "flush", "ruleset"); err != nil {
				t.Fatal(err)
			}
			var talks []*talk
			port := uint16(7000)
			for _, f := range netstate.Families {
				for range 5 {
					for _, client := range []*lab.Pod{near, far} {
						port++
						talks = append(talks, open(t, "tcp", client, server, netip.AddrPortFrom(server.Addr(f), port)))
						port++
						talks = append(talks, ask(t, client, server, netip.AddrPortFrom(server.Addr(f), port)))
					}
				}
			}
			pass(t, talks, 10)
			if err := node.LoadRules(t.Context(), rules); err != nil {
				t.Fatal(err)
			}
			pass(t, talks, 10)
			if err := node.StartAgent(t.Context()); err != nil {
				t.Fatal(err)
			}
			settled(t, l)
			testwait.Pause(t, 2*time.Second, "UDP is not in doubt any more, and what was under way has come")
			silent := readings(talks)
			testwait.Pause(t, time.Second, "nothing comes")
			for i, now := range readings(talks) {
				if now != silent[i] {
					t.Errorf("%s: something came %d times to the server, and %d times to the client", talks[i].name,
						now[0]-silent[i][0], now[1]-silent[i][1])
				}
			}
		})
	}
}

// ask opens a connection over UDP over which a client asks all the time, and a server answers after a while.
func ask(t *testing.T, from, to *lab.Pod, at netip.AddrPort) *talk {
	t.Helper()
	c := &talk{name: fmt.Sprint("udp ", from.Name, " asks ", to.Name, " ", at), to: to}
	server := listen(t, to.Host, at)
	go func() {
		for b := make([]byte, 4096); ; c.up.note() {
			n, peer, err := server.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			time.AfterFunc(20*time.Millisecond, func() {
				_, _ = server.WriteToUDPAddrPort(make([]byte, n), peer)
				c.down.sent.Add(1)
			})
		}
	}()
	var conn net.Conn
	if err := from.Do(func() (err error) {
		conn, err = net.Dial("udp", at.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go keepWriting(conn.Write, &c.up)
	go keepReading(conn, &c.down)
	return c
}

// oneWay lets two pods connect to a server's port, and nobody to them.
const oneWay = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server}
spec:
  podSelector: {matchLabels: {pod: server}}
  ingress: [{from: [{podSelector: {matchLabels: {pod: near}}}, {podSelector: {matchLabels: {pod: far}}}], ports: [{port: 7000}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: clients}
spec:
  podSelector: {matchExpressions: [{key: pod, operator: In, values: [near, far]}]}
  policyTypes: [Ingress]
`

// TestSwitchedOn: policies that come to a node under a thousand open connections end none that they allow, on a node that tracked
// them, as those with kube-proxy do.
func TestSwitchedOn(t *testing.T) {
	l := labtest.Start(t, lab.Spec{Name: "tswon", Nodes: 2, Family: lab.Dual, Store: lab.File, NetworkPolicy: true})
	node := l.Nodes()[0]
	server, near, far := addPod(t, node, "server"), addPod(t, node, "near"), addPod(t, l.Nodes()[1], "far")
	for _, n := range l.Nodes() {
		if err := n.StopAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Exec(t.Context(), "nft", "flush", "ruleset"); err != nil {
			t.Fatal(err)
		}
		if err := n.LoadRules(t.Context(), tracking); err != nil {
			t.Fatal(err)
		}
	}
	var all []net.Conn
	for _, f := range netstate.Families {
		at := netip.AddrPortFrom(server.Addr(f), 7000)
		echo, err := server.Echo(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer echo.Close()
		for i := range 500 {
			err := []*lab.Pod{near, far}[i%2].Do(func() error {
				conn, err := net.DialTimeout("tcp", at.String(), testwait.Limit)
				if err == nil {
					all = append(all, conn)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			defer all[len(all)-1].Close()
		}
	}
	if open := echoes(all); open != len(all) {
		t.Fatalf("%d of %d connections are open", open, len(all))
	}
	if err := l.ApplyManifest("oneway.yaml", []byte(oneWay)); err != nil {
		t.Fatal(err)
	}
	for _, n := range l.Nodes() {
		if err := n.StartAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	settled(t, l)
	for _, when := range []string{"at once", "when nothing is in doubt any more"} {
		if open := echoes(all); open != len(all) {
			t.Errorf("%s: %d of %d connections are left", when, open, len(all))
		}
		testwait.Pause(t, 1500*time.Millisecond, "UDP is in doubt for a second")
	}
}

// echoes returns how many connections answer.
func echoes(all []net.Conn) (open int) {
	for _, conn := range all {
		_ = conn.SetDeadline(time.Now().Add(testwait.Limit))
		if _, err := conn.Write([]byte("hello")); err != nil {
			continue
		}
		if _, err := io.ReadFull(conn, make([]byte, 5)); err == nil {
			open++
		}
	}
	return open
}
