package firewall

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/savedrule"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

var rules = []netstate.Rule{
	{Verdict: netstate.Accept},
	{Mark: 0x4000, Verdict: netstate.Return},
	{Src: prefix("10.244.0.0/16"), Dst: prefix("10.244.3.0/26"), Verdict: netstate.MasqueradeRandom},
	{NotSrc: prefix("10.1.2.3/32"), NotDst: prefix("224.0.0.0/4"), Verdict: netstate.Masquerade},
	{
		Local: true, NotOut: "flannel.1", NotSrc: prefix("127.0.0.0/8"), Dst: prefix("10.0.0.0/9"),
		Verdict: netstate.Return,
	},
	{
		In: "cni0", NotDst: prefix("10.244.0.0/16"), Packet: netstate.Transport{Protocol: netstate.UDP, Port: 8472},
		Verdict: netstate.Drop,
	},
	{In: "cni0", Packet: netstate.Transport{Protocol: netstate.IPv4InIP}, Verdict: netstate.Drop},
	{NotSrc: prefix("::1/128"), Dst: prefix("fd00::/13"), Verdict: netstate.Return},
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// message is r as the kernel sends it.
func message(t testing.TB, r netstate.Rule, family netstate.Family) []byte {
	t.Helper()
	exprs, err := encode(r)
	if err != nil {
		t.Fatal(err)
	}
	var list []netlink.Attribute
	for _, e := range exprs {
		data, err := expr.Marshal(byte(nfnl.TableFamily(family)), e)
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
		{Type: unix.NFTA_RULE_USERDATA, Data: userdata.AppendString(nil, userdata.TypeComment, "a comment")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte{byte(nfnl.TableFamily(family)), 0, 0, 0}, data...)
}

// familyOf returns the family of a rule that has an IPv6 destination or is one of IPv4.
func familyOf(r netstate.Rule) netstate.Family {
	if r.Dst.Addr().Is6() {
		return netstate.IPv6
	}
	return netstate.IPv4
}

func TestDecodeEncoded(t *testing.T) {
	for _, r := range rules {
		raw, err := nfnl.ParseRule(message(t, r, familyOf(r)))
		if err != nil || raw.Comment != "a comment" {
			t.Errorf("%s: comment %q, %v", r, raw.Comment, err)
		}
		if got := decode(raw, familyOf(r)); got != r {
			t.Errorf("got %s, want %s", got, r)
		}
	}
}

// TestDecodeMask: a mask with a hole, which nft writes too, is no prefix, and the rule is not ours as it was.
func TestDecodeMask(t *testing.T) {
	ours := netstate.Rule{Dst: prefix("10.0.0.0/9"), Verdict: netstate.Return}
	data := message(t, ours, netstate.IPv4)
	mask := bytes.Index(data, []byte{0xff, 0x80, 0, 0})
	if mask < 0 {
		t.Fatalf("no mask in % x", data)
	}
	data[mask+3] = 1
	raw, err := nfnl.ParseRule(data)
	if err != nil {
		t.Fatal(err)
	}
	if got := decode(raw, netstate.IPv4); got == ours {
		t.Errorf("the mask ff800001 is read as %s", got)
	}
}

// TestDecodeAltered: whatever is changed in a rule, left out of it or added, it is another rule then.
func TestDecodeAltered(t *testing.T) {
	for _, r := range rules {
		family := familyOf(r)
		raw, err := nfnl.ParseRule(message(t, r, family))
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range raw.Exprs {
			if e.Name == "counter" {
				continue
			}
			for _, data := range altered(t, e.Data) {
				if got := with(raw, i, nfnl.Expr{Name: e.Name, Data: data}, family); got == r {
					t.Errorf("%s with %s % x in place of % x is not noticed", r, e.Name, data, e.Data)
				}
			}
			for name, other := range map[string]nfnl.Rule{
				"without":   {Exprs: slices.Delete(slices.Clone(raw.Exprs), i, i+1)},
				"with two":  {Exprs: slices.Insert(slices.Clone(raw.Exprs), i, e)},
				"with lost": {Exprs: slices.Insert(slices.Clone(raw.Exprs), i, nfnl.Expr{Name: "limit"})},
			} {
				again := name == "with two" && slices.Contains([]string{"payload", "meta", "fib"}, e.Name) // loads the same
				if got := decode(other, family); got == r && !again {
					t.Errorf("%s %s %s is not noticed", r, name, e.Name)
				}
			}
		}
	}
}

func with(r nfnl.Rule, i int, e nfnl.Expr, family netstate.Family) netstate.Rule {
	exprs := slices.Clone(r.Exprs)
	exprs[i] = e
	return decode(nfnl.Rule{Exprs: exprs}, family)
}

// altered returns variants of data: with one attribute missing, changed or added.
func altered(t *testing.T, data []byte) (all [][]byte) {
	list, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		t.Fatal(err)
	}
	put := func(list []netlink.Attribute) {
		data, err := netlink.MarshalAttributes(list)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data)
	}
	for i := range list {
		list[i].Length = 0 // Marshal computes it
	}
	for i, a := range list {
		var parts [][]byte
		if a.Type&unix.NLA_F_NESTED != 0 {
			parts = altered(t, a.Data)
		}
		for at := range a.Data {
			if part := bytes.Clone(a.Data); a.Type&unix.NLA_F_NESTED == 0 {
				part[at] ^= 1
				parts = append(parts, part)
			}
		}
		for _, part := range parts {
			other := slices.Clone(list)
			other[i].Data = part
			put(other)
		}
		put(slices.Delete(slices.Clone(list), i, i+1))
	}
	put(append(list, netlink.Attribute{Type: 30, Data: []byte{0, 0, 0, 1}}))
	return all
}

