package firewall

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

var rules = []netstate.Rule{
	{Verdict: netstate.Accept},
	{Mark: 0x4000, Verdict: netstate.Return},
	{Src: prefix("10.244.0.0/16"), Dst: prefix("10.244.3.0/26"), Verdict: netstate.MasqueradeRandom},
	{NotSrc: prefix("10.1.2.3/32"), NotDst: prefix("224.0.0.0/4"), Verdict: netstate.Masquerade},
	{Local: true, NotOut: "flannel.1", NotSrc: prefix("127.0.0.0/8"), Dst: prefix("10.0.0.0/9"), Verdict: netstate.Return},
	{In: "cni0", NotDst: prefix("10.244.0.0/16"), Packet: netstate.Transport{Protocol: netstate.UDP, Port: 8472}, Verdict: netstate.Drop},
	{In: "cni0", Packet: netstate.Transport{Protocol: netstate.IPv4InIP}, Verdict: netstate.Drop},
	{NotSrc: prefix("::1/128"), Dst: prefix("fd00::/13"), Verdict: netstate.Return},
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// message is r as the kernel sends it.
func message(t testing.TB, r netstate.Rule, ipv6 bool) []byte {
	t.Helper()
	exprs, err := encode(r)
	if err != nil {
		t.Fatal(err)
	}
	var list []netlink.Attribute
	for _, e := range exprs {
		data, err := expr.Marshal(byte(family(ipv6)), e)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: data})
	}
	nested, err := netlink.MarshalAttributes(list)
	if err != nil {
		t.Fatal(err)
	}
	data, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_EXPRESSIONS, Data: nested},
		{Type: unix.NFTA_RULE_USERDATA, Data: comment("a comment")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte{byte(family(ipv6)), 0, 0, 0}, data...)
}

func isIPv6(r netstate.Rule) bool { return r.Dst.Addr().Is6() }

func TestDecodeEncoded(t *testing.T) {
	for _, r := range rules {
		raw, err := parseRule(message(t, r, isIPv6(r)))
		if err != nil || raw.comment != "a comment" {
			t.Errorf("%s: comment %q, %v", r, raw.comment, err)
		}
		if got := decode(raw, isIPv6(r)); got != r {
			t.Errorf("got %s, want %s", got, r)
		}
	}
}

// TestDecodeMask: a mask with a hole, which nft writes too, is no prefix, and the rule is not ours as it was.
func TestDecodeMask(t *testing.T) {
	ours := netstate.Rule{Dst: prefix("10.0.0.0/9"), Verdict: netstate.Return}
	data := message(t, ours, false)
	mask := bytes.Index(data, []byte{0xff, 0x80, 0, 0})
	if mask < 0 {
		t.Fatalf("no mask in % x", data)
	}
	data[mask+3] = 1
	raw, err := parseRule(data)
	if err != nil {
		t.Fatal(err)
	}
	if got := decode(raw, false); got == ours {
		t.Errorf("the mask ff800001 is read as %s", got)
	}
}

// TestJumpRules: what leads to our chain is found with and without a comment, and only a rule without a condition drops.
func TestJumpRules(t *testing.T) {
	lines := []string{"-P FORWARD ACCEPT", `-A FORWARD -m comment --comment "a b" -j FLANNEL-FWD`, "-A FORWARD -j FLANNEL-FWD",
		"-A FORWARD -j DROP", `-A FORWARD -m comment --comment last -j REJECT`, "-A FORWARD -i eth0 -j DROP", "-A FORWARD -j"}
	base, jumps := jumpRules(lines, siteOf(netstate.Forward))
	if want := []string{strings.TrimPrefix(lines[1], "-A "), "FORWARD -j FLANNEL-FWD"}; !slices.Equal(jumps, want) {
		t.Errorf("jumps %q, want %q", jumps, want)
	}
	want := []baseRule{{ours: true, comment: "a b"}, {ours: true}, {drops: true}, {drops: true, comment: "last"}, {conditional: true}, {conditional: true}}
	if !slices.Equal(base, want) {
		t.Errorf("rules\n%+v, want\n%+v", base, want)
	}
}

