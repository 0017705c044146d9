package causes

import (
	"fmt"
	"strings"
)

// hooks are those of each family of nftables.
var hooks = map[string][]string{
	"ip":     {"prerouting", "input", "forward", "output", "postrouting"},
	"ip6":    {"prerouting", "input", "forward", "output", "postrouting"},
	"inet":   {"prerouting", "input", "forward", "output", "postrouting", "ingress"},
	"bridge": {"prerouting", "input", "forward", "output", "postrouting"},
	"arp":    {"input", "output"},
	"netdev": {"ingress", "egress"},
}

// nftRule is what a rule is drawn for.
type nftRule struct {
	*draw
	place  place
	table  string // its family
	hook   string
	family family // that addresses are of
}

// drawNft draws a rule of nftables in a table of its own.
func drawNft(d *draw) *cause {
	r := nftRule{draw: d, place: d.somewhere(), family: d.family()}
	r.table = d.pick("nftables family", "ip", "inet", "bridge", "netdev", "arp", "ip6")
	if r.table == "ip" || r.table == "ip6" {
		if r.family = family(r.table); len(d.world.families) == 1 {
			r.family = ip4
			r.table = d.pick("family of a lab with one", "ip", "ip", "ip", r.table)
		}
	}
	r.hook = d.pick("nftables hook of "+r.table, hooks[r.table]...)
	verdict := r.verdict()
	chain := fmt.Sprintf("type %s hook %s %s priority %d; policy %s;", verdict.chain, r.hook, r.onDevice(),
		r.priority(verdict.chain),
		verdict.policy())
	match := r.match()
	if verdict.needs != "" {
		match = words(match, verdict.needs)
	}
	name := "inet site c"
	name = strings.Replace(name, "inet", r.table, 1)
	commands := append([]string{"add table " + r.table + " site", "add chain " + name + " { " + words(chain) + " }"},
		r.rules(name, match, verdict.statement)...)
	tokens := [][]string{{r.table}, {"site"}, {"c", "u"}, {"handle $NEW"}}
	if verdict.statement == "policy drop" {
		tokens = one(r.table, "site", "c")
	}
	return &cause{place: r.place.name, tokens: tokens, steps: []step{{
		in: r.place.name,
		do: "OUT=$(nft -a -e '" + strings.Join(commands, "; ") +
			`') && echo "$OUT" | sed -n 's/^add rule.*# handle //p'`,
		undo: "nft 'delete table " + r.table + " site'",
	}}}
}

// onDevice is the device of a chain at a device's hook.
func (r nftRule) onDevice() string {
	if r.hook == "ingress" || r.hook == "egress" {
		return "device " + r.device(r.place)
	}
	return ""
}

// priority is any that the kernel takes: a chain that translates comes after connection tracking.
func (r nftRule) priority(chain string) int {
	if chain == "nat" {
		return r.IntN(500) - 100
	}
	return r.IntN(801) - 400
}

// rules are those of a chain: the match and the statement in one rule, in two chains, or by a set or a map.
func (r nftRule) rules(chain, match, statement string) []string {
	if statement == "policy drop" { // the match is what passes
		if match == "" {
			return nil
		}
		return []string{"add rule " + chain + " " + match + " accept"}
	}
	user := strings.TrimSuffix(chain, "c") + "u"
	switch r.pick("nftables shape", "rule", "rule", "rule", "jump", "goto", "set", "vmap") {
	case "jump":
		return []string{"add chain " + user, "add rule " + user + " " + words(match, statement), "add rule " + chain +
			" jump u"}
	case "goto":
		return []string{"add chain " + user, "add rule " + user + " " + statement, "add rule " + chain + " " +
			words(match, "goto u")}
	case "set":
		if set := r.set(); set != "" {
			key := strings.ReplaceAll(strings.Fields(chain)[0]+" site s", "  ", " ")
			typ := map[family]string{ip4: "ipv4_addr", ip6: "ipv6_addr"}[r.family]
			return []string{"add set " + key + " { type " + typ + "; elements = { " + set + " }; }",
				"add rule " + chain + " " + words(match, string(r.family), r.pick("side", "saddr", "daddr"), "@s",
					statement)}
		}
	case "vmap":
		if r.table != "arp" && statement == "drop" {
			return []string{"add rule " + chain + " " + words(match, "meta l4proto vmap {", r.pick("vmap",
				"tcp : drop, udp : accept", "icmp : drop, ipv6-icmp : accept", "udp : drop, tcp : drop"), "}")}
		}
	}
	return []string{"add rule " + chain + " " + words(match, statement)}
}

