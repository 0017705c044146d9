package facts

import (
	"context"
	"os/exec"
	"strings"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/isolation"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/filter"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/file"
)

// networkPolicies reads what isolates the node's pods, and the policies if the agent reads them from files.
func (g *gathering) networkPolicies(ctx context.Context) {
	p := &g.Policies
	p.Wanted, p.File = g.settings.Policies.Enforce, g.settings.Policies.File
	if p.Wanted && p.File != "" {
		s, err := file.Read(g.seenByAgent(p.File), g.settings.Policies.Cluster)
		if err != nil {
			g.unread("network policies", err)
		} else {
			p.Snapshot = &s
		}
	}
	want := g.isolated()
	var err error
	if p.Tables, err = tables(ctx, want); err != nil {
		g.unread("the tables of network policies", err)
		return
	}
	if p.Wanted {
		p.Plan = netstate.Diff(want, known(want, p))
	}
}

// known returns the part of the tables of which it is known how it should be: all, or what every table has.
func known(want netstate.State, p *doctor.Policies) netstate.State {
	if p.Snapshot != nil {
		return p.Tables
	}
	part := netstate.State{}
	for key := range want {
		if o, ok := p.Tables[key]; ok {
			part.Add(o)
		}
	}
	return part
}

// isolated returns the tables that the node should have. Without knowing the policies it is what every table has.
func (g *gathering) isolated() netstate.State {
	site := policy.Site{Node: g.Node, Bridge: g.Bridge}
	for _, s := range g.Lease.Snapshot.Local.Stacks {
		site.Subnets = append(site.Subnets, s.Subnet)
	}
	var s policy.Snapshot
	if g.Policies.Snapshot != nil {
		s = *g.Policies.Snapshot
	}
	want, _ := policy.Desired(site, s)
	return want
}

// tables reads the tables. A chain's rules are known if they are those of want, or if nft lists them.
func tables(ctx context.Context, want netstate.State) (netstate.State, error) {
	f, err := filter.New()
	if err != nil {
		return nil, nil //nolint:nilerr // a kernel without nf_tables has none
	}
	defer f.Close()
	have, err := f.Observe(ctx, want)
	if err != nil {
		return nil, err
	}
	listed := netstate.State{}
	listed.Merge(want)
	unknown := map[netstate.Family]bool{}
	for key, o := range have {
		if chain, ok := o.(netstate.Filter); ok && chain != want[key] {
			unknown[chain.Family] = true
		}
	}
	for family := range unknown {
		for _, chain := range list(ctx, family) {
			listed.Add(chain)
		}
	}
	if len(unknown) == 0 {
		return have, nil
	}
	return f.Observe(ctx, listed)
}

// list returns the chains of policies as nft lists them; none without nft.
func list(ctx context.Context, family netstate.Family) []netstate.Filter {
	name := map[netstate.Family]string{netstate.IPv4: "ip", netstate.IPv6: "ip6"}[family]
	out, _ := exec.CommandContext(ctx, "nft", "-n", "-s", "-t", "list", "table", name, netstate.FilterTable).Output()
	return isolation.Listed(family, strings.TrimSpace(string(out))+"\n")
}
