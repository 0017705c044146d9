package transition_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/transition"
	"github.com/twill-net/twill/subnet"
)

// BenchmarkDesired is what 5,000 peers cost a node: alone, as a node without another way sees their records, and in a transition,
// where they cost the lease, too.
func BenchmarkDesired(b *testing.B) {
	const vxlan, hostGW = `{"Type":"vxlan"}`, `{"Type":"host-gw"}`
	c := &cluster{t: b}
	for i, confs := range [][]string{{vxlan}, {vxlan, hostGW}} {
		c.join(confs[0])
		c.members[i].node.Underlays[0].OnLink = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}
		for _, conf := range confs[1:] {
			c.publish(c.members[i])
			c.restart(c.members[i], conf)
		}
		c.members[i].works = true
		c.publish(c.members[i])
	}
	plain, changing := c.members[0], c.members[1]
	const both = `,"Ways":[{"Type":"host-gw","Since":1800000000},{"Type":"vxlan"}]`
	asked := func(m *member, snap subnet.Snapshot) { // as the agent asks
		one := m.backend
		if t, ok := one.(backend.Transition); ok {
			one = t.For(snap.Local)
		}
		reaches(b, one, m, transition.Seen(m.config.Backend, one, snap.WithEarlier()))
	}
	for _, bench := range []struct {
		name string
		m    *member
		says string
		run  func(*member, subnet.Snapshot)
	}{
		{"alone", plain, "", func(m *member, snap subnet.Snapshot) { reaches(b, m.backend, m, snap) }},
		{"plain", plain, "", asked},
		{"plain-offered", plain, both, asked},
		{"transition", changing, both, asked},
		{"transition-lease", changing, both, func(m *member, snap subnet.Snapshot) {
			if _, err := m.backend.(backend.Transition).Lease(m.node, m.lease, m.lease, &snap, true, c.now); err != nil {
				b.Fatal(err)
			}
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			snap := subnet.Snapshot{Local: bench.m.lease, Peers: peers(5000, bench.says)}
			b.ReportAllocs()
			for b.Loop() {
				bench.run(bench.m, snap)
			}
		})
	}
}

// reaches fails unless a backend reaches all peers.
func reaches(b *testing.B, by backend.Backend, m *member, snap subnet.Snapshot) {
	if want, skips := by.Desired(m.node, snap); len(want) < len(snap.Peers) || len(skips) > 0 {
		b.Fatalf("%d objects, %d peers left out", len(want), len(skips))
	}
}

// peers returns nodes with vxlan, which say more in their records.
func peers(n int, more string) (all []subnet.Lease) {
	for i := range n {
		at := 2048 + 8*i // behind the benchmark's own nodes
		all = append(all, subnet.Lease{Node: fmt.Sprint("peer", i), Backend: "vxlan", Stacks: []subnet.Stack{{
			Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(at >> 8), byte(at)}), 29),
			Underlay: netip.AddrFrom4([4]byte{172, 17, byte(i >> 8), byte(i)}),
			Data:     fmt.Appendf(nil, `{"VNI":1,"VtepMAC":"0a:00:00:00:%02x:%02x","Port":8472%s}`, i>>8, i&255, more)}}})
	}
	return all
}
