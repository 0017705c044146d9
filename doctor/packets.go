package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
)

// trial is a packet to try at one hook, and the kind of finding that a decision about it is.
type trial struct {
	hook   string
	packet rules.Packet
	name   string
	judge  func(rules.Decision) kind
}

// maxTried is how many peers' packets are tried against the rules: a rule that stops one peer alone is rare, and each
// try costs.
const maxTried = 50

// checkFirewall tries the packets of pods, and those that encapsulate them, against every rule of this machine.
func (e *exam) checkFirewall() {
	type cause struct {
		kind  kind
		chain *rules.Chain
		rule  *rules.Rule
	}
	seen := map[cause]bool{}
	for _, t := range trials(e.Facts) {
		d := rules.Decide(e.Chains, t.hook, t.packet)
		c := cause{t.judge(d), d.Chain, d.Rule}
		if c.kind == none || seen[c] {
			continue
		}
		seen[c] = true
		f := e.find(c.kind, d.Chain.String(), t.name+" is accepted", fmt.Sprintf("%s by: %s", d.Verdict, d.By()), removal(d))
		if c.kind == forwardPolicy && f.Command != "" {
			f.Fix += "   (or accept the cluster's network there: twilld --iptables-forward-rules)"
		}
		if dev := e.masqueraded(d); c.kind == masqueradeCatchesPods && dev != "" {
			f.says("give the pods or " + dev + " another network: they have the same addresses, and what is on " + dev + " needs the rule")
		}
	}
}

// masqueraded returns the device of others whose own network a rule masquerades, empty if there is none.
func (f Facts) masqueraded(d rules.Decision) string {
	if d.Rule == nil {
		return ""
	}
	for _, i := range f.Interfaces {
		if !f.isOurs(i) && slices.ContainsFunc(i.Addrs, func(a netip.Prefix) bool { return slices.Contains(d.Rule.Src.Prefixes, a.Masked()) }) {
			return i.Name
		}
	}
	return ""
}

// IsOwnRule reports whether a rule is one that the agent keeps, by its chain, the one that it leads to, or its comment.
func IsOwnRule(table, chain, target, comment string) bool {
	begins := func(name string, with ...string) bool {
		return slices.ContainsFunc(with, func(w string) bool { return strings.HasPrefix(name, w) })
	}
	return begins(table, "flannel-ipv") || begins(chain, "FLANNEL-", "TWILL-") || begins(target, "FLANNEL-", "TWILL-") ||
		begins(comment, "flanneld ", "twill ")
}

// removal returns the command that takes the decision back, empty if it is not known, and for a rule of Twill's: the agent
// would put that back.
func removal(d rules.Decision) string {
	switch c := d.Chain; {
	case d.Rule != nil && IsOwnRule(c.Table, d.Rule.Chain, d.Rule.Target, d.Rule.Comment):
		return ""
	case d.Rule != nil:
		return d.Rule.Delete
	case c.Tool != "" && c.Table == "filter":
		return c.Tool + " -P " + c.Name + " ACCEPT"
	}
	return ""
}

// trials returns the packets that have to pass.
func trials(f Facts) []trial {
	var all []trial
	for _, local := range f.Lease.Snapshot.Local.Stacks {
		pod := local.Subnet.Addr().Next().Next()
		all = append(all, sameNode(f, pod, pod.Next())...)
		for i, p := range f.Paths {
			if p.Subnet.Addr().Is4() != pod.Is4() || i >= maxTried {
				continue
			}
			dev := f.wantedDevice(p.Subnet)
			if dev == "" {
				continue // the peer is left out: no packet is to get there
			}
			out := rules.Packet{Src: pod, Dst: p.Pod, In: f.Bridge, Out: dev, Proto: "tcp", DPort: 80}
			in := rules.Packet{Src: p.Pod, Dst: pod, In: dev, Out: f.Bridge, Proto: "tcp", DPort: 80}
			all = append(all, forwarded(out, "a packet of a pod to a pod of "+p.Node)...)
			all = append(all, forwarded(in, "a packet of a pod of "+p.Node+" to a pod")...)
			all = append(all, forwarded(answer(out), "an answer of a pod to a pod of "+p.Node)...)
			all = append(all, forwarded(answer(in), "an answer of a pod of "+p.Node+" to a pod")...)
			all = append(all, encapsulated(f, p)...)
		}
		all = append(all, toOutside(f, pod)...)
	}
	return all
}

