package facts

import (
	"os/exec"
	"slices"
	"testing"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/testns"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/filter"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
	"github.com/twill-net/twill/subnet"
)

// TestTables: what a kernel holds is read with the words of all its rules, known or not, and what is altered shows. Copies are
// not asked for a verdict.
func TestTables(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	testns.Enter(t)
	f, err := filter.New()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for seed := range uint64(8) {
		w := policytest.New(seed)
		w.Cluster = int(seed % 4)
		s := w.Snapshot(4, int(seed)) // without policies first
		site := w.Site(1)
		site.Log = seed%2 == 1
		want, _ := policy.Desired(site, s)
		have, err := f.Observe(t.Context(), want)
		if err == nil {
			err = f.Apply(t.Context(), netstate.Diff(want, have))
		}
		if err != nil {
			t.Fatal(err)
		}
		p := looked(t, w)
		isCopy := func(c netstate.Change) bool { return policy.Original(c.Key().Name) != c.Key().Name }
		if d := slices.DeleteFunc(netstate.Diff(want, p.Tables), isCopy); len(d) > 0 {
			t.Errorf("seed %d: what is read differs:\n%s", seed, d)
		}
		if len(p.Plan) > 0 {
			t.Errorf("seed %d: without the policies an intact table is thought to need\n%s", seed, p.Plan)
		}
	}
	if out, err := exec.Command("nft", "insert rule ip6 twill-policy egress accept").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p := looked(t, policytest.New(7))
	if len(p.Plan) != 1 || p.Plan[0].Key() != (netstate.Filter{Family: netstate.IPv6, Name: "egress"}).Key() {
		t.Errorf("a rule too many: got %s", p.Plan)
	}
}

// looked returns what is seen on node 1 of a world, whose policies are not known there.
func looked(t *testing.T, w policytest.World) doctor.Policies {
	t.Helper()
	f := doctor.Facts{Node: w.Site(1).Node, Bridge: w.Site(1).Bridge}
	for _, s := range w.Site(1).Subnets {
		f.Lease.Snapshot.Local.Stacks = append(f.Lease.Snapshot.Local.Stacks, subnet.Stack{Subnet: s})
	}
	for _, network := range w.Site(1).Networks {
		f.Lease.Network.Pools = append(f.Lease.Network.Pools, subnet.Pool{Network: network})
	}
	g := gathering{Facts: &f, settings: agent.Settings{Policies: agent.PolicySettings{Enforce: true}}}
	g.networkPolicies(t.Context())
	if len(f.Unread) > 0 {
		t.Fatal(f.Unread)
	}
	return f.Policies
}
