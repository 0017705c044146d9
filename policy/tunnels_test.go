package policy_test

import (
	"strings"
	"testing"

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
	"github.com/twill-net/twill/subnet"
)

// TestTunnels: an address range in which a node is allows what the node's packets come from, unless the node is excepted.
func TestTunnels(t *testing.T) {
	for spec, want := range map[string]bool{
		`{cidr: 192.168.0.0/16}`:                                     true,
		`{cidr: 192.168.5.2/32}`:                                     true,
		`{cidr: 192.168.5.2/31}`:                                     true,
		`{cidr: 0.0.0.0/0, except: [10.244.0.0/16]}`:                 true,
		`{cidr: 192.168.0.0/16, except: [192.168.5.2/32]}`:           false,
		`{cidr: 0.0.0.0/0, except: [10.244.0.0/16, 192.168.5.0/24]}`: false,
		`{cidr: 192.168.5.3/32}`:                                     false,
		`{cidr: 10.244.2.0/25, except: [10.244.2.0/32]}`:             false,
		`{cidr: "fd00::/8"}`:                                         false,
		`{cidr: 0.0.0.0/0}`:                                          true,
		`{cidr: 0.0.0.0/0, except: [192.168.5.2/32]}`:                false,
		`{cidr: 10.244.0.0/16}`:                                      false,
		`{cidr: 10.244.2.0/24}`:                                      false,
		`{cidr: 10.244.2.0/24}}, {ipBlock: {cidr: 192.168.5.2/32}`:   true,
	} {
		s := snapshot(t, "podSelector: {}, ingress: [{from: [{ipBlock: "+spec+"}]}]")
		s.Leases = []subnet.Lease{policytest.Lease("a", "192.168.5.1", "10.244.1.0/24"), policytest.Lease("b", "192.168.5.2", "10.244.2.0/24"),
			policytest.Lease("c", "192.168.6.1", "10.244.3.0/24"), policytest.Lease("d", "fe33::2", "fd00:244:0:2::/64")}
		rules, _ := policy.New(s)
		if got := rules.Judge(flow(t, s, "10.244.2.0", "web:TCP:80")).Allowed(); got != want {
			t.Errorf("%s: what comes from the node's tunnel is allowed: %v, want %v", spec, got, want)
		}
		pods := strings.HasPrefix(spec, "{cidr: 10.244.") || spec[:len("{cidr: 0.0.0.0/0")] == "{cidr: 0.0.0.0/0" && !strings.Contains(spec, "10.244")
		if rules.Judge(flow(t, s, "10.244.2.9", "web:TCP:80")).Allowed() != pods {
			t.Errorf("%s: a pod of the node is taken for the node", spec)
		}
		for _, p := range s.Pods {
			p.Node = "a"
		}
		state, _ := policy.Desired(policy.Site{Node: "a", Bridge: "cni0"}, s)
		if got := (machine{t, state}).passes(flow(t, s, "10.244.2.0", "web:TCP:80")); got != want {
			t.Errorf("%s: the table passes what comes from the node's tunnel: %v, want %v\n%s", spec, got, want, state)
		}
	}
}

// TestTunnelsOfOthers: a younger lease of a node's subnet, or of one that holds it, does not say where that node's packets come
// from.
func TestTunnelsOfOthers(t *testing.T) {
	for spec, want := range map[string]bool{
		`{cidr: 192.168.5.2/32}`:                      true,
		`{cidr: 192.168.9.9/32}`:                      false,
		`{cidr: 0.0.0.0/0, except: [192.168.9.9/32]}`: true,
		`{cidr: 0.0.0.0/0, except: [192.168.5.2/32]}`: false,
	} {
		for _, taken := range []string{"10.244.2.0/24", "10.244.2.0/23", "10.244.2.0/28"} {
			s := snapshot(t, "podSelector: {}, ingress: [{from: [{ipBlock: "+spec+"}]}]")
			s.Leases = []subnet.Lease{policytest.Lease("b", "192.168.5.2", "10.244.2.0/24"), policytest.Lease("rogue", "192.168.9.9", taken)}
			rules, _ := policy.New(s)
			if got := rules.Judge(flow(t, s, "10.244.2.0", "web:TCP:80")).Allowed(); got != want {
				t.Errorf("%s, while a rogue has %s, too: the node's packets are allowed: %v, want %v", spec, taken, got, want)
			}
		}
	}
}