// toOutside tries a ping of a pod to the addresses outside of the cluster that were asked about. A node that sends in the
// name of a pod does not forward it.
func toOutside(f Facts, pod netip.Addr) (all []trial) {
	for _, o := range f.Out {
		if o.To.Is4() == pod.Is4() && o.Hop.Dev != "" && !slices.Contains(f.Gateways(), o.To) { // which pods need not reach
			p := rules.Packet{Src: pod, Dst: o.To, In: f.Bridge, Out: o.Hop.Dev, Proto: icmpName(pod)}
			all = append(all, forwarded(p, "a ping of a pod to "+o.To.String())[:2]...)
		}
	}
	return all
}

// icmpName is ICMP's name in rules.
func icmpName(a netip.Addr) string {
	if a.Is4() {
		return "icmp"
	}
	return "ipv6-icmp"
}

// ClientPort is one that kernels choose for clients (ip_local_port_range).
const ClientPort = 40000

// answer returns a packet of the same way that answers one of a client there.
func answer(p rules.Packet) rules.Packet {
	p.DPort, p.Answer = ClientPort, true
	return p
}

// forwarded tries a pod's packet at the hooks of a node that forwards it.
func forwarded(p rules.Packet, name string) []trial {
	return []trial{{"prerouting", p, name, stopIs(preroutingDropped)}, {"forward", p, name, judgeForward},
		{"postrouting", p, name, judgePostrouting}}
}

// sameNode tries a packet between two pods of this node, which is bridged, and with br_netfilter forwarded all the
// same.
func sameNode(f Facts, a, b netip.Addr) []trial {
	if f.Sysctls[bridgeFilter(netstate.FamilyOf(a))] != "1" {
		return nil
	}
	p := rules.Packet{Src: a, Dst: b, In: f.Bridge, Out: f.Bridge, Proto: "tcp", DPort: 80}
	return []trial{{"forward", p, "a packet between two pods of this node", stopIs(bridgeNFDropped)}}
}

// encapsulated tries the outer packets to a peer at two hooks, and those from the peer at two more.
func encapsulated(f Facts, p Path) []trial {
	w, ok := f.wrapping(p)
	if !ok {
		return nil
	}
	out := rules.Packet{Src: w.local, Dst: p.Underlay, Out: w.dev, Proto: w.proto, DPort: w.port}
	in := rules.Packet{Src: p.Underlay, Dst: w.local, In: w.dev, Proto: w.proto, DPort: w.port}
	to, from := "a "+w.name+" packet to "+p.Node, "a "+w.name+" packet of "+p.Node
	return []trial{{"output", out, to, stopIs(udpOutFiltered)}, {"postrouting", out, to, stopIs(udpOutFiltered)},
		{"prerouting", in, from, stopIs(udpInFiltered)}, {"input", in, from, stopIs(udpInFiltered)}}
}

func stopIs(k kind) func(rules.Decision) kind {
	return func(d rules.Decision) kind {
		if d.Stops() {
			return k
		}
		return none
	}
}

func judgeForward(d rules.Decision) kind {
	if d.Rule == nil {
		return stopIs(forwardPolicy)(d)
	}
	return stopIs(forwardRejected)(d)
}

func judgePostrouting(d rules.Decision) kind {
	if d.Verdict == rules.Masquerade {
		return masqueradeCatchesPods
	}
	return stopIs(postroutingDropped)(d)
}
