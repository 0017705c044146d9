package walk_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/lab/walk"
)

// TestWatch breaks a healthy lab in several ways, and compares where real packets were seen last and what
// the kernel said.
func TestWatch(t *testing.T) {
	for _, c := range []struct {
		name, family, backend, harm, verdict, reason, at string
	}{
		{"healthy", lab.IPv4, "vxlan", "", "✓ all arrive, and so do the replies", "", ""},
		{"six", lab.IPv6, "vxlan", "", "✓ all arrive, and so do the replies", "", ""},
		{"rule", lab.IPv4, "vxlan", "iptables -t raw -I PREROUTING -p icmp -s 10.244.0.0/16 -j DROP", "seen last on node1, coming in through veth", "NETFILTER_DROP", "node1"},
		{"rule6", lab.IPv6, "vxlan", "ip6tables -t raw -I PREROUTING -p icmpv6 --icmpv6-type echo-request -j DROP", "seen last on node1, coming in through veth", "NETFILTER_DROP", "node1"},
		{"tunnel", lab.IPv4, "vxlan", "iptables -I OUTPUT -p udp --dport 8472 -j DROP", "seen last on node1, leaving through flannel.1", "NETFILTER_DROP", "node1"},
		{"refused", lab.IPv4, "host-gw", "iptables -t raw -I PREROUTING -i eth1 -p icmp --icmp-type echo-reply -j DROP", "all arrive; of the replies", "NETFILTER_DROP", "node1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := labtest.Up(t, lab.Spec{Name: "watch" + c.name, Backend: c.backend, Family: c.family, Store: lab.File, Nodes: 2, Pods: 1})
			n := l.Nodes()
			if c.harm != "" {
				if _, err := n[0].Exec(t.Context(), strings.Fields(c.harm)...); err != nil {
					t.Fatal(err)
				}
			}
			src, dst := n[0].Pods()[0], n[1].Pods()[0]
			seen, err := walk.Watch(t.Context(), l, src, dst, l.Spec().Families()[0], 500*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			trace := doctor.Trace{Src: "a", Dst: "b", Traffic: &seen}
			if err := trace.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(text.String(), c.verdict) || seen.Failed() != (c.reason != "") || seen.NoReasons != "" {
				t.Errorf("want %q in\n%s", c.verdict, &text)
			}
			if c.reason != "" && !slices.ContainsFunc(seen.Drops, func(d locate.Drop) bool { return d.Reason == c.reason && d.Host == c.at }) {
				t.Errorf("want %s on %s in\n%s", c.reason, c.at, &text)
			}
		})
	}
}
