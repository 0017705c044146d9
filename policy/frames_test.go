package policy_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// frame is what comes in through a port.
type frame struct {
	dev, holds string // ip, ip6, arp, or anything else
	group      int
	from, to   netip.Addr
}

// passesFrame reports whether a frame passes the bridge.
func (m machine) passesFrame(f frame) bool {
	hook, ok := m.state[netstate.Hook{Family: netstate.Ethernet}.Key()].(netstate.Hook)
	if !ok || f.group != netstate.PortGroup {
		return true
	}
	if rules := strings.TrimPrefix(hook.Rules, "iifgroup 116 mark clear 0x10000000\n"); rules != "iifgroup 116 goto frames" {
		m.Fatalf("the hook is %q", hook.Rules)
	}
	for _, rule := range strings.Split(m.chain(netstate.Ethernet, "frames"), "\n") {
		if end, ok := m.matchesFrame(rule, f); ok {
			return end == "return"
		}
	}
	return true
}

// matchesFrame returns a rule's end, if the frame meets its conditions.
func (m machine) matchesFrame(rule string, f frame) (end string, ok bool) {
	for words := strings.Fields(rule); ; {
		taken := 2
		switch words[0] {
		case "ether":
			taken, ok = 3, words[2] == f.holds
		case "saddr":
			ok = netip.MustParsePrefix(words[1]).Contains(f.from)
		case "daddr":
			ok = netip.MustParsePrefix(words[1]).Contains(f.to)
		case "iifname":
			e := netstate.Element{Set: strings.TrimPrefix(words[1], "@"), Dev: f.dev}
			if words[1] == "." {
				taken, e.Set, e.Prefix = 5, words[4][1:], netstate.Host(f.from)
			}
			_, ok = m.state[e.Key()]
		case "counter":
			taken, ok = 1, true
		default:
			return words[0], true
		}
		if !ok {
			return "", false
		}
		words = words[taken:]
	}
}

// TestFrames: while there is a policy, a pod's port takes its own addresses always, and others, but those of pods,
// only if none applies to the pod's egress. Ports of other plugins take anything.
func TestFrames(t *testing.T) {
	tried := map[[2]bool]int{}
	for seed := range uint64(60) {
		w := policytest.New(seed)
		w.Cluster = int(seed % 3)
		s, site := w.Snapshot(4, 4), w.Site(1)
		rules, _ := policy.New(s)
		site.Ports = w.Ports(s, 1)
		state, _ := policy.Desired(site, s)
		m := machine{t, state}
		var sources []netip.Addr
		for _, p := range s.Pods {
			sources = append(sources, p.Addrs...)
		}
		for _, p := range site.Ports {
			own := p.Addresses()
			free := len(own) == 0 || !slices.ContainsFunc(own, func(a netip.Addr) bool {
				i := slices.IndexFunc(s.Pods, func(p *policy.Pod) bool { return slices.Contains(p.Addrs, a) })
				return i < 0 || !rules.Applying(policy.Egress, policy.Endpoint{Addr: a, Pod: s.Pods[i]}).None()
			})
			for _, from := range slices.Concat(sources, policytest.Outside, own) {
				f := frame{dev: p.Name, holds: "ip", group: p.Group(), from: from, to: policytest.Outside[0]}
				if from.Is6() {
					f.holds, f.to = "ip6", policytest.Outside[2]
				}
				isPod := slices.ContainsFunc(site.Networks, func(s netip.Prefix) bool { return s.Contains(from) })
				want := len(s.Policies)+len(s.ClusterPolicies) == 0 || free && (len(own) == 0 || !isPod) || slices.Contains(own, from)
				tried[[2]bool{free, want}]++
				if got := m.passesFrame(f); got != want {
					t.Fatalf("seed %d: %+v passes: %v, want %v\n%s", seed, f, got, want, state)
				}
			}
		}
	}
	for _, kind := range [][2]bool{{true, true}, {false, true}, {false, false}} {
		if tried[kind] < 500 {
			t.Errorf("of frames of unchecked ports, that pass, %v were tried", tried)
		}
	}
}

