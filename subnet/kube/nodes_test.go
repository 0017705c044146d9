package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twill-net/twill/subnet"
)

// TestNodesOrder: whatever happens to nodes, the leases are those of the peers that there are, oldest first.
func TestNodesOrder(t *testing.T) {
	c := cacheOf(t, 0, pool4)
	r := rand.New(rand.NewPCG(1, 2))
	there := map[string]*node{}
	some := func() *node {
		i := r.IntN(40)
		n := &node{version: "1", whole: true, record: record{name: fmt.Sprintf("n%02d", i), uid: fmt.Sprint(i), created: time.Unix(int64(r.IntN(5)), 0).UTC(),
			podCIDRs: fmt.Sprintf("10.244.%d.0/24", i), managed: "true", backend: "vxlan", v4: notes{public: fmt.Sprintf("192.0.2.%d", 1+r.IntN(9))}}}
		if r.IntN(4) == 0 {
			n.managed = ""
		}
		return n
	}
	for step := range 2000 {
		switch n := some(); {
		case step%100 == 99:
			there = map[string]*node{}
			for range 30 {
				n := some()
				there[n.name] = n
			}
			c.replace(slices.Collect(maps.Values(there)))
		case step%3 == 0:
			c.remove(n)
			delete(there, n.name)
		default:
			c.update(n)
			there[n.name] = n
		}
		var want []subnet.Lease
		for _, n := range slices.SortedFunc(maps.Values(there), func(a, b *node) int { return a.compare(b.record) }) {
			if l, err := c.notes.lease(n.record); err == nil && n.isPeer() {
				want = append(want, l)
			}
		}
		if leases, _, _, _ := c.peers(); !slices.EqualFunc(leases, want, subnet.Lease.Equal) {
			t.Fatalf("after %d steps got %v, want %v", step, leases, want)
		}
	}
}
