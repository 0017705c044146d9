package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
	"github.com/twill-net/twill/subnet"
)

// TestTable reads the tables of drawn clusters as the kernel would, and compares what they do to each connection with the
// verdict: on the node of each end, that end's policies.
func TestTable(t *testing.T) {
	flows, passed, held := 0, 0, 0
	for seed := range uint64(120) {
		w := policytest.New(seed)
		w.NotIn, w.Cluster, w.More = true, int(seed%5), int(seed%3)*4
		s := w.Snapshot(3, 6)
		rules, _ := policy.New(s)
		machines := map[string]machine{}
		for node := 1; node <= w.Nodes; node++ {
			site := w.Site(node)
			site.Log = seed%2 == 0
			state, _ := policy.Desired(site, s)
			machines[site.Node] = machine{t, state}
		}
		for _, f := range policytest.Flows(s, policy.TCP, policy.UDP, policy.SCTP) {
			v := rules.Judge(f)
			sent, arrives := true, true
			if f.From.Pod != nil {
				sent = machines[f.From.Pod.Node].passes(f)
				// If it were the pod's own node that is sent to, NetworkPolicies would not be asked.
				want := v.Egress.Decision == nil || v.Egress.Decision.Action == policy.Accept
				if got := machines[f.From.Pod.Node].reachesNode(f); got != want && f.From.Pod != f.To.Pod {
					t.Fatalf("seed %d: %s passes to the node: %v, want %+v\n%s", seed, f, got, v, machines["node1"].state)
				}
				if !want {
					held++
				}
			}
			if f.To.Pod != nil {
				arrives = machines[f.To.Pod.Node].passes(f)
			}
			for _, m := range machines {
				if seed%10 > 0 {
					break // one in ten is enough, and it takes its time
				}
				if m.answered(f) != m.passes(f) {
					t.Fatalf("seed %d: %s passes: %v, and its replies: %v\n%s", seed, f, m.passes(f), m.answered(f), m.state)
				}
				for who, from := range map[string]netip.Addr{"who began it": f.From.Addr, "who answers": f.To.Addr,
					"a router": router[netstate.FamilyOf(f.From.Addr)]} {
					if m.errs(f, from) != m.passes(f) {
						t.Fatalf("seed %d: %s passes: %v, and ICMP errors of %s: %v\n%s", seed, f, m.passes(f), who, m.errs(f, from), m.state)
					}
				}
			}
			if flows++; v.Allowed() {
				passed++
			}
			if got := sent && arrives; got != v.Allowed() {
				t.Fatalf("seed %d: %s passes: %v, want %+v\n%s", seed, f, got, v, machines["node1"].state)
			}
		}
	}
	if passed < flows/10 || passed > flows*9/10 || held < flows/50 {
		t.Errorf("%d of %d flows pass, %d may not even reach the node: the policies that are drawn say little", passed, flows, held)
	}
}

// TestFollow follows pods and ports that come, go, and change, and compares each table with one that is made anew.
func TestFollow(t *testing.T) {
	followed, anew := 0, 0
	for seed := range uint64(40) {
		w := policytest.New(seed)
		w.Cluster, w.More = int(seed%4), int(seed%3)*4
		s, site := w.Snapshot(4, 6), w.Site(1)
		site.Ports, site.Log = w.Ports(s, 1), seed%2 == 0
		table, _ := policy.NewTable(site, s)
		have := clone(table.State())
		for step := range 30 {
			var changes []policy.PodChange
			for range w.IntN(4) {
				changes = append(changes, draw(w, &s, step))
			}
			if w.IntN(2) == 0 {
				site.Ports = w.Ports(s, 1)
			}
			if w.IntN(4) == 0 { // a snapshot may be ahead of the changes
				table, _ = policy.NewTable(site, s)
				have = clone(table.State())
			}
			plan, ok := table.Follow(site, changes)
			want, _ := policy.Desired(site, s)
			if !ok {
				anew++
				if d := netstate.Diff(have, table.State()); len(d) > 0 {
					t.Fatalf("seed %d, step %d: what cannot be followed changes the state:\n%s", seed, step, d)
				}
				table, _ = policy.NewTable(site, s)
				have = clone(want)
				continue
			}
			followed++
			for _, c := range plan {
				if c.Was != have[c.Key()] {
					t.Fatalf("seed %d, step %d: %s is planned, but there is %v", seed, step, c, have[c.Key()])
				}
				if delete(have, c.Key()); c.Want != nil {
					have.Add(c.Want)
				}
			}
			for what, got := range map[string]netstate.State{"the plans": have, "the state": table.State()} {
				if d := netstate.Diff(want, got); len(d) > 0 {
					t.Fatalf("seed %d, step %d, %+v: %s lack\n%s", seed, step, changes, what, d)
				}
			}
		}
	}
	if followed < anew/3 {
		t.Errorf("only %d of %d changes were followed", followed, followed+anew)
	}
}

