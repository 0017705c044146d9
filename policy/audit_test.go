package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// TestAudit: no rule drops, each that counts lets pass, and each chain counts for one set of policies.
func TestAudit(t *testing.T) {
	counted := 0
	for seed := range uint64(20) {
		w := policytest.New(seed)
		w.Cluster = int(seed % 4)
		s, site := w.Snapshot(4, 6), w.Site(1)
		site.Audit, site.Log = true, seed%2 == 0
		table, _ := policy.NewTable(site, s)
		for _, o := range table.State() {
			rules := ""
			switch o := o.(type) {
			case netstate.Filter:
				rules = o.Rules
			case netstate.Hook:
				rules = o.Rules
			}
			for _, line := range strings.Split(rules, "\n") {
				if strings.Contains(line, "drop") || strings.Contains(line, "counter") != strings.HasSuffix(line, "counter return") {
					t.Errorf("seed %d: %s", seed, o)
				}
				counted += strings.Count(line, "counter")
			}
		}
		rules, _ := policy.New(s)
		sets := map[string]bool{"": true}
		for _, p := range s.Pods {
			for _, d := range []policy.Direction{policy.Egress, policy.Ingress} {
				applying := rules.Applying(d, policy.Endpoint{Pod: p})
				sets[string(d)+policy.Names(names(applying.Isolating))] = true
				sets[string(d)+policy.Names(names(applying.Admin))] = true
				sets[string(d)+policy.Names(names(applying.Baseline))] = true
			}
		}
		for _, c := range table.Chains() {
			if c.Policies != "" && !sets[string(c.Direction)+c.Policies] {
				t.Errorf("seed %d: a chain counts for %s, which are of no pod", seed, c.Policies)
			}
		}
	}
	if counted < 100 {
		t.Errorf("only %d rules count", counted)
	}
}

// names are those of NetworkPolicies or ClusterNetworkPolicies.
func names[T interface {
	*policy.Policy | *policy.ClusterPolicy
}](all []T) (names []string) {
	for _, p := range all {
		switch p := any(p).(type) {
		case *policy.Policy:
			names = append(names, p.Name)
		case *policy.ClusterPolicy:
			names = append(names, p.Name)
		}
	}
	return names
}

// TestNames: the names of many policies are bounded.
func TestNames(t *testing.T) {
	if got := policy.Names([]string{"b/x", "a/y", "b/x"}); got != "a/y,b/x" {
		t.Errorf("got %q", got)
	}
	long := policy.Names(slices.Repeat([]string{strings.Repeat("é", 400), strings.Repeat("z", 400)}, 2))
	if long != strings.Repeat("z", 400)+","+strings.Repeat("é", 299)+"…" {
		t.Errorf("got %d bytes: %q", len(long), long)
	}
}