// TestOtherFrames: what is not judged by its addresses.
func TestOtherFrames(t *testing.T) {
	addr := netip.MustParseAddr
	pod := &policy.Pod{Namespace: "x", Name: "web", Node: "node1", Addrs: []netip.Addr{addr("10.244.1.2"), addr("fd00::2")}}
	site := policy.Site{Node: "node1", Bridge: "cni0", Ports: []netstate.Port{netstate.Port{Name: "veth1"}.WithAddrs(pod.Addrs)}}
	deny := policy.NetworkPolicy{}
	deny.Namespace, deny.Spec.PolicyTypes = "x", []policy.Direction{policy.Egress}
	state, _ := policy.Desired(site, policy.Snapshot{Pods: []*policy.Pod{pod}, Policies: []policy.NetworkPolicy{deny}})
	other := deny
	other.Namespace = "y"
	open, _ := policy.Desired(site, policy.Snapshot{Pods: []*policy.Pod{pod}, Policies: []policy.NetworkPolicy{other}})
	for what, test := range map[string]struct {
		frame
		isolated, unselected bool
	}{
		"ARP":                   {frame{holds: "arp"}, true, true},
		"own":                   {frame{holds: "ip", from: pod.Addrs[0]}, true, true},
		"own IPv6":              {frame{holds: "ip6", from: pod.Addrs[1]}, true, true},
		"another's":             {frame{holds: "ip", from: addr("10.244.1.3")}, false, true},
		"another's IPv6":        {frame{holds: "ip6", from: addr("fd00::3")}, false, true},
		"own under a tag":       {frame{holds: "vlan", from: pod.Addrs[0]}, false, false},
		"neighbour discovery":   {frame{holds: "ip6", from: addr("fe80::1"), to: addr("fd00::1")}, true, true},
		"address detection":     {frame{holds: "ip6", from: addr("::"), to: addr("ff02::1:ff00:2")}, true, true},
		"from nowhere":          {frame{holds: "ip6", from: addr("::"), to: addr("fd00::1")}, false, true},
		"from nowhere, IPv4":    {frame{holds: "ip", from: addr("0.0.0.0"), to: addr("10.244.1.1")}, false, true},
		"of a group to nowhere": {frame{holds: "ip6", from: addr("::"), to: addr("ff05::1")}, false, true},
	} {
		f := test.frame
		f.dev, f.group = "veth1", netstate.PortGroup
		for s, want := range map[*netstate.State]bool{&state: test.isolated, &open: test.unselected} {
			if got := (machine{t, *s}).passesFrame(f); got != want {
				t.Errorf("%s passes: %v, want %v", what, got, want)
			}
		}
		f.dev = "vethnew"
		if got := (machine{t, open}).passesFrame(f); got != (test.isolated && !slices.Contains(pod.Addrs, f.from)) {
			t.Errorf("%s from a port that is not known passes: %v", what, got)
		}
		if f.group = 0; !(machine{t, state}).passesFrame(f) {
			t.Errorf("%s from another plugin's port does not pass", what)
		}
	}
	if none, _ := policy.Desired(site, policy.Snapshot{Pods: []*policy.Pod{pod}}); strings.Contains(none.String(), "bridge") {
		t.Errorf("without policies frames are looked at:\n%s", none)
	}
}

// TestBridged: while a pod is isolated, rules about packets mark those between two pods before anything accepts them, and rules about
// frames clear the mark of what comes in from a pod, and let nothing else go on to another one. At other times nothing needs it.
func TestBridged(t *testing.T) {
	pod := &policy.Pod{Namespace: "x", Name: "web", Node: "node1", Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.2")}}
	site := policy.Site{Node: "node1", Bridge: "cni0"}
	deny := policy.NetworkPolicy{}
	deny.Namespace = "x"
	s := policy.Snapshot{Pods: []*policy.Pod{pod}, Policies: []policy.NetworkPolicy{deny}}
	isolated, _ := policy.Desired(site, s)
	table, _ := policy.NewTable(site, s)
	closing := table.Closing(netstate.IPv4, netstate.IPv6, netstate.Ethernet)
	audited := site
	audited.Audit = true
	audit, _ := policy.Desired(audited, s)
	s.Pods = nil
	idle, _ := policy.Desired(site, s)
	const lacks = "mark without 0x10000000 counter drop"
	onward := "iifgroup 116 oifgroup 116 ether type ip " + lacks + "\niifgroup 116 oifgroup 116 ether type ip6 " + lacks
	for _, test := range []struct {
		what  string
		state netstate.State
		want  bool
	}{{"isolated", isolated, true}, {"closing", closing, true}, {"audit", audit, false}, {"nobody isolated", idle, false}} {
		first := func(h netstate.Hook) string {
			hook, _ := test.state[h.Key()].(netstate.Hook)
			rule, _, _ := strings.Cut(hook.Rules, "\n")
			return rule
		}
		for _, family := range netstate.Families {
			if got := first(netstate.Hook{Family: family}); got == "iifname cni0 oifname cni0 mark set 0x10000000" != test.want {
				t.Errorf("%s: the first rule of %s is %q", test.what, family, got)
			}
		}
		if got := first(netstate.Hook{Family: netstate.Ethernet}); got == "iifgroup 116 mark clear 0x10000000" != test.want {
			t.Errorf("%s: the first rule about frames is %q", test.what, got)
		}
		hook, ok := test.state[netstate.Hook{Family: netstate.Ethernet, Onward: true}.Key()].(netstate.Hook)
		if !ok || hook.Rules == onward != test.want || hook.Rules == "" == test.want {
			t.Errorf("%s: the rules about frames that go on are %q", test.what, hook.Rules)
		}
	}
}