// set is the elements of a set of addresses.
func (r nftRule) set() string {
	if r.table == "arp" {
		return ""
	}
	return r.anyPod().addr[r.family].String() + ", " + r.anyNode().addr[r.family].String()
}

// address chooses whom a match is about.
func (r nftRule) address() string { return r.subject(r.family) }

// subject chooses addresses of the lab: of all pods, a node's pods, a pod, or a node.
func (d *draw) subject(f family) string {
	switch d.pick("subject", "cluster", "subnet", "subnet", "pod", "pod", "node") {
	case "cluster":
		return d.world.cluster[f].String()
	case "subnet":
		return d.anyNode().subnet[f].String()
	case "pod":
		return d.anyPod().addr[f].String()
	}
	return d.anyNode().addr[f].String()
}

// match is one or two expressions, or none.
func (r nftRule) match() string {
	expressions := nftMatches
	if r.table == "arp" {
		expressions = arpMatches
	}
	text := choose(r.draw, "nftables expression of "+map[bool]string{true: "arp", false: "packets"}[r.table == "arp"],
		expressions)(r)
	if r.table != "arp" && r.chance(20) {
		text = words(text, choose(r.draw, "second nftables expression", nftMatches)(r))
	}
	return text
}

func text(s string) func(nftRule) string { return func(nftRule) string { return s } }