func clone(s netstate.State) netstate.State {
	all := netstate.State{}
	all.Merge(s)
	return all
}

// draw changes a pod of a snapshot: a new one, perhaps with another's address, one less, or one with other labels,
// addresses, ports or phase.
func draw(w policytest.World, s *policy.Snapshot, step int) policy.PodChange {
	i := w.IntN(len(s.Pods))
	old := s.Pods[i]
	fresh := w.Pod(1+w.IntN(w.Nodes), 10+w.IntN(6))
	fresh.Created, fresh.UID, fresh.Name = time.Unix(int64(10000+step), 0), fmt.Sprint(step, w.Uint64()), fmt.Sprint("new", w.Uint64())
	switch w.IntN(5) {
	case 0:
		s.Pods = append(slices.Clone(s.Pods), &fresh)
		return policy.PodChange{Now: &fresh}
	case 1:
		fresh.Node, fresh.Addrs = old.Node, old.Addrs
		s.Pods = append(slices.Clone(s.Pods), &fresh)
		return policy.PodChange{Now: &fresh}
	case 2:
		if len(s.Pods) > 5 {
			s.Pods = slices.Delete(slices.Clone(s.Pods), i, i+1)
			return policy.PodChange{Was: old}
		}
	}
	changed := *old
	switch w.IntN(4) {
	case 0:
		changed.Labels = w.Labels()
	case 1:
		changed.Ended = !changed.Ended
	case 2:
		changed.Ports = fresh.Ports
	case 3:
		changed.Addrs = changed.Addrs[:w.IntN(len(changed.Addrs)+1)]
		if len(changed.Addrs) == 0 {
			changed.Addrs = fresh.Addrs
		}
	}
	s.Pods = slices.Clone(s.Pods)
	s.Pods[i] = &changed
	return policy.PodChange{Was: old, Now: &changed}
}

// TestUnknownPod: nothing passes to or from an address of the node that no pod is known to have.
func TestUnknownPod(t *testing.T) {
	w := policytest.New(1)
	s := w.Snapshot(1, 0)
	state, _ := policy.Desired(w.Site(1), s)
	m := machine{t, state}
	known, unknown, outside := endpoint("10.244.1.2"), endpoint("10.244.1.77"), endpoint("192.0.2.1")
	known.Pod = s.Pods[0]
	for _, c := range []struct {
		from, to policy.Endpoint
		want     bool
	}{{known, outside, true}, {outside, known, true}, {unknown, outside, false}, {outside, unknown, false}, {known, unknown, false}} {
		if got := m.passes(policy.Flow{From: c.from, To: c.to, Protocol: policy.TCP, Port: 80}); got != c.want {
			t.Errorf("%s to %s passes: %v, want %v", c.from, c.to, got, c.want)
		}
	}
}

func endpoint(addr string) policy.Endpoint { return policy.Endpoint{Addr: netip.MustParseAddr(addr)} }

// machine is a kernel with a table.
type machine struct {
	*testing.T
	state netstate.State
}

// router has addresses that are no pod's.
var router = map[netstate.Family]netip.Addr{netstate.IPv4: netip.MustParseAddr("192.0.2.254"), netstate.IPv6: netip.MustParseAddr("2001:db8::fe")}

// passes reports whether the first packet of a connection passes the hook.
func (m machine) passes(f policy.Flow) bool {
	family := netstate.FamilyOf(f.From.Addr)
	hook, ok := m.state[netstate.Hook{Family: family}.Key()].(netstate.Hook)
	if !ok {
		m.Fatalf("there is no hook of %s:\n%s", family, m.state)
	}
	return m.run(hook.Rules, family, f) != "drop"
}

// answered reports whether replies pass in a connection that has begun.
func (m machine) answered(f policy.Flow) bool {
	family := netstate.FamilyOf(f.From.Addr)
	return m.run(m.chain(family, "backwards"), family, f) != "drop"
}

// errs reports whether an ICMP error about a connection passes that comes from an address.
func (m machine) errs(f policy.Flow, from netip.Addr) bool {
	family := netstate.FamilyOf(f.From.Addr)
	var lines []string // with who sends the error: the model knows the connection alone
	for line := range strings.SplitSeq(m.chain(family, "errors"), "\n") {
		words := strings.Fields(line)
		switch {
		case !strings.HasPrefix(line, "errors from"):
		case from == address(words[3], f) && m.isSelf(words[4], from):
			line = words[5]
		default:
			continue
		}
		lines = append(lines, line)
	}
	last := len(lines) - 1
	if lines[last] == "goto egress" {
		lines[last] = "return"
		if m.run("jump egress", family, policy.Flow{From: policy.Endpoint{Addr: from}, To: f.To, Protocol: "ICMP"}) == "drop" {
			lines[last] = "drop"
		}
	}
	return m.run(strings.Join(lines, "\n"), family, f) != "drop"
}

