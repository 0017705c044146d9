package filter

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// golden are a rule of each form, and what nft prints for it.
var golden = map[netstate.Family][][2]string{
	netstate.IPv4: {
		{"ct reply established accept", "ct direction reply ct state established accept"},
		{"ct related accept", "ct state related accept"},
		{"new jump other", "ct state new jump other"},
		{"tcp without syn jump other", "tcp flags ! syn jump other"},
		{"counter reset", "counter packets 0 bytes 0 reject with tcp reset"},
		{"backwards saddr @addr daddr 10.0.0.0/8 return", "ip daddr @addr ip saddr 10.0.0.0/8 return"},
		{"backwards saddr . daddr @self accept", "ip daddr . ip saddr @self accept"},
		{"backwards daddr . proto . port @port accept", "ip saddr . meta l4proto . th sport @port accept"},
		{"backwards tcp dport 80-90 return", "tcp sport 80-90 return"},
		{"backwards udp dport @ports return", "udp sport @ports return"},
		{"backwards saddr vmap @map", "ip daddr vmap @map"},
		{"ct related proto 1 jump other", "ct state related meta l4proto 1 jump other"},
		{"errors saddr @addr daddr 10.0.0.0/8 return", "ct original ip saddr @addr ct reply ip saddr 10.0.0.0/8 return"},
		{"errors daddr 10.0.0.1/32 return", "ct reply ip saddr 10.0.0.1 return"},
		{"errors saddr . daddr @self return", "ct original ip saddr . ct reply ip saddr @self return"},
		{"errors from . saddr @self accept", "ip saddr . ct original ip saddr @self accept"},
		{"errors from . daddr @self accept", "ip saddr . ct reply ip saddr @self accept"},
		{"errors daddr . proto . port @port return", "ct reply ip saddr . ct protocol . ct reply proto-src @port return"},
		{"errors proto 47 counter drop", "ct protocol 47 counter packets 0 bytes 0 drop"},
		{"errors tcp dport 80-90 return", "ct protocol 6 ct reply proto-src 80-90 return"},
		{"errors udp dport @ports return", "ct protocol 17 ct reply proto-src @ports return"},
		{"errors saddr vmap @map", "ct original ip saddr vmap @map"},
		{"iifname cni0 oifname eth0 drop", `iifname "cni0" oifname "eth0" drop`},
		{"saddr @addr daddr @range drop", "ip saddr @addr ip daddr @range drop"},
		{"saddr . daddr @self accept", "ip saddr . ip daddr @self accept"},
		{"daddr . proto . port @port accept", "ip daddr . meta l4proto . th dport @port accept"},
		{"saddr 10.0.0.0/8 daddr 10.2.0.0/15 drop", "ip saddr 10.0.0.0/8 ip daddr 10.2.0.0/15 drop"},
		{"saddr 10.0.0.1/32 drop", "ip saddr 10.0.0.1 drop"},
		{"saddr 0.0.0.0/0 drop", "ip saddr 0.0.0.0/0 drop"},
		{"proto 47 drop", "meta l4proto 47 drop"},
		{"tcp dport 80 accept", "tcp dport 80 accept"},
		{"udp dport 1000-2000 accept", "udp dport 1000-2000 accept"},
		{"sctp dport 65535 return", "sctp dport 65535 return"},
		{"udp dport @ports accept", "udp dport @ports accept"},
		{"iifname cni0 mark set 0x10000000", `iifname "cni0" meta mark set meta mark | 0x10000000`},
		{"mark clear 0x10000000", "meta mark set meta mark & 0xefffffff"},
		{"mark without 0x10000000 drop", "meta mark & 0x10000000 == 0x00000000 drop"},
		{"counter drop", "counter packets 0 bytes 0 drop"},
		{"tcp dport 80 log in-1", `tcp dport 80 limit rate 5/second burst 10 packets log prefix "in-1" group 116`},
		{"jump other", "jump other"},
		{"saddr vmap @map", "ip saddr vmap @map"},
		{"daddr vmap @map", "ip daddr vmap @map"},
		{"goto other", "goto other"},
	},
	netstate.IPv6: {
		{"mark set 0x3", "meta mark set meta mark | 0x00000003"},
		{"icmpv6 133-137 accept", "icmpv6 type 133-137 accept"},
		{"icmpv6 1 accept", "icmpv6 type destination-unreachable accept"},
		{"saddr @addr daddr @range drop", "ip6 saddr @addr ip6 daddr @range drop"},
		{"saddr . daddr @self accept", "ip6 saddr . ip6 daddr @self accept"},
		{"daddr . proto . port @port accept", "ip6 daddr . meta l4proto . th dport @port accept"},
		{"saddr fd00::/8 daddr fd00::/9 drop", "ip6 saddr fd00::/8 ip6 daddr fd00::/9 drop"},
		{"backwards daddr . proto . port @port accept", "ip6 saddr . meta l4proto . th sport @port accept"},
		{"errors daddr . proto . port @port return", "ct reply ip6 saddr . ct protocol . ct reply proto-src @port return"},
		{"errors saddr fd00::/9 daddr @addr return", "ct original ip6 saddr fd00::/9 ct reply ip6 saddr @addr return"},
		{"errors from . daddr @self accept", "ip6 saddr . ct reply ip6 saddr @self accept"},
		{"saddr fe80::1/128 drop", "ip6 saddr fe80::1 drop"},
		{"tcp dport @ports accept", "tcp dport @ports accept"},
		{"log in-1", `limit rate 5/second burst 10 packets log prefix "in-1" group 116`},
		{"saddr vmap @map", "ip6 saddr vmap @map"},
		{"daddr vmap @map", "ip6 daddr vmap @map"},
	},
	netstate.Ethernet: {
		{"iifgroup 116 drop", "iifgroup 116 drop"},
		{"iifgroup 116 mark clear 0x10000000", "iifgroup 116 meta mark set meta mark & 0xefffffff"},
		{"iifgroup 116 oifgroup 116 mark without 0x10000000 drop", "iifgroup 116 oifgroup 116 meta mark & 0x10000000 == 0x00000000 drop"},
		{"mark set 0x10000000", "meta mark set meta mark | 0x10000000"},
		{"ether type ip iifname @dev return", "ether type ip iifname @dev return"},
		{"ether type ip iifname . ip saddr @ip return", "iifname . ip saddr @ip return"},
		{"ether type ip6 iifname . ip6 saddr @ip6 return", "iifname . ip6 saddr @ip6 return"},
		{"ether type ip6 saddr fe80::/10 return", "ip6 saddr fe80::/10 return"},
		{"ether type ip6 saddr ::/128 daddr ff02::/16 return", "ip6 saddr :: ip6 daddr ff02::/16 return"},
		{"ether type ip saddr 10.0.0.0/8 accept", "ip saddr 10.0.0.0/8 accept"},
		{"ether type arp accept", "ether type arp accept"},
		{"counter drop", "counter packets 0 bytes 0 drop"},
		{"log frames", `limit rate 5/second burst 10 packets log prefix "frames" group 116`},
		{"jump other", "jump other"},
		{"goto other", "goto other"},
	},
}

