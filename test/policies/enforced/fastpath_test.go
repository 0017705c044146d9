package enforced

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fastpath"
)

// cuts isolate one of the pods for a direction.
var cuts = map[string]string{
	"Ingress": `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: cut}
spec:
  podSelector: {matchLabels: {pod: server}}
  policyTypes: [Ingress]
`,
	"Egress": `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: cut}
spec:
  podSelector: {matchLabels: {pod: client}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchLabels: {pod: other}}}]}]
`}

// talk is an open connection over which both ends send all the time.
type talk struct {
	name     string
	from, to *lab.Pod
	addr     netip.AddrPort // of the server
	network  string

	atClient, atServer atomic.Int64 // when something came last, in nanoseconds since 1970
	port               int          // of the client
}

// TestCutWithFastPath: packets of open connections take the fast path, and a policy that denies one of them cuts it within
// a moment, at the node of the client or of the server, in both directions. Other connections notice nothing, a restart of
// the agent changes nothing, and it goes on when it is allowed again.
func TestCutWithFastPath(t *testing.T) {
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			l := labtest.Start(t, lab.Spec{Name: "tcut", Nodes: 2, Pods: 1, Family: lab.Dual, Backend: backend, Store: lab.File,
				NetworkPolicy: true, FastPath: true})
			near, far := l.Nodes()[0], l.Nodes()[1]
			for _, n := range l.Nodes() {
				fastPathOn(t, n)
			}
			client, server := addPod(t, near, "client"), addPod(t, far, "server")
			other := addPod(t, far, "other")
			time.Sleep(time.Second)
			var talks, others []*talk
			for _, f := range netstate.Families {
				for i, network := range []string{"tcp", "udp"} {
					at := uint16(7000 + i)
					talks = append(talks, open(t, network, client, server, netip.AddrPortFrom(server.Addr(f), at)))
					others = append(others, open(t, network, client, other, netip.AddrPortFrom(other.Addr(f), at)))
				}
			}
			time.Sleep(3 * time.Second) // UDP is known for two seconds before it is fast
			for _, n := range l.Nodes() {
				if fast := fastPackets(t, l, n); fast < 100 {
					t.Fatalf("%s: %d packets took the fast path", n.Name, fast)
				}
			}
			for direction, node := range map[string]*lab.Node{"Ingress": far, "Egress": near} {
				t.Run(direction, func(t *testing.T) { cutAndAllow(t, l, node, cuts[direction], talks, others) })
			}
		})
	}
}

