package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/subnet"
)

// TestNodesOrder: whatever happens to nodes, the leases are those of the peers that there are, oldest first.
func TestNodesOrder(t *testing.T) {
	c := cacheOf(t, 0, pool4)
	r := rand.New(rand.NewPCG(1, 2))
	there := map[string]record{}
	some := func() *metav1.PartialObjectMetadata {
		i := r.IntN(40)
		n := flannelNode(i)
		n.UID, n.CreationTimestamp = types.UID(n.Name), metav1.Unix(int64(r.IntN(5)), 0)
		n.Annotations[note+"public-ip"] = fmt.Sprintf("192.0.2.%d", 1+r.IntN(9))
		if r.IntN(4) == 0 {
			delete(n.Annotations, note+"kube-subnet-manager")
		}
		c.podCIDRs.put(n.UID, n.Spec.PodCIDR)
		return metadataOf(n)
	}
	for step := range 2000 {
		switch n := some(); {
		case step%100 == 99:
			there = map[string]record{}
			list := map[string]any{}
			for range 30 {
				n := some()
				list[n.Name], there[n.Name] = n, c.known(&n.ObjectMeta)
			}
			must(t, c.Replace(slices.Collect(maps.Values(list)), "1"))
		case step%3 == 0:
			must(t, c.Delete(n))
			delete(there, n.Name)
		default:
			must(t, c.Update(n))
			there[n.Name] = c.known(&n.ObjectMeta)
		}
		var want []subnet.Lease
		for _, n := range slices.SortedFunc(maps.Values(there), record.compare) {
			if l, err := c.annotations.lease(n); err == nil && n.isPeer() {
				want = append(want, l)
			}
		}
		if leases, _, _, _ := c.peers(); !slices.EqualFunc(leases, want, subnet.Lease.Equal) {
			t.Fatalf("after %d steps got %v, want %v", step, leases, want)
		}
	}
}

// TestQueueBacksOff: a Node that had no podCIDR is read again, and less and less often.
func TestQueueBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, 0, pool4)
		defer c.queue.ShutDown()
		for _, want := range []time.Duration{leastWait, 2 * leastWait, 4 * leastWait} {
			begin := time.Now()
			c.queue.AddRateLimited("node")
			c.queue.Done(first(c.queue.Get()))
			if took := time.Since(begin); took != want || leastWait != time.Second/2 {
				t.Errorf("it is read again after %s, want %s", took, want)
			}
		}
	})
}

func first(name string, _ bool) string { return name }

// TestNoPodCIDRIsNotKnown: a Node that has none yet may get one.
func TestNoPodCIDRIsNotKnown(t *testing.T) {
	var p podCIDRs
	p.put("uid", "")
	if !p.empty() {
		t.Errorf("%v is known of a Node without podCIDRs", p.byUID)
	}
	p.put("uid", "10.244.1.0/24")
	if p.empty() || p.get("uid") != "10.244.1.0/24" {
		t.Errorf("known is %v", p.byUID)
	}
}
