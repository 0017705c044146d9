package enforced

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

const (
	starting = 100 // pods, one after the other
	port     = 5000
)

// onlyAllowed lets the even pods reach pods with the label pod=allowed, and nobody else.
func onlyAllowed() []byte {
	var names []string
	for i := 0; i < starting; i += 2 {
		names = append(names, podName(i))
	}
	return fmt.Appendf(nil, `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-allowed}
spec:
  podSelector: {matchExpressions: [{key: pod, operator: In, values: [%s]}]}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {pod: allowed}}}]
`, strings.Join(names, ", "))
}

func podName(i int) string { return fmt.Sprint("p", i) }

// TestFirstPacket: the very first packets of a pod pass if they may, as soon as ADD has returned, and what the pod sends to
// others is lost from the moment on at which it can send anything.
func TestFirstPacket(t *testing.T) {
	l := labtest.Start(t, lab.Spec{Name: "tfirst", Nodes: 2, Pods: 1, Family: lab.Dual, Store: lab.File, NetworkPolicy: true})
	node := l.Nodes()[0]
	allowed, denied := newPeers(t, l, "allowed"), newPeers(t, l, "denied")
	if err := l.ApplyManifest("policy.yaml", onlyAllowed()); err != nil {
		t.Fatal(err)
	}
	var pods []*lab.Pod
	for i := range starting {
		pod, err := node.AddNamespace(podName(i))
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, pod)
	}
	settled(t, l)
	for i, pod := range pods {
		selected, stop := i%2 == 0, func() {}
		if selected {
			stop = keepSending(t, pod, denied.addrs)
		}
		if err := node.Wire(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if selected {
			allowed.ask(t, pod)
			testwait.Pause(t, 50*time.Millisecond, "nothing comes to the denied peers")
		} else {
			denied.ping(t, pod)
			denied.ask(t, pod)
		}
		stop()
		if denied.heard(pod.Addrs) == selected {
			t.Errorf("%s with %v: the denied peers got a packet of it: %v", pod.Name, pod.Addrs, selected)
		}
		if denied.heard(strangers) {
			t.Errorf("%s with %v: the denied peers got a packet that it sent from another address", pod.Name, pod.Addrs)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	withoutAgent(t, l, denied)
}

// withoutAgent shows that the test can fail: a pod that nobody announces is silent, until the agent reads of it.
func withoutAgent(t *testing.T, l *lab.Lab, peers *peers) {
	t.Helper()
	node := l.Nodes()[0]
	if err := os.Remove(filepath.Join(node.Dir(), "network-policy.sock")); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(node.Agent().Signal(unix.SIGSTOP)) // it reads nothing
	defer func() { must(node.Agent().Signal(unix.SIGCONT)) }()
	pod, err := node.AddPod(t.Context(), "silent")
	must(err)
	to := peers.addrs[0].Addr()
	if _, err := pod.Ping(t.Context(), host.Ping{To: to, Timeout: 100 * time.Millisecond}); err == nil {
		t.Error("a pod that was not announced has a network at once: nothing is shown")
	}
	must(node.Agent().Signal(unix.SIGCONT))
	testwait.Nil(t, "the pod has a network when the agent has read of it", func() error {
		_, err := pod.Ping(t.Context(), host.Ping{To: to})
		return err
	})
}

// peers are pods of one name on all nodes, which answer on a port.
type peers struct {
	addrs []netip.AddrPort

	mu   sync.Mutex
	from []netip.Addr // who sent them each packet
}

func newPeers(t *testing.T, l *lab.Lab, name string) *peers {
	t.Helper()
	p := &peers{}
	for _, n := range l.Nodes() {
		pod, err := n.AddPod(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, addr := range pod.Addrs {
			at := netip.AddrPortFrom(addr, port)
			conn := listen(t, pod.Host, at)
			p.addrs = append(p.addrs, at)
			go p.serve(conn)
		}
	}
	return p
}

// listen opens a UDP socket in a host.
func listen(t *testing.T, h host.Host, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	err := h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// serve answers what comes.
func (p *peers) serve(conn *net.UDPConn) {
	for b := make([]byte, 100); ; {
		n, from, err := conn.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.from = append(p.from, from.Addr().Unmap())
		p.mu.Unlock()
		_, _ = conn.WriteToUDPAddrPort(b[:n], from)
	}
}

// heard reports whether a peer got a packet from one of some addresses.
func (p *peers) heard(addrs []netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(p.from, a) })
}

// ask sends each peer one packet, and wants its answer.
func (p *peers) ask(t *testing.T, pod *lab.Pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	var all sync.WaitGroup
	for _, at := range p.addrs {
		all.Go(func() {
			if err := pod.Ask(ctx, "udp", at); err != nil {
				t.Errorf("the first packet of %s: %v", pod.Name, err)
			}
		})
	}
	all.Wait()
}

// ping sends each peer one echo request, and wants its answer.
func (p *peers) ping(t *testing.T, pod *lab.Pod) {
	t.Helper()
	var to []netip.Addr
	for _, at := range p.addrs {
		to = append(to, at.Addr())
	}
	echoes, err := pod.PingAll(t.Context(), to, testwait.Limit)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range echoes {
		if e.Err != nil {
			t.Errorf("the first ping of %s to %s: %v", pod.Name, e.To, e.Err)
		}
	}
}

// keepSending sends to all addresses every millisecond, from before the pod has a network until it is stopped: as pods do, and
// past the pod's kernel from other addresses.
func keepSending(t *testing.T, pod *lab.Pod, to []netip.AddrPort) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, f := range netstate.Families {
		from := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
		if f == netstate.IPv6 {
			from = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
		}
		conn := listen(t, pod.Host, from)
		all.Go(func() {
			for tick := time.NewTicker(time.Millisecond); ; {
				for _, at := range to {
					if netstate.FamilyOf(at.Addr()) == f {
						_, _ = conn.WriteToUDPAddrPort([]byte("leak"), at) // not before there is a route
					}
				}
				select {
				case <-ctx.Done():
					tick.Stop()
					conn.Close()
					return
				case <-tick.C:
				}
			}
		})
	}
	var forgeries []forged
	for _, at := range to {
		from := strangers[0]
		if at.Addr().Is6() {
			from = strangers[1]
		}
		forgeries = append(forgeries, forged{dst: gateway(pod.Node), src: netstate.MAC{2, 5: 0x77}, from: from, to: at, port: 7,
			payload: "leak"})
	}
	all.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ; ctx.Err() == nil; <-tick.C {
			_ = trySend(pod, forgeries...) // not before it has its interface
		}
	})
	return func() {
		cancel()
		all.Wait()
	}
}