// goldenState is a table of one family with a rule of each form.
func goldenState(family netstate.Family) netstate.State {
	state := netstate.NewState(netstate.Filter{Family: family, Name: "other"})
	kinds := map[string]netstate.SetType{
		"addr": netstate.Addresses, "range": netstate.Ranges, "ports": netstate.PortRanges, "self": netstate.Selves, "port": netstate.NamedPorts,
		"map": netstate.Verdicts,
	}
	if family == netstate.Ethernet {
		kinds = map[string]netstate.SetType{"dev": netstate.Devices, "ip": netstate.IPv4Sources, "ip6": netstate.IPv6Sources}
	}
	for name, kind := range kinds {
		state.Add(netstate.Set{Family: family, Name: name, Type: kind})
	}
	var rules []string
	for _, g := range golden[family] {
		rules = append(rules, g[0])
	}
	state.Add(netstate.Hook{Family: family, Rules: strings.Join(rules, "\n")})
	if family == netstate.Ethernet {
		state.Add(netstate.Hook{Family: family, Onward: true, Rules: "counter drop"})
	}
	return state
}

// TestGolden: nft prints for each form of a rule what it is meant to be.
func TestGolden(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	f := open(t)
	for _, family := range families {
		settle(t, f, goldenState(family))
		if family == netstate.Ethernet {
			const want = "type filter hook forward priority 200; policy accept;\n\t\tcounter packets 0 bytes 0 drop"
			if text := sh(t, "nft -p list chain bridge twill-policy forward"); !strings.Contains(text, want) {
				t.Errorf("of frames that go on: got\n%s, want\n%s", text, want)
			}
		}
		hook := netstate.Hook{Family: family}.Name()
		text := sh(t, "nft -p list chain "+tableNames[family]+" twill-policy "+hook)
		var lines []string
		for line := range strings.Lines(text) {
			lines = append(lines, strings.TrimSpace(line))
		}
		lines = lines[min(2, len(lines)):]
		if lines[0] != "type filter hook "+hook+" priority filter; policy accept;" {
			t.Errorf("the hook is %q", lines[0])
		}
		for i, g := range golden[family] {
			if lines[i+1] != g[1] {
				t.Errorf("%q: got %q, want %q", g[0], lines[i+1], g[1])
			}
		}
	}
}

