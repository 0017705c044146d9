package firewall

import (
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// TestRenamed: a chain of ours that was renamed goes with the jump that leads to it, and is noticed where the kernel
// announces it, elsewhere at the next look. Chains of others stay, also if a rule with our mark leads there.
func TestRenamed(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		if g.mode == netstate.NFTables {
			return
		}
		bin := g.name
		want := wanted(g.mode)
		settle(t, f, want)
		events, look := g.watch(t, f)
		for _, c := range []struct{ disturb, left string }{
			{"iptables -E FLANNEL-FWD RENAMED", ""},
			{"iptables -E FLANNEL-FWD RENAMED; iptables -N FLANNEL-FWD", ""},
			{"iptables -E FLANNEL-FWD RENAMED; iptables -A RENAMED -s 1.2.3.4 -j DROP", "1.2.3.4"},
			{"iptables -E FLANNEL-FWD RENAMED; iptables -A INPUT -j RENAMED", "-j RENAMED"},
			{"iptables -N RENAMED; iptables -A RENAMED -s 1.2.3.4 -j DROP; " +
				"iptables -R FORWARD 1 -m comment --comment 'twill appended' -j RENAMED", "1.2.3.4"},
		} {
			before := saved(t, bin)
			sh(t, strings.ReplaceAll(c.disturb, "iptables ", bin+" "))
			look()
			await(t, events, c.disturb)
			settle(t, f, want)
			after := saved(t, bin)
			if c.left == "" && after != before {
				t.Errorf("%s: repaired, and the rules are\n%s\nwant\n%s", c.disturb, after, before)
			}
			if c.left != "" && (!strings.Contains(after, c.left) || strings.Contains(after, "-A FORWARD") &&
				strings.Count(after, "-A FORWARD") != strings.Count(before, "-A FORWARD")) {
				t.Errorf("%s: repaired, and the rules are\n%s\nwant %s to stay", c.disturb, after, c.left)
			}
			sh(t, strings.ReplaceAll("iptables -F INPUT; iptables -F RENAMED; iptables -X RENAMED; true", "iptables ", bin+" "))
			settle(t, f, want)
			look()
			quiet(t, events)
		}
		sh(t, bin+" -E FLANNEL-FWD RENAMED; "+bin+" -t nat -N OTHER")
		settle(t, f, netstate.State{})
		if g.name == "iptables-nft" && strings.Contains(sh(t, bin+"-save"), "RENAMED") {
			t.Errorf("after all was deleted the rules are\n%s", sh(t, bin+"-save"))
		}
	})
}

// saved is what iptables-save prints of the table filter, without the times and counts.
func saved(t *testing.T, bin string) string {
	t.Helper()
	return sh(t, bin+"-save -t filter | sed '/^#/d; s/\\[.*\\]//'")
}

// TestUnreadableBase: a rule that iptables cannot print, in the chain that jumps to ours, neither hides the jump nor
// makes it come twice.
func TestUnreadableBase(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	useVariant(t, nft)
	f := New()
	defer f.Close()
	want := wanted(netstate.IPTables)
	settle(t, f, want)
	sh(t, "nft insert rule ip filter FORWARD numgen random mod 2 0 accept")
	if plan := netstate.Diff(want, observe(t, f)); len(plan) > 0 {
		t.Errorf("a rule of others was added, and the plan is\n%s", plan)
	}
	for _, disturb := range []string{
		"nft flush chain ip filter FLANNEL-FWD", "iptables-nft -E FLANNEL-FWD RENAMED",
		"nft add rule ip filter FORWARD jump FLANNEL-FWD",
	} {
		sh(t, disturb)
		settle(t, f, want)
		rules := sh(t, "nft list chain ip filter FORWARD")
		if strings.Count(rules, "jump FLANNEL-FWD") != 1 || !strings.Contains(rules, "numgen") {
			t.Errorf("%s: repaired, and FORWARD is\n%s", disturb, rules)
		}
	}
	settle(t, f, netstate.State{})
	rules := sh(t, "nft list table ip filter")
	if strings.Contains(rules, "FLANNEL") || !strings.Contains(rules, "numgen") {
		t.Errorf("after all was deleted the table is\n%s", rules)
	}
}
