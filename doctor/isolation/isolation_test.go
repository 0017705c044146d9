package isolation_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/twill-net/twill/doctor/isolation"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// TestJudge: the tables of drawn clusters say of each connection, and of protocols without ports, what the policies say.
func TestJudge(t *testing.T) {
	denied, flows := 0, 0
	for seed := range uint64(4) {
		w := policytest.New(seed)
		w.NotIn, w.Cluster, w.More = true, int(seed%3)*2, int(seed/3)*6
		s := w.Snapshot(3, 6)
		rules, _ := policy.New(s)
		tables := map[string]isolation.Tables{}
		for node := 1; node <= w.Nodes; node++ {
			site := w.Site(node)
			site.Log = seed%2 == 1
			state, _ := policy.Desired(site, s)
			tables[site.Node] = isolation.New(state)
		}
		for _, f := range policytest.Flows(s, policy.TCP, policy.UDP, policy.SCTP, "ICMP") {
			want := rules.Judge(f)
			if !want.Allowed() {
				denied++
			}
			flows++
			for node, table := range tables {
				for _, v := range table.Judge(f.From.Addr, f.To.Addr) {
					side, end := want.Egress, f.From
					if v.Direction == policy.Ingress {
						side, end = want.Ingress, f.To
					}
					if v.Unread || v.Unknown || rules.Applying(v.Direction, end).None() || end.Pod.Node != node ||
						v.Allows(f.Protocol, f.Port) != side.Allowed() {
						t.Fatalf("seed %d, %s on %s: got %+v, want %+v", seed, f, node, v, side)
					}
				}
			}
			isolated := !rules.Applying(policy.Egress, f.From).None()
			if judgesEgress(tables, f) != isolated {
				t.Fatalf("seed %d, %s: what isolates the sender is seen: %t, want %+v", seed, f, !isolated, want.Egress)
			}
		}
	}
	if denied < flows/10 || denied > flows*9/10 {
		t.Errorf("%d of %d connections are denied: the policies that are drawn say little", denied, flows)
	}
}

// judgesEgress reports whether a node has rules about what the sender sends.
func judgesEgress(tables map[string]isolation.Tables, f policy.Flow) bool {
	for _, table := range tables {
		for _, v := range table.Judge(f.From.Addr, f.To.Addr) {
			if v.Direction == policy.Egress {
				return true
			}
		}
	}
	return false
}

// TestUnknown: addresses of the node that no pod has, chains that policies did not make, and a kernel without a table.
func TestUnknown(t *testing.T) {
	w := policytest.New(1)
	s := w.Snapshot(1, 0)
	state, _ := policy.Desired(w.Site(1), s)
	pod, nobody, outside := s.Pods[0].Addrs[0], netip.MustParseAddr("10.244.1.77"), netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		src, dst netip.Addr
		want     policy.Direction
	}{{nobody, outside, policy.Egress}, {outside, nobody, policy.Ingress}, {pod, nobody, policy.Ingress}, {pod, outside, ""}} {
		got := isolation.New(state).Judge(c.src, c.dst)
		if c.want == "" && len(got) == 0 {
			continue
		}
		if len(got) != 1 || !got[0].Unknown || got[0].Direction != c.want || got[0].Allows(policy.TCP, 80) {
			t.Errorf("%s to %s: got %+v", c.src, c.dst, got)
		}
	}
	state.Add(netstate.Element{Set: "ingress", Prefix: netstate.Host(pod), Verdict: "goto in-1"},
		netstate.Filter{Family: netstate.IPv4, Name: "in-1", Rules: "saddr 10.0.0.0/8 accept\nlimit rate 1/second accept\ndrop"})
	if got := isolation.New(state).Judge(outside, pod); len(got) != 1 || !got[0].Unread || !got[0].Allows(policy.TCP, 80) {
		t.Errorf("a chain with other rules: got %+v", got)
	}
	delete(state, netstate.Hook{Family: netstate.IPv4}.Key())
	if got := isolation.New(state).Judge(outside, pod); got != nil {
		t.Errorf("without a hook: got %+v", got)
	}
	if got := (isolation.Tables{}).Judge(outside, pod); got != nil {
		t.Errorf("without tables: got %+v", got)
	}
}

