package enforced

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

// spoofPolicies isolate the pods "isolated", "limited", which may send to the pods "allowed", "late" and "protected", which
// no pod may send to.
const spoofPolicies = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated}
spec:
  podSelector: {matchExpressions: [{key: pod, operator: In, values: [isolated, late]}]}
  policyTypes: [Egress]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: limited}
spec:
  podSelector: {matchLabels: {pod: limited}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {pod: allowed}}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: protected}
spec:
  podSelector: {matchLabels: {pod: protected}}
`

// spoof is a way to send.
type spoof struct {
	name string
	// from returns the source address; nil: the pod's own.
	from      func(spoofer, netstate.Family) netip.Addr
	tags      []uint32
	otherMAC  bool
	fragments bool
}

func (s spoof) own() bool { return s.from == nil }

func address(v4, v6 string) func(spoofer, netstate.Family) netip.Addr {
	return func(_ spoofer, f netstate.Family) netip.Addr {
		return netip.MustParseAddr(map[netstate.Family]string{netstate.IPv4: v4, netstate.IPv6: v6}[f])
	}
}

func of(pod string) func(spoofer, netstate.Family) netip.Addr {
	return func(s spoofer, f netstate.Family) netip.Addr { return s.pods[pod].Addr(f) }
}

const linkLocal, strangeVLAN, neighbours, remotes = "a link-local address", "own address, VLAN 5", "another local pod's",
	"a remote pod's"

var spoofs = []spoof{
	{name: "own address"},
	{name: "own address, another MAC", otherMAC: true},
	{name: "own address, fragments", fragments: true},
	{name: "own address, VLAN 0", tags: []uint32{etherVLAN << 16}},
	{name: "own address, service VLAN 0", tags: []uint32{etherService << 16}},
	{name: "own address, two VLANs 0", tags: []uint32{etherVLAN << 16, etherVLAN << 16}},
	{name: strangeVLAN, tags: []uint32{etherVLAN<<16 | 5}},
	{name: "a local pod's", from: of("open")},
	{name: "a local pod's, another MAC", from: of("open"), otherMAC: true},
	{name: "a local pod's, fragments", from: of("open"), fragments: true},
	{name: "a local pod's, VLAN 0", from: of("open"), tags: []uint32{etherVLAN << 16}},
	{name: neighbours, from: of("neighbour")},
	{name: remotes, from: of("remote")},
	{name: remotes + ", another MAC", from: of("remote"), otherMAC: true},
	{name: remotes + ", fragments", from: of("remote"), fragments: true},
	{name: "an outside address", from: address("192.0.2.7", "2001:db8::7")},
	{name: "an outside address, fragments", from: address("192.0.2.7", "2001:db8::7"), fragments: true},
	{name: "no address", from: address("0.0.0.0", "::")},
	{name: linkLocal, from: address("169.254.1.7", "fe80::7")},
}

// TestSpoofed: a pod that is isolated for egress reaches nobody whom its policies do not let it reach, whatever it writes into
// its frames; and what pods may send passes.
func TestSpoofed(t *testing.T) {
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) { spoofed(t, backend) })
	}
}

func spoofed(t *testing.T, backend string) {
	t.Helper()
	l := labtest.Start(t, lab.Spec{Name: "tspoof", Nodes: 2, Family: lab.Dual, Backend: backend, Store: lab.File, NetworkPolicy: true})
	s := newSpoofer(t, l)
	senders := []string{"isolated", "limited", "open"}
	before := s.round(t, senders)
	for _, spoof := range spoofs {
		arrives := slices.ContainsFunc(slices.Collect(maps.Keys(before)), func(f flight) bool { return f.spoof == spoof.name })
		if arrives == (spoof.name == strangeVLAN) {
			t.Errorf("%s: without policies it arrives: %v", spoof.name, arrives)
		}
	}
	if err := l.ApplyManifest("policy.yaml", []byte(spoofPolicies)); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	s.check(t, "with policies", before, senders)
	node := l.Nodes()[0]
	stop := s.keepSpoofing(t, "isolated")
	stream, err := s.pods["limited"].Stream(s.pods["allowed"].Addr(netstate.IPv4), 5*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	begin := stream.Mark()
	if err := node.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	late, err := node.AddPod(t.Context(), "late")
	if err != nil {
		t.Fatal(err)
	}
	s.pods["late"] = late
	s.check(t, "without an agent", before, append(senders, "late"))
	if err := node.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := node.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	testwait.Until(t, "a hundred pings", func() bool { return stream.Mark() >= begin+100 })
	if loss, err := stream.Between(t.Context(), begin, stream.Mark()); err != nil || loss.Lost > 0 {
		t.Errorf("while the agent started again: %s, %v", loss, err)
	}
	if got := stop(); len(got) > 0 {
		t.Errorf("while the agent started again, %d packets arrive, such as %v", len(got), got[0])
	}
	s.check(t, "with an agent again", before, append(senders, "late"))
	if err := l.DeleteManifest("policy.yaml"); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	after := s.round(t, senders)
	for f := range before {
		if !after[f] {
			t.Errorf("when the policies are gone: %+v does not arrive any more", f)
		}
	}
}

// flight is one packet, by what can be expected of it.
type flight struct {
	sender, spoof, to string
	family            netstate.Family
	routed            bool // over the node, not from port to port of the bridge
}

// spoofer sends, and knows what arrived.
type spoofer struct {
	node    *lab.Node
	pods    map[string]*lab.Pod
	targets map[string][]netip.Addr
	local   map[string]bool

	*arrivals
}

// arrivals are what receivers got.
type arrivals struct {
	mu      sync.Mutex
	port    uint16
	flying  map[string]flight // by payload
	arrived map[flight]bool
	log     []flight
}

func newSpoofer(t *testing.T, l *lab.Lab) spoofer {
	t.Helper()
	nodes := l.Nodes()
	s := spoofer{node: nodes[0], pods: map[string]*lab.Pod{}, targets: map[string][]netip.Addr{}, local: map[string]bool{},
		arrivals: &arrivals{port: 10000, flying: map[string]flight{}, arrived: map[flight]bool{}}}
	for name, node := range map[string]*lab.Node{"isolated": nodes[0], "limited": nodes[0], "open": nodes[0], "protected": nodes[0],
		"victim": nodes[0], "neighbour": nodes[0], "allowed": nodes[1], "remote": nodes[1]} {
		pod, err := node.AddPod(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		s.pods[name] = pod
	}
	outside, addrs := l.Outside()
	s.receive(t, "outside", outside, addrs)
	for _, name := range []string{"protected", "victim", "allowed", "remote"} {
		s.receive(t, name, s.pods[name].Host, s.pods[name].Addrs)
		s.local[name] = s.pods[name].Node == s.node
	}
	return s
}

// receive notes what comes to the addresses of a target.
func (s spoofer) receive(t *testing.T, name string, h host.Host, addrs []netip.Addr) {
	t.Helper()
	s.targets[name] = addrs
	for _, a := range addrs {
		conn := listen(t, h, netip.AddrPortFrom(a, port))
		go func() {
			for b := make([]byte, 200); ; {
				n, _, err := conn.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				s.mu.Lock()
				if f, ok := s.flying[string(b[:n])]; ok {
					s.arrived[f] = true
					s.log = append(s.log, f)
				}
				s.mu.Unlock()
			}
		}()
	}
}

// flights returns the frames for all targets, in all ways.
func (s spoofer) flights(sender string) (all []forged) {
	pod := s.pods[sender]
	for _, spoof := range spoofs {
		for name, addrs := range s.targets {
			for _, to := range addrs {
				for _, routed := range []bool{true, false} {
					if routed || s.local[name] {
						all = append(all, s.flight(pod, spoof, flight{sender, spoof.name, name, netstate.FamilyOf(to), routed}, to))
					}
				}
			}
		}
	}
	return all
}

func (s spoofer) flight(pod *lab.Pod, spoof spoof, f flight, to netip.Addr) forged {
	src, dst := netstate.BridgeMAC(pod.Addrs[0]), gateway(s.node)
	if spoof.otherMAC {
		src = netstate.MAC{2, 0, 0, 0, 0, 0x77}
	}
	if !f.routed {
		dst = netstate.BridgeMAC(s.pods[f.to].Addrs[0])
	}
	from := pod.Addr(f.family)
	if !spoof.own() {
		from = spoof.from(s, f.family)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.port++ // no packet may look like the answer to another
	payload := fmt.Sprintf("%-40s", fmt.Sprint("packet ", s.port, " of ", f.sender))
	s.flying[payload] = f
	return forged{dst: dst, src: src, tags: spoof.tags, from: from, to: netip.AddrPortFrom(to, port), port: s.port,
		payload: payload, fragments: spoof.fragments}
}

// round sends everything in all ways until nothing else arrives twice in a row, and returns what arrived: the first of a row
// may wait for a neighbour, and be one too many.
func (s spoofer) round(t *testing.T, senders []string) map[flight]bool {
	t.Helper()
	s.mu.Lock()
	clear(s.arrived)
	s.mu.Unlock()
	var got map[flight]bool
	for before, same := -1, 0; same < 2; before = len(got) {
		for _, sender := range senders {
			for some := range slices.Chunk(s.flights(sender), 20) {
				send(t, s.pods[sender], some...)
				testwait.Pause(t, 10*time.Millisecond, "queues lose nothing")
			}
		}
		testwait.Pause(t, 250*time.Millisecond, "what is under way arrives, or never does")
		s.mu.Lock()
		got = maps.Clone(s.arrived)
		s.mu.Unlock()
		if same++; len(got) != before {
			same = 0
		}
	}
	return got
}

// check sends everything, and compares what arrives with what may.
func (s spoofer) check(t *testing.T, when string, before map[flight]bool, senders []string) {
	t.Helper()
	got := s.round(t, senders)
	count, passed := 0, 0
	for _, sender := range senders {
		for _, spoof := range spoofs {
			for to, addrs := range s.targets {
				for _, a := range addrs {
					for _, routed := range []bool{true, false} {
						f := flight{sender, spoof.name, to, netstate.FamilyOf(a), routed}
						if !routed && !s.local[to] {
							continue
						}
						want := before[f] && s.mayPass(f, spoof)
						if count++; got[f] {
							passed++
						}
						if got[f] != want {
							t.Errorf("%s: %+v arrives: %v, want %v", when, f, got[f], want)
						}
					}
				}
			}
		}
	}
	t.Logf("%s: %d ways, %d arrive", when, count, passed)
}

// mayPass reports whether policies allow what a sender sends. Nobody may send tagged frames, in the name of another pod, and
// to one of the node from a link-local address.
func (s spoofer) mayPass(f flight, spoof spoof) bool {
	switch {
	case len(spoof.tags) > 0, f.to == "protected", spoof.name == neighbours, strings.HasPrefix(spoof.name, remotes), s.local[f.to] && spoof.name == linkLocal:
		return false
	case f.sender == "limited":
		return spoof.own() && f.to == "allowed"
	}
	return f.sender == "open"
}

// keepSpoofing sends in all ways until it is stopped, and returns what arrived.
func (s spoofer) keepSpoofing(t *testing.T, sender string) (stop func() []flight) {
	t.Helper()
	s.mu.Lock()
	s.log = nil
	s.mu.Unlock()
	end, ended := make(chan struct{}), make(chan struct{})
	all := s.flights(sender)
	go func() {
		defer close(ended)
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-end:
				tick.Stop()
				return
			case <-tick.C:
				send(t, s.pods[sender], all...)
			}
		}
	}()
	return func() []flight {
		close(end)
		<-ended
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.DeleteFunc(slices.Clone(s.log), func(f flight) bool { return f.sender != sender })
	}
}
