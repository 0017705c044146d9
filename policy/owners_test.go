package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
	"github.com/twill-net/twill/subnet"
)

// TestClaims: one node's pods claim every address of every other node, and the tables of those are what they were. So are
// all others' of the addresses that are in no lease, as the claims are younger.
func TestClaims(t *testing.T) {
	for seed := range uint64(120) {
		w := policytest.New(seed)
		w.Cluster = int(seed % 4)
		s := w.Snapshot(4, 6)
		if seed%3 > 0 {
			s.Leases = w.Leases()
		}
		by := 1 + int(seed%3)
		forged := s
		forged.Pods = append(slices.Clone(s.Pods), w.Claims(s, by)...)
		if len(s.Leases) == 0 { // the first addresses of subnets are nobody else's
			forged.Pods = forged.Pods[:len(forged.Pods)-w.Nodes+1]
		}
		for node := 1; node <= w.Nodes; node++ {
			site := w.Site(node)
			site.Ports = w.Ports(s, node)
			want, _ := policy.Desired(site, s)
			table, _ := policy.NewTable(site, forged)
			if d := netstate.Diff(want, table.State()); len(d) > 0 {
				t.Fatalf("seed %d: what node%d claims changes the table of node%d:\n%s", seed, by, node, d)
			}
			if got := len(table.Claims()); got != 2*(len(forged.Pods)-len(s.Pods)) {
				t.Fatalf("seed %d: %d claims are refused, want two each of %d pods", seed, got, len(forged.Pods)-len(s.Pods))
			}
			follow(t, site, s, forged, want)
		}
	}
}

// follow compares the table that follows the claims one by one, and their end.
func follow(t *testing.T, site policy.Site, s, forged policy.Snapshot, want netstate.State) {
	t.Helper()
	table, _ := policy.NewTable(site, s)
	for _, p := range forged.Pods[len(s.Pods):] {
		for _, c := range []policy.PodChange{{Now: p}, {Was: p}, {Now: p}} {
			if plan, ok := table.Follow(site, []policy.PodChange{c}); !ok || len(plan) > 0 {
				t.Fatalf("%s changes the table of %s: %v, %v", p, site.Node, plan, ok)
			}
		}
	}
	if d := netstate.Diff(want, table.State()); len(d) > 0 {
		t.Fatalf("the claims change the table of %s:\n%s", site.Node, d)
	}
}

// TestAt: whose an address is, by the leases, the nodes and the ages of the pods that claim it.
func TestAt(t *testing.T) {
	wide, narrow := policytest.Lease("wide", "192.168.5.9", "10.244.0.0/16"), policytest.Lease("a", "192.168.5.1", "10.244.1.0/24")
	flannels := policytest.Lease("192.168.5.1", "192.168.5.1", "10.244.1.0/24")
	other := policytest.Lease("b", "192.168.5.2", "10.244.2.0/24")
	for _, test := range []struct {
		name   string
		leases []subnet.Lease
		pods   string // the nodes of the pods that claim the address, oldest first
		want   string // node and place
	}{
		{"the node's own", []subnet.Lease{narrow, other}, "a", "a0"},
		{"the newest of the node's own", []subnet.Lease{narrow, other}, "aa", "a1"},
		{"of the node that has the lease, older", []subnet.Lease{narrow, other}, "ab", "a0"},
		{"and younger", []subnet.Lease{narrow, other}, "ba", "a1"},
		{"nobody's: no pod of the lease's node", []subnet.Lease{narrow, other}, "b", ""},
		{"nobody's: no node", []subnet.Lease{narrow, other}, "-", ""},
		{"the older lease's", []subnet.Lease{narrow, wide}, "aw", "a0"},
		{"in no lease, one node", nil, "aa", "a1"},
		{"in no lease, the older pod's", nil, "ab", "a0"},
		{"in no lease, the newest of the older one's node", nil, "aba", "a2"},
		{"of a node without a name", []subnet.Lease{flannels, other}, "a", "a0"},
		{"which is not one that has another lease", []subnet.Lease{flannels, other}, "ba", "a1"},
	} {
		s := policy.Snapshot{Leases: test.leases}
		addr := netip.MustParseAddr("10.244.1.7")
		for i, node := range test.pods {
			s.Pods = append(s.Pods, &policy.Pod{Name: fmt.Sprint(string(node), i), UID: fmt.Sprint(i), Node: string(node),
				Created: time.Unix(int64(i), 0), Addrs: []netip.Addr{addr}})
		}
		got := ""
		if p := s.At(addr).Pod; p != nil {
			got = p.Name
		}
		if got != test.want {
			t.Errorf("%s: the address is %q's, want %q", test.name, got, test.want)
		}
	}
}