// TestAllowed: what passes, for people.
func TestAllowed(t *testing.T) {
	pod, peer := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.2.2")
	state := netstate.NewState(netstate.Hook{Family: netstate.IPv4},
		netstate.Element{Set: "ingress", Prefix: netstate.Host(pod), Verdict: "goto in-1"},
		netstate.Set{Family: netstate.IPv4, Name: "port-1", Type: netstate.NamedPorts},
		netstate.Element{Set: "port-1", Prefix: netstate.Host(pod), Protocol: 17, Port: 53},
		netstate.Filter{Family: netstate.IPv4, Name: "in-1", Rules: "saddr 10.244.2.0/24 tcp dport 80 accept\n" +
			"tcp dport 100-200 accept\nsaddr 10.9.0.0/16 accept\nproto 132 accept\n" +
			"daddr . proto . port @port-1 accept\ncounter drop\nproto 6 accept"})
	got := isolation.New(state).Judge(peer, pod)
	if len(got) != 1 || got[0].All() || got[0].Chain != "in-1" {
		t.Fatalf("got %+v", got)
	}
	var texts []string
	for _, p := range got[0].Allowed {
		texts = append(texts, p.String())
	}
	if want := []string{"TCP 80", "TCP 100–200", "SCTP", "UDP 53"}; !slices.Equal(texts, want) {
		t.Errorf("got %q, want %q", texts, want)
	}
	if len(got[0].Denied) > 0 {
		t.Errorf("denied is %v", got[0].Denied)
	}
	if got[0].Allows(policy.TCP, 201) || !got[0].Allows(policy.TCP, 200) || got[0].Allows("ICMP", 0) {
		t.Errorf("got %+v", got[0])
	}
}

// TestTiers: what a chain drops, and what it goes on to another chain with.
func TestTiers(t *testing.T) {
	pod, peer := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.2.2")
	state := netstate.NewState(netstate.Hook{Family: netstate.IPv4},
		netstate.Element{Set: "ingress", Prefix: netstate.Host(pod), Verdict: "goto in-1"},
		netstate.Filter{Family: netstate.IPv4, Name: "in-1", Rules: "tcp dport 22-23 counter drop\ntcp dport 80-90 goto in-2\n" +
			"tcp dport 1-100 accept\nproto 17 goto in-2\naccept"},
		netstate.Filter{Family: netstate.IPv4, Name: "in-2", Rules: "tcp dport 85 accept\nudp dport 53 accept\ncounter drop"})
	got := isolation.New(state).Judge(peer, pod)
	if len(got) != 1 || got[0].Unread || got[0].All() {
		t.Fatalf("got %+v", got)
	}
	v := got[0]
	for port, want := range map[uint16]bool{22: false, 24: true, 84: false, 85: true, 86: false, 91: true, 101: true} {
		if v.Allows(policy.TCP, port) != want {
			t.Errorf("TCP %d passes: %v, want %v", port, !want, want)
		}
	}
	if v.Allows(policy.UDP, 54) || !v.Allows(policy.UDP, 53) || !v.Allows(policy.SCTP, 54) {
		t.Errorf("got %+v", v)
	}
	allowed := []isolation.Ports{{policy.TCP, 85, 85}, {policy.TCP, 1, 100}, {policy.UDP, 53, 53}, {}}
	denied := []isolation.Ports{{policy.TCP, 22, 23}, {policy.TCP, 80, 90}, {Protocol: policy.UDP}}
	if !slices.Equal(v.Allowed, allowed) || !slices.Equal(v.Denied, denied) {
		t.Errorf("got %v but %v, want %v but %v", v.Allowed, v.Denied, allowed, denied)
	}
	for _, rules := range []string{"goto in-1", "limit rate 1/second accept"} { // a circle, and what policies do not make
		state.Add(netstate.Filter{Family: netstate.IPv4, Name: "in-2", Rules: rules})
		if got := isolation.New(state).Judge(peer, pod); len(got) != 1 || !got[0].Unread {
			t.Errorf("with %q: got %+v", rules, got)
		}
	}
}
