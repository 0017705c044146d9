package enforce

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
	"github.com/twill-net/twill/subnet"
)

// TestOtherSubnets: pods of a new lease wait until its addresses are protected.
func TestOtherSubnets(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		r.sync()
		other := []netip.Prefix{netip.MustParsePrefix("10.244.77.0/24")}
		if r.Protect(other) == nil {
			r.Error("pods of a new lease may start before its addresses are protected")
		}
		r.settle()
		if err := r.Protect(other); err != nil {
			r.Error(err)
		}
		if !strings.Contains(r.kernel.state.String(), "saddr 10.244.77.0/24 counter drop") {
			r.Errorf("the new subnet is not protected:\n%s", r.kernel.state)
		}
	})
}

// TestLeasesMove: a node that comes or goes is looked for in the policies' address ranges.
func TestLeasesMove(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		subject := r.snap.Pods[slices.IndexFunc(r.snap.Pods, func(p *policy.Pod) bool {
			return p.Node == r.world.Site(1).Node && policy.Endpoint{Pod: p}.Selectable()
		})]
		one := policy.NetworkPolicy{}
		one.Name, one.Namespace = "one", subject.Namespace
		one.Spec.Ingress = []policy.IngressRule{{From: []policy.Peer{{IPBlock: &policy.IPBlock{CIDR: "192.168.0.0/16"}}}}}
		r.snap.Policies = []policy.NetworkPolicy{one}
		r.sync()
		const source = "10.244.200.0/32"
		for _, leases := range [][]subnet.Lease{{policytest.Lease("node9", "192.168.5.2", "10.244.200.0/24")}, nil} {
			r.Leases(leases)
			r.settle()
			if got := strings.Contains(r.kernel.state.String(), source); got != (leases != nil) {
				r.Errorf("with the leases %v their tunnels' address is in the table: %v", leases, got)
			}
		}
		table := r.table
		r.Leases([]subnet.Lease{policytest.Lease("node9", "172.16.5.2", "10.244.200.0/24")})
		r.settle()
		if r.table != table {
			r.Error("the table was made anew for a node that no policy is about")
		}
	})
}
