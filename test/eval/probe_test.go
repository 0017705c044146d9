package eval

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// ours is in what is said of entries that the agent or the plugin made in the lab of TestProbe.
var ours = regexp.MustCompile(`\bflannel[./]1\b|group 116`)

// TestProbe: causes that no check of the doctor knows, some on a node, some inside a pod, some on the underlay. Real
// packets are lost, and followed to the place and the object. test/causes draws such causes at random.
func TestProbe(t *testing.T) {
	t.Parallel()
	l := labtest.StartDefault(t, lab.Spec{Name: "doctorprobe", Backend: "vxlan", Family: lab.IPv4, Store: lab.File, Nodes: 3, Pods: 2})
	pings, err := l.Converge(t.Context(), testwait.Limit)
	check(t, err)
	t.Logf("up with %d pings", len(pings))
	program := filepath.Join(labtest.BinDir(t), "twillctl")
	twillctl := func(into any, args ...string) {
		cmd := exec.CommandContext(t.Context(), program, append(args, "--lab", l.Name(), "-o", "json")...)
		cmd.Env = append(os.Environ(), "TWILL_BIN_DIR="+filepath.Dir(l.Spec().Programs.Agent))
		out, _ := cmd.Output() // exits 1 with findings
		if err := json.Unmarshal(out, into); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	ask := func() (s doctor.Survey) {
		twillctl(&s, "doctor", "--probe")
		return s
	}
	pods, gateway := l.Pods(), ""
	for _, test := range []struct{ name, place, do, undo, object string }{
		{"full packets", "node1", "nft 'add table inet site; add chain inet site c { type filter hook forward priority -150; }; add rule inet site c meta length > 1000 drop'",
			"nft delete table inet site", "rule inet site c handle 2: meta length > 1000 drop"},
		{"a rule of routing", "node1", "ip rule add pref 900 from $SUBNET1 lookup 77; ip route add blackhole default table 77",
			"ip rule del pref 900; ip route del blackhole default table 77", "policy rule 900: from"},
		{"the gateway's MAC", "node1/pod1", "ip neigh replace $GATEWAY1 lladdr 02:00:5e:00:00:01 nud permanent dev eth0", "ip neigh del $GATEWAY1 dev eth0",
			"lladdr 02:00:5e:00:00:01"},
		{"a firewall inside the pod", "node2/pod1", "nft 'add table ip site; add chain ip site c { type filter hook input priority 0; policy drop; }'", "nft delete table ip site", "rule ip site c: policy drop"},
		{"two pods with one address", "node3/pod2", "ip addr add $POD1/24 dev eth0", "ip addr del $POD1/24 dev eth0", "address $POD1"},
		{"a policy of the bridge", "node1", "nft 'add table bridge site; add chain bridge site c { type filter hook forward priority 0; policy drop; }'", "nft delete table bridge site",
			"rule bridge site c: policy drop"},
		{"the TTL", "node2", "iptables -t mangle -A FORWARD -j TTL --ttl-set 1", "iptables -t mangle -D FORWARD -j TTL --ttl-set 1", "-A FORWARD -j TTL --ttl-set 1"},
		{"legacy rules beside others", "node2", "iptables-legacy -A FORWARD -p udp -j DROP", "iptables-legacy -D FORWARD -p udp -j DROP", "rule iptables-legacy filter FORWARD: -A FORWARD -p udp -j DROP"},
		{"an IPsec policy", "node2", "ip xfrm policy add src 10.244.0.0/16 dst 10.244.0.0/16 dir fwd action block", "ip xfrm policy flush", "IPsec policy src 10.244.0.0/16 dst 10.244.0.0/16 dir fwd action block"},
		{"ARP on the underlay's device", "node1", "ip link set eth1 arp off; ip neigh flush dev eth1", "ip link set eth1 arp on", "link eth1: NOARP"},
		{"answers to pings", "node2/pod2", "sysctl -qw net.ipv4.icmp_echo_ignore_all=1", "sysctl -qw net.ipv4.icmp_echo_ignore_all=0", "sysctl net.ipv4.icmp_echo_ignore_all = 1"},
		{"a filter on the underlay", "underlay", "nft 'add table bridge site; add chain bridge site c { type filter hook forward priority 0; }; add rule bridge site c udp length > 1000 drop'",
			"nft delete table bridge site", "rule bridge site c handle 2"},
		{"a rewritten address", "node3", "nft 'add table ip site; add chain ip site c { type filter hook prerouting priority -300; }; add rule ip site c ip daddr $POD1 ip daddr set 10.244.255.9'",
			"nft delete table ip site", "rule ip site c handle 2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if gateway == "" {
				out, err := pods[0].Exec(t.Context(), "sh", "-c", "ip route show default | awk '{print $3}'")
				check(t, err)
				gateway = strings.TrimSpace(out)
			}
			fill := strings.NewReplacer("$POD1", pods[0].Addrs[0].String(), "$GATEWAY1", gateway, "$SUBNET1", strings.TrimSuffix(gateway, "1")+"0/24")
			h, err := l.Find(test.place)
			check(t, err)
			run := func(h host.Host, command string) {
				if _, err := h.Exec(t.Context(), "sh", "-ec", fill.Replace(command)); err != nil {
					t.Fatal(err)
				}
			}
			run(h, test.do)
			got := ask()
			run(h, test.undo)
			object := fill.Replace(test.object)
			if got.First == nil || got.First.Place != test.place || !strings.Contains(got.First.Object, object) || got.Probes.Lost == 0 || !got.Failed() {
				t.Errorf("want %q at %s, got %+v; probes %+v", object, test.place, got.First, got.Probes)
			}
		})
	}
	t.Run("what Twill made is not to blame", func(t *testing.T) {
		last := pods[len(pods)-1]
		_, err := last.Exec(t.Context(), "sysctl", "-qw", "net.ipv4.icmp_echo_ignore_all=1")
		check(t, err)
		defer func() {
			_, err := last.Exec(t.Context(), "sysctl", "-qw", "net.ipv4.icmp_echo_ignore_all=0")
			check(t, err)
		}()
		for _, from := range pods[:len(pods)-1] {
			var got doctor.Trace
			twillctl(&got, "trace", from.ID(), last.ID())
			if len(got.Lost) == 0 || got.Lost[0].Place != last.ID() {
				t.Errorf("%s: want a loss at %s, got %+v", from.ID(), last.ID(), got.Lost)
			}
			for _, f := range got.Lost {
				if text := strings.Join(append(f.More, f.Object, f.Fix), "\n"); ours.MatchString(text) {
					t.Errorf("%s: this is Twill's own, and was never altered: %s", from.ID(), text)
				}
			}
		}
	})
	t.Run("one node", func(t *testing.T) {
		n := l.Nodes()[0]
		_, err := n.Exec(t.Context(), "sh", "-ec", "nft 'add table inet site; add chain inet site c { type filter hook forward priority -150; }; add rule inet site c udp length > 1000 drop'")
		check(t, err)
		var got doctor.Diagnosis
		twillctl(&got, "doctor", n.Name, "--probe")
		_, err = n.Exec(t.Context(), "nft", "delete", "table", "inet", "site")
		check(t, err)
		if len(got.Findings) == 0 || got.Findings[0].Object != "rule inet site c handle 2: udp length > 1000 drop" {
			t.Errorf("the node's namespace is not this process's: got %+v", got.Findings)
		}
	})
	t.Run("with an agent's rights", func(t *testing.T) {
		n := l.Nodes()[0]
		ask := func() (d doctor.Diagnosis) {
			out, err := n.Exec(t.Context(), "setpriv", "--bounding-set=-all,+net_admin,+net_raw,+dac_override", program, "doctor", "--probe", "-o", "json",
				"--checkpoint-file", n.CheckpointFile(), "--subnet-file", n.SubnetFile(), "--cni-cache-dir", n.CNICache())
			if bad := json.Unmarshal([]byte(out), &d); bad != nil {
				t.Fatalf("%v, %v: %s", bad, err, out)
			}
			return d
		}
		if got := ask(); got.Failed() || !got.Probed {
			t.Errorf("healthy: got %+v", got)
		}
		_, err := n.Exec(t.Context(), "sh", "-ec", "nft 'add table inet site; add chain inet site c { type filter hook output priority 0; }; add rule inet site c meta length > 1000 drop'")
		check(t, err)
		got := ask()
		_, err = n.Exec(t.Context(), "nft", "delete", "table", "inet", "site")
		check(t, err)
		if len(got.Findings) == 0 || got.Findings[0].Object != "rule inet site c handle 2: meta length > 1000 drop" ||
			!strings.Contains(strings.Join(got.Unread, "\n"), "CAP_BPF and CAP_PERFMON") {
			t.Errorf("a rule: got %+v", got)
		}
		// A rule of another node about one of this node's pods: packets in the pod's name meet it.
		far := l.Nodes()[1]
		_, err = far.Exec(t.Context(), "sh", "-ec", "nft 'add table inet site; add chain inet site c { type filter hook prerouting priority -300; }; add rule inet site c ip saddr "+
			pods[0].Addrs[0].String()+" drop'")
		check(t, err)
		got = ask()
		_, err = far.Exec(t.Context(), "nft", "delete", "table", "inet", "site")
		check(t, err)
		if len(got.Findings) == 0 || got.Findings[0].ID != "packet-lost-near" || !strings.Contains(got.Findings[0].More[0], pods[0].Addrs[0].String()) {
			t.Errorf("a rule about a pod: got %+v", got)
		}
	})
	t.Run("healthy", func(t *testing.T) {
		if got := ask(); got.Failed() || got.Probes.Sent != 186 || len(got.Probes.Unread) > 0 {
			t.Errorf("got %+v, probes %+v", got.First, got.Probes)
		}
	})
}