// isSelf reports whether a set of pairs has an address twice.
func (m machine) isSelf(set string, addr netip.Addr) bool {
	_, ok := m.element(set, addr, "", 0)
	return ok
}

// reachesNode reports whether it passes if it is sent to an address of the node's.
func (m machine) reachesNode(f policy.Flow) bool {
	hook, _ := m.state[netstate.Hook{Family: netstate.FamilyOf(f.From.Addr), Local: true}.Key()].(netstate.Hook)
	return hook.Rules == "" || m.run(hook.Rules, hook.Family, f) != "drop"
}

// run is the verdict of a chain: accept, drop or return. Return is also what its end does.
func (m machine) run(rules string, family netstate.Family, f policy.Flow) string {
	for _, rule := range strings.Split(rules, "\n") {
		words := strings.Fields(strings.TrimPrefix(strings.TrimPrefix(rule, "backwards "), "errors "))
		for len(words) > 0 && m.matches(&words, family, f) {
			if len(words) > 0 && words[0] == "counter" {
				words = words[1:]
			}
			end := strings.Join(words, " ")
			switch {
			case end == "accept" || end == "drop" || end == "return":
				return end
			case words[0] == "log", words[0] == "mark":
				words = nil
			case words[0] == "goto":
				return m.run(m.chain(family, words[1]), family, f)
			case words[0] == "jump":
				if v := m.run(m.chain(family, words[1]), family, f); v != "return" {
					return v
				}
				words = nil
			case len(words) == 3 && words[1] == "vmap":
				e, ok := m.element(words[2], address(words[0], f), "", 0)
				if name, jumps := strings.CutPrefix(e.Verdict, "goto "); ok && jumps {
					return m.run(m.chain(family, name), family, f)
				} else if ok {
					return e.Verdict
				}
				words = nil
			}
		}
	}
	return "return"
}

func (m machine) chain(family netstate.Family, name string) string {
	c, ok := m.state[netstate.Filter{Family: family, Name: name}.Key()].(netstate.Filter)
	if !ok {
		m.Fatalf("there is no chain %s:\n%s", name, m.state)
	}
	return c.Rules
}

func (m machine) element(set string, addr netip.Addr, protocol policy.Protocol, port uint16) (netstate.Element, bool) {
	e := netstate.Element{Set: set[1:], Prefix: netstate.Host(addr), Port: port,
		Protocol: map[policy.Protocol]uint8{policy.TCP: 6, policy.UDP: 17, policy.SCTP: 132}[protocol]}
	found, ok := m.state[e.Key()].(netstate.Element)
	if ok || !strings.HasPrefix(set, "@block-") {
		return found, ok
	}
	for _, o := range m.state {
		if e, is := o.(netstate.Element); is && e.Set == set[1:] && e.Contains(addr) {
			return e, true
		}
	}
	return e, false
}

// hasPort reports whether a set of port numbers has one.
func (m machine) hasPort(set string, family netstate.Family, port uint16) bool {
	if _, ok := m.state[netstate.Set{Family: family, Name: set}.Key()]; !ok {
		m.Fatalf("there is no set %s:\n%s", set, m.state)
	}
	for _, o := range m.state {
		e, is := o.(netstate.Element)
		if is && e.Set == set && netstate.FamilyOf(e.Prefix.Addr()) == family && e.Port <= port && port <= e.LastPort {
			return true
		}
	}
	return false
}

func address(field string, f policy.Flow) netip.Addr {
	if field == "saddr" {
		return f.From.Addr
	}
	return f.To.Addr
}

