package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// The names of what every table has: chains and maps of the directions, and the set of the pods' own addresses.
const (
	egressName  = "egress"
	ingressName = "ingress"
	selfSet     = "self"
	// backwardsChain goes through both directions' chains that judge a packet as if it went the other way.
	backwardsChain = "backwards"
	// errorsChain goes through both directions' chains that judge an ICMP error by its connection.
	errorsChain = "errors"
)

// Site is the node whose pods are protected.
type Site struct {
	Node string // its pods are those with this node's name
	// Subnets are what this node's pods get addresses from. An address of them that no pod is known to have may neither
	// send nor receive: its pod's policies are not known yet.
	Subnets []netip.Prefix
	// Networks are what all nodes' pods get addresses from. No pod sends from an address of them that is not its own.
	Networks []netip.Prefix
	Bridge   string          // of the pods
	Ports    []netstate.Port // the pods', as the CNI plugin made them
	Log      bool            // what policies drop is logged, with its chain's name
	Audit    bool            // what policies would drop is counted, and passes
	Budget   *Budget         // what policies may cost; nil: no matter what
	// Doubt is set while UDP packets may be answers to what was sent before there were rules: those that begin an entry of
	// conntrack pass only if policies let them in both directions.
	Doubt bool
}

// Desired returns the tables that enforce the policies of a snapshot on a node: one for each family, and one for frames,
// that holds pods to their own addresses.
//
// A packet passes the node's forward hook, and in it the chain of the pod that sends it and that of the pod that it goes
// to, whichever are on this node. A map finds the chain by the address; a chain is made for each distinct set of policies,
// and shared by all pods that they select. It may go to another one, after the Admin tier of ClusterNetworkPolicies.
// Each packet of a connection is judged, replies and ICMP errors by copies of the chains: a policy that gets tighter stops open
// connections in both directions. In the forward hook packets have the connection's own addresses, behind DNAT and before SNAT.
//
// What a pod sends to its own node meets another hook. NetworkPolicies always allow it, so only ClusterNetworkPolicies are
// asked there. The node always reaches its pods.
func Desired(site Site, s Snapshot) (netstate.State, []Skip) {
	t, skips := NewTable(site, s)
	return t.state, skips
}

// Table is what Desired makes, and what it takes to follow changes of single pods.
type Table struct {
	site   Site
	rules  Rules
	owners owners
	state  netstate.State
	chains map[string]chain // those that pods of this node need, by family and policies
	uses   map[string]int   // how many addresses need each, by the same
	groups map[netstate.Family]*groups
	ports  *ports

	leases []subnet.Lease // as the Snapshot had them
	spent  Spent
	room   int // elements that it may get before the budget is counted anew
}

// NewTable makes the table of a snapshot.
func NewTable(site Site, s Snapshot) (*Table, []Skip) {
	rules, skips := New(s)
	t := &Table{site: site, rules: rules, owners: newOwners(s.Pods, s.Leases), state: netstate.State{}, ports: newPorts(site.Ports),
		chains: map[string]chain{}, uses: map[string]int{}, groups: map[netstate.Family]*groups{}, leases: s.Leases}
	if site.Budget != nil {
		cluster := site.Budget.spend(t, s)
		if len(t.spent.Refused) > 0 {
			s.ClusterPolicies = cluster
			skips = append(slices.DeleteFunc(skips, func(s Skip) bool { return s.Kind == ClusterKind }), t.rules.replaceCluster(s)...)
		}
	}
	for addr := range t.owners.claims {
		t.use(addr, t.owners.of(addr), 1)
	}
	for _, family := range netstate.Families {
		t.groups[family] = newGroups(family, t.chains)
		t.state.Add(t.frame(family)...)
	}
	for _, c := range t.chains {
		t.state.Add(c.objects()...)
	}
	for addr := range t.owners.claims {
		t.state.Add(t.elements(addr, t.owners.of(addr))...)
	}
	t.state.Add(t.frameTable()...)
	if site.Log {
		logDrops(t.state)
	}
	if site.Audit {
		passDrops(t.state)
	}
	t.addCopies(t.state)
	for name := range t.ports.addrs {
		t.state.Add(t.portElements(name)...)
	}
	return t, skips
}