// TestConcernsUs: changes of nf_tables matter in our chains, and in the chains from which packets come to them.
func TestConcernsUs(t *testing.T) {
	notice := func(kind uint16, names ...string) netlink.Message {
		family := nftables.TableFamilyIPv4
		if names[0] == "flannel-ipv6" {
			family = nftables.TableFamilyIPv6
		}
		var list []netlink.Attribute
		for i, name := range names {
			list = append(list, netlink.Attribute{Type: uint16(i + 1), Data: []byte(name)})
		}
		if kind == unix.NFT_MSG_NEWCHAIN || kind == unix.NFT_MSG_DELCHAIN {
			list = list[:1]
			if len(names) > 1 {
				list = append(list, netlink.Attribute{Type: unix.NFTA_CHAIN_NAME, Data: []byte(names[1])})
			}
		}
		data, err := netlink.MarshalAttributes(list)
		if err != nil {
			t.Fatal(err)
		}
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Create},
			Data:   append([]byte{byte(family), 0, 0, 0}, data...),
		}
	}
	for _, kind := range []uint16{
		unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_NEWTABLE,
		unix.NFT_MSG_DELTABLE,
	} {
		hasChain := kind != unix.NFT_MSG_NEWTABLE && kind != unix.NFT_MSG_DELTABLE
		for names, want := range map[string]bool{
			"flannel-ipv4 postrtg": true, "flannel-ipv6 forward": true,
			"flannel-ipv5 forward": false, "foreign FORWARD": false, "raw PREROUTING": false,
			"nat POSTROUTING": true, "nat FLANNEL-POSTRTG": true, "filter FORWARD": true, "filter FLANNEL-FWD": true,
			"mangle INPUT": true, "mangle TWILL-INPUT": true, "mangle FORWARD": true, "mangle TWILL-FORWARD": true,
			"nat KUBE-SERVICES": !hasChain, "filter INPUT": !hasChain, "mangle OUTPUT": !hasChain,
		} {
			if got := concernsUs(notice(kind, strings.Fields(names)...)); got != want {
				t.Errorf("message %d about %s: %t, want %t", kind, names, got, want)
			}
		}
	}
	ours := notice(unix.NFT_MSG_NEWRULE, "flannel-ipv4", "postrtg")
	short, foreign, broken := ours, ours, ours
	short.Data = ours.Data[:3]
	foreign.Header.Type = unix.NFNL_SUBSYS_CTNETLINK << 8
	broken.Data = append(slices.Clone(ours.Data[:4]), 1, 0, 1, 0)
	if concernsUs(short) || concernsUs(foreign) || !concernsUs(broken) {
		t.Error("a short message or another subsystem's concerns us, or one that cannot be read does not")
	}
	for _, kind := range []uint16{unix.NFT_MSG_NEWSET, unix.NFT_MSG_NEWOBJ, unix.NFT_MSG_NEWFLOWTABLE} {
		for table, want := range map[string]bool{"flannel-ipv4": true, "filter": false, "kube-proxy": false} {
			if got := concernsUs(notice(kind, table, "x")); got != want {
				t.Errorf("message %d about x in %s: %t, want %t", kind, table, got, want)
			}
		}
	}
	other, renamed := ours, notice(unix.NFT_MSG_NEWCHAIN, "filter", "RENAMED")
	other.Data = append([]byte{unix.NFPROTO_INET}, ours.Data[1:]...)
	renamed.Header.Flags = 0
	if concernsUs(other) || !concernsUs(renamed) {
		t.Error("a table of our name in another family concerns us, or a chain of iptables that was renamed does not")
	}
}

