package backend

import (
	"flag"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

var (
	stack4 = FirewallStack{Cluster: netip.MustParsePrefix("10.244.0.0/16"), Pod: netip.MustParsePrefix("10.244.1.0/24"), Overlays: []string{"flannel.1"}}
	stack6 = FirewallStack{Cluster: netip.MustParsePrefix("fc00::/48"), Pod: netip.MustParsePrefix("fc00:0:0:1::/64"), Overlays: []string{"f6"},
		Guarded: []netstate.Transport{{Protocol: netstate.UDP, Port: 8472}}}
)

const head4 = `chain nftables ip postrouting; mark & 0x4000 return; src 10.244.1.0/24 dst 10.244.0.0/16 return;` +
	` src 10.244.0.0/16 dst 10.244.1.0/24 return; src != 10.244.0.0/16 dst 10.244.1.0/24 return;` +
	` src 10.244.0.0/16 dst != 224.0.0.0/4 masquerade`

const guards6 = "chain nftables ip6 guard-input; iif cni0 udp dport 8472 drop; iif f6 udp dport 8472 drop; dst fc00:0:0:1::/64 udp dport 8472 drop\n" +
	"chain nftables ip6 guard-forward; dst fc00:0:0:1::/64 udp dport 8472 return; oif f6 udp dport 8472 return;" +
	" src fc00:0:0:1::/64 udp dport 8472 drop; iif cni0 udp dport 8472 drop\n" + source6
const source6 = "chain nftables ip6 guard-source; iif cni0 return; iif f6 return; udp dport 8472 back cni0 drop; udp dport 8472 back f6 drop"

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, s := range texts {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

func with(s FirewallStack, change func(*FirewallStack)) FirewallStack {
	change(&s)
	return s
}

func TestFirewallChains(t *testing.T) {
	for name, test := range map[string]struct {
		cfg  FirewallConfig
		want string
	}{
		"nothing": {FirewallConfig{Stacks: []FirewallStack{stack4}}, ""},
		"routed": {
			FirewallConfig{Stacks: []FirewallStack{stack4}, Masq: true, Random: true},
			head4 + ` random-fully; local oif != flannel.1 src != 127.0.0.0/8 dst 10.244.0.0/16 return;` +
				` src != 10.244.0.0/16 dst 10.244.0.0/16 masquerade random-fully`,
		},
		"always": {
			FirewallConfig{Stacks: []FirewallStack{stack4}, Masq: true, KeepLocal: KeepAlways},
			head4 + `; local src != 127.0.0.0/8 dst 10.244.0.0/16 return;` +
				` src != 10.244.0.0/16 dst 10.244.0.0/16 masquerade`,
		},
		"never, flannel's rules": {
			FirewallConfig{Stacks: []FirewallStack{stack4}, Masq: true, KeepLocal: KeepNever},
			head4 + `; src != 10.244.0.0/16 dst 10.244.0.0/16 masquerade`,
		},
		"ipv6, both chains": {
			FirewallConfig{Mode: netstate.IPTables, Stacks: []FirewallStack{stack6}, Masq: true, Forward: ForwardOn, Bridge: "cni0"},
			"chain iptables ip6 postrouting; mark & 0x4000 return; src fc00:0:0:1::/64 dst fc00::/48 return;" +
				" src fc00::/48 dst fc00:0:0:1::/64 return; src != fc00::/48 dst fc00:0:0:1::/64 return;" +
				" src fc00::/48 dst != ff00::/8 masquerade; local oif != f6 src != ::1/128 dst fc00::/48 return;" +
				" src != fc00::/48 dst fc00::/48 masquerade\n" +
				"chain iptables ip6 forward; src fc00::/48 accept; dst fc00::/48 accept\n" +
				strings.TrimSuffix(strings.ReplaceAll(guards6, "nftables", "iptables"), "\n"+strings.ReplaceAll(source6, "nftables", "iptables")),
		},
		"first": {
			FirewallConfig{Stacks: []FirewallStack{stack4}, Forward: ForwardFirst},
			"chain nftables ip forward first; src 10.244.0.0/16 accept; dst 10.244.0.0/16 accept",
		},
		"exempt, in the order of the flags, once": {
			FirewallConfig{Stacks: []FirewallStack{stack4}, Masq: true, Exempt: prefixes("10.0.0.0/8", "::/0", "192.0.2.0/24", "10.0.0.0/8")},
			head4[:strings.Index(head4, " src 10.244.0.0/16 dst != ")] + ` src 10.244.0.0/16 dst 10.0.0.0/8 return;` +
				` src 10.244.0.0/16 dst 192.0.2.0/24 return; src 10.244.0.0/16 dst != 224.0.0.0/4 masquerade;` +
				` local oif != flannel.1 src != 127.0.0.0/8 dst 10.244.0.0/16 return; src != 10.244.0.0/16 dst 10.244.0.0/16 masquerade`,
		},
		"one family is exempt": {
			FirewallConfig{Stacks: []FirewallStack{stack6}, Masq: true, KeepLocal: KeepNever, Exempt: prefixes("10.0.0.0/8", "::/0"),
				Bridge: "cni0"},
			"chain nftables ip6 postrouting; mark & 0x4000 return; src fc00:0:0:1::/64 dst fc00::/48 return;" +
				" src fc00::/48 dst fc00:0:0:1::/64 return; src != fc00::/48 dst fc00:0:0:1::/64 return; src fc00::/48 return;" +
				" src fc00::/48 dst != ff00::/8 masquerade; src != fc00::/48 dst fc00::/48 masquerade\n" + guards6,
		},
		"no bridge": {
			FirewallConfig{Stacks: []FirewallStack{stack6}},
			"chain nftables ip6 guard-input; iif f6 udp dport 8472 drop; src fc00:0:0:1::/64 udp dport 8472 drop; dst fc00:0:0:1::/64 udp dport 8472 drop\n" +
				"chain nftables ip6 guard-forward; dst fc00:0:0:1::/64 udp dport 8472 return; oif f6 udp dport 8472 return;" +
				" src fc00:0:0:1::/64 udp dport 8472 drop\n" +
				"chain nftables ip6 guard-source; iif f6 return; udp dport 8472 back f6 drop",
		},
		"two networks of pods": {
			FirewallConfig{Stacks: []FirewallStack{stack6}, Masq: true, Forward: ForwardOn, Bridge: "cni0",
				Clusters: prefixes("fc00::/48", "10.9.0.0/16", "fd09::/48"), Exempt: prefixes("fe80::/10")},
			"chain nftables ip6 postrouting; mark & 0x4000 return; src fc00:0:0:1::/64 dst fc00::/48 return;" +
				" src fc00:0:0:1::/64 dst fd09::/48 return; src fc00::/48 dst fc00:0:0:1::/64 return;" +
				" src != fc00::/48 dst fc00:0:0:1::/64 return; src fc00::/48 dst fe80::/10 return; src fd09::/48 dst fe80::/10 return;" +
				" src fc00::/48 dst != ff00::/8 masquerade; src fd09::/48 dst != ff00::/8 masquerade;" +
				" local oif != f6 src != ::1/128 dst fc00::/48 return; local oif != f6 src != ::1/128 dst fd09::/48 return;" +
				" src != fc00::/48 dst fc00::/48 masquerade; src != fd09::/48 dst fd09::/48 masquerade\n" +
				"chain nftables ip6 forward; src fc00::/48 accept; dst fc00::/48 accept; src fd09::/48 accept; dst fd09::/48 accept\n" +
				"chain nftables ip6 guard-input; iif cni0 udp dport 8472 drop; iif f6 udp dport 8472 drop; dst fc00:0:0:1::/64 udp dport 8472 drop\n" +
				"chain nftables ip6 guard-forward; dst fd09::/48 udp dport 8472 return; dst fc00:0:0:1::/64 udp dport 8472 return;" +
				" oif f6 udp dport 8472 return; src fc00:0:0:1::/64 udp dport 8472 drop; src fd09::/48 udp dport 8472 drop;" +
				" iif cni0 udp dport 8472 drop\n" + source6,
		},
		"pods of a subnet before": {
			FirewallConfig{Stacks: []FirewallStack{with(stack4, func(s *FirewallStack) { s.Earlier = prefixes("10.50.3.0/24") })},
				Masq: true, Clusters: prefixes("10.50.0.0/16"), KeepLocal: KeepNever, Bridge: "cni0"},
			"chain nftables ip postrouting; mark & 0x4000 return; src 10.244.1.0/24 dst 10.244.0.0/16 return;" +
				" src 10.244.1.0/24 dst 10.50.0.0/16 return; src 10.244.0.0/16 dst 10.244.1.0/24 return;" +
				" src != 10.244.0.0/16 dst 10.244.1.0/24 return; src 10.50.3.0/24 dst 10.244.0.0/16 return;" +
				" src 10.50.3.0/24 dst 10.50.0.0/16 return; src 10.244.0.0/16 dst 10.50.3.0/24 return;" +
				" src != 10.244.0.0/16 dst 10.50.3.0/24 return; src 10.244.0.0/16 dst != 224.0.0.0/4 masquerade;" +
				" src 10.50.0.0/16 dst != 224.0.0.0/4 masquerade; src != 10.244.0.0/16 dst 10.244.0.0/16 masquerade;" +
				" src != 10.50.0.0/16 dst 10.50.0.0/16 masquerade",
		},
		"dual stack, one guarded": {
			FirewallConfig{Stacks: []FirewallStack{stack4, stack6}, Forward: ForwardOn, Bridge: "cni0"},
			"chain nftables ip forward; src 10.244.0.0/16 accept; dst 10.244.0.0/16 accept\n" +
				"chain nftables ip6 forward; src fc00::/48 accept; dst fc00::/48 accept\n" +
				guards6,
		},
		"strict": {
			FirewallConfig{Stacks: []FirewallStack{with(stack4, func(s *FirewallStack) { s.Strict, s.Inside = true, prefixes("10.244.33.0/24") })},
				Bridge: "cni0"},
			"chain nftables ip guard-forward; iif cni0 dst 10.244.1.0/24 return; iif cni0 oif flannel.1 return;" +
				" iif cni0 dst 10.244.33.0/24 return; iif cni0 dst 10.244.0.0/16 drop\n" +
				"chain nftables ip guard-source; iif cni0 return; iif flannel.1 return; back cni0 drop; back flannel.1 drop",
		},
		"strict, iptables, others' bridge": {
			FirewallConfig{Mode: netstate.IPTables, Stacks: []FirewallStack{with(stack4, func(s *FirewallStack) {
				s.Strict, s.Inside, s.Outside = true, prefixes("10.244.33.0/24"), []string{"eth1"}
			})}},
			"chain iptables ip guard-input; iif eth1 src 10.244.33.0/24 return; iif eth1 src 10.244.0.0/16 drop\n" +
				"chain iptables ip guard-forward; iif eth1 src 10.244.33.0/24 return; iif eth1 src 10.244.0.0/16 drop;" +
				" src 10.244.1.0/24 dst 10.244.1.0/24 return; oif flannel.1 src 10.244.1.0/24 return;" +
				" src 10.244.1.0/24 dst 10.244.33.0/24 return; src 10.244.1.0/24 dst 10.244.0.0/16 drop",
		},
		"a LAN in the network of pods": {
			FirewallConfig{Stacks: []FirewallStack{with(stack4, func(s *FirewallStack) { s.Inside = prefixes("10.244.33.0/24") })}, Masq: true},
			strings.NewReplacer("; src 10.244.1.0/24 dst", "; oif flannel.1 src 10.244.1.0/24 dst", "; src 10.244.0.0/16 dst != 224",
				"; local oif != flannel.1 src 10.244.33.0/24 return; src 10.244.0.0/16 dst != 224").Replace(head4) +
				`; local oif != flannel.1 src != 127.0.0.0/8 dst 10.244.0.0/16 return; src != 10.244.0.0/16 dst 10.244.0.0/16 masquerade`,
		},
		"a LAN in the network of pods, some packets leave plain": {
			FirewallConfig{Stacks: []FirewallStack{with(stack6, func(s *FirewallStack) { s.Inside, s.Plain = prefixes("fc00:0:0:9::/64"), true })},
				Masq: true, KeepLocal: KeepNever, Bridge: "cni0", Exempt: prefixes("fc00:0:0:9::7/128")},
			"chain nftables ip6 postrouting; mark & 0x4000 return; src fc00::/48 dst fc00:0:0:9::7/128 return;" +
				" src fc00:0:0:1::/64 dst fc00:0:0:9::/64 masquerade;" +
				" src fc00:0:0:1::/64 dst fc00::/48 return; src fc00::/48 dst fc00:0:0:1::/64 return;" +
				" src != fc00::/48 dst fc00:0:0:1::/64 return; local oif != f6 src fc00:0:0:9::/64 return;" +
				" src fc00::/48 dst != ff00::/8 masquerade; src != fc00::/48 dst fc00::/48 masquerade\n" +
				"chain nftables ip6 guard-input; iif cni0 udp dport 8472 drop; iif f6 udp dport 8472 drop; dst fc00:0:0:1::/64 udp dport 8472 drop\n" +
				"chain nftables ip6 guard-forward; src fc00:0:0:1::/64 dst fc00:0:0:9::/64 udp dport 8472 drop;" +
				" iif cni0 dst fc00:0:0:9::/64 udp dport 8472 drop; src fc00:0:0:1::/64 dst != fc00::/48 udp dport 8472 drop;" +
				" iif cni0 dst != fc00::/48 udp dport 8472 drop\n" + source6,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var lines []string
			for _, o := range FirewallChains(test.cfg) {
				lines = append(lines, o.String())
			}
			if got := strings.Join(lines, "\n"); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestForwardRules(t *testing.T) {
	for s, want := range map[string]ForwardRules{"true": ForwardOn, "1": ForwardOn, "false": ForwardOff, "0": ForwardOff, "first": ForwardFirst} {
		var got ForwardRules
		if err := got.Set(s); got != want || err != nil {
			t.Errorf("%q is %s, %v; want %s", s, got, err, want)
		}
	}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	var got ForwardRules
	fs.Var(&got, "rules", "")
	if err := fs.Parse([]string{"--rules"}); err != nil || got != ForwardOn {
		t.Errorf("without a value: %s, %v", got, err)
	}
	if err := got.Set("last"); err == nil || got != ForwardOn {
		t.Errorf("last: %s, %v", got, err)
	}
}

func TestParseKeepLocal(t *testing.T) {
	for _, k := range []KeepLocal{KeepRouted, KeepAlways, KeepNever} {
		if got, err := ParseKeepLocal(k.String()); got != k || err != nil {
			t.Errorf("ParseKeepLocal(%q) = %v, %v", k, got, err)
		}
	}
	if k, err := ParseKeepLocal("sometimes"); err == nil || k != KeepRouted || !strings.Contains(err.Error(), `"sometimes"`) {
		t.Errorf("ParseKeepLocal(sometimes): %v", err)
	}
}

// TestFirewallCheck: as many networks as ip-masq-agent allows fit, with link-local ones, and none is left out silently.
func TestFirewallCheck(t *testing.T) {
	pools := []subnet.Pool{{Network: netip.MustParsePrefix("10.244.0.0/16")}}
	exempt := func(n int) []netip.Prefix {
		list := prefixes("fd00::/8", "169.254.0.0/16")
		for i := range n {
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i), 0, 0}), 16))
		}
		return list
	}
	for _, c := range []struct {
		exempt   int
		clusters []netip.Prefix
		want     string
	}{
		{64, nil, ""},
		{64, prefixes("fd09::/48"), ""},
		{72, nil, ""},
		{73, nil, "74 networks that are not masqueraded and 1 networks of pods need 97 IPv4 rules: want at most 96"},
		{64, prefixes("10.9.0.0/16"), "65 networks that are not masqueraded and 2 networks of pods need 157 IPv4 rules: want at most 96"},
	} {
		got := ""
		if err := (FirewallConfig{Exempt: exempt(c.exempt), Clusters: c.clusters}).Check(pools); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%d exempt, clusters %v: %q, want %q", c.exempt, c.clusters, got, c.want)
		}
	}
}