// logDrops puts a rule before each one that drops, which logs what that will drop. It is not part of what a chain is named
// after: that is its policies' rules. What hooks and the chain of the node drop is not logged: link-local packets, which
// pods' kernels send all the time.
func logDrops(state netstate.State) {
	for _, o := range state {
		f, ok := o.(netstate.Filter)
		if !ok || f.Name == nodeName {
			continue
		}
		var lines []string
		for line := range strings.SplitSeq(f.Rules, "\n") {
			if matches, drops := strings.CutSuffix(line, "counter drop"); drops {
				lines = append(lines, matches+"log "+f.Name)
			}
			lines = append(lines, line)
		}
		f.Rules = strings.Join(lines, "\n")
		state.Add(f)
	}
}

// passDrops lets pass what rules count to drop it: a chain returns then, to what judges the other direction, or to a hook, which
// accepts.
func passDrops(state netstate.State) {
	pass := func(rules string) string {
		lines := strings.Split(rules, "\n")
		for i, line := range lines {
			if before, _, counts := strings.Cut(line, "counter "); counts {
				lines[i] = before + "counter return"
			}
		}
		return strings.Join(lines, "\n")
	}
	for _, o := range state {
		switch o := o.(type) {
		case netstate.Filter:
			o.Rules = pass(o.Rules)
			state.Add(o)
		case netstate.Hook:
			o.Rules = pass(o.Rules)
			state.Add(o)
		}
	}
}

// Doubt sets or unsets the site's Doubt, and returns the plan from the state before to the state after.
func (t *Table) Doubt(on bool) (plan netstate.Plan) {
	if t.site.Doubt = on; t.site.Audit {
		return nil
	}
	for _, family := range netstate.Families {
		was := t.state[netstate.Hook{Family: family}.Key()]
		want := netstate.Hook{Family: family, Rules: strings.Join(t.hook(family), "\n")}
		if was != netstate.Object(want) {
			t.state.Add(want)
			plan = append(plan, netstate.Change{Was: was, Want: want})
		}
	}
	return plan
}

// State returns what is wanted now. It is the table's own: read it before the next Follow, and write nothing to it.
func (t *Table) State() netstate.State { return t.state }

// Chain says whom a chain judges.
type Chain struct {
	Family    netstate.Family
	Direction Direction // empty: of both
	Policies  string    // whose rules it has, as Names; empty: it is about addresses that are no pod's
}

// mostNames bounds how long Names are, in bytes.
const mostNames = 1000

// Names are some policies in one text: sorted, separated by commas, and cut off where they are too long.
func Names(policies []string) string {
	text := strings.Join(slices.Compact(slices.Sorted(slices.Values(policies))), ",")
	if len(text) > mostNames {
		return strings.ToValidUTF8(text[:mostNames], "") + "…"
	}
	return text
}

// Chains returns whom the table's chains judge, by the keys of their objects. One chain may be that of several sets of
// policies with the same rules, but where these are audited.
func (t *Table) Chains() map[netstate.Key]Chain {
	all := map[netstate.Key]Chain{}
	for _, family := range netstate.Families {
		all[netstate.Hook{Family: family}.Key()] = Chain{Family: family}
		if t.judgesNode() {
			all[netstate.Filter{Family: family, Name: nodeName}.Key()] = Chain{Family: family, Direction: Egress}
		}
		for _, d := range directions {
			for _, name := range t.copies(strings.ToLower(string(d))) {
				all[netstate.Filter{Family: family, Name: name}.Key()] = Chain{Family: family, Direction: d}
			}
		}
	}
	all[netstate.Filter{Family: netstate.Ethernet, Name: framesChain}.Key()] = Chain{Family: netstate.Ethernet, Direction: Egress}
	all[netstate.Hook{Family: netstate.Ethernet, Onward: true}.Key()] = Chain{Family: netstate.Ethernet}
	policies := map[netstate.Key][]string{}
	for _, c := range t.chains {
		for name, p := range c.parts {
			for _, name := range t.copies(name) {
				key := netstate.Filter{Family: c.family, Name: name}.Key()
				policies[key] = append(policies[key], p.policies...)
				all[key] = Chain{Family: c.family, Direction: c.direction}
			}
		}
	}
	for key, names := range policies {
		c := all[key]
		c.Policies = Names(names)
		all[key] = c
	}
	return all
}

