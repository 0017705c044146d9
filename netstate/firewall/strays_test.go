package firewall

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// strayCase is what somebody may put into a table of ours, and what the plan says of it.
type strayCase struct{ nft, names string }

var strayCases = []strayCase{
	{"add chain ip flannel-ipv4 extra", "chain extra"},
	{"add chain ip flannel-ipv4 extra { type filter hook forward priority 9; policy drop; }",
		"chain extra type filter hook forward priority 9 policy drop"},
	{"add chain ip6 flannel-ipv6 extra { type nat hook prerouting priority -100; }",
		"chain extra type nat hook prerouting priority -100 policy accept"},
	{"rename chain ip flannel-ipv4 forward renamed", "chain renamed type filter hook forward priority 0 policy accept"},
	{"rename chain ip6 flannel-ipv6 postrtg renamed",
		"chain renamed type nat hook postrouting priority 100 policy accept"},
	{"add set ip flannel-ipv4 extra { type ipv4_addr; }", "set extra"},
	{"add set ip flannel-ipv4 extra { type ipv4_addr; flags interval, timeout; elements = { 10.0.0.0/8 timeout 1h }; }",
		"set extra"},
	{"add set ip flannel-ipv4 extra { type ipv4_addr; }; add rule ip flannel-ipv4 forward ip saddr @extra drop",
		"set extra"},
	{"add map ip flannel-ipv4 extra { type ipv4_addr : verdict; }", "map extra"},
	{"add chain ip flannel-ipv4 to; add map ip flannel-ipv4 extra { type ipv4_addr : verdict; " +
		"elements = { 10.0.0.1 : jump to }; }; insert rule ip flannel-ipv4 forward ip saddr vmap @extra",
		"map extra, chain to"},
	{"add counter ip flannel-ipv4 extra", "object extra"},
	{"add counter ip flannel-ipv4 extra; add rule ip flannel-ipv4 guard-input counter name extra", "object extra"},
	{"add quota ip flannel-ipv4 extra { over 1 mbytes; }; add map ip flannel-ipv4 by { type ipv4_addr : quota; " +
		"elements = { 10.0.0.1 : \"extra\" }; }; add rule ip flannel-ipv4 forward quota name ip saddr map @by",
		"map by, object extra"},
	{"add flowtable ip flannel-ipv4 extra { hook ingress priority 0; devices = { lo }; }", "flowtable extra"},
	{"add chain ip flannel-ipv4 one; add chain ip flannel-ipv4 two; add rule ip flannel-ipv4 one jump two; " +
		"insert rule ip flannel-ipv4 forward goto one", "chain one, chain two"},
	{"add chain ip flannel-ipv4 one; add rule ip flannel-ipv4 one ip saddr { 10.0.0.1, 10.0.0.2 } drop; " +
		"insert rule ip flannel-ipv4 forward jump { ip saddr 10.0.0.3 drop; }", "chain one"},
	{"add table ip flannel-ipv4 { flags dormant; }' && nft '" +
		"add chain ip flannel-ipv4 extra { type filter hook input priority 0; policy drop; }",
		"chain extra type filter hook input priority 0 policy drop"},
	{"add table ip flannel-ipv4 { flags dormant; }' && nft 'rename chain ip flannel-ipv4 forward renamed",
		"chain renamed type filter hook forward priority 0 policy accept"},
	{"delete table ip flannel-ipv4; add table ip flannel-ipv4; add chain ip flannel-ipv4 extra", "chain extra"},
	// Ours leads to the other chain, and that one to ours, which is no base chain any more.
	{"flush chain ip flannel-ipv4 forward; delete chain ip flannel-ipv4 forward; add chain ip flannel-ipv4 forward; " +
		"add chain ip flannel-ipv4 extra; add rule ip flannel-ipv4 forward ip saddr 10.0.0.1 jump extra; " +
		"add rule ip flannel-ipv4 extra ip saddr 10.0.0.2 goto forward", "chain extra"},
}

