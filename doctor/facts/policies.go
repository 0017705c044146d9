package facts

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/filter"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/file"
	policykube "github.com/twill-net/twill/policy/kube"
)

// askPolicies is how long the API server has to tell all policies and pods.
const askPolicies = 5 * time.Second

// networkPolicies reads what isolates the node's pods, and the policies if the agent reads them from files.
func (g *gathering) networkPolicies(ctx context.Context) {
	p := &g.Policies
	settings := g.settings.Policies
	p.Wanted, p.Audit, p.File = settings.On(), settings.Audit, settings.File
	if p.Wanted && p.File != "" {
		s, err := file.Read(g.seenByAgent(p.File), settings.Cluster)
		if err != nil {
			g.unread("network policies", err)
		} else {
			p.Snapshot = &s
		}
	}
	if at := g.apiServer; p.Wanted && p.File == "" && at != nil {
		p.Ask = sync.OnceValues(func() (policy.Snapshot, error) {
			ctx, cancel := context.WithTimeout(ctx, askPolicies)
			defer cancel()
			return policykube.Read(ctx, *at, settings.Cluster)
		})
	}
	for i, want := range g.isolated() {
		have, err := tables(ctx, want)
		if err != nil {
			g.unread("the tables of network policies", err)
			return
		}
		plan := netstate.Diff(want, known(want, have, p.Snapshot != nil))
		if i == 0 || len(plan) < len(p.Plan) {
			p.Tables, p.Plan = have, plan
		}
		if !p.Wanted || len(plan) == 0 {
			p.Plan = nil
			return
		}
	}
}

// known returns the part of the tables of which it is known how it should be: all, or what every table has.
func known(want, have netstate.State, all bool) netstate.State {
	if all {
		return have
	}
	part := netstate.State{}
	for key := range want {
		if o, ok := have[key]; ok {
			part.Add(o)
		}
	}
	return part
}

// podPorts returns the ports of the node's pods, also those of which only the agent knows whose they are.
func (g *gathering) podPorts() []netstate.Port {
	ports, err := kernel.OpenPodPorts()
	if err != nil {
		g.unread("pods' ports", err)
		return nil
	}
	defer ports.Close()
	all, err := ports.List()
	if err != nil {
		g.unread("pods' ports", err)
	}
	if s := g.Agent.Policies; s != nil {
		for name, mark := range s.Unmarked {
			marked := slices.ContainsFunc(all, func(p netstate.Port) bool { return p.Name == name }) // since the agent was asked
			if p, ok := netstate.ParsePort(name, mark); ok && !marked {
				all = append(all, p)
			}
		}
	}
	return all
}

// isolated returns the tables that the node should have: without a log of what is dropped, or with it, and without doubt, or
// with it. Where the policies are not known it is what every table has.
func (g *gathering) isolated() (all []netstate.State) {
	site := policy.Site{Node: g.Node, Bridge: g.Bridge, Networks: g.networks(), Audit: g.Policies.Audit}
	for _, s := range g.Lease.Snapshot.Local.Stacks {
		site.Subnets = append(site.Subnets, s.Subnet)
	}
	s := g.Policies.Snapshot
	if s != nil {
		site.Ports = g.podPorts()
	}
	if s != nil {
		held := *s
		held.Leases = g.Lease.Snapshot.Leases(g.Lease.Network)
		s = &held
	}
	for _, site.Log = range []bool{false, true} {
		if s == nil {
			all = append(all, policy.Bases(site)...)
			continue
		}
		for _, site.Doubt = range []bool{false, true} {
			want, _ := policy.Desired(site, *s)
			all = append(all, want)
		}
	}
	return all
}

// tables reads the tables. Of chains of policies that are not wanted it tells the rules.
func tables(ctx context.Context, want netstate.State) (netstate.State, error) {
	f, err := filter.New()
	if err != nil {
		return nil, nil //nolint:nilerr // a kernel without nf_tables has none
	}
	defer f.Close()
	return f.Read(ctx, want, policy.IsChain)
}
