package eval

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/test/agents"
)

// TestAgents has the agents of a cluster say what is wrong, with the rights that their containers have: they may neither enter
// pods, nor make a namespace to compare with, nor run BPF programs.
func TestAgents(t *testing.T) {
	t.Parallel()
	l := labtest.Up(t, lab.Spec{Name: "doctoragents", Store: lab.File, Nodes: 2, Pods: 2})
	program := filepath.Join(labtest.BinDir(t), "twillctl")
	env, err := agents.Cluster(l, program, t.TempDir())
	check(t, err)
	one, two := l.Nodes()[0], l.Nodes()[1]
	peer, pod := two.Subnets()[0], one.Pods()[0].Addrs[0].String()
	own := one.Underlay()[0].String()
	remote, unused := two.Pods()[0].Addrs[0].String(), peer.Addr().Next().Next().Next().Next().Next().String()
	ask := func(t *testing.T) *doctor.Finding {
		cmd := exec.CommandContext(t.Context(), program, "doctor", "--cluster", "--probe", "-o", "json")
		cmd.Env = env
		out, _ := cmd.Output() // exits 1 with findings
		var s doctor.Survey
		if err := json.Unmarshal(out, &s); err != nil || len(s.Silent) > 0 {
			t.Fatalf("%v: %s, silent: %q", err, out, s.Silent)
		}
		return s.First
	}
	for name, c := range map[string]struct {
		do, undo      string
		id, says, fix string // id has what may be found first; empty: nothing is broken
	}{
		"a host that answers no pings": {"sysctl -qw net.ipv4.icmp_echo_ignore_all=1", "sysctl -qw net.ipv4.icmp_echo_ignore_all=0", "", "", ""},
		"a rule for the node's own packets": {"iptables -I OUTPUT -d " + pod + " -j NFQUEUE --queue-num 7",
			"iptables -D OUTPUT -d " + pod + " -j NFQUEUE --queue-num 7", "", "", ""},
		"a host that drops what it gets from pods": {"iptables -I INPUT -s " + peer.String() + " -j DROP", "iptables -D INPUT -s " + peer.String() + " -j DROP", "", "", ""},
		"a host that drops what pods send it":      {"iptables -I INPUT -i flannel.1 -j DROP", "iptables -D INPUT -i flannel.1 -j DROP", "", "", ""},
		"a network that takes nothing": {"ip addr add " + unused + "/32 dev eth1",
			"ip addr del " + unused + "/32 dev eth1", "", "", ""},
		"an address of a remote pod": {"ip addr add " + remote + "/32 dev lo", "ip addr del " + remote + "/32 dev lo", "route-shadowed",
			"address " + remote + "/32 dev lo", "ip addr del " + remote + "/32 dev lo"},
		"a local route": {"ip route add local " + peer.String() + " dev lo metric 3", "ip route del local " + peer.String() + " dev lo metric 3",
			"route-shadowed", "local " + peer.String() + " dev lo", "ip route del local " + peer.String()},
		"what pods send is dropped": {"nft 'add table bridge doctoragents; add chain bridge doctoragents c { type filter hook input priority 0; }; " +
			"add rule bridge doctoragents c ip saddr " + pod + " drop'", "nft delete table bridge doctoragents", "packet-lost", "bridge doctoragents c", "nft delete rule"},
		"answers are rejected": {"nft 'add table ip doctoragents; add chain ip doctoragents c { type filter hook forward priority 9; }; " +
			"add rule ip doctoragents c tcp dport 1024-65535 reject'", "nft delete table ip doctoragents", "forward-rejected", "tcp dport 1024-65535 reject", ""},
		"a policy rule about ports": {"ip route add blackhole default table 366; ip rule add pref 77 to " + peer.String() + " sport 1024-65534 lookup 366",
			"ip rule del pref 77; ip route flush table 366", "tcp-lost", "policy rule 77: from all to " + peer.String() + " sport 1024-65534 lookup 366", "ip rule del"},
		"the node's address is gone": {"ip addr del " + own + "/24 dev eth1", "ip addr add " + own + "/24 dev eth1", "underlay-missing packet-lost", own, ""},
	} {
		t.Run(name, func(t *testing.T) {
			testwait.Until(t, "nothing is wrong", func() bool { return ask(t) == nil })
			_, err := one.Exec(t.Context(), "sh", "-ec", c.do)
			check(t, err)
			defer func() {
				_, err := one.Exec(t.Context(), "sh", "-ec", c.undo)
				check(t, err)
			}()
			switch f := ask(t); {
			case c.id == "" && (f == nil || f.Severity != doctor.Broken):
			case f == nil || !strings.Contains(c.id, f.ID) || f.Place != one.Name || !strings.Contains(f.Object+" "+f.Actual, c.says) || !strings.HasPrefix(f.Command, c.fix):
				t.Errorf("got %+v, want %s at %s about %q, and %s", f, c.id, one.Name, c.says, c.fix)
			}
		})
	}
}