// TestLegacyBase: jumps to our chain are found with and without a comment, and only a rule without a condition drops.
func TestLegacyBase(t *testing.T) {
	lines := []string{
		"-P FORWARD ACCEPT", `-A FORWARD -m comment --comment "a b" -j FLANNEL-FWD`, "-A FORWARD -j FLANNEL-FWD",
		"-A FORWARD -j DROP", `-A FORWARD -m comment --comment last -j REJECT`, "-A FORWARD -i eth0 -j DROP",
		"-A FORWARD -j", "-A FORWARD -g FLANNEL-FWD", "-A FORWARD -m comment --comment x", "-N FORWARD -j FLANNEL-FWD",
		"-A FORWARD -p FLANNEL-FWD", "-A FORWARD", `-A FORWARD -m comment --comment "twill appended" -j RENAMED`,
		`-A FORWARD -m comment --comment "twill first" -j DROP`,
	}
	base := legacyBase(lines, sites[netstate.Forward])
	wantDeletes := []string{
		`-D FORWARD -m comment --comment "a b" -j FLANNEL-FWD`, "-D FORWARD -j FLANNEL-FWD", "-D FORWARD -g FLANNEL-FWD",
		`-D FORWARD -m comment --comment "twill appended" -j RENAMED`,
		`-D FORWARD -m comment --comment "twill first" -j DROP`,
	}
	if got := deletes(base); !slices.Equal(got, wantDeletes) {
		t.Errorf("deletes %q, want %q", got, wantDeletes)
	}
	const own = "FLANNEL-FWD"
	want := []baseRule{
		{ours: true, comment: "a b", target: own}, {ours: true, target: own}, {drops: true, target: "DROP"},
		{drops: true, comment: "last", target: "REJECT"}, {conditional: true, target: "DROP"},
		{conditional: true}, {ours: true, conditional: true, target: own}, {conditional: true, comment: "x"},
		{conditional: true}, {ours: true, conditional: true, comment: "twill appended", target: "RENAMED"},
		{ours: true, conditional: true, drops: true, comment: "twill first", target: "DROP"},
	}
	for i := range base {
		base[i].line = ""
	}
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
		if got := parse(savedrule.Words(words)); got != r {
			t.Errorf("%q: got %s, want %s", words, got, r)
		}
	}
}

func TestParse(t *testing.T) {
	for line, want := range map[string]string{
		``:                        "none no effect",
		`-s 10.0.0.0/8 -j ACCEPT`: "src 10.0.0.0/8 accept",
		`! -d 10.0.0.0/8 -j MASQUERADE --random-fully`:   "dst != 10.0.0.0/8 masquerade random-fully",
		`-j MASQUERADE --random`:                         "masquerade --random",
		`-m comment --comment "flanneld masq" -j RETURN`: `return -m comment --comment "flanneld masq"`,
		`-m comment --comment "a \"b\" c" -j RETURN`:     `return -m comment --comment "a \"b\" c"`,
		`-m mark --mark 0x4000/0xffff -j RETURN`:         "mark & 0x4000 return -m mark --mark 0x4000/0xffff",
		`-m mark ! --mark 0x4000/0x4000 -j RETURN`:       "return -m mark ! --mark 0x4000/0x4000",
		`-i cni+ -p ipv6 -j DROP`:                        "iif cni+ proto 41 drop -i cni+",
		`! -p udp -m udp --dport 1 -j DROP`:              "udp dport 1 drop !",
		`-p sctp -m udp --dport 1 -j DROP`:               "drop -p sctp -m udp --dport 1",
		`-p udp -m udp --dport 65536 -j DROP`:            "udp dport 65535 drop -m udp --dport 65536",
		`-m udp --dport 1 -j DROP`:                       "drop -m udp --dport 1",
		`-p ipencap -j DROP`:                             "proto 4 drop",
		`-p 17 -m udp --dport 65535 -j DROP`:             "udp dport 65535 drop",
		`-m mark --mark 0x4000 -j RETURN`:                "mark & 0x4000 return -m mark --mark 0x4000",
		`-m mark --mark x/x -j RETURN`:                   "return -m mark --mark x/x",
		`-s example -j RETURN`:                           "return -s example",
		`-i`:                                             "none -i",
		`! -o flannel+ -j RETURN`:                        "oif flannel+ oif != flannel+ return ! -o flannel+",
		`-p tcp -m tcp --dport 80 -j DNAT --to 1.2.3.4`:  "none -p tcp -m tcp --dport 80 -j DNAT --to 1.2.3.4",
	} {
		got := parse(savedrule.Words(line))
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
		f.Add(message(f, r, familyOf(r)), uint8(familyOf(r)))
	}
	f.Fuzz(func(_ *testing.T, data []byte, version uint8) {
		family := netstate.Family(version)
		r, err := nfnl.ParseRule(data)
		if err == nil {
			_ = decode(r, family).String() + jumpTo(r)
		}
		header := netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE}
		concernsUs(netlink.Message{Header: header, Data: data})
	})
}

func FuzzParse(f *testing.F) {
	for _, r := range rules {
		words, _ := render(r)
		f.Add("-A FLANNEL-POSTRTG " + words)
	}
	f.Add(`-A FORWARD -m comment --comment "a \"b\" c" -j FLANNEL-FWD`)
	f.Fuzz(func(_ *testing.T, line string) {
		_ = parse(savedrule.Words(line)).String()
		placeOf(legacyBase([]string{line}, sites[netstate.Forward]), 1)
	})
}
