package policy_test

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// BenchmarkNewTable makes the table of a large cluster.
func BenchmarkNewTable(b *testing.B) {
	s, site := policytest.Large(10_000)
	for b.Loop() {
		t, _ := policy.NewTable(site, s)
		b.ReportMetric(float64(len(t.State())), "objects")
	}
}

// BenchmarkFollow follows a pod of another node that comes and goes.
func BenchmarkFollow(b *testing.B) {
	s, site := policytest.Large(10_000)
	t, _ := policy.NewTable(site, s)
	p := *s.Pods[9999]
	p.Name, p.UID, p.Addrs = "new", "new", []netip.Addr{netip.MustParseAddr("10.200.0.1")}
	changes := 0
	for b.Loop() {
		come, ok := t.Follow(site, []policy.PodChange{{Now: &p}})
		gone, ok2 := t.Follow(site, []policy.PodChange{{Was: &p}})
		if !ok || !ok2 || len(come) != len(gone) || len(come) == 0 {
			b.Fatal("the change is not followed")
		}
		changes = len(come)
	}
	b.ReportMetric(float64(changes), "elements")
}

// BenchmarkDiff compares two tables of a large cluster, as a changed policy does.
func BenchmarkDiff(b *testing.B) {
	s, site := policytest.Large(10_000)
	was, _ := policy.Desired(site, s)
	s.Policies = s.Policies[1:]
	for b.Loop() {
		now, _ := policy.Desired(site, s)
		b.ReportMetric(float64(len(netstate.Diff(now, was))), "changes")
	}
}

// BenchmarkScale makes the table of 10,000 policies and 30,000 pods, 110 of which are the node's, and follows a pod of another
// node that comes and goes.
func BenchmarkScale(b *testing.B) {
	s, site := policytest.Scaled(30_000, 10_000)
	budget := policy.DefaultBudget
	site.Budget = &budget
	var t *policy.Table
	b.Run("made", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			t, _ = policy.NewTable(site, s)
		}
		b.ReportMetric(float64(len(t.State())), "objects")
	})
	b.Run("followed", func(b *testing.B) {
		p := *s.Pods[9999]
		p.Name, p.UID, p.Addrs = "new", "new", []netip.Addr{netip.MustParseAddr("10.200.0.1")}
		for b.Loop() {
			_, ok := t.Follow(site, []policy.PodChange{{Now: &p}})
			_, gone := t.Follow(site, []policy.PodChange{{Was: &p}})
			if !ok || !gone {
				b.Fatal("the change is not followed")
			}
		}
	})
}
