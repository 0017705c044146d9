package enforced

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
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
	to       *lab.Pod
	up, down way // from the client, and to it
}

// way is a direction of a talk.
type way struct {
	sent atomic.Int64 // packets, so far
	came atomic.Int64 // readings that brought something
	last atomic.Int64 // how many were sent when something came last
}

// inVain is how many packets were sent since something came last.
func (w *way) inVain() int64 { return w.sent.Load() - w.last.Load() }

// inVain is that of the direction that is worse.
func (c *talk) inVain() int64 { return max(c.up.inVain(), c.down.inVain()) }

// many are packets of one direction, which is a second if no packet has to wait for a processor.
const many = 500

// few are as many as TCP sends at least before it waits for the other end.
const few = 50

// foreign has each packet that the rules see write its mark into its connection's, as CONNMARK --save-mark of a node with
// several uplinks does.
const foreign = `table inet foreign {
	chain save { type filter hook prerouting priority mangle; ct mark set meta mark; }
}
`

// TestCutWithFastPath: packets of open connections take the fast path, and a policy that denies one of them cuts it within
// a moment, at the node of the client or of the server, in both directions, whoever writes connections' marks. Other
// connections notice nothing, a restart of the agent changes nothing, and it goes on when it is allowed again.
func TestCutWithFastPath(t *testing.T) {
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			l := labtest.Start(t, lab.Spec{Name: "tcut", Nodes: 2, Pods: 1, Family: lab.Dual, Backend: backend, Store: lab.File,
				NetworkPolicy: true, FastPath: true})
			near, far := l.Nodes()[0], l.Nodes()[1]
			for _, n := range l.Nodes() {
				fastPathOn(t, n)
				if err := n.LoadRules(t.Context(), foreign); err != nil {
					t.Fatal(err)
				}
			}
			client, server := addPod(t, near, "client"), addPod(t, far, "server")
			other := addPod(t, far, "other")
			settled(t, l)
			var talks, others []*talk
			for _, f := range netstate.Families {
				for i, network := range []string{"tcp", "udp"} {
					at := uint16(7000 + i)
					talks = append(talks, open(t, network, client, server, netip.AddrPortFrom(server.Addr(f), at)))
					others = append(others, open(t, network, client, other, netip.AddrPortFrom(other.Addr(f), at)))
				}
			}
			testwait.Pause(t, 3*time.Second, "conntrack knows UDP for two seconds before it is fast")
			for _, n := range l.Nodes() {
				testwait.Until(t, "a hundred packets take the fast path of "+n.Name, func() bool { return fastPackets(t, l, n) >= 100 })
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
	settled(t, l)
	testwait.Nil(t, "connections that are denied stop", func() error {
		mustGoOn(t, others)
		for _, c := range talks {
			if up, down := c.up.inVain(), c.down.inVain(); min(up, down) < few {
				return fmt.Errorf("%s: since something came last, %d packets were sent from the client, and %d to it", c.name, up, down)
			}
		}
		return nil
	})
	keptOff(t, l, node, 1)
	pass(t, others, 100) // what was under way to the talks that are denied has come, too
	silent := readings(talks)
	pass(t, others, many)
	mustBeSilent(t, "while others go on", talks, silent)
	restartSilently(t, node, talks, others)
	if err := l.DeleteManifest("cut.yaml"); err != nil {
		t.Fatal(err)
	}
	pass(t, append(slices.Clone(talks), others...), 10)
	keptOff(t, l, node, 0)
}

// keptOff waits until the agent says of so many pods that policies keep them off the fast path, and the doctor takes its word.
func keptOff(t *testing.T, l *lab.Lab, n *lab.Node, pods int) {
	t.Helper()
	testwait.Nil(t, "pods that policies keep off the fast path of "+n.Name, func() error {
		text, err := n.Ask(t.Context(), "/status")
		if err == nil && strings.Count(text, "policies deny an open connection of the pod") != pods {
			err = errors.New(text)
		}
		return err
	})
	testwait.Nil(t, "the doctor's view of the fast path of "+n.Name, func() error {
		f, err := gather(t, l, n)
		ports := slices.DeleteFunc(f.Plan, func(c netstate.Change) bool { return c.Key().Kind != netstate.KindPodPort })
		if err == nil && (!f.FastPath.Compared || len(ports) > 0) {
			err = fmt.Errorf("it is compared: %v, and not as it should be:\n%s", f.FastPath.Compared, ports)
		}
		return err
	})
}

// pass returns when so many packets have come in both directions of all talks.
func pass(t *testing.T, all []*talk, count int64) {
	t.Helper()
	before := readings(all)
	for i, c := range all {
		testwait.Nil(t, fmt.Sprintf("%s: %d packets pass", c.name, count), func() error {
			up, down := c.up.came.Load()-before[i][0], c.down.came.Load()-before[i][1]
			if min(up, down) < count {
				return fmt.Errorf("%d from the client, %d to it; %d were sent in vain since", up, down, c.inVain())
			}
			return nil
		})
	}
}

// readings are how often something came to the server and the client of each.
func readings(all []*talk) (counts [][2]int64) {
	for _, c := range all {
		counts = append(counts, [2]int64{c.up.came.Load(), c.down.came.Load()})
	}
	return counts
}

// mustBeSilent fails if something came since readings.
func mustBeSilent(t *testing.T, when string, all []*talk, since [][2]int64) {
	t.Helper()
	for i, now := range readings(all) {
		if now != since[i] {
			t.Errorf("%s: %s: something came %d times to the server, and %d times to the client", all[i].name, when,
				now[0]-since[i][0], now[1]-since[i][1])
		}
		if sent := all[i].up.inVain(); sent < few {
			t.Errorf("%s: %s: only %d packets were sent, so that nothing is shown", all[i].name, when, sent)
		}
	}
}

// mustGoOn fails if many packets were sent in vain.
func mustGoOn(t *testing.T, all []*talk) {
	t.Helper()
	for _, c := range all {
		if sent := c.inVain(); sent > many {
			t.Fatalf("%s: %d packets were sent in vain, which is no business of the policy", c.name, sent)
		}
	}
}

// restartSilently restarts a node's agent. What is denied stays so.
func restartSilently(t *testing.T, n *lab.Node, denied, others []*talk) {
	t.Helper()
	silent := readings(denied)
	if err := n.RestartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	fastPathOn(t, n)
	pass(t, others, many)
	mustBeSilent(t, "after a restart of the agent", denied, silent)
}

// open opens a connection over which both ends send every two milliseconds.
func open(t *testing.T, network string, from, to *lab.Pod, at netip.AddrPort) *talk {
	t.Helper()
	return openThrough(t, network, from, to, at, at)
}

// openThrough opens one to an address from which a node leads it to that of the server.
func openThrough(t *testing.T, network string, from, to *lab.Pod, service, at netip.AddrPort) *talk {
	t.Helper()
	c := &talk{name: fmt.Sprint(network, " ", from.Name, " to ", to.Name, " ", service), to: to}
	serve := serveUDP
	if network == "tcp" {
		serve = serveTCP
	}
	serve(t, to, at, c)
	var conn net.Conn
	if err := from.Do(func() (err error) {
		conn, err = net.Dial(network, service.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go keepWriting(conn.Write, &c.up)
	go keepReading(conn, &c.down)
	return c
}

// serveTCP is the server's end of a talk.
func serveTCP(t *testing.T, to *lab.Pod, at netip.AddrPort, c *talk) {
	t.Helper()
	var l net.Listener
	if err := to.Do(func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { conn.Close() })
		go keepWriting(conn.Write, &c.down)
		keepReading(conn, &c.up)
	}()
}

// serveUDP is that of one over UDP: once something has come it sends to where that is from.
func serveUDP(t *testing.T, to *lab.Pod, at netip.AddrPort, c *talk) {
	t.Helper()
	conn := listen(t, to.Host, at)
	go func() {
		for b, began := make([]byte, 4096), false; ; c.up.note() {
			_, from, err := conn.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if !began {
				began = true
				go keepWriting(func(b []byte) (int, error) { return conn.WriteToUDPAddrPort(b, from) }, &c.down)
			}
		}
	}()
}

func keepWriting(write func([]byte) (int, error), w *way) {
	for tick := time.NewTicker(2 * time.Millisecond); ; <-tick.C {
		if _, err := write(make([]byte, 100)); err != nil && !strings.Contains(err.Error(), "refused") {
			tick.Stop()
			return
		}
		w.sent.Add(1)
	}
}

// note counts something that came.
func (w *way) note() {
	w.last.Store(w.sent.Load())
	w.came.Add(1)
}

func keepReading(conn net.Conn, w *way) {
	for b := make([]byte, 4096); ; w.note() {
		if _, err := conn.Read(b); err != nil {
			return
		}
	}
}

// fastPathOn waits until packets can take the fast path.
func fastPathOn(t *testing.T, n *lab.Node) {
	t.Helper()
	testwait.Nil(t, "the fast path of "+n.Name, func() error {
		text, err := n.Ask(t.Context(), "/status")
		if err == nil && !strings.Contains(text, `"fastPath":{"on":true`) {
			err = errors.New(text)
		}
		return err
	})
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