// strangers are addresses that are no pod's.
var strangers = []netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8::77")}

// BenchmarkAdd measures ADD where policies are enforced: in turn with the agent that answers, and without its socket.
func BenchmarkAdd(b *testing.B) {
	l := labtest.Start(b, lab.Spec{Name: "tadd", Nodes: 1, Pods: 1, Family: lab.Dual, Store: lab.File, NetworkPolicy: true})
	node := l.Nodes()[0]
	if err := l.ApplyManifest("policy.yaml", onlyAllowed()); err != nil {
		b.Fatal(err)
	}
	pod, err := node.AddNamespace(podName(0))
	if err != nil {
		b.Fatal(err)
	}
	settled(b, l)
	add := func() time.Duration {
		began := time.Now()
		if err := node.Wire(b.Context(), pod); err != nil {
			b.Fatal(err)
		}
		took := time.Since(began)
		if err := node.Unwire(b.Context(), pod); err != nil {
			b.Fatal(err)
		}
		return took
	}
	socket := filepath.Join(node.Dir(), "network-policy.sock")
	var announced, silent, more []time.Duration
	for b.Loop() {
		with := add()
		rename(b, socket, socket+".off")
		without := add()
		rename(b, socket+".off", socket)
		announced, silent, more = append(announced, with), append(silent, without), append(more, with-without)
	}
	for unit, all := range map[string][]time.Duration{"announced-p50-ms": announced, "silent-p50-ms": silent, "more-p50-ms": more} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, unit)
	}
}

func rename(b *testing.B, from, to string) {
	b.Helper()
	if err := os.Rename(from, to); err != nil {
		b.Fatal(err)
	}
}