// matches takes one condition from the words, and reports whether the connection meets it; true, and nothing taken, at an
// end.
func (m machine) matches(words *[]string, family netstate.Family, f policy.Flow) bool {
	for {
		w := *words
		taken, ok := 2, false
		switch {
		case len(w) < 2 || w[0] == "counter" || w[0] == "log" || w[0] == "goto" || w[0] == "jump" || w[0] == "mark" || w[1] == "vmap":
			return true
		case w[0] == "ct" && w[1] == "reply":
			taken = 3
		case w[0] == "new":
		case w[0] == "ct", w[0] == "icmpv6":
		case w[0] == "iifname":
			_, ok = m.element("@egress", f.From.Addr, "", 0)
		case w[0] == "oifname":
			_, ok = m.element("@ingress", f.To.Addr, "", 0)
		case w[0] == "saddr" && w[1] == ".":
			taken = 4
			_, there := m.element(w[3], f.From.Addr, "", 0)
			ok = there && f.From.Addr == f.To.Addr
		case w[0] == "daddr" && w[1] == ".":
			taken = 6
			_, ok = m.element(w[5], f.To.Addr, f.Protocol, f.Port)
		case w[0] == "proto":
			ok = w[1] == map[policy.Protocol]string{policy.TCP: "6", policy.UDP: "17", policy.SCTP: "132"}[f.Protocol]
		case w[1] == "dport":
			taken = 3
			if set, named := strings.CutPrefix(w[2], "@"); named {
				ok = strings.EqualFold(w[0], string(f.Protocol)) && m.hasPort(set, family, f.Port)
				break
			}
			first, last, found := strings.Cut(w[2], "-")
			if !found {
				last = first
			}
			from, _ := strconv.Atoi(first)
			to, _ := strconv.Atoi(last)
			ok = strings.EqualFold(w[0], string(f.Protocol)) && from <= int(f.Port) && int(f.Port) <= to
		case strings.HasPrefix(w[1], "@"):
			_, ok = m.element(w[1], address(w[0], f), "", 0)
		default:
			ok = netip.MustParsePrefix(w[1]).Contains(address(w[0], f))
		}
		if !ok {
			return false
		}
		*words = w[taken:]
	}
}

// TestFollowLeases: a table that takes other leases is that of a snapshot with them, and most changes are taken.
func TestFollowLeases(t *testing.T) {
	taken, anew := 0, 0
	for seed := range uint64(200) {
		w := policytest.New(seed)
		s, site := w.Snapshot(4, 6), w.Site(1)
		s.Pods = append(s.Pods, w.Claims(s, 2)...)
		for range 5 {
			table, _ := policy.NewTable(site, s)
			node := w.IntN(w.Nodes)
			lease := w.Leases()[node]
			lease.Stacks[0].Underlay = policytest.Outside[w.IntN(2)]
			s.Leases = slices.DeleteFunc(slices.Clone(s.Leases), func(l subnet.Lease) bool { return l.Node == lease.Node })
			if w.IntN(3) > 0 {
				s.Leases = append(s.Leases, lease)
			}
			want, _ := policy.Desired(site, s)
			if !table.FollowLeases(s.Leases) {
				anew++
				continue
			}
			taken++
			if d := netstate.Diff(want, table.State()); len(d) > 0 {
				t.Fatalf("seed %d: with the leases %v the table lacks\n%s", seed, s.Leases, d)
			}
		}
	}
	if t.Logf("%d changes were taken, %d were not", taken, anew); taken < 200 || anew < 20 {
		t.Errorf("of all changes %d were taken, and %d were not", taken, anew)
	}
}

// TestOneRuleOfRanges: all address ranges of a rule are one rule of the kernel's, however many they are, and also if they
// overlap; and ranges that are everything are no condition.
func TestOneRuleOfRanges(t *testing.T) {
	for spec, want := range map[string]string{
		`{ipBlock: {cidr: 10.1.0.0/16, except: [10.1.2.0/24]}}, {ipBlock: {cidr: 10.1.2.128/25}}, {ipBlock: {cidr: 10.0.0.0/8}}`: "saddr 10.0.0.0/8 accept",
		`{ipBlock: {cidr: 10.1.0.0/16}}, {ipBlock: {cidr: 10.3.0.0/16}}, {ipBlock: {cidr: "fd00::/8"}}`:                          "saddr @block-",
		`{ipBlock: {cidr: 10.1.0.0/16}}, {ipBlock: {cidr: 0.0.0.0/0}}`:                                                           "accept",
	} {
		s := snapshot(t, "podSelector: {}, ingress: [{from: ["+spec+"]}]")
		for _, p := range s.Pods {
			p.Node = "node1"
		}
		state, _ := policy.Desired(policy.Site{Node: "node1", Bridge: "cni0"}, s)
		found := 0
		for _, o := range state {
			f, ok := o.(netstate.Filter)
			if !ok || f.Family != netstate.IPv4 || !strings.HasPrefix(f.Name, "in-") || policy.Original(f.Name) != f.Name {
				continue
			}
			found++
			if rule, _, _ := strings.Cut(f.Rules, "\n"); !strings.HasPrefix(rule, want) || strings.Count(f.Rules, "accept") > 2 {
				t.Errorf("%s: the rules are\n%s", spec, f.Rules)
			}
		}
		if found != 1 {
			t.Errorf("%s: %d chains", spec, found)
		}
	}
}
