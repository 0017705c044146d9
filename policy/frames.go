package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// The names of what the table for frames has: a chain, the ports of pods that may send what they like, but in nobody's name, and the pairs of a
// port and a source address.
const (
	framesChain  = "frames"
	uncheckedSet = "unchecked"
	sources4Set  = "sources"
	sources6Set  = "sources6"
)

// frameRules returns what each frame meets that comes from a port of the CNI plugin's. Rules about packets know their pod
// by the source address, so a pod to whose egress policies apply sends from its own addresses only, and so does one that
// is not known yet. No pod sends in the name of another pod of the cluster, or of a node's end of a tunnel: policies may allow
// that one what they deny to this one; and it could make the beginning of a connection, as whose answer all that follows
// passes. A link-local source leads nowhere but to the node, and neighbour discovery begins
// without any. Nothing but untagged IPv4, IPv6 and ARP passes at all, whoever sends it: br_netfilter shows nothing else to
// the rules about packets, and a pod's kernel takes a packet with the VLAN tag 0 like one without.
func (t *Table) frameRules() []string {
	rules := []string{
		"ether type arp return",
		"ether type ip iifname . ip saddr @" + sources4Set + " return",
		"ether type ip6 iifname . ip6 saddr @" + sources6Set + " return",
	}
	for _, s := range disjoint(slices.Concat(t.site.Networks, t.site.Subnets)) {
		kind := map[netstate.Family]string{netstate.IPv4: "ip", netstate.IPv6: "ip6"}[netstate.FamilyOf(s.Addr())]
		rules = append(rules, "ether type "+kind+" saddr "+s.Masked().String()+" counter drop")
	}
	return append(rules,
		"ether type ip iifname @"+uncheckedSet+" return",
		"ether type ip6 iifname @"+uncheckedSet+" return",
		"ether type ip6 saddr fe80::/10 return",
		"ether type ip6 saddr ::/128 daddr ff02::/16 return",
		"counter drop")
}

// frameTable returns what the table for frames always has. Without policies there is none.
func (t *Table) frameTable() []netstate.Object {
	if !t.checksFrames() {
		return nil
	}
	const f = netstate.Ethernet
	from, to := fmt.Sprintf("iifgroup %d ", netstate.PortGroup), fmt.Sprintf("oifgroup %d ", netstate.PortGroup)
	var clear, onward []string
	if t.judgesBridged() {
		clear = []string{from + "mark clear " + judged}
		for _, kind := range []string{"ip", "ip6"} {
			onward = append(onward, from+to+"ether type "+kind+" mark without "+judged+" counter drop")
		}
	}
	return []netstate.Object{
		netstate.Set{Family: f, Name: uncheckedSet, Type: netstate.Devices},
		netstate.Set{Family: f, Name: sources4Set, Type: netstate.IPv4Sources},
		netstate.Set{Family: f, Name: sources6Set, Type: netstate.IPv6Sources},
		netstate.Filter{Family: f, Name: framesChain, Rules: strings.Join(t.frameRules(), "\n")},
		netstate.Hook{Family: f, Rules: strings.Join(append(clear, from+"goto "+framesChain), "\n")},
		netstate.Hook{Family: f, Onward: true, Rules: strings.Join(onward, "\n")},
	}
}

// judgesBridged reports whether packets between pods of the bridge have to be judged. Frames from one to another then pass
// only with the bit of their mark that the rules about packets set: without br_netfilter nothing would judge them.
func (t *Table) judgesBridged() bool { return len(t.chains) > 0 && !t.site.Audit }

// judged is the bit, as rules have it.
var judged = fmt.Sprintf("%#x", netstate.JudgedMark)

// checksFrames reports whether there is any policy: one that selects no pod of this node may select the next one.
func (t *Table) checksFrames() bool {
	return len(t.rules.byNamespace)+len(t.rules.admin)+len(t.rules.baseline) > 0
}

// ports are the pods' ports.
type ports struct {
	list   []netstate.Port         // as they were given
	addrs  map[string][]netip.Addr // by name
	byAddr map[netip.Addr][]string // names
}

func newPorts(list []netstate.Port) *ports {
	p := &ports{list: list, addrs: map[string][]netip.Addr{}, byAddr: map[netip.Addr][]string{}}
	for _, port := range list {
		p.addrs[port.Name] = port.Addresses()
		for _, a := range p.addrs[port.Name] {
			p.byAddr[a] = append(p.byAddr[a], port.Name)
		}
	}
	return p
}

// changed returns the names of the ports that have other addresses in o, or are only here or there.
func (p *ports) changed(o *ports) (names []string) {
	if p == o {
		return nil
	}
	for name, addrs := range p.addrs {
		if now, there := o.addrs[name]; !there || !slices.Equal(addrs, now) {
			names = append(names, name)
		}
	}
	for name := range o.addrs {
		if _, there := p.addrs[name]; !there {
			names = append(names, name)
		}
	}
	return names
}

// portElements returns what a port is in. A port that the CNI plugin did not note the addresses of is not checked.
func (t *Table) portElements(name string) (all []netstate.Object) {
	addrs := t.ports.addrs[name]
	if len(addrs) == 0 || !t.checksFrames() {
		return nil
	}
	for _, a := range addrs {
		set := sources4Set
		if a.Is6() {
			set = sources6Set
		}
		all = append(all, netstate.Element{Set: set, Dev: name, Prefix: netstate.Host(a)})
	}
	if !slices.ContainsFunc(addrs, t.checksSource) {
		all = append(all, netstate.Element{Set: uncheckedSet, Dev: name})
	}
	return all
}

// checksSource reports whether who has an address may send from no other: policies apply to what it sends, or it is not known.
func (t *Table) checksSource(a netip.Addr) bool {
	p := t.owners.of(a)
	return !t.local(p) || !t.rules.Applying(Egress, Endpoint{Addr: a, Pod: p}).None()
}