var tableNames = map[netstate.Family]string{netstate.IPv4: "ip", netstate.IPv6: "ip6", netstate.Ethernet: "bridge"}

// TestDecoded: of each form of a rule the kernel says what was meant, also to somebody who does not know. Some are the same
// without the word backwards. A rule of another form is none.
func TestDecoded(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f, all := open(t), func(string) bool { return true }
	for _, family := range families {
		settle(t, f, goldenState(family))
		have, err := f.Read(t.Context(), netstate.State{}, all)
		if err != nil {
			t.Fatal(err)
		}
		hook := netstate.Hook{Family: family}.Key()
		got := strings.Split(have[hook].(netstate.Hook).Rules, "\n")
		for i, g := range golden[family] {
			if i >= len(got) || got[i] != g[0] && got[i] != same[g[0]] {
				t.Fatalf("%s: want %q, got %q", family, g[0], got)
			}
		}
	}
	settle(t, f, goldenState(netstate.IPv4))
	sh(t, "nft add rule ip twill-policy other limit rate 1/second accept")
	have, err := f.Read(t.Context(), netstate.State{}, all)
	if err != nil {
		t.Fatal(err)
	}
	if got := have[netstate.Filter{Family: netstate.IPv4, Name: "other"}.Key()].(netstate.Filter).Rules; got != "1 other rules" {
		t.Errorf("a rule of another form: got %q", got)
	}
}

// same are golden rules that are others, too.
var same = map[string]string{
	"backwards saddr @addr daddr 10.0.0.0/8 return": "daddr @addr saddr 10.0.0.0/8 return",
	"backwards saddr vmap @map":                     "daddr vmap @map",
}

// TestClauses: the golden rules have every clause.
func TestClauses(t *testing.T) {
	ip := slices.Concat(golden[netstate.IPv4], golden[netstate.IPv6])
	for family, rules := range map[netstate.Family][][2]string{
		netstate.IPv4: ip, netstate.IPv6: ip, netstate.Ethernet: golden[netstate.Ethernet],
	} {
		for _, c := range slices.Concat(slices.Collect(maps.Values(clauses[family]))...) {
			if !slices.ContainsFunc(rules, func(g [2]string) bool {
				return strings.Contains(" "+g[0]+" ", " "+c.words+" ")
			}) {
				t.Errorf("no rule of %s has the clause %q", family, c.words)
			}
		}
	}
}

