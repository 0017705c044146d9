package firewall

import (
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

var stacks = []backend.FirewallStack{
	{
		Cluster: netip.MustParsePrefix("10.244.0.0/16"), Pod: netip.MustParsePrefix("10.244.1.0/24"), Overlays: []string{"flannel.1"},
		Guarded: []netstate.Transport{{Protocol: netstate.UDP, Port: 8472}},
	},
	{
		Cluster: netip.MustParsePrefix("fd00:244::/44"), Pod: netip.MustParsePrefix("fd00:244:1::/64"),
		Overlays: []string{"flannel-v6.1"},
		Guarded:  []netstate.Transport{{Protocol: netstate.IPv6InIP}},
	},
}

func wanted(mode netstate.Mode) netstate.State {
	return netstate.NewState(backend.FirewallChains(backend.FirewallConfig{
		Mode: mode, Stacks: stacks, Bridge: "cni0", Masq: true, Random: true, Forward: backend.ForwardOn,
	})...)
}

// ground is one way in which rules can live in the kernel.
type ground struct {
	name string
	mode netstate.Mode
	use  func(t *testing.T) // before the first rule
}

var grounds = []ground{
	{"nftables", netstate.NFTables, func(*testing.T) {}},
	{"iptables-nft", netstate.IPTables, func(t *testing.T) { useVariant(t, nft) }},
	{"iptables-legacy", netstate.IPTables, func(t *testing.T) { useVariant(t, legacy) }},
}

// useVariant makes one variant the plain iptables, as on a host where it is the default.
func useVariant(t *testing.T, v variant) {
	t.Helper()
	dir := t.TempDir()
	for _, plain := range []string{"iptables", "ip6tables"} {
		name := strings.Replace(v.String(), "iptables", plain, 1)
		need(t, name, name+"-restore")
		for _, suffix := range []string{"", "-restore"} {
			path, _ := exec.LookPath(name + suffix)
			// A script and not a symlink: the program goes by the name that it is called by.
			shim(t, filepath.Join(dir, plain+suffix), path)
		}
	}
	sh(t, v.String()+" -t nat -S >/dev/null")
	t.Setenv("PATH", dir+":"+pathVar())
}

// settle applies want until nothing is left to do, which must be after one plan.
func settle(t *testing.T, f *Firewall, want netstate.State) {
	t.Helper()
	if err := f.Apply(t.Context(), netstate.Diff(want, observe(t, f))); err != nil {
		t.Fatalf("apply: %v", err)
	}
	for range 2 {
		if left := netstate.Diff(want, observe(t, f)); len(left) > 0 {
			t.Fatalf("after apply the plan is not empty:\n%s", left)
		}
	}
	other := fresh(f)
	defer other.Close()
	if left := netstate.Diff(want, observe(t, other)); len(left) > 0 {
		t.Fatalf("a fresh observer sees another state:\n%s", left)
	}
}

// fresh returns a Firewall without memory of any rule. It takes the binaries and their versions from f, which
// need not be asked again.
func fresh(f *Firewall) *Firewall {
	n := New()
	n.iptables.opened = f.iptables.opened
	return n
}

// observe is Observe half a minute later, when the legacy tables are read again.
func observe(t *testing.T, f *Firewall) netstate.State {
	t.Helper()
	f.legacyRead = time.Time{}
	s, err := f.Observe(t.Context())
	if err != nil {
		t.Fatalf("observe: %v", err)
	}
	return s
}

// onGrounds runs test on every ground, each in a namespace of its own.
func onGrounds(t *testing.T, test func(t *testing.T, g ground, f *Firewall)) {
	for _, g := range grounds {
		t.Run(g.name, func(t *testing.T) {
			if !inNamespace(t) {
				return
			}
			g.use(t)
			f := New()
			defer f.Close()
			test(t, g, f)
		})
	}
}

func TestRoundTrip(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		if s := observe(t, f); len(s) > 0 {
			t.Fatalf("a new namespace has\n%s", s)
		}
		for _, keep := range []backend.KeepLocal{backend.KeepRouted, backend.KeepAlways, backend.KeepNever} {
			for _, random := range []bool{true, false} {
				settle(t, f, netstate.NewState(backend.FirewallChains(backend.FirewallConfig{
					Mode: g.mode, Stacks: stacks, Bridge: "cni0", Masq: true, Random: random, Forward: backend.ForwardOn,
					KeepLocal: keep,
				})...))
			}
		}
		settle(t, f, netstate.State{})
		empty(t)
	})
}

