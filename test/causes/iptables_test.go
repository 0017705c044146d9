package causes

import (
	"slices"
	"strings"
)

// xtables is a tool of the iptables family.
type xtables struct {
	tool   string
	kept   string              // the family of the table that it keeps in nftables; "": none
	chains map[string][]string // by table
}

var ipChains = map[string][]string{
	"filter": {"INPUT", "FORWARD", "OUTPUT"},
	"mangle": {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	"raw":    {"PREROUTING", "OUTPUT"},
	"nat":    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
}

var ebChains = map[string][]string{
	"filter": {"INPUT", "FORWARD", "OUTPUT"},
	"nat":    {"PREROUTING", "OUTPUT", "POSTROUTING"},
}

// xRule is what a rule is drawn for.
type xRule struct {
	*draw
	xtables
	place place
	addrs family
	table string
	chain string
}

func drawIptables(d *draw) *cause {
	f := d.family()
	if f == ip6 {
		return d.xtables(xtables{"ip6tables-nft", "ip6", ipChains}, f)
	}
	return d.xtables(xtables{"iptables-nft", "ip", ipChains}, f)
}

func drawIptablesLegacy(d *draw) *cause {
	f := d.family()
	if f == ip6 {
		return d.xtables(xtables{"ip6tables-legacy", "", ipChains}, f)
	}
	return d.xtables(xtables{"iptables-legacy", "", ipChains}, f)
}

func drawEbtables(d *draw) *cause {
	if d.pick("tool below IP", "ebtables", "ebtables", "arptables") == "arptables" {
		return d.xtables(xtables{"arptables", "arp", map[string][]string{"filter": {"INPUT", "OUTPUT"}}}, ip4)
	}
	return d.xtables(xtables{"ebtables", "bridge", ebChains}, d.family())
}

// xtables draws a rule of a tool.
func (d *draw) xtables(x xtables, f family) *cause {
	r := xRule{draw: d, xtables: x, place: d.somewhere(), addrs: f}
	r.table = d.pick("table of "+x.tool, sorted(x.chains)...)
	r.chain = d.pick("chain of "+x.tool+" "+r.table, x.chains[r.table]...)
	tool := x.tool + " -t " + r.table + " "
	c := &cause{place: r.place.name}
	if r.table == "filter" && d.chance(10) {
		d.seen.note("policy", []string{x.tool}, 0)
		c.tokens = [][]string{{r.chain}, {"policy", "-P"}}
		c.steps = []step{r.step(tool+"-P "+r.chain+" DROP", tool+"-P "+r.chain+" ACCEPT")}
		return c
	}
	target := r.aTarget()
	match := r.match()
	c.tokens = [][]string{{r.table}, {r.chain}, {"$NEW"}}
	rule := words(match, "-j", target)
	if d.pick("shape of a rule", "rule", "rule", "chain") == "chain" && x.kept != "arp" {
		c.tokens[1] = append(c.tokens[1], "SITE")
		c.steps = []step{
			r.step(tool+"-N SITE", tool+"-X SITE"),
			r.rule("SITE", "-j "+target, "-A SITE"),
			r.rule(r.chain, words(match, "-j SITE"), "-I "+r.chain),
		}
		if strings.Contains(target, "masquerade") || d.chance(50) {
			c.steps[1], c.steps[2] = r.rule("SITE", rule, "-A SITE"), r.rule(r.chain, "-j SITE", "-I "+r.chain)
		}
		return c
	}
	c.steps = []step{r.rule(r.chain, rule, r.pick("where in the chain", "-I ", "-A ")+r.chain)}
	return c
}

func sorted(m map[string][]string) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// step is one whose undoing takes the tool's table away too, if it was not there.
func (r xRule) step(do, undo string) step {
	s := step{in: r.place.name, do: do, undo: undo}
	if r.kept != "" {
		table := r.kept + " " + r.table
		s.before = "nft list table " + table + " >/dev/null 2>&1 && echo had; true"
		s.undo += `; [ -n "$OLD" ] || nft delete table ` + table
	}
	return s
}

// rule is a step that adds a rule, and prints it as the tool and as nft do.
func (r xRule) rule(chain, rule, where string) step {
	tool := r.tool + " -t " + r.table + " "
	s := r.step(tool+where+" "+rule, tool+"-D "+chain+" "+rule)
	end, list := "head -1", "-S "+chain+" | grep '^-A'"
	if strings.HasPrefix(where, "-A") {
		end = "tail -1"
	}
	rules := `grep -v 'chain\|hook' | `
	if r.kept == "bridge" || r.kept == "arp" {
		list = "-L " + chain + " | grep '^-'"
	}
	if r.kept == "bridge" && chain == "SITE" {
		rules += "sed '/^}/d; /^\t}/d' | sed '$d' | " // a chain of ebtables ends with a rule for its policy
	}
	s.do += " || exit 1; " + tool + list + " | " + end + " | sed 's/^-A " + chain + " //'"
	if r.kept != "" {
		s.do += "; nft -a list chain " + r.kept + " " + r.table + " " + chain +
			` 2>&- | ` + rules + `sed -n 's/.*# \(handle [0-9]*\)$/\1/p' | ` + end
	}
	return s
}

// aTarget chooses what happens to packets: half the time they are dropped.
func (r xRule) aTarget() string {
	switch {
	case r.kept == "arp":
		return r.pick("arptables target", "DROP", "DROP", "ACCEPT", "mangle --mangle-ip-s 192.0.2.7")
	case r.kept == "bridge" && r.table == "nat":
		mac := r.mac()
		return map[string]string{"DROP": "DROP", "dnat": "dnat --to-destination " + mac, "snat": "snat --to-source " +
			mac,
			"mark": "mark --mark-set 7", "redirect": "redirect"}[r.pick("ebtables nat target", "DROP", "dnat", "snat",
			"mark", "redirect")]
	case r.kept == "bridge":
		return r.pick("ebtables target", "DROP", "DROP", "DROP", "ACCEPT", "mark --mark-set 7")
	case r.chance(50) && r.table != "nat":
		return "DROP"
	}
	return choose(r.draw, "target in "+r.table, xTargets[r.table])(r)
}

func target(s string) func(xRule) string { return func(xRule) string { return s } }

var xTargets = map[string][]option[func(xRule) string]{
	"filter": {
		{"REJECT", target("REJECT")}, {"ACCEPT", target("ACCEPT")},
		{"TCP reset", target("REJECT --reject-with tcp-reset")}, {"NFQUEUE", target("NFQUEUE --queue-num 7")},
		{"TEE", func(r xRule) string { return "TEE --gateway " + r.anyNode().addr[r.addrs].String() }},
	},
	"mangle": {
		{"TTL", func(r xRule) string {
			return map[family]string{ip4: "TTL --ttl-set ", ip6: "HL --hl-set "}[r.addrs] + r.pick("TTL", "1", "1",
				"64")
		}},
		{"MARK", func(r xRule) string { return "MARK --set-mark " + r.pick("MARK", "1", "0x4000", "0x77") }},
		{"DSCP", target("DSCP --set-dscp 8")}, {"CLASSIFY", target("CLASSIFY --set-class 1:1")},
		{"TCPMSS", target("TCPMSS --set-mss 1000")}, {"CHECKSUM", target("CHECKSUM --checksum-fill")},
		{"TEE", func(r xRule) string { return "TEE --gateway " + r.anyPod().addr[r.addrs].String() }},
	},
	"raw": {
		{"NOTRACK", target("NOTRACK")}, {"CT", target("CT --notrack")}, {"ACCEPT", target("ACCEPT")},
	},
	"nat": {
		{"MASQUERADE", target("MASQUERADE")}, {"ACCEPT", target("ACCEPT")}, {"REDIRECT", target("REDIRECT")},
		{"DNAT", func(r xRule) string { return "DNAT --to-destination " + r.someone() }},
		{"SNAT", func(r xRule) string { return "SNAT --to-source " + r.someone() }},
		{"NETMAP", func(r xRule) string { return "NETMAP --to " + r.anyNode().subnet[r.addrs].String() }},
	},
}

func (r xRule) someone() string {
	return nftRule{draw: r.draw, family: r.addrs}.someone()
}

// match chooses which packets.
func (r xRule) match() string {
	switch r.kept {
	case "arp":
		return choose(r.draw, "arptables match", arptablesMatches)(r)
	case "bridge":
		return choose(r.draw, "ebtables match", ebtablesMatches)(r)
	}
	text := choose(r.draw, "iptables match", iptablesMatches)(r)
	if r.chance(15) {
		text = words(text, choose(r.draw, "second iptables match", iptablesMatches)(r))
	}
	return text
}

func (r xRule) protocol() string {
	return map[family]string{ip4: "icmp", ip6: "ipv6-icmp"}[r.addrs]
}

var arptablesMatches = []option[func(xRule) string]{
	{"none", target("")},
	{"opcode", func(r xRule) string { return "--opcode " + r.pick("opcode", "1", "2") }},
	{"source", func(r xRule) string { return "-s " + r.subject(ip4) }},
	{"destination", func(r xRule) string { return "-d " + r.subject(ip4) }},
	{"device", func(r xRule) string {
		return map[string]string{"INPUT": "-i ", "OUTPUT": "-o "}[r.chain] + r.device(r.place)
	}},
}

var ebtablesMatches = []option[func(xRule) string]{
	{"none", target("")},
	{"protocol", func(r xRule) string { return "-p " + r.pick("ethertype", "IPv4", "IPv6", "ARP") }},
	{"source", func(r xRule) string { return "-s " + r.anyPod().mac }},
	{"destination", func(r xRule) string { return "-d " + r.anyPod().mac }},
	{"IP", func(r xRule) string {
		if r.addrs == ip6 {
			return "-p IPv6 " + r.pick("IPv6 side", "--ip6-src ", "--ip6-dst ") + r.subject(ip6)
		}
		return "-p IPv4 " + r.pick("IP side", "--ip-src ", "--ip-dst ") + r.subject(ip4)
	}},
	{"IP protocol", func(r xRule) string {
		return "-p IPv4 --ip-proto " + r.pick("IP protocol", "tcp", "udp",
			"icmp")
	}},
	{"packet type", func(r xRule) string {
		return "--pkttype-type " + r.pick("packet type", "broadcast", "multicast", "otherhost", "host")
	}},
	{"device", func(r xRule) string {
		if slices.Contains([]string{"OUTPUT", "POSTROUTING"}, r.chain) {
			return "-o " + r.device(r.place)
		}
		return "-i " + r.device(r.place)
	}},
}

var iptablesMatches = []option[func(xRule) string]{
	{"none", target("")},
	{"source", func(r xRule) string { return "-s " + r.subject(r.addrs) }},
	{"destination", func(r xRule) string { return "-d " + r.subject(r.addrs) }},
	{"not source", func(r xRule) string { return "! -s " + r.subject(r.addrs) }},
	{"protocol", func(r xRule) string { return "-p " + r.pick("-p", "tcp", "udp", r.protocol()) }},
	{"length", func(r xRule) string {
		return "-m length --length " + r.pick("--length", "1000:65535", "0:100", "1400:1500")
	}},
	{"tcp port", func(r xRule) string {
		return "-p tcp --dport " + r.pick("--dport", "1024:65535", "32768:65535", "6443")
	}},
	{"syn", target("-p tcp --syn")},
	{"tcp flags", func(r xRule) string {
		return "-p tcp --tcp-flags " + r.pick("--tcp-flags", "SYN,ACK SYN,ACK", "PSH PSH", "FIN FIN")
	}},
	{"udp port", func(r xRule) string { return "-p udp --dport " + r.pick("udp --dport", "8472", "1024:65535", "53") }},
	{"icmp", func(r xRule) string {
		return map[family]string{ip4: "-p icmp --icmp-type ", ip6: "-p ipv6-icmp --icmpv6-type "}[r.addrs] +
			r.pick("--icmp-type", "echo-request", "echo-reply", "destination-unreachable")
	}},
	{"device", func(r xRule) string {
		if slices.Contains([]string{"OUTPUT", "POSTROUTING"}, r.chain) {
			return "-o " + r.device(r.place)
		}
		return "-i " + r.device(r.place)
	}},
	{"conntrack", func(r xRule) string {
		return "-m conntrack --ctstate " + r.pick("--ctstate", "NEW", "ESTABLISHED", "INVALID", "UNTRACKED",
			"NEW,RELATED")
	}},
	{"ttl", func(r xRule) string {
		if r.addrs == ip6 {
			return "-m hl --hl-eq " + r.pick("--hl-eq", "64", "63", "62")
		}
		return "-m ttl " + r.pick("-m ttl", "--ttl-eq 64", "--ttl-lt 64", "--ttl-gt 60")
	}},
	{"dscp", func(r xRule) string { return "-m dscp --dscp " + r.pick("--dscp", "0", "8") }},
	{"mark", func(r xRule) string { return "-m mark --mark " + r.pick("--mark", "0", "1", "0x4000/0x4000") }},
	{"pkttype", func(r xRule) string {
		return "-m pkttype --pkt-type " + r.pick("--pkt-type", "unicast", "broadcast", "multicast")
	}},
	{"statistic", func(r xRule) string {
		return "-m statistic " + r.pick("-m statistic", "--mode random --probability 0.5",
			"--mode nth --every 3 --packet 0")
	}},
	{"mac", func(r xRule) string { return "-m mac --mac-source " + r.anyPod().mac }},
	{"addrtype", func(r xRule) string {
		return "-m addrtype --dst-type " + r.pick("--dst-type", "LOCAL", "UNICAST", "BROADCAST")
	}},
	{"limit", func(r xRule) string { return "-m limit --limit " + r.pick("--limit", "1/s", "100/s") }},
	{"physdev", func(r xRule) string {
		if r.pick("-m physdev", "--physdev-is-bridged", "--physdev-in") == "--physdev-in" {
			return "-m physdev --physdev-in " + r.device(r.place)
		}
		return "-m physdev --physdev-is-bridged"
	}},
	{"rpfilter", target("-m rpfilter --invert")},
}