// nftMatches are the expressions.
var nftMatches = []option[func(nftRule) string]{
	{"none", text("")},
	{"saddr", func(r nftRule) string { return string(r.family) + " saddr " + r.address() }},
	{"daddr", func(r nftRule) string { return string(r.family) + " daddr " + r.address() }},
	{"not addr", func(r nftRule) string {
		return string(r.family) + r.pick("side", " saddr", " daddr") + " != " + r.address()
	}},
	{"pair", func(r nftRule) string {
		return string(r.family) + " saddr " + r.address() + " " + string(r.family) + " daddr " + r.address()
	}},
	{"length", func(r nftRule) string {
		return "meta length " + r.pick("length", "> 1000", "> 500", "< 100", "60-1400", "> 1490", "1300-1500")
	}},
	{"tcp flags", func(r nftRule) string {
		return "tcp flags " + r.pick("tcp flags", "syn / syn,ack", "& (syn|ack) == syn|ack", "& fin == fin",
			"& psh == psh", "& rst == rst")
	}},
	{"tcp port", func(r nftRule) string {
		return "tcp " + r.pick("side of a port", "dport", "sport") + " " + r.pick("tcp port", "1024-65535", "!= 22",
			"32768-65535", "6443")
	}},
	{"udp port", func(r nftRule) string {
		return "udp " + r.pick("side of a port", "dport", "sport") + " " + r.pick("udp port", "8472", "1024-65535",
			"!= 53", "53")
	}},
	{"icmp type", func(r nftRule) string {
		if r.family == ip4 {
			return "icmp type " + r.pick("icmp type", "echo-request", "echo-reply", "destination-unreachable",
				"time-exceeded")
		}
		return "icmpv6 type " + r.pick("icmpv6 type", "echo-request", "echo-reply", "nd-neighbor-solicit",
			"packet-too-big")
	}},
	{"protocol", func(r nftRule) string {
		return "meta l4proto " + r.pick("protocol", "tcp", "udp", "icmp",
			"ipv6-icmp")
	}},
	{"iif", func(r nftRule) string {
		return r.pick("way of iif", "iifname ", "iif ") + `"` + r.device(r.place) + `"`
	}},
	{"oif", func(r nftRule) string {
		return r.pick("way of oif", "oifname ", "oif ") + `"` + r.device(r.place) + `"`
	}},
	{"not iif", func(r nftRule) string { return `iifname != "` + r.device(r.place) + `"` }},
	{"ct state", func(r nftRule) string {
		return "ct state " + r.pick("ct state", "new", "established", "established,related", "invalid", "untracked",
			"!= established")
	}},
	{"ttl", func(r nftRule) string {
		if r.family == ip6 {
			return "ip6 hoplimit " + r.pick("ttl", "64", "< 64", "63", "62", "> 60")
		}
		return "ip ttl " + r.pick("ttl", "64", "< 64", "63", "62", "> 60")
	}},
	{"dscp", func(r nftRule) string { return string(r.family) + " dscp " + r.pick("dscp", "cs0", "cs1", "!= cs0") }},
	{"mark", func(r nftRule) string { return "meta mark " + r.pick("mark", "0", "!= 0", "0x4000", "& 0x4000 == 0") }},
	{"pkttype", func(r nftRule) string {
		return "meta pkttype " + r.pick("pkttype", "host", "broadcast", "multicast", "other", "!= broadcast")
	}},
	{"ether addr", func(r nftRule) string {
		return "ether " + r.pick("side", "saddr", "daddr") + " " +
			r.anyPod().mac
	}},
	{"ether type", func(r nftRule) string {
		return "ether type " + r.pick("ether type", "ip", "ip6", "arp",
			"!= arp")
	}},
	{"limit", func(r nftRule) string {
		return "limit rate over " + r.pick("rate", "1/second", "10/second", "5 kbytes/second", "1 mbytes/second")
	}},
	{"numgen", func(r nftRule) string {
		return "numgen " + r.pick("numgen", "random mod 2 0", "inc mod 3 0", "random mod 10 < 9")
	}},
	{"fib", func(r nftRule) string {
		return "fib " + r.pick("fib", "saddr type local", "daddr type local", "daddr type unicast",
			"saddr . iif oif missing", "saddr oif exists")
	}},
	{"frag-off", text("ip frag-off & 0x4000 != 0")},
	{"version", text("meta nfproto ipv4")},
}

var arpMatches = []option[func(nftRule) string]{
	{"none", text("")},
	{"operation", func(r nftRule) string { return "arp operation " + r.pick("arp operation", "request", "reply") }},
	{"sender", func(r nftRule) string { return "arp saddr ip " + r.anyPod().addr[ip4].String() }},
	{"target", func(r nftRule) string { return "arp daddr ip " + r.anyNode().gateway[ip4].String() }},
	{"iif", func(r nftRule) string { return `iifname "` + r.device(r.place) + `"` }},
}

// nftVerdict is what a rule does.
type nftVerdict struct {
	statement string
	chain     string // its type
	needs     string // a match without which nft does not take the statement
}

func (v nftVerdict) policy() string {
	if v.statement == "policy drop" {
		return "drop"
	}
	return "accept"
}

// verdict chooses one that the hook may take: what loses packets half the time.
func (r nftRule) verdict() nftVerdict {
	if r.table == "arp" {
		return nftVerdict{r.pick("arp verdict", "drop", "drop", "policy drop", "accept"), "filter", ""}
	}
	if r.chance(50) {
		return nftVerdict{r.pick("nftables verdict", "drop", "drop", "policy drop"), "filter", ""}
	}
	v := choose(r.draw, "other nftables verdict", nftVerdicts)(r)
	if v.chain == "" {
		v.chain = "filter"
	}
	return v
}

