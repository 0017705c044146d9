package rebuild

import (
	"strings"
	"testing"
)

// TestRulesOfAStranger: a report may come from anybody, and its rules are loaded by root.
func TestRulesOfAStranger(t *testing.T) {
	for _, rule := range []string{
		"-A FORWARD -M /tmp/evil -m nothere -j ACCEPT",
		"-A FORWARD --modprobe=/tmp/evil -j ACCEPT",
		"-A FORWARD --modpr /tmp/evil -j ACCEPT",
		"-A FORWARD -m ../../tmp/evil -j ACCEPT",
		"-A FORWARD -j ../evil",
		"-A FORWARD -m bpf --object-pinned /sys/fs/bpf/x -j ACCEPT",
		`-A FORWARD -m comment --comment "a" --comment "b\" -M /tmp/evil -j ACCEPT`,
		`-A FORWARD -m comment --comment "a -M /tmp/evil -j ACCEPT`,
		"-A FORWARD -m comment --comment 'a -M /tmp/evil' -j ACCEPT",
		"-t nat -A POSTROUTING -j ACCEPT",
		"-F FORWARD",
		"*../../x",
	} {
		if kept, left := iptablesRules("*filter\n:FORWARD DROP\n"+rule+"\nCOMMIT\n", nil); strings.Contains(kept, rule) || len(left) != 1 {
			t.Errorf("%s: loads %q, leaves %q", rule, kept, left)
		}
	}
	const usual = `-A KUBE-FORWARD -m comment --comment "a rule -M of kube-proxy" -m mark --mark 0x4000/0x4000 ! -d 10.0.0.0/8 -j ACCEPT`
	if kept, left := iptablesRules("*filter\n:FORWARD DROP\n"+usual+"\nCOMMIT\n", nil); !strings.Contains(kept, usual) || len(left) > 0 {
		t.Errorf("%s: loads %q, leaves %q", usual, kept, left)
	}
	for _, text := range []string{"include \"/etc/shadow\"\n", "table ip a {\n\tinclude \"/etc/shadow\"\n}\n", "table ip a {\n\\\ninclude \"x\"\n}\n"} {
		if tables, err := nftTables(text); err == nil {
			t.Errorf("%q: loads %q", text, tables)
		}
	}
}

// TestChainsThatWereNotMade: the agent's rules would have to be in FORWARD, if there were one.
func TestChainsThatWereNotMade(t *testing.T) {
	chains := chainsOf("table ip6 filter {\n\tchain FORWARD {\n\t}\n}\ntable ip filter {\n\tchain OUTPUT {\n\t}\n}\n", "iptables")
	got, left := iptablesRules("*filter\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n*nat\n:OUTPUT ACCEPT\nCOMMIT\n", chains)
	if want := "*filter\n:OUTPUT ACCEPT\nCOMMIT\n*nat\n:OUTPUT ACCEPT\nCOMMIT\n"; got != want || len(left) > 0 {
		t.Errorf("%q, %q, want %q", got, left, want)
	}
}

// TestMarkedRulesKeepTheirPlace: iptables' own rules are loaded first, and the agent's go between them.
func TestMarkedRulesKeepTheirPlace(t *testing.T) {
	got := markedRules("table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy accept;\n" +
		"\t\tone counter accept\n\t\ttwo counter accept comment \"twill appended\"\n\t\tthree counter drop\n" +
		"\t\tfour counter accept comment \"twill appended\"\n\t}\n}\ntable ip other {\n\tchain x {\n\t\tfive accept comment \"twill appended\"\n\t}\n}\n")
	want := []string{"insert rule ip filter FORWARD index 1 two counter accept comment \"twill appended\"\n",
		"add rule ip filter FORWARD four counter accept comment \"twill appended\"\n"}
	if strings.Join(got, "") != strings.Join(want, "") {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestWordsOfAStranger: no value is more than one word, or an option.
func TestWordsOfAStranger(t *testing.T) {
	for _, value := range []string{"10.0.0.0/8 encap bpf in obj /tmp/x", "-batch", "a\nb", "a;b", strings.Repeat("a", 65)} {
		if text, ok := words("dev", value); ok {
			t.Errorf("%q becomes %q", value, text)
		}
	}
	s, err := parse(map[string][]byte{"ip-route.json": []byte(`[{"dst":"encap","dev":"eth1"},{"dst":"10.0.0.0/8","type":"nat"}]`)}, names{})
	if err != nil || len(s.routes) > 0 || len(s.left) != 2 {
		t.Errorf("routes %v, left %q, %v", s.routes, s.left, err)
	}
}

// TestSysctlsOfAStranger: only what is a network namespace's own is written.
func TestSysctlsOfAStranger(t *testing.T) {
	for _, name := range []string{"kernel/core_pattern", "net/ipv4/../../kernel/core_pattern", "net/ipv4/conf/../x", "net/ipv4/conf/a/b/c",
		"net/ipv4/tcp_mem", "net/netfilter/nf_conntrack_max", "net/core/rmem_max"} {
		if ofNetwork.MatchString(name) {
			t.Errorf("%s would be written", name)
		}
	}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/flannel.1/rp_filter",
		"net/ipv4/neigh/cni0/mcast_solicit", "net/bridge/bridge-nf-call-ip6tables"} {
		if !ofNetwork.MatchString(name) {
			t.Errorf("%s would be left out", name)
		}
	}
}