// empty fails if any trace of ours is left in the namespace.
func empty(t *testing.T) {
	t.Helper()
	for _, dump := range []string{"nft list ruleset", "iptables-legacy-save", "ip6tables-legacy-save"} {
		if out := strings.ToLower(sh(t, dump)); strings.Contains(out, "flannel") || strings.Contains(out, "twill") {
			t.Errorf("%s: traces are left:\n%s", dump, out)
		}
	}
}

// drifts are ways to disturb a chain, by ground. The chains are as wanted before each.
var drifts = map[string][]string{
	"nftables": {
		"nft flush ruleset",
		"nft delete table ip flannel-ipv4",
		"nft delete table ip6 flannel-ipv6",
		"nft flush chain ip flannel-ipv4 postrtg",
		"nft flush table ip6 flannel-ipv6",
		"nft delete chain ip flannel-ipv4 forward",
		"nft add rule ip flannel-ipv4 postrtg ip saddr 1.2.3.4 accept",
		"nft insert rule ip flannel-ipv4 postrtg masquerade",
		"nft add rule ip flannel-ipv4 postrtg counter",
		"nft insert rule ip flannel-ipv4 postrtg limit rate 1/second return",
		"nft insert rule ip6 flannel-ipv6 forward reject",
		"nft add rule ip6 flannel-ipv6 forward numgen random mod 2 0 drop",
		"nft add table ip flannel-ipv4 '{ flags dormant; }'",
		"nft 'flush chain ip flannel-ipv4 forward; delete chain ip flannel-ipv4 forward;" +
			" add chain ip flannel-ipv4 forward { type filter hook forward priority 10; }'",
		"nft 'flush chain ip flannel-ipv4 forward; delete chain ip flannel-ipv4 forward;" +
			" add chain ip flannel-ipv4 forward'",
		"nft chain ip flannel-ipv4 forward '{ policy drop; }'",
		"nft delete chain ip flannel-ipv4 guard-input",
		"nft insert rule ip flannel-ipv4 guard-forward iifname cni0 udp dport 8472 accept",
		"nft add rule ip flannel-ipv4 guard-forward iifname cni0 udp sport 8472 drop",
	},
	"iptables-nft": {
		"nft flush ruleset",
		"nft add rule ip filter FLANNEL-FWD numgen random mod 2 0 drop", // iptables cannot print it
		"nft insert rule ip filter FORWARD numgen random mod 2 0 accept && iptables -F FLANNEL-FWD",
		"nft 'add set ip filter s { type ipv4_addr; }; insert rule ip filter FLANNEL-FWD ip saddr @s drop'",
		"nft 'add table ip nat { flags dormant; }'",
		"nft 'add table ip6 filter { flags dormant; }'",
	},
	"iptables-legacy": {
		"iptables-legacy-save | sed '/FLANNEL/d' | iptables-legacy-restore",
	},
}