// Pod returns the pod that has an address, as far as the policies' source tells of it; nil if none has.
func (t *Table) Pod(a netip.Addr) *Pod { return t.owners.of(a) }

// Claim is an address that a pod's status has, and that is not the pod's.
type Claim struct {
	Addr netip.Addr
	Pod  *Pod
	Node string // whose it is
}

// Claims returns the claims that do not count, in no order.
func (t *Table) Claims() (all []Claim) {
	for addr := range t.owners.refused {
		node, _ := t.owners.holders.of(addr)
		if owner := t.owners.of(addr); owner != nil {
			node = owner.Node
		}
		for _, p := range t.owners.refusedAt(addr) {
			all = append(all, Claim{addr, p, node})
		}
	}
	return all
}

// local reports whether a pod is one of this node that policies can isolate.
func (t *Table) local(p *Pod) bool { return p != nil && p.Node == t.site.Node }

var directions = [...]Direction{Egress, Ingress}

// chainKey is the same for the same policies.
func chainKey(family netstate.Family, d Direction, a Applying) string {
	var b strings.Builder
	fmt.Fprint(&b, family, " ", d)
	for _, p := range a.Admin {
		b.WriteString(" " + p.Name)
	}
	b.WriteString(",")
	for _, p := range a.Isolating {
		b.WriteString(" " + p.Name)
	}
	b.WriteString(",")
	for _, p := range a.Baseline {
		b.WriteString(" " + p.Name)
	}
	return b.String()
}

// elements returns what an address is in while the pod has it.
func (t *Table) elements(addr netip.Addr, p *Pod) (all []netstate.Object) {
	if p == nil {
		return nil
	}
	host := netstate.Host(addr)
	all = t.groups[netstate.FamilyOf(addr)].elements(host, p)
	if !t.local(p) {
		return all
	}
	isolated := false
	for _, j := range t.judgements(Endpoint{Addr: addr, Pod: p}) {
		verdict := "return"
		if !j.policies.None() {
			verdict = "goto " + t.chains[chainKey(netstate.FamilyOf(addr), j.direction, j.policies)].name
			isolated = true
		}
		all = append(all, netstate.Element{Set: j.set, Prefix: host, Verdict: verdict})
	}
	if isolated {
		all = append(all, netstate.Element{Set: selfSet, Prefix: host})
	}
	return all
}

// frame returns what a family's table always has.
func (t *Table) frame(family netstate.Family) []netstate.Object {
	ingress := t.mapped(family, ingressName, "daddr")
	if len(t.chains) > 0 {
		ingress += "\n" + t.bridged() + "counter drop"
	}
	all := append(t.nodeFrame(family),
		netstate.Set{Family: family, Name: egressName, Type: netstate.Verdicts},
		netstate.Set{Family: family, Name: ingressName, Type: netstate.Verdicts},
		netstate.Filter{Family: family, Name: egressName, Rules: t.mapped(family, egressName, "saddr")},
		netstate.Filter{Family: family, Name: ingressName, Rules: ingress},
		netstate.Set{Family: family, Name: selfSet, Type: netstate.Selves},
		netstate.Hook{Family: family, Rules: strings.Join(t.hook(family), "\n")})
	if !t.site.Audit {
		all = append(all,
			netstate.Filter{Family: family, Name: backwardsChain, Rules: "jump " + egressName + backwards + "\njump " + ingressName + backwards},
			netstate.Filter{Family: family, Name: errorsChain, Rules: strings.Join(errorRules(), "\n")})
	}
	return all
}