// ruleset is all of nf_tables without handles and counts: a line for each chain and what else stands in a table, in
// order.
func ruleset(t *testing.T) string {
	t.Helper()
	var all []string
	for _, table := range strings.Split("\n"+sh(t, "nft -s list ruleset"), "\ntable ")[1:] {
		name, body, _ := strings.Cut(table, " {\n")
		for _, part := range strings.Split(body, "\n\t}\n") {
			all = append(all, name+" "+strings.Join(strings.Fields(part), " "))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// strayCasesHere are those that this kernel knows.
func strayCasesHere(t *testing.T) []strayCase {
	t.Helper()
	sh(t, "ip link set lo up")
	try := "nft 'add flowtable ip try extra { hook ingress priority 0; devices = { lo }; }' 2>/dev/null && echo y || :"
	known := sh(t, "nft add table ip try; "+try+"; nft delete table ip try") != ""
	return slices.DeleteFunc(slices.Clone(strayCases), func(c strayCase) bool {
		return !known && strings.Contains(c.nft, "flowtable")
	})
}

// TestStrays: our tables hold exactly our objects. What others put there is named, and goes with one plan.
func TestStrays(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	f := New()
	defer f.Close()
	want := wanted(netstate.NFTables)
	for _, family := range []string{"inet", "bridge", "arp", "netdev"} { // not ours, whatever its name
		sh(t, "nft 'add table "+family+" flannel-ipv4; add chain "+family+" flannel-ipv4 extra'")
	}
	settle(t, f, want)
	exactly := ruleset(t)
	for _, c := range strayCasesHere(t) {
		sh(t, "nft '"+c.nft+"'")
		named := ""
		for _, change := range netstate.Diff(want, observe(t, f)) {
			if s, ok := change.Was.(netstate.Strays); ok && change.Want == nil {
				named += s.Names
			}
		}
		if named != c.names {
			t.Errorf("%s: the plan names %q, want %q", c.nft, named, c.names)
		}
		settle(t, f, want)
		if got := ruleset(t); got != exactly {
			t.Errorf("%s: repaired, and the rules are\n%s\nwant\n%s", c.nft, got, exactly)
		}
	}
	sh(t, "nft add chain ip flannel-ipv4 extra")
	settle(t, f, netstate.State{})
	if left := ruleset(t); strings.Contains(left, "table ip ") || strings.Count(left, "extra") != 4 {
		t.Errorf("after all was deleted the rules are\n%s", left)
	}
}

// TestStraysWatched: nf_tables announces whatever somebody puts into a table of ours, and nothing wakes the agent when
// others write to theirs.
func TestStraysWatched(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft", "iptables-nft")
	sh(t, "iptables-nft -t nat -N KUBE-SERVICES; iptables-nft -t nat -A POSTROUTING -j KUBE-SERVICES")
	f := New()
	defer f.Close()
	want := wanted(netstate.NFTables)
	settle(t, f, want)
	events, err := f.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range strayCasesHere(t) {
		sh(t, "nft '"+c.nft+"'")
		await(t, events, c.nft)
		settle(t, f, want)
		quiet(t, events)
	}
	for _, foreign := range []string{
		"nft 'add table inet flannel-ipv4; add chain inet flannel-ipv4 extra; " +
			"add set inet flannel-ipv4 s { type ipv4_addr; }'",
		"nft 'add table ip kube-proxy; add chain ip kube-proxy services; add rule ip kube-proxy services counter'",
		"nft 'add map ip kube-proxy ips { type ipv4_addr : verdict; elements = { 10.0.0.1 : goto services }; }'",
		"printf '*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-1 - [0:0]\n-A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-SVC-1\n" +
			"COMMIT\n' | iptables-nft-restore --noflush",
		"iptables-nft -t nat -N KUBE-SVC-2; iptables-nft -t nat -X KUBE-SVC-2",
	} {
		sh(t, foreign)
		if quiet(t, events) {
			t.Errorf("%s: an event", foreign)
		}
	}
}

// TestStraysPackets: a chain that drops what pods send hurts until it is repaired, and of the packets that it does not
// hurt no repair loses one, or lets one go out from another address.
func TestStraysPackets(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "ip", "nsenter", "nft")
	pod, outside := newSpace(t), newSpace(t)
	links(t, pod, outside)
	for _, w := range worlds {
		w.wire(t, pod, outside)
	}
	f := New()
	defer f.Close()
	want := config(netstate.NFTables, backend.KeepRouted)
	settle(t, f, want)
	out := shot{from: pod, to: outside, dst: worlds[0].outside}
	sh(t, "nft 'add chain ip flannel-ipv4 extra { type filter hook forward priority 9; policy drop; }'")
	if got, err := out.fire(); got != "nothing" || err != nil {
		t.Fatalf("with a chain that drops everything a packet came from %s (%v)", got, err)
	}
	settle(t, f, want)
	if got, err := out.fire(); got != worlds[0].node || err != nil {
		t.Errorf("after the repair the packet came from %s (%v), want %s", got, err, worlds[0].node)
	}
	stop, wrong := make(chan struct{}), make(chan string, 2)
	for _, w := range worlds {
		go func() { wrong <- stream(w, pod, outside, stop) }()
	}
	for range 10 {
		for _, disturb := range []string{
			"add chain ip flannel-ipv4 extra { type filter hook forward priority 9; }; " +
				"add set ip6 flannel-ipv6 s { type mark; }",
			"rename chain ip flannel-ipv4 postrtg renamed; rename chain ip6 flannel-ipv6 postrtg renamed",
			"rename chain ip flannel-ipv4 forward renamed; add chain ip6 flannel-ipv6 extra",
		} {
			sh(t, "nft '"+disturb+"'")
			settle(t, f, want)
		}
	}
	close(stop)
	for range worlds {
		if w := <-wrong; w != "" {
			t.Error("while a table was repaired " + w)
		}
	}
}

// stream sends new flows from a pod to outside, which are masqueraded, and to another pod, which are not, until stop. It
// returns what went wrong, and empty if nothing did.
func stream(w world, pod, outside *space, stop chan struct{}) string {
	for n := 0; ; n++ {
		select {
		case <-stop:
			if n < 20 {
				return fmt.Sprintf("only %d packets were sent", n)
			}
			return ""
		default:
		}
		for dst, want := range map[string]string{w.outside: w.node, w.routed: w.pod} {
			if got, err := (shot{from: pod, to: outside, dst: dst, once: true}).fire(); got != want || err != nil {
				return fmt.Sprintf("packet %d to %s came from %s (%v), want %s", n, dst, got, err, want)
			}
		}
	}
}

// TestIsOurs: a chain is ours by its family, table and name.
func TestIsOurs(t *testing.T) {
	for chain, want := range map[[3]string]bool{
		{"ip", "flannel-ipv4", "forward"}: true, {"ip6", "flannel-ipv6", "guard-input"}: true,
		{"inet", "flannel-ipv4", "forward"}: false, {"ip", "flannel-ipv6", "forward"}: false,
		{"ip", "flannel-ipv4", "extra"}: false, {"ip", "filter", "forward"}: false,
	} {
		if got := IsOurs(chain[0], chain[1], chain[2]); got != want {
			t.Errorf("%v: %t, want %t", chain, got, want)
		}
	}
}