var nftVerdicts = []option[func(nftRule) nftVerdict]{
	{"reject", func(r nftRule) nftVerdict {
		return nftVerdict{statement: r.pick("reject", "reject", "reject with icmpx admin-prohibited",
			"reject with icmpx host-unreachable")}
	}},
	{"tcp reset", func(nftRule) nftVerdict {
		return nftVerdict{statement: "reject with tcp reset", needs: "meta l4proto tcp"}
	}},
	{"queue", func(nftRule) nftVerdict { return nftVerdict{statement: "queue num 7"} }},
	{"set daddr", func(r nftRule) nftVerdict {
		return nftVerdict{statement: string(r.family) + " daddr set " + r.someone()}
	}},
	{"set saddr", func(r nftRule) nftVerdict {
		return nftVerdict{statement: string(r.family) + " saddr set " + r.someone()}
	}},
	{"set ttl", func(r nftRule) nftVerdict {
		if r.family == ip6 {
			return nftVerdict{statement: "ip6 hoplimit set 1"}
		}
		return nftVerdict{statement: "ip ttl set " + r.pick("ttl set", "1", "2", "64")}
	}},
	{"set dscp", func(r nftRule) nftVerdict { return nftVerdict{statement: string(r.family) + " dscp set cs1"} }},
	{"set mark", func(r nftRule) nftVerdict {
		return nftVerdict{statement: "meta mark set " + r.pick("mark set", "1", "0x4000", "0x77")}
	}},
	{"set port", func(r nftRule) nftVerdict {
		proto := r.pick("port of", "tcp", "udp")
		return nftVerdict{statement: proto + " dport set 9", needs: "meta l4proto " + proto}
	}},
	{"set mss", func(r nftRule) nftVerdict {
		return nftVerdict{statement: "tcp option maxseg size set 1000", needs: "tcp flags syn"}
	}},
	{"set pkttype", func(r nftRule) nftVerdict { return nftVerdict{statement: "meta pkttype set other"} }},
	{"set ether", func(r nftRule) nftVerdict { return nftVerdict{statement: "ether daddr set " + r.mac()} }},
	{"notrack", func(nftRule) nftVerdict { return nftVerdict{statement: "notrack"} }},
	{"masquerade", func(nftRule) nftVerdict { return nftVerdict{statement: "masquerade", chain: "nat"} }},
	{"snat", func(r nftRule) nftVerdict {
		return nftVerdict{statement: r.translate("snat") + r.someone(), chain: "nat"}
	}},
	{"dnat", func(r nftRule) nftVerdict {
		return nftVerdict{statement: r.translate("dnat") + r.someone(), chain: "nat"}
	}},
	{"redirect", func(nftRule) nftVerdict { return nftVerdict{statement: "redirect", chain: "nat"} }},
	{"dup", func(r nftRule) nftVerdict { return nftVerdict{statement: "dup to " + r.someone()} }},
	{"fwd", func(r nftRule) nftVerdict { return nftVerdict{statement: `fwd to "lo"`} }},
	{"accept", func(nftRule) nftVerdict { return nftVerdict{statement: "accept"} }},
	{"counter", func(nftRule) nftVerdict { return nftVerdict{statement: "counter"} }},
}

func (r nftRule) translate(verb string) string {
	if r.table == "inet" {
		return verb + " " + string(r.family) + " to "
	}
	return verb + " to "
}

// someone is an address that packets are sent to instead: a pod's, a node's, or nobody's.
func (r nftRule) someone() string {
	switch r.pick("someone", "pod", "node", "nobody") {
	case "pod":
		return r.anyPod().addr[r.family].String()
	case "node":
		return r.anyNode().addr[r.family].String()
	}
	return map[family]string{ip4: "192.0.2.7", ip6: "2001:db8::7"}[r.family]
}