// cutAndAllow applies the policy, which a node enforces, and deletes it.
func cutAndAllow(t *testing.T, l *lab.Lab, node *lab.Node, policy string, talks, others []*talk) {
	t.Helper()
	if err := l.ApplyManifest("cut.yaml", []byte(policy)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for since := began; time.Since(since) < 2*time.Second; time.Sleep(10 * time.Millisecond) {
		for _, o := range others {
			if d := o.silent(); d > time.Second {
				t.Fatalf("%s: silent for %v, which is no business of the policy", o.name, d)
			}
		}
	}
	enforced := lastChange(t, node)
	if enforced.Before(began.Add(-time.Second)) {
		t.Fatalf("%s enforces no policy since %v", node.Name, enforced)
	}
	for _, c := range talks {
		after := time.Unix(0, c.atServer.Load()).Sub(enforced)
		t.Logf("%s: what the client sent came last %v after the policy was enforced", c.name, after)
		if after > 300*time.Millisecond { // 50 ms on a machine that does nothing else
			t.Errorf("%s: what the client sent came last %v after the policy was enforced", c.name, after)
		}
		if d := time.Since(time.Unix(0, c.atClient.Load())); d < time.Second {
			t.Errorf("%s: what the server sent came %v ago", c.name, d)
		}
	}
	marks := connectionMarks(t, node)
	for _, c := range append(talks, others...) {
		mark, there := marks[c.port]
		if denied := c.to == talks[0].to; !there || (mark&netstate.DeniedMark != 0) != denied {
			t.Errorf("%s: its entry has the mark %#x (%v)", c.name, mark, there)
		}
	}
	restartSilently(t, node, talks)
	if err := l.DeleteManifest("cut.yaml"); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for _, c := range append(talks, others...) {
		for c.silent() > 500*time.Millisecond {
			if time.Now().After(deadline) {
				t.Fatalf("%s: silent for %v although it is allowed again", c.name, c.silent())
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// restartSilently restarts a node's agent. What is denied stays so.
func restartSilently(t *testing.T, n *lab.Node, denied []*talk) {
	t.Helper()
	if err := n.RestartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	fastPathOn(t, n)
	time.Sleep(time.Second)
	for _, c := range denied {
		if d := time.Since(time.Unix(0, max(c.atServer.Load(), c.atClient.Load()))); d < 2*time.Second {
			t.Errorf("%s: after a restart of the agent something came %v ago", c.name, d)
		}
	}
}

// lastChange returns when a node's rules changed last, as its agent's log says.
func lastChange(t *testing.T, n *lab.Node) (at time.Time) {
	t.Helper()
	text, err := os.ReadFile(n.Log())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if stamp, ok := strings.CutPrefix(strings.Fields(line)[0], "time="); ok && strings.Contains(line, `msg="network policies"`) {
			if at, err = time.Parse(time.RFC3339, stamp); err != nil {
				t.Fatal(err)
			}
		}
	}
	return at
}

// silent returns for how long nothing came to one of the ends.
func (c *talk) silent() time.Duration {
	return time.Since(time.Unix(0, min(c.atClient.Load(), c.atServer.Load())))
}

// open opens a connection over which both ends send every two milliseconds.
func open(t *testing.T, network string, from, to *lab.Pod, at netip.AddrPort) *talk {
	t.Helper()
	c := &talk{name: fmt.Sprint(network, " ", from.Name, " to ", to.Name, " ", at), from: from, to: to, addr: at, network: network}
	ready := make(chan net.Conn, 1)
	if network == "tcp" {
		var l net.Listener
		if err := to.Do(func() (err error) {
			l, err = net.Listen(network, at.String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			if conn, err := l.Accept(); err == nil {
				ready <- conn
			}
		}()
	} else {
		go answer(listen(t, to.Host, at), &c.atServer)
	}
	var conn net.Conn
	if err := from.Do(func() (err error) {
		conn, err = net.Dial(network, at.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c.port = int(netip.MustParseAddrPort(conn.LocalAddr().String()).Port())
	go keepWriting(conn)
	go keepReading(conn, &c.atClient)
	if network == "tcp" {
		server := <-ready
		t.Cleanup(func() { server.Close() })
		go keepWriting(server)
		go keepReading(server, &c.atServer)
	}
	return c
}

func keepWriting(conn net.Conn) {
	for tick := time.NewTicker(2 * time.Millisecond); ; <-tick.C {
		if _, err := conn.Write(make([]byte, 100)); err != nil && !strings.Contains(err.Error(), "refused") {
			tick.Stop()
			return
		}
	}
}

func keepReading(conn net.Conn, last *atomic.Int64) {
	for b := make([]byte, 4096); ; last.Store(time.Now().UnixNano()) {
		if _, err := conn.Read(b); err != nil {
			return
		}
	}
}

func answer(conn *net.UDPConn, last *atomic.Int64) {
	for b := make([]byte, 4096); ; last.Store(time.Now().UnixNano()) {
		n, from, err := conn.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		_, _ = conn.WriteToUDPAddrPort(b[:n], from)
	}
}

// fastPathOn waits until packets can take the fast path.
func fastPathOn(t *testing.T, n *lab.Node) {
	t.Helper()
	text := ""
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		text, _ = n.Ask(t.Context(), "/status")
		if strings.Contains(text, `"fastPath":{"on":true`) {
			return
		}
	}
	t.Fatalf("%s has no fast path: %s", n.Name, text)
}

// fastPackets returns how many packets took it.
func fastPackets(t *testing.T, l *lab.Lab, n *lab.Node) (all uint64) {
	t.Helper()
	err := n.Do(func() error {
		p, err := fastpath.OpenPinned(l.BPFDir())
		if err != nil {
			return err
		}
		defer p.Close()
		counts, err := p.Counts()
		for _, c := range counts.Results {
			if c.Fast {
				all += c.Packets
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// connectionMarks returns the marks of a node's connections by the client's port.
func connectionMarks(t *testing.T, n *lab.Node) map[int]uint32 {
	t.Helper()
	all := map[int]uint32{}
	err := n.Do(func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			list, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, f := range list {
				all[int(f.Forward.SrcPort)] = f.Mark
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
