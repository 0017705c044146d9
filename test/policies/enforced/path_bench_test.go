package enforced

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/labels"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/filter"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/policy"
)

// BenchmarkPath compares what packets between two pods of one node cost without policies (the bridge calls the firewall's
// rules, as kube-proxy wants it), with policies that select neither pod, and with ones that let them talk by their n-th
// rule. The kinds take turns, and the fastest of each counts: for TCP a question of one byte and its answer, for UDP a
// datagram from write to the receiver's socket.
func BenchmarkPath(b *testing.B) {
	p := newPath(b)
	kinds := []struct {
		name  string
		state netstate.State
	}{
		{"unselected", p.judged(0)}, {"1-rule", p.judged(1)}, {"6-rules", p.judged(6)}, {"51-rules", p.judged(51)},
	}
	for _, network := range []string{"tcp", "udp"} {
		b.Run(network, func(b *testing.B) {
			measure := p.connect(b, network)
			bare, best := time.Duration(0), make([]time.Duration, len(kinds))
			keep := func(best *time.Duration, state netstate.State) {
				p.put(state)
				if took := measure(); *best == 0 || took < *best {
					*best = took
				}
			}
			for b.Loop() {
				keep(&bare, nil)
				for i, k := range kinds {
					keep(&best[i], k.state)
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(bare), "bare-ns")
			for i, k := range kinds {
				b.ReportMetric(float64(best[i]-bare), k.name+"-more-ns")
				b.ReportMetric(float64(bare)/float64(best[i]), k.name+"-speed")
			}
		})
	}
}

// path is two pods of a node, and the node's tables of policies.
type path struct {
	*testing.B
	node   *lab.Node
	pods   []*lab.Pod
	ports  []netstate.Port
	tables within
	have   netstate.State
}

func newPath(b *testing.B) *path {
	b.Helper()
	l := labtest.Up(b, lab.Spec{Name: "polpath", Nodes: 1, Pods: 2, Store: lab.File, Backend: "vxlan"})
	n := l.Nodes()[0]
	check(b, n.SetSysctl("net/bridge/bridge-nf-call-iptables", "1"))
	p := &path{B: b, node: n, pods: n.Pods(), tables: within{Host: n.Host}}
	check(b, n.Do(func() (err error) {
		p.tables.tables, err = filter.New()
		return err
	}))
	b.Cleanup(p.tables.tables.Close)
	check(b, n.Do(func() error {
		ports, err := kernel.OpenPodPorts()
		if err == nil {
			p.ports, err = ports.List()
			ports.Close()
		}
		return err
	}))
	return p
}

// judged are the tables with a policy that has so many rules, of which the last allows what the pods send; without rules
// it selects neither of them.
func (p *path) judged(rules int) netstate.State {
	subject, peer := p.pods[1], p.pods[0]
	snap := policy.Snapshot{Namespaces: map[string]labels.Set{"default": {}}}
	for i, pod := range p.pods {
		snap.Pods = append(snap.Pods, &policy.Pod{Namespace: "default", Name: pod.Name, UID: fmt.Sprint(i), Node: p.node.Name,
			Labels: labels.Set{"pod": pod.Name}, Addrs: []netip.Addr{pod.Addr(netstate.IPv4)}})
	}
	one := policy.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"}}
	one.Spec.PodSelector.MatchLabels = map[string]string{"pod": subject.Name}
	if rules == 0 {
		one.Spec.PodSelector.MatchLabels["pod"] = "none"
	}
	for i := range rules { // in the order of their addresses
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 1, byte(100 + i)}), 32) //nolint:gosec // few
		if i == rules-1 {
			block = netstate.Host(peer.Addr(netstate.IPv4))
		}
		one.Spec.Ingress = append(one.Spec.Ingress, policy.IngressRule{
			From: []policy.Peer{{IPBlock: &policy.IPBlock{CIDR: block.String()}}}})
	}
	snap.Policies = []policy.NetworkPolicy{one}
	state, _ := policy.Desired(policy.Site{Node: p.node.Name, Bridge: "cni0", Subnets: p.node.Subnets(), Ports: p.ports}, snap)
	return state
}

// put makes the tables those.
func (p *path) put(want netstate.State) {
	p.Helper()
	if err := p.tables.Apply(p.Context(), netstate.Diff(want, p.have)); err != nil {
		p.Fatal(err)
	}
	p.have = want
}

// connect connects the pods, and returns what measures two hundred packets.
func (p *path) connect(b *testing.B, network string) (measure func() time.Duration) {
	b.Helper()
	const packets = 200
	kind := unix.SOCK_STREAM
	if network == "udp" {
		kind = unix.SOCK_DGRAM
	}
	at := &unix.SockaddrInet4{Port: 7000, Addr: p.pods[1].Addr(netstate.IPv4).As4()}
	open := func(pod *lab.Pod) (fd int) {
		if err := pod.Do(func() (err error) {
			fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
			return err
		}); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { unix.Close(fd) })
		check(b, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}))
		return fd
	}
	client, server := open(p.pods[0]), open(p.pods[1])
	p.put(nil)
	check(b, unix.Bind(server, at))
	if network == "udp" {
		check(b, unix.Connect(client, at))
		return func() time.Duration { return each(b, packets, func() error { return sendByte(client) }) }
	}
	check(b, unix.Listen(server, 1))
	check(b, unix.Connect(client, at))
	accepted, _, err := unix.Accept(server)
	check(b, err)
	b.Cleanup(func() { unix.Close(accepted) })
	check(b, unix.SetsockoptTimeval(accepted, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}))
	for _, fd := range []int{client, accepted} {
		check(b, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	}
	return func() time.Duration {
		return each(b, packets, func() error {
			for _, step := range []func() error{
				func() error { return sendByte(client) }, func() error { return receiveByte(accepted) },
				func() error { return sendByte(accepted) }, func() error { return receiveByte(client) },
			} {
				if err := step(); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func sendByte(fd int) error {
	_, err := unix.Write(fd, []byte{'x'})
	return err
}

func receiveByte(fd int) error {
	n, err := unix.Read(fd, make([]byte, 1))
	if err == nil && n == 0 {
		return os.ErrClosed
	}
	return err
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// each does something on one thread and processor, and returns how long it took each time.
func each(b *testing.B, times int, do func() error) time.Duration {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	check(b, unix.SchedGetaffinity(0, &all))
	one.Set(0)
	check(b, unix.SchedSetaffinity(0, &one))
	defer func() { check(b, unix.SchedSetaffinity(0, &all)) }()
	began := time.Now()
	for range times {
		check(b, do())
	}
	return time.Since(began) / time.Duration(times)
}