// TestElementsPrinted: nft prints elements as what they are meant to be, too.
func TestElementsPrinted(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	f, want := open(t), policies(t)
	settle(t, f, want)
	for set, elements := range map[string]string{
		"set ip twill-policy pods-1":   "elements = { 10.0.1.1, 10.0.1.2 }",
		"set ip twill-policy block-1":  "elements = { 10.7.255.253-10.7.255.255, 10.8.0.0/16, 10.9.0.0/17, 10.9.128.0/17, 255.0.0.0/8 }",
		"set ip twill-policy self":     "elements = { 10.0.1.1 . 10.0.1.1, 10.0.1.2 . 10.0.1.2 }",
		"set ip twill-policy port-1":   "elements = { 10.0.1.1 . 6 . 8080, 10.0.1.2 . 6 . 8081 }",
		"set ip6 twill-policy ports-1": "elements = { 80, 1000-65535 }",
		"map ip twill-policy egress":   "elements = { 10.0.1.1 : return, 10.0.1.2 : return }",
		"map ip twill-policy ingress":  "elements = { 10.0.1.1 : goto in-1, 10.0.1.2 : goto in-1 }",
		"set ip6 twill-policy block-1": "elements = { fd07:ffff:ffff:ffff:ffff:ffff:ffff:fffd-fd07:ffff:ffff:ffff:ffff:ffff:ffff:ffff, fd08::/16, fd09::/32, fd09:1::/32, ff00::/8 }",
		"set ip6 twill-policy port-1":  "elements = { fd00:1::1 . 6 . 8080, fd00:1::2 . 6 . 8081 }",

		"set bridge twill-policy unchecked": `elements = { "veth1" }`,
		"set bridge twill-policy sources":   `elements = { "veth1" . 10.0.1.1, "veth123456789ab" . 10.0.1.2 }`,
		"set bridge twill-policy sources6":  `elements = { "veth1" . fd00:1::1, "veth123456789ab" . fd00:1::2 }`,
	} {
		text := sh(t, "nft -p list "+set)
		words := strings.Join(strings.Fields(text), " ")
		if !strings.Contains(words, elements) {
			t.Errorf("%s: got %s, want %s", set, text, elements)
		}
	}
}

// TestUnknownRule: the error names the rule and what is wrong in it.
func TestUnknownRule(t *testing.T) {
	for rule, want := range map[string]string{
		"":                        `rule "": want an end such as accept, drop or return`,
		"tcp dport 80":            `rule "tcp dport 80": want an end such as accept, drop or return`,
		"accept drop":             `rule "accept drop": it goes on with "drop" after its end`,
		"saddr 10.0.0/8 accept":   `rule "saddr 10.0.0/8 accept": no clause begins with "saddr 10.0.0/8 accept"`,
		"saddr 10.0.0.1/8 accept": `rule "saddr 10.0.0.1/8 accept": no clause begins with "saddr 10.0.0.1/8 accept"`,
		"saddr fd00::/8 accept":   `rule "saddr fd00::/8 accept": no clause begins with "saddr fd00::/8 accept"`,
		"saddr @ accept":          `rule "saddr @ accept": no clause begins with "saddr @ accept"`,
		"saddr vmap map":          `rule "saddr vmap map": no clause begins with "saddr vmap map"`,
		"saddr . daddr 10.0.0.0/8 drop": `rule "saddr . daddr 10.0.0.0/8 drop": no clause begins with "saddr . daddr ` +
			`10.0.0.0/8 drop"`,
		"tcp dport 65536 drop": `rule "tcp dport 65536 drop": no clause begins with "tcp dport 65536 drop"`,
		"udp dport 9-8 drop":   `rule "udp dport 9-8 drop": no clause begins with "udp dport 9-8 drop"`,
		"icmpv6 256 drop":      `rule "icmpv6 256 drop": no clause begins with "icmpv6 256 drop"`,
		"proto tcp drop":       `rule "proto tcp drop": no clause begins with "proto tcp drop"`,
		"iifname 0123456789abcdef drop": `rule "iifname 0123456789abcdef drop": no clause begins with ` +
			`"iifname 0123456789abcdef drop"`,
		"proto 6 log":           `rule "proto 6 log": no clause begins with "log"`,
		"log in-1 drop":         `rule "log in-1 drop": it goes on with "drop" after its end`,
		"proto 6 jump":          `rule "proto 6 jump": no clause begins with "jump"`,
		"ct established accept": `rule "ct established accept": no clause begins with "ct established accept"`,
	} {
		if _, err := encode(netstate.IPv4, rule); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", rule, err, want)
		}
	}
	for _, rule := range []string{"ct related accept", "saddr @ip drop", "iifname cni0 drop", "iifgroup default drop",
		"ether type vlan drop", "iifname . ip saddr 10.0.0.0/8 drop", "saddr 10.0.0.1/8 drop", "saddr vmap @map", "tcp dport 80 drop",
		"iifgroup 4294967296 drop", "iifname . saddr @ip drop"} {
		if _, err := encode(netstate.Ethernet, rule); err == nil || !strings.Contains(err.Error(), "no clause begins with") {
			t.Errorf("%q for frames: got %v", rule, err)
		}
	}
}

