package facts

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/agent/pods"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/netstate"
)

// kept takes from the plan what the agent keeps: gateways of pods that have addresses of an earlier lease. In doubt it
// keeps them, too.
func (g *gathering) kept() {
	p := agent.Planner{Base: backend.BaseConfig{Bridge: g.Bridge}}
	live := pods.Live(g.settings.Reservations, g.Bridge) // as the agent counts
	for _, addr := range p.OldGateways(g.Plan, g.Want) {
		count, err := live(addr.Prefix)
		if err != nil {
			g.unread("the pods of "+addr.Prefix.Masked().String(), err)
		}
		if err != nil || count > 0 {
			g.Kept = append(g.Kept, doctor.KeptGateway{Addr: addr, Pods: count, Who: g.podsIn(addr.Prefix)})
		}
	}
	g.Plan = slices.DeleteFunc(g.Plan, func(c netstate.Change) bool {
		return c.Want == nil && slices.ContainsFunc(g.Kept, func(k doctor.KeptGateway) bool { return c.Was == k.Addr })
	})
}

// podsIn returns the pods of a subnet, by the names that the runtime has for them, and else by their addresses.
func (g *gathering) podsIn(subnet netip.Prefix) (who []string) {
	cache, err := g.cached()
	if err != nil {
		g.unread("the names of pods", err)
	}
	for _, p := range g.Pods {
		if !subnet.Contains(p.Addr) {
			continue
		}
		name := p.Addr.String()
		i := slices.IndexFunc(cache, func(c cached) bool {
			return slices.Contains(c.addrs(), p.Addr) && c.arg("K8S_POD_NAME") != ""
		})
		if i >= 0 {
			name = fmt.Sprintf("%s/%s", cache[i].arg("K8S_POD_NAMESPACE"), cache[i].arg("K8S_POD_NAME"))
		}
		who = append(who, name)
	}
	slices.Sort(who)
	return slices.Compact(who)
}

// cached returns what libcni's cache has of pods of Twill's network.
func (g *gathering) cached() ([]cached, error) {
	all, err := readCache(filepath.Join(cmp.Or(g.options.CNICache, defaultCNICache), "results"))
	network := filepath.Base(g.Reservations.Dir)
	return slices.DeleteFunc(all, func(c cached) bool { return c.NetworkName != network }), err
}