func TestParseRendered(t *testing.T) {
	for _, r := range rules {
		words, err := render(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := parse(split(words)); got != r {
			t.Errorf("%q: got %s, want %s", words, got, r)
		}
	}
}

func TestParse(t *testing.T) {
	for line, want := range map[string]string{
		``:                        "none no effect",
		`-s 10.0.0.0/8 -j ACCEPT`: "src 10.0.0.0/8 accept",
		`! -d 10.0.0.0/8 -j MASQUERADE --random-fully`:              "dst != 10.0.0.0/8 masquerade random-fully",
		`-j MASQUERADE --random`:                                    "masquerade --random",
		`-m comment --comment "flanneld masq" -j RETURN`:            `return -m comment --comment "flanneld masq"`,
		`-m comment --comment "a \"b\" c" -j RETURN`:                `return -m comment --comment "a \"b\" c"`,
		`-m mark --mark 0x4000/0xffff -j RETURN`:                    "mark & 0x4000 return -m mark --mark 0x4000/0xffff",
		`-m mark ! --mark 0x4000/0x4000 -j RETURN`:                  "return -m mark ! --mark 0x4000/0x4000",
		`-i cni+ -p ipv6 -j DROP`:                                   "iif cni+ proto 41 drop -i cni+",
		`! -p udp -m udp --dport 1 -j DROP`:                         "udp dport 1 drop !",
		`-p sctp -m udp --dport 1 -j DROP`:                          "drop -p sctp -m udp --dport 1",
		`! -o flannel+ -j RETURN`:                                   "oif != flannel+ return ! -o flannel+",
		`-p tcp -m tcp --dport 80 -j DNAT --to-destination 1.2.3.4`: "none -p tcp -m tcp --dport 80 -j DNAT --to-destination 1.2.3.4",
	} {
		got := parse(split(line))
		if got.String() != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

func TestRefuse(t *testing.T) {
	for _, r := range []netstate.Rule{
		{}, {Src: prefix("1.0.0.0/8"), NotSrc: prefix("1.1.0.0/16"), Verdict: netstate.Accept, Extra: "x"},
	} {
		if _, err := encode(r); err == nil {
			t.Errorf("encode(%v): want an error", r)
		}
		if words, err := render(r); err == nil {
			t.Errorf("render(%v): got %q, want an error", r, words)
		}
	}
}

func FuzzRule(f *testing.F) {
	for _, r := range rules {
		f.Add(message(f, r, isIPv6(r)), isIPv6(r))
	}
	f.Fuzz(func(_ *testing.T, data []byte, ipv6 bool) {
		r, err := parseRule(data)
		if err == nil {
			_ = decode(r, ipv6).String() + r.jumpTo()
		}
		concernsUs(netlink.Message{Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE}, Data: data})
	})
}

func FuzzParse(f *testing.F) {
	for _, r := range rules {
		words, _ := render(r)
		f.Add("-A FLANNEL-POSTRTG " + words)
	}
	f.Add(`-A FORWARD -m comment --comment "a \"b\" c" -j FLANNEL-FWD`)
	f.Fuzz(func(_ *testing.T, line string) {
		_ = parse(split(line)).String()
		base, _ := jumpRules([]string{line}, siteOf(netstate.Forward))
		placeOf(base, 1)
		parseAll([]string{line})
	})
}

func FuzzEntries(f *testing.F) {
	f.Add(make([]byte, 200), false)
	e := make([]byte, 152)
	e[88], e[90] = 112, 152
	copy(e[114:], "ERROR")
	copy(e[144:], "CHAIN")
	f.Add(slices.Concat(e, e), false)
	f.Fuzz(func(_ *testing.T, blob []byte, ipv6 bool) {
		maskCounters(blob, layoutOf(ipv6))
		foreignEntries(blob, layoutOf(ipv6), []string{"CHAIN"})
	})
}
