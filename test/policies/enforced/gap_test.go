package enforced

import (
	"fmt"
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

// TestNothingLivesOn: connections that began while the node had no rules end when it has them again, if policies deny them: also
// where the first packet that the rules see is the server's, which may send to the client. What tracks connections was away, too, or
// was not.
func TestNothingLivesOn(t *testing.T) {
	for what, rules := range map[string]string{"nothing is tracked": "", "tracked": "table inet others {\n" +
		"chain other { type filter hook forward priority 0; ct state invalid drop; }\n}\n"} {
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
