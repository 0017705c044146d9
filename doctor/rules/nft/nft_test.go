package nft

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/internal/testns"
	"github.com/twill-net/twill/netstate/nfnl"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// write gives the test's namespace rules, and takes all others away.
func write(t *testing.T, text string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader("flush ruleset\n" + text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// readAll reads all chains of nf_tables.
func readAll(t *testing.T) []rules.Chain {
	t.Helper()
	all, err := Read(func(rules.Chain) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRead: chains have what makes them base chains, and rules come in their order, with what names them.
func TestRead(t *testing.T) {
	testns.Enter(t)
	write(t, `
table inet fw {
	chain f { type filter hook forward priority 10; policy drop; jump own comment "to own"; ip daddr 192.0.2.1 udp dport 8472 accept; }
	chain own { drop; }
}
table ip nat { chain post { type nat hook postrouting priority -5; snat to 192.0.2.9; }; }
table ip off { flags dormant; chain f { type filter hook forward priority 0; policy drop; }; }
`)
	all := readAll(t)
	if len(all) != 3 { // a table that is switched off does nothing
		t.Fatalf("got %+v", all)
	}
	f, own, post := all[0], all[1], all[2]
	if f.String() != "inet fw f" || f.Hook != "forward" || f.Priority != 10 || f.Policy != rules.Drop || len(f.Rules) != 2 {
		t.Errorf("got %+v", f)
	}
	if own.Hook != "" || own.Policy != "" || post.Hook != "postrouting" || post.Priority != -5 || post.Policy != rules.Accept {
		t.Errorf("got %+v and %+v", own, post)
	}
	if r := f.Rules[0]; r.Verdict != rules.Jump || r.Target != "own" || r.Comment != "to own" {
		t.Errorf("the jump: %+v", r)
	}
	if r := f.Rules[1]; !strings.HasPrefix(r.Text, "rule inet fw f handle ") || !strings.HasSuffix(r.Text, " daddr 192.0.2.1/32 udp dport 8472 accept") {
		t.Errorf("got %q", r.Text)
	}
	some, err := Read(func(c rules.Chain) bool { return c.Table == "nat" })
	if err != nil || len(some) != 1 || len(some[0].Rules) != 1 || some[0].Rules[0].Verdict != rules.Masquerade {
		t.Errorf("got %+v, %v", some, err)
	}
	if names, err := List(); err != nil || len(names) != 3 || names[0].Rules != nil {
		t.Errorf("got %+v, %v", names, err)
	}
}

// TestConditions: what nft makes of a condition is understood as what it says.
func TestConditions(t *testing.T) {
	testns.Enter(t, "ip link set lo up", "ip link add veth0 type veth peer name cni0")
	four := rules.Packet{Src: addr("10.244.1.2"), Dst: addr("192.0.2.1"), In: "cni0", Out: "lo", Proto: "udp", DPort: 8472}
	six := rules.Packet{Src: addr("fd00::2"), Dst: addr("2001:db8::1"), In: "cni0", Out: "lo", Proto: "udp", DPort: 8472}
	for condition, is := range map[string]struct{ four, six bool }{
		"":                                    {true, true},
		"ip saddr 10.244.1.2":                 {true, false},
		"ip saddr 10.0.0.0/8":                 {true, false},
		"ip saddr 10.244.0.0/15":              {true, false},
		"ip saddr 10.246.0.0/15":              {false, false},
		"ip saddr != 10.0.0.0/8":              {false, false},
		"ip saddr != 10.245.0.0/16":           {true, false},
		"ip daddr 192.0.2.1":                  {true, false},
		"ip6 saddr fd00::/57":                 {false, true},
		"ip6 daddr != fd00::/8":               {false, true},
		"ip6 daddr 2001:db8::1":               {false, true},
		"ip saddr { 1.1.1.1, 10.244.1.2 }":    {true, false},
		"ip saddr != { 1.1.1.1, 10.244.1.2 }": {false, false},
		"ip saddr { 10.244.0.0/24, 10.244.1.0/24, 11.0.0.0/8 }": {true, false},
		"ip saddr { 10.244.0.0/24, 10.244.2.0/24 }":             {false, false},
		"ip daddr { 128.0.0.0/1 }":                              {true, false},
		"meta nfproto ipv4":                                     {true, false},
		"meta protocol ip6":                                     {false, true},
		"ip protocol udp":                                       {true, false},
		"ip6 nexthdr udp":                                       {false, true},
		"meta l4proto udp":                                      {true, true},
		"meta l4proto tcp":                                      {false, false},
		"udp dport 8472":                                        {true, true},
		"tcp dport 8472":                                        {false, false},
		"udp dport 8470-8472":                                   {true, true},
		"udp dport 8473-8480":                                   {false, false},
		"udp dport { 53, 8470-8480 }":                           {true, true},
		"udp dport { 53, 8471, 8473 }":                          {false, false},
		"udp dport { 8473-65535 }":                              {false, false},
		"iifname cni0":                                          {true, true},
		"iifname != cni0":                                       {false, false},
		`iifname "cni*"`:                                        {true, true},
		`oifname "cni*"`:                                        {false, false},
		"iif cni0 oif lo":                                       {true, true},
		"oif != lo":                                             {false, false},
		"ct state new":                                          {true, true},
		"ct state established,new":                              {true, true},
		"ct state established,related":                          {false, false},
		"ct state ! established,related":                        {true, true},
		"ct state != new":                                       {false, false},
		"ct state != established":                               {true, true},
		"ct state { invalid, new }":                             {true, true},
		"ct state != { invalid, new }":                          {false, false},
		"meta mark & 0x4000 == 0":                               {true, true},
		"meta mark & 0x4000 != 0x4000":                          {true, true},
		"meta mark & 0x4000 == 0x4000":                          {false, false},
		"meta mark 0x1":                                         {false, false},
		"fib daddr type local":                                  {true, true},
		"fib daddr type != local":                               {false, false},
		"fib daddr type multicast":                              {false, false},
		`counter log prefix "x" notrack meta mark set meta mark | 0x10 ip ttl set 5`: {true, false},
		"meta mark set numgen inc mod 2":                                             {true, true},
	} {
		write(t, "table inet t { chain c { type filter hook input priority 0; "+condition+" drop; }; }")
		all := readAll(t)
		for _, p := range []rules.Packet{four, six} {
			want := rules.Accept
			if p == four && is.four || p == six && is.six {
				want = rules.Drop
			}
			if d := rules.Decide(all, "input", p); d.Verdict != want {
				t.Errorf("%s, %s: %s, want %s: %+v", condition, p.Src, d.Verdict, want, all[0].Rules)
			}
		}
	}
}

// TestOneFamily: in a table of both families a condition on addresses of one is about no packet of the other, and an answer that
// is TCP's about no packet but TCP's. A protocol has one name, whatever /etc/protocols calls it.
func TestOneFamily(t *testing.T) {
	testns.Enter(t)
	for rule, passes := range map[string]rules.Packet{
		"ip daddr != 10.244.0.0/16 drop": {Src: addr("fd00::2"), Dst: addr("fd00::3")},
		"reject with tcp reset":          {Src: addr("192.0.2.2"), Dst: addr("192.0.2.1"), Proto: "udp"},
	} {
		write(t, "table inet t { chain c { type filter hook input priority 0; "+rule+"; }; }")
		if d := rules.Decide(readAll(t), "input", passes); d.Verdict != rules.Accept {
			t.Errorf("%s: %+v", rule, d)
		}
	}
	for number, proto := range map[string]string{"4": "ipip", "41": "ipv6", "50": "esp", "17": "udp"} {
		write(t, "table inet t { chain c { type filter hook input priority 0; meta l4proto "+number+" drop; }; }")
		if d := rules.Decide(readAll(t), "input", rules.Packet{Src: addr("192.0.2.2"), Proto: proto}); d.Verdict != rules.Drop {
			t.Errorf("protocol %s: the rule lets %s pass", number, proto)
		}
	}
}

// TestUnknownConditions: a rule with a condition that is not understood is taken not to match, although the rest of it does.
func TestUnknownConditions(t *testing.T) {
	testns.Enter(t, "ip link set lo up")
	p := rules.Packet{Src: addr("10.244.1.2"), Dst: addr("192.0.2.1"), In: "lo", Proto: "tcp", DPort: 80}
	for _, condition := range []string{
		"ip saddr @named", "ip saddr 10.244.1.0-10.244.1.9", "ip saddr . tcp dport { 10.244.1.2 . 80 }",
		"ip saddr { 10.244.1.2-10.244.1.9 }", "ip saddr 10.0.0.0/8 ip saddr 10.244.0.0/16", "tcp dport != 81", "tcp dport >= 80", "tcp dport < 81",
		"meta l4proto { tcp, udp } th dport 80", "th dport 80", "tcp sport 0-65535", "iifname { lo, eth0 }", "meta length 0-2000", "limit rate 5/second",
		"ct direction original", "ct state & (new|established) == new", "ip ttl 1-255", "meta mark != 1-5", "quota over 1 bytes",
		"tcp flags syn", "fib saddr type unicast", "fib daddr type { local, unicast }", "ct mark 0",
	} {
		write(t, "table ip t { set named { type ipv4_addr; elements = { 10.244.1.2 }; }; chain c { type filter hook input priority 0; "+condition+" drop; }; }")
		if all := readAll(t); rules.Decide(all, "input", p).Verdict != rules.Accept || all[0].Rules[0].UnknownIf == "" {
			t.Errorf("%s: %+v", condition, all[0].Rules)
		}
	}
}

// TestVerdicts: what ends a rule.
func TestVerdicts(t *testing.T) {
	testns.Enter(t)
	for text, want := range map[string]rules.Rule{
		"accept": {Verdict: rules.Accept}, "drop": {Verdict: rules.Drop}, "return": {Verdict: rules.Return}, "reject": {Verdict: rules.Reject}, "continue": {},
		"jump x": {Verdict: rules.Jump, Target: "x"}, "goto x": {Verdict: rules.Goto, Target: "x"}, "masquerade": {Verdict: rules.Masquerade},
		"snat to 192.0.2.9": {Verdict: rules.Masquerade}, "dnat to 192.0.2.9": {UnknownIf: "nat"}, "redirect": {UnknownIf: "redir"},
	} {
		hook := "filter hook input priority 0"
		switch {
		case strings.HasPrefix(text, "dnat"), text == "redirect":
			hook = "nat hook prerouting priority 0"
		case want.Verdict == rules.Masquerade:
			hook = "nat hook postrouting priority 0"
		}
		write(t, "table ip t { chain x { }; chain c { type "+hook+"; "+text+"; }; }")
		got := readAll(t)[1].Rules[0]
		if got.Verdict != want.Verdict || got.Target != want.Target || got.UnknownIf != want.UnknownIf {
			t.Errorf("%s: got %+v", text, got)
		}
	}
}

// TestUnmarked: kube-proxy masquerades what it has marked, and the packets that are tried are not.
func TestUnmarked(t *testing.T) {
	testns.Enter(t)
	write(t, `
table ip kube-proxy {
	chain masquerading { meta mark & 0x4000 == 0 return; meta mark set meta mark ^ 0x4000; masquerade fully-random; }
	chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
}
`)
	p := rules.Packet{Src: addr("10.244.0.2"), Dst: addr("10.244.1.2"), Proto: "tcp", DPort: 80}
	if d := rules.Decide(readAll(t), "postrouting", p); d.Verdict != rules.Accept {
		t.Errorf("got %+v", d)
	}
}

// FuzzExpressions: no expressions stop the program.
func FuzzExpressions(f *testing.F) {
	for _, e := range []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: []byte{6}},
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: make([]byte, 4), Xor: make([]byte, 4)}} {
		data, err := expr.Marshal(unix.NFPROTO_IPV4, e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append([]byte{2, 0, 0, 0, byte(len(data) + 8), 0, unix.NFTA_RULE_EXPRESSIONS, 0, byte(len(data) + 4), 0, 1, 0}, data...))
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		if raw, err := nfnl.ParseRule(data); err == nil {
			rules.Decide([]rules.Chain{{Family: "ip", Hook: "input", Rules: []rules.Rule{new(reader).rule(nfnl.Place{Family: 2}, raw.Exprs)}}}, "input", rules.Packet{})
		}
	})
}
