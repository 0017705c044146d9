package firewall

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// flannelIPTables is what flannel v0.28 writes for IPv4 in its iptables mode.
const flannelIPTables = `*nat
:FLANNEL-POSTRTG - [0:0]
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
*filter
:FLANNEL-FWD - [0:0]
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
`

// flannelNFT is what it writes in its nftables mode.
const flannelNFT = `table ip flannel-ipv4 {
	chain postrtg {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark 0x00004000 return
		ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
		ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
		ip saddr != 10.244.1.0/24 ip daddr 10.244.0.0/16 return
		ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
		ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
	}
	chain forward {
		type filter hook forward priority filter; policy accept;
		ip saddr 10.244.0.0/16 accept
		ip daddr 10.244.0.0/16 accept
	}
}
`

func load(t *testing.T, command, input string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(file, []byte(input), 0o600); err != nil {
		t.Fatal(err)
	}
	sh(t, command+" < "+file)
}

func loadFlannel(t *testing.T) {
	t.Helper()
	load(t, "nft -f -", flannelNFT)
	for _, v := range []variant{nft, legacy} {
		load(t, v.String()+"-restore --noflush", flannelIPTables)
	}
}

// TestTakeOver starts where flannel, in all of its modes, was before.
func TestTakeOver(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		need(t, "nft", "iptables-nft", "iptables-legacy")
		loadFlannel(t)
		settle(t, f, wanted(g.mode))
		if g.mode == netstate.IPTables {
			for _, chain := range []string{"-t nat -S POSTROUTING", "-S FORWARD"} {
				if rules := sh(t, f.iptables.variant().String()+" "+chain); strings.Count(rules, "-A ") != 1 {
					t.Errorf("%s: want one jump, got\n%s", chain, rules)
				}
			}
		}
		loadFlannel(t) // comes back beside us
		settle(t, f, wanted(g.mode))
		loadFlannel(t)
		settle(t, f, netstate.State{})
		empty(t)
	})
}

// TestReadFlannel: what flannel wrote in its nftables mode is understood, but for the rule about the mark.
func TestReadFlannel(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	load(t, "nft -f -", flannelNFT)
	f := New()
	defer f.Close()
	state := observe(t, f)
	for _, o := range state {
		for _, r := range rulesOf(o.(netstate.Chain)) {
			if r.Extra != "" && !strings.HasPrefix(r.Extra, "meta ") { // it compares the whole mark, we one bit of it
				t.Errorf("not understood: %s", r)
			}
		}
	}
	forward := netstate.Chain{Family: netstate.IPv4, Role: netstate.Forward}
	if got, want := state[forward.Key()], wanted(netstate.NFTables)[forward.Key()]; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestChangeMode(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		need(t, "nft")
		sh(t, "iptables -N OTHER && iptables -A FORWARD -j OTHER && nft add table ip foreign")
		for range 2 {
			settle(t, f, wanted(netstate.IPTables))
			if out := sh(t, "nft list tables"); strings.Contains(out, "flannel") {
				t.Errorf("tables of the nftables mode are left:\n%s", out)
			}
			settle(t, f, wanted(netstate.NFTables))
			for _, save := range []string{"iptables-legacy-save", "iptables-nft-save", "ip6tables-nft-save"} {
				if out := sh(t, save+" 2>&1"); strings.Contains(out, "FLANNEL") {
					t.Errorf("%s: chains of the iptables mode are left:\n%s", save, out)
				}
			}
		}
		settle(t, f, netstate.State{})
		empty(t)
		if out := sh(t, "nft list tables; iptables -S"); !strings.Contains(out, "table ip foreign") ||
			!strings.Contains(out, "-A FORWARD -j OTHER") {
			t.Errorf("what is not ours was touched:\n%s", out)
		}
	})
}

// TestNoBinary removes what flannel left in nf_tables on a host without any iptables binary.
func TestNoBinary(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "iptables-nft-restore")
	load(t, "iptables-nft-restore --noflush", flannelIPTables)
	path := pathVar()
	t.Setenv("PATH", t.TempDir())
	f := New()
	defer f.Close()
	settle(t, f, wanted(netstate.NFTables))
	settle(t, f, netstate.State{})
	t.Setenv("PATH", path)
	empty(t)
	if err := f.Apply(t.Context(), netstate.Diff(wanted(netstate.IPTables), nil)); err != nil {
		t.Errorf("the binaries are back but: %v", err)
	}
}

// TestForwardPolicy lets pods talk where another program's policy in iptables-nft's FORWARD is DROP.
func TestForwardPolicy(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft", "iptables-nft", "ip6tables-nft")
	f := New()
	defer f.Close()
	want := wanted(netstate.NFTables)
	for _, disturb := range []string{
		"true", // there is no such chain
		"iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP",
		"iptables-nft -D FORWARD 2",
		"iptables-nft -A FORWARD -s 10.244.0.0/16 -m comment --comment 'twill appended' -j ACCEPT",
		"iptables-nft -F FORWARD",
	} {
		settle(t, f, want)
		sh(t, disturb)
		if strings.Contains(disturb, "FORWARD") && len(netstate.Diff(want, observe(t, f))) == 0 {
			t.Errorf("%s: the plan is empty", disturb)
		}
		settle(t, f, want)
	}
	rules := sh(t, "iptables-nft -S FORWARD")
	for i, direction := range []string{"-s", "-d"} {
		got := strings.Split(rules, "\n")[i+1]
		accept := "-A FORWARD " + direction + " 10.244.0.0/16"
		isAccept := strings.HasPrefix(got, accept) && strings.HasSuffix(got, "-j ACCEPT")
		if !isAccept || !strings.Contains(got, `"twill appended"`) {
			t.Errorf("iptables -S FORWARD, rule %d: got %s, want %s with our comment", i+1, got, accept)
		}
	}
	sh(t, "nft delete table ip flannel-ipv4") // the accepts stay behind
	settle(t, f, netstate.State{})
	empty(t)
	if rules := sh(t, "iptables-nft -S FORWARD"); strings.TrimSpace(rules) != "-P FORWARD DROP" {
		t.Errorf("after all was deleted FORWARD has\n%s", rules)
	}
}
