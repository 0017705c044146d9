package enforce

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/twill-net/twill/policy"
)

// TestClaims: pods of another node that claim this node's addresses change no rule. Each pod is logged once, and the first
// are events; of a storm of pods the log and the events tell a part, and the metric the number.
func TestClaims(t *testing.T) {
	const line = "a pod's status has an address that is not its own"
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		r.sync()
		r.Leases(r.world.Leases())
		r.snap.Leases = r.world.Leases()
		r.settle()
		claim := r.world.Claims(r.snap, 2)[0] // of the first pod of node1
		tell := func(p policy.Pod) {
			r.snap.Pods = append(r.snap.Pods, &p)
			r.tell(policy.Change{Pods: []policy.PodChange{{Now: &p}}})
		}
		tell(*claim)
		r.sync()
		r.check("with a claim")
		if n := strings.Count(r.log.String(), line); n != 1 || len(r.events) != 1 || !strings.Contains(r.log.String(), "owner=node1") {
			r.Errorf("%d lines, %d events, want one of each:\n%s", n, len(r.events), r.log)
		}
		if some, pods := r.Claimed(); pods != 1 || len(some) != 1 || !strings.Contains(some[0], claim.String()) {
			r.Errorf("%d pods are said to claim addresses of the node's: %q", pods, some)
		}
		for i := range 300 {
			again := *claim
			again.Name, again.UID = fmt.Sprint("storm", i), fmt.Sprint("storm", i)
			tell(again)
		}
		r.check("in a storm of claims")
		n, lines, events := len(r.snap.Pods)-len(r.world.Leases())*4, strings.Count(r.log.String(), line), len(r.events)
		if got := int(testutil.ToFloat64(r.Metrics.claims)); got != n || lines < claimLines || lines > claimLines+10 || events < claimEvents || events > claimEvents+1 {
			r.Errorf("of %d pods the metric counts %d, %d are logged, and %d are events", n, got, lines, events)
		}
		if some, pods := r.Claimed(); pods != n || len(some) != claimEvents {
			r.Errorf("of %d pods %d are said to claim addresses of the node's, of which %d are named", n, pods, len(some))
		}
	})
}

// TestClaimsOfTwoNodes: of a pod that claims addresses of this node and of another one, it is this node's address that is
// told.
func TestClaimsOfTwoNodes(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		r.sync()
		r.Leases(r.world.Leases())
		r.settle()
		for i := range 20 {
			p := *r.world.Claims(r.snap, 2)[0]
			p.Name, p.UID = fmt.Sprint("two", i), fmt.Sprint("two", i)
			p.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, byte(200 + i)}), netip.AddrFrom4([4]byte{10, 244, 3, byte(200 + i)})}
			r.tell(policy.Change{Pods: []policy.PodChange{{Now: &p}}})
			if _, pods := r.Claimed(); pods != i+1 {
				r.Errorf("of %d pods %d are said to claim addresses of the node's", i+1, pods)
			}
		}
		if len(r.events) != claimEvents {
			r.Errorf("%d events, want %d", len(r.events), claimEvents)
		}
	})
}
