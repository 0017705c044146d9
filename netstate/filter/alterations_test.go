package filter

import (
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

const (
	pods  = "pods-1"
	block = "block-1"
)

// policies is a table as policies make it.
func policies(t testing.TB) netstate.State {
	t.Helper()
	state := netstate.State{}
	for _, family := range netstate.Families {
		prefix := prefixes(t, "10.0.1.1/32 10.0.1.2/32 10.8.0.0/16 10.9.0.0/17 10.9.128.0/17 255.0.0.0/8")
		if family == netstate.IPv6 {
			prefix = prefixes(t, "fd00:1::1/128 fd00:1::2/128 fd08::/16 fd09::/32 fd09:1::/32 ff00::/8")
		}
		for _, s := range []netstate.Set{
			{Name: "egress", Type: netstate.Verdicts}, {Name: "ingress", Type: netstate.Verdicts},
			{Name: "self", Type: netstate.Selves}, {Name: pods, Type: netstate.Addresses},
			{Name: block, Type: netstate.Ranges}, {Name: "port-1", Type: netstate.NamedPorts},
			{Name: "ports-1", Type: netstate.PortRanges},
		} {
			s.Family = family
			state.Add(s)
		}
		for i, pod := range prefix[:2] {
			state.Add(netstate.Element{Set: "egress", Prefix: pod, Verdict: "return"},
				netstate.Element{Set: "ingress", Prefix: pod, Verdict: "goto in-1"},
				netstate.Element{Set: "self", Prefix: pod}, netstate.Element{Set: pods, Prefix: pod},
				netstate.Element{Set: "port-1", Prefix: pod, Protocol: 6, Port: uint16(8080 + i)})
		}
		for _, p := range prefix[2:] {
			state.Add(netstate.Element{Set: block, Prefix: p})
		}
		first := prefix[2].Addr().Prev() // of a range that is no prefix
		state.Add(netstate.Range(block, first.Prev().Prev(), first),
			netstate.Element{Set: "ports-1", Prefix: family.All(), Port: 80, LastPort: 80},
			netstate.Element{Set: "ports-1", Prefix: family.All(), Port: 1000, LastPort: 65535})
		state.Add(
			netstate.Hook{Family: family, Rules: "ct reply established accept\nct related accept\n" +
				"icmpv6 133-137 accept\niifname cni0 oifname cni0 daddr " + prefix[5].String() + " counter drop\n" +
				"jump egress\ngoto ingress"},
			netstate.Filter{Family: family, Name: "egress", Rules: "saddr vmap @egress\nsaddr " + prefix[2].String() +
				" counter drop"},
			netstate.Filter{Family: family, Name: "ingress", Rules: "daddr vmap @ingress\ndaddr " + prefix[3].String() +
				" drop"},
			netstate.Filter{Family: family, Name: "in-1", Rules: "saddr . daddr @self accept\n" +
				"saddr @pods-1 tcp dport 80 accept\nsaddr @block-1 udp dport @ports-1 accept\n" +
				"daddr . proto . port @port-1 accept\nproto 132 return\nsctp dport 9 accept\nlog in-1\ncounter drop"})
	}
	frames(t, state)
	return state
}

// frames adds a table for frames as policies make it.
func frames(t testing.TB, state netstate.State) {
	t.Helper()
	for name, kind := range map[string]netstate.SetType{
		"unchecked": netstate.Devices, "sources": netstate.IPv4Sources, "sources6": netstate.IPv6Sources,
	} {
		state.Add(netstate.Set{Family: netstate.Ethernet, Name: name, Type: kind})
	}
	state.Add(netstate.Element{Set: "unchecked", Dev: "veth1"},
		netstate.Hook{Family: netstate.Ethernet, Rules: "iifgroup 116 goto frames"},
		netstate.Filter{Family: netstate.Ethernet, Name: "frames", Rules: "ether type arp return\n" +
			"ether type ip iifname @unchecked return\nether type ip iifname . ip saddr @sources return\n" +
			"ether type ip6 iifname . ip6 saddr @sources6 return\nether type ip6 saddr fe80::/10 return\ncounter drop"})
	for i, dev := range []string{"veth1", "veth123456789ab"} {
		state.Add(netstate.Element{Set: "sources", Dev: dev, Prefix: prefixes(t, "10.0.1.1/32 10.0.1.2/32")[i]},
			netstate.Element{Set: "sources6", Dev: dev, Prefix: prefixes(t, "fd00:1::1/128 fd00:1::2/128")[i]})
	}
}

// alterations are commands that alter TABLE, ip twill-policy. "handle CHAIN TEXT" finds the handle of a rule.
var alterations = map[string]string{
	"table deleted":       "nft delete table TABLE",
	"table flushed":       "nft flush table TABLE",
	"table dormant":       "nft 'add table TABLE { flags dormant; }'",
	"both tables deleted": "nft flush ruleset",
	"rule deleted":        "nft delete rule TABLE in-1 handle $(handle in-1 'counter.*drop')",
	"rule inserted":       "nft insert rule TABLE forward accept",
	"rule appended":       "nft add rule TABLE ingress accept",
	"rule with a set":     "nft insert rule TABLE in-1 ip saddr { 192.0.2.1, 192.0.2.2 } accept",
	"rule with a map":     "nft insert rule TABLE in-1 ip saddr vmap { 192.0.2.1 : accept }",
	"rule with a chain":   "nft 'insert rule TABLE in-1 jump { ip saddr 192.0.2.1 accept; }'",
	"verdict of a rule":   "nft replace rule TABLE in-1 handle $(handle in-1 'counter.*drop') counter accept",
	"counter taken away":  "nft replace rule TABLE in-1 handle $(handle in-1 'counter.*drop') drop",
	"port of a rule": "nft replace rule TABLE in-1 handle $(handle in-1 'dport 80') ip saddr @pods-1 tcp dport 81 " +
		"accept",
	"set of a rule": "nft replace rule TABLE in-1 handle $(handle in-1 'dport 80') ip saddr @block-1 tcp dport 80 " +
		"accept",
	"negated set of a rule": "nft replace rule TABLE in-1 handle $(handle in-1 'dport 80') ip saddr != @pods-1 tcp " +
		"dport 80 accept",
	"order of rules": "H=$(handle in-1 'dport 80'); nft insert rule TABLE in-1 ip saddr @pods-1 tcp dport 80 accept; " +
		"nft delete rule TABLE in-1 handle $H",
	"log's limit": "nft replace rule TABLE in-1 handle $(handle in-1 'log prefix') limit rate 50/second burst 10 packets " +
		"log prefix in-1 group 116",
	"log's group": "nft replace rule TABLE in-1 handle $(handle in-1 'log prefix') limit rate 5/second burst 10 packets " +
		"log prefix in-1 group 117",
	"log's name": "nft replace rule TABLE in-1 handle $(handle in-1 'log prefix') limit rate 5/second burst 10 packets " +
		"log prefix in-2 group 116",
	"rule of some packets": "nft replace rule TABLE in-1 handle $(handle in-1 'counter.*drop') meta mark 5 counter drop",
	"chain flushed":        "nft flush chain TABLE in-1",
	"chain added":          "nft add chain TABLE other",
	"chain that others enter": "nft 'add chain TABLE other; add rule TABLE other accept; insert rule TABLE in-1 jump " +
		"other'",
	"chains in a row": "nft 'add chain TABLE a; add chain TABLE b; add rule TABLE a jump b; add rule TABLE b tcp " +
		"dport 1 accept'",
	"chain renamed":      "nft rename chain TABLE in-1 in-2",
	"base chain added":   "nft 'add chain TABLE other { type filter hook input priority 0; policy drop; }'",
	"policy of the hook": "nft 'add chain TABLE forward { policy drop; }'",
	"hook deleted":       "nft 'flush chain TABLE forward; delete chain TABLE forward'",
	"hook moved": "nft 'flush chain TABLE forward; delete chain TABLE forward; " +
		"add chain TABLE forward { type filter hook forward priority 5; policy accept; }'",
	"hook no base chain": "nft 'flush chain TABLE forward; delete chain TABLE forward; add chain TABLE forward'",

	"element added":   "nft add element TABLE pods-1 { 192.0.2.1 }",
	"element deleted": "nft delete element TABLE pods-1 { 10.0.1.1 }",
	"element with a comment": "nft 'delete element TABLE pods-1 { 10.0.1.1 }; add element TABLE pods-1 { 10.0.1.1 " +
		"comment \"mine\" }'",
	"pair of two addresses":   "nft add element TABLE self { 10.0.1.1 . 10.0.1.2 }",
	"port added":              "nft add element TABLE port-1 { 10.0.1.1 . tcp . 22 }",
	"port deleted":            "nft delete element TABLE port-1 { 10.0.1.1 . tcp . 8080 }",
	"number added":            "nft add element TABLE ports-1 { 90 }",
	"number deleted":          "nft delete element TABLE ports-1 { 80 }",
	"numbers cut":             "nft 'delete element TABLE ports-1 { 1000-65535 }; add element TABLE ports-1 { 1000-2000 }'",
	"range added":             "nft add element TABLE block-1 { 192.0.2.0/24 }",
	"first range added":       "nft add element TABLE block-1 { 0.0.0.0/8 }",
	"range that is no prefix": "nft add element TABLE block-1 { 192.0.2.1-192.0.2.9 }",
	"range deleted":           "nft delete element TABLE block-1 { 10.8.0.0/16 }",
	"range cut": "nft 'delete element TABLE block-1 { 10.8.0.0/16 }; " +
		"add element TABLE block-1 { 10.8.0.0/17 }'",
	"ranges merged": "nft 'delete element TABLE block-1 { 10.9.0.0/17 }; delete element TABLE block-1 { 10.9.128.0/17 " +
		"}; add element TABLE block-1 { 10.9.0.0/16 }'",
	"last range deleted":  "nft delete element TABLE block-1 { 255.0.0.0/8 }",
	"last range replaced": "nft 'flush set TABLE block-1; add element TABLE block-1 { 255.0.0.0/8, 10.8.0.0/16 }'",
	"verdict of an element": "nft 'delete element TABLE ingress { 10.0.1.1 }; add element TABLE ingress { 10.0.1.1 : " +
		"return }'",
	"verdict accept": "nft 'delete element TABLE ingress { 10.0.1.1 }; add element TABLE ingress { 10.0.1.1 : accept }'",
	"verdict jump": "nft 'delete element TABLE ingress { 10.0.1.1 }; add element TABLE ingress { 10.0.1.1 : jump in-1 " +
		"}'",
	"verdict goto a new chain": "nft 'add chain TABLE x; delete element TABLE ingress { 10.0.1.1 }; add element TABLE " +
		"ingress { 10.0.1.1 : goto x }'",
	"map flushed": "nft flush map TABLE ingress",
	"set flushed": "nft flush set TABLE pods-1",

	"set added":          "nft 'add set TABLE other { type ipv4_addr; elements = { 192.0.2.1 }; }'",
	"map added":          "nft 'add map TABLE other { type ipv4_addr : verdict; elements = { 192.0.2.1 : goto in-1 }; }'",
	"foreign set":        "nft 'add set TABLE other { type mark; }'",
	"set with a timeout": "nft 'add set TABLE other { type ipv4_addr; timeout 1h; }'",
	"set of another type": "R=$(nft list chain TABLE in-1); nft 'flush chain TABLE in-1; delete set TABLE pods-1; add " +
		"set TABLE pods-1 { type ipv4_addr; flags interval; }'; echo \"$R\" | nft -f -",
	"set of a limited size": "R=$(nft list chain TABLE in-1); nft 'flush chain TABLE in-1; delete set TABLE pods-1; " +
		"add set TABLE pods-1 { type ipv4_addr; size 2; elements = { 10.0.1.1, 10.0.1.2 }; }'; echo \"$R\" | nft " +
		"-f -",
	"set deleted": "nft 'flush chain TABLE in-1; delete set TABLE pods-1'",
	"flowtable": "nft 'add flowtable TABLE fast { hook ingress priority 0; devices = { lo }; }' ||" +
		"nft add counter TABLE other", // for a kernel without flowtables
	"named counter": "nft add counter TABLE hits",

	"frames' table deleted": "nft delete table FRAMES",
	"frames' rule inserted": "nft insert rule FRAMES frames accept",
	"frames' hook flushed":  "nft flush chain FRAMES prerouting",
	"frames' hook moved": "nft 'flush chain FRAMES prerouting; delete chain FRAMES prerouting; " +
		"add chain FRAMES prerouting { type filter hook prerouting priority 5; }'",
	"device added":            "nft add element FRAMES unchecked { vethx }",
	"device deleted":          "nft delete element FRAMES unchecked { veth1 }",
	"source added":            "nft add element FRAMES sources { vethx . 10.0.1.1 }",
	"source deleted":          "nft delete element FRAMES sources6 { veth1 . fd00:1::1 }",
	"sources flushed":         "nft flush set FRAMES sources",
	"foreign set for frames":  "nft 'add set FRAMES other { type ether_addr; }'",
	"set of the other family": "nft 'add set FRAMES other { type ipv4_addr; }'",
}

const findHandle = "handle() { nft -a list chain ip twill-policy $1 | sed -n \"s/.*$2.*# handle //p\"; }; "

// TestAlterations: each is seen, names its place, and one plan mends it.
func TestAlterations(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	sh(t, "ip link set lo up")
	f, want := open(t), policies(t)
	for name, command := range alterations {
		settle(t, f, want)
		before := sh(t, "nft list ruleset")
		command = strings.NewReplacer("TABLE", "ip twill-policy", "FRAMES", "bridge twill-policy").Replace(command)
		sh(t, findHandle+command)
		if sh(t, "nft list ruleset") == before {
			t.Errorf("%s: %s altered nothing", name, command)
		}
		plan := netstate.Diff(want, observe(t, f, want))
		if len(plan) == 0 {
			t.Errorf("%s: %s is not seen", name, command)
		}
		settle(t, f, want)
		if after := sh(t, "nft list ruleset"); sorted(after) != sorted(before) {
			t.Errorf("%s: %s: it was\n%s\nand is\n%s", name, command, before, after)
		}
	}
}

// sorted returns the lines of a text in order; objects that were made again stand elsewhere.
func sorted(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