// FuzzEncode: whatever the text is, it has expressions, or it is refused with an error that names it.
func FuzzEncode(f *testing.F) {
	for _, rules := range golden {
		for _, g := range rules {
			f.Add(g[0])
		}
	}
	f.Fuzz(func(t *testing.T, rule string) {
		for _, family := range families {
			exprs, err := encode(family, rule)
			if err == nil && len(exprs) == 0 {
				t.Errorf("%q has no expressions", rule)
			} else if err != nil && !strings.Contains(err.Error(), "rule \"") {
				t.Errorf("%q: %v does not name the rule", rule, err)
			}
		}
	})
}

// TestAlteredExpressions: whatever is changed in an attribute of a rule that the kernel reports, left out of it or
// added, the chain has another text then.
func TestAlteredExpressions(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f := open(t)
	for _, family := range families {
		settle(t, f, goldenState(family))
		r := f.reader()
		rules := r.Rules(family, netstate.FilterTable, netstate.Hook{Family: family}.Name())
		if r.Err != nil || len(rules) != len(golden[family]) {
			t.Fatalf("%d rules, %v", len(rules), r.Err)
		}
		for i, g := range golden[family] {
			if textOf(family, g[0], rules[i:i+1]) != g[0] {
				t.Fatalf("%q is not read as it was written", g[0])
			}
			for j, e := range rules[i].Exprs {
				if e.Name == "counter" {
					continue
				}
				for _, data := range altered(t, e.Data) {
					exprs := slices.Clone(rules[i].Exprs)
					exprs[j].Data = data
					if textOf(family, g[0], []nfnl.Rule{{Exprs: exprs}}) == g[0] {
						t.Errorf("%q with %s % x in place of % x is not noticed", g[0], e.Name, data, e.Data)
					}
				}
				without := slices.Delete(slices.Clone(rules[i].Exprs), j, j+1)
				twice := slices.Insert(slices.Clone(rules[i].Exprs), j, e)
				for _, exprs := range [][]nfnl.Expr{without, twice} {
					if textOf(family, g[0], []nfnl.Rule{{Exprs: exprs}}) == g[0] {
						t.Errorf("%q without, or with two %s is not noticed", g[0], e.Name)
					}
				}
			}
		}
	}
}

// altered returns data with each byte of each attribute changed, each attribute left out, and one added.
func altered(t *testing.T, data []byte) (all [][]byte) {
	t.Helper()
	list, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		t.Fatal(err)
	}
	put := func(list []netlink.Attribute) {
		b, err := netlink.MarshalAttributes(list)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	for i, a := range list {
		var parts [][]byte
		_, err := nfnl.ParseAttributes(a.Data)
		isList := err == nil && len(a.Data) >= unix.NLA_HDRLEN
		if isList {
			parts = altered(t, a.Data)
		}
		for at := 0; !isList && at < len(a.Data); at++ { // the bytes of a list are padded
			part := slices.Clone(a.Data)
			part[at] ^= 1
			parts = append(parts, part)
		}
		for _, part := range parts {
			other := slices.Clone(list)
			other[i].Data = part
			put(other)
		}
		if slices.ContainsFunc(a.Data, func(b byte) bool { return b != 0 }) { // a zero is what an absent one is
			put(slices.Delete(slices.Clone(list), i, i+1))
		}
	}
	put(append(list, netlink.Attribute{Type: 30, Data: []byte{0, 0, 0, 1}}))
	return all
}