// mapped returns the rules that look an address up in a map, and drop the node's pods' that are not there.
func (t *Table) mapped(family netstate.Family, name, field string) string {
	lines := []string{field + " vmap @" + name}
	for _, s := range t.site.Subnets {
		if netstate.FamilyOf(s.Addr()) == family {
			lines = append(lines, field+" "+s.Masked().String()+" counter drop")
		}
	}
	return strings.Join(lines, "\n")
}

// bridged is the condition of a packet from one of the bridge's pods to another.
func (t *Table) bridged() string { return fmt.Sprintf("iifname %s oifname %[1]s ", t.site.Bridge) }

// errorRules judge an ICMP error by the connection that it is about, as routers may send it, whom no policy allows. A pod that has
// policies and is no end of the connection may send what these allow.
func errorRules() []string {
	return []string{"jump " + egressName + ofErrors, "jump " + ingressName + ofErrors,
		"errors from . saddr @" + selfSet + " accept", "errors from . daddr @" + selfSet + " accept", "goto " + egressName}
}

// errorProtocols are those of ICMP errors.
var errorProtocols = map[netstate.Family]int{netstate.IPv4: 1, netstate.IPv6: 58}

// hook returns the rules that every forwarded packet meets. What IPv6 finds its neighbours with passes.
func (t *Table) hook(family netstate.Family) []string {
	if t.site.Audit { // each packet is counted once, and nothing is reset
		rules := append(t.marks(), "ct related accept")
		return append(append(rules, t.links(family)...), "ct reply established accept", "jump "+egressName, "goto "+ingressName)
	}
	isError := fmt.Sprintf("ct related proto %d ", errorProtocols[family])
	rules := append(append(t.marks(), t.links(family)...), isError+"jump "+errorsChain, isError+"accept")
	rules = append(rules, "ct reply established jump "+backwardsChain, "ct reply established accept",
		"new tcp without syn jump "+backwardsChain)
	if t.site.Doubt {
		rules = append(rules, "new proto 17 jump "+backwardsChain)
	}
	return append(rules, "jump "+egressName, "goto "+ingressName)
}

// marks returns what tells the rules about frames that a packet between two pods of the bridge has come to those about packets.
// These may still drop it.
func (t *Table) marks() []string {
	if !t.judgesBridged() {
		return nil
	}
	return []string{t.bridged() + "mark set " + judged}
}

// links returns the rules about packets between the pods of the bridge that are not about pods' addresses. What IPv6 finds its
// neighbours with passes. While a pod is isolated, nothing else passes between pods whose addresses are no pod's: link-local
// ones, multicast and broadcast, or others that a pod gave itself, would go around rules about pods' addresses.
func (t *Table) links(family netstate.Family) (rules []string) {
	bridged := t.bridged()
	drop := func(conditions ...string) {
		for _, c := range conditions {
			if len(t.chains) > 0 {
				rules = append(rules, bridged+c+" counter drop")
			}
		}
	}
	if family == netstate.IPv6 {
		rules = append(rules, bridged+"icmpv6 133-137 accept")
		drop("saddr fe80::/10", "daddr fe80::/10", "daddr ff00::/8")
	} else {
		drop("saddr 169.254.0.0/16", "daddr 169.254.0.0/16", "daddr 224.0.0.0/4", "daddr 255.255.255.255/32")
		for _, s := range t.site.Subnets {
			if s.Addr().Is4() && s.Bits() < 31 {
				drop("daddr " + netip.PrefixFrom(broadcast(s), 32).String())
			}
		}
	}
	return rules
}

// broadcast returns the last address of an IPv4 subnet.
func broadcast(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(a)
}