var iptablesDrifts = []string{
	"iptables -t nat -F",
	"iptables -t nat -F FLANNEL-POSTRTG",
	"iptables -t nat -A FLANNEL-POSTRTG",
	"iptables -F FORWARD",
	"iptables -t mangle -F INPUT",
	"iptables -t mangle -F TWILL-FORWARD",
	"ip6tables -t mangle -R TWILL-INPUT 1 -i cni+ -p 41 -j DROP",
	"ip6tables -F FORWARD && ip6tables -F FLANNEL-FWD && ip6tables -X FLANNEL-FWD",
	"ip6tables -t nat -D FLANNEL-POSTRTG 1",
	"iptables -t nat -D FLANNEL-POSTRTG 6",
	"iptables -t nat -I FLANNEL-POSTRTG 2 -p tcp --dport 80 -j MASQUERADE",
	"iptables -t nat -A FLANNEL-POSTRTG -s 1.2.3.4 -m limit --limit 1/s -j ACCEPT",
	"ip6tables -A FLANNEL-FWD -j DROP",
	"iptables -A FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD",
	"ip6tables -t nat -D POSTROUTING 1 &&" +
		" ip6tables -t nat -A POSTROUTING -p tcp -m comment --comment 'flanneld masq' -j FLANNEL-POSTRTG",
	"iptables -t nat -R FLANNEL-POSTRTG 1 -m mark --mark 0x4000/0xffff -j RETURN",
	"iptables -t nat -R FLANNEL-POSTRTG 1 -m mark --mark 0x4000/0x4000 -j RETURN", // without our comment
	"iptables -E FLANNEL-FWD RENAMED",
	"ip6tables -t nat -E FLANNEL-POSTRTG RENAMED",
	"iptables -t mangle -E TWILL-INPUT RENAMED && iptables -t mangle -N TWILL-INPUT",
	"iptables -R FORWARD 1 -i eth0 -m comment --comment 'twill appended' -j FLANNEL-FWD",
	"iptables -t nat -R POSTROUTING 1 -m comment --comment 'twill appended' -j ACCEPT",
	"iptables -t mangle -R FORWARD 1 -m comment --comment 'twill appended' -g TWILL-FORWARD",
	"iptables -A FORWARD -m comment --comment 'twill appended' -j FLANNEL-FWD",
	"iptables -R FORWARD 1 -m comment --comment 'somebody' -j FLANNEL-FWD",
	"iptables -D FLANNEL-FWD 1 &&" +
		" iptables -A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment 'twill appended' -j ACCEPT",
	"for i in 1 2 3 4 5 6 7 8 9 10 11 12; do iptables -A FLANNEL-FWD -s 1.2.3.$i -j DROP; done",
	"iptables -t nat -R FLANNEL-POSTRTG 2 -s 10.244.1.0/25 -d 10.244.0.0/16 -j RETURN",
}

func TestDrift(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		need(t, "nft")
		want := wanted(g.mode)
		disturb := drifts[g.name]
		if g.mode == netstate.IPTables {
			disturb = append(disturb, iptablesDrifts...)
		}
		settle(t, f, want)
		for _, d := range disturb {
			sh(t, d)
			if plan := netstate.Diff(want, observe(t, f)); len(plan) == 0 {
				t.Errorf("%s: the plan is empty", d)
			}
			settle(t, f, want)
		}
		if g.mode == netstate.NFTables {
			eachRule(t, f, want)
		}
	})
}

// eachRule deletes each rule, and puts a copy of it in another place.
func eachRule(t *testing.T, f *Firewall, want netstate.State) {
	for _, family := range netstate.Families {
		for _, role := range roles {
			chain := nativeChain(family, role)
			for i := range rulesOf(want[netstate.Chain{Family: family, Role: role}.Key()].(netstate.Chain)) {
				r := *f.reader()
				raw := r.Rules(family, chain.Table.Name, chain.Name)
				if r.Err != nil {
					t.Fatal(r.Err)
				}
				ip := map[netstate.Family]string{netstate.IPv4: "ip", netstate.IPv6: "ip6"}[family]
				table := ip + " " + chain.Table.Name + " " + chain.Name
				sh(t, "nft delete rule "+table+" handle "+itoa(raw[i].Handle))
				if plan := netstate.Diff(want, observe(t, f)); len(plan) != 1 {
					t.Errorf("rule %d of %s deleted: want one change, got\n%s", i, table, plan)
				}
				settle(t, f, want)
			}
		}
	}
}
