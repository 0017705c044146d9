package plugin

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/plugin/internal/cnierr"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
	"github.com/twill-net/twill/subnet"
)

// network is what pods of this node get, by the config and the lease together.
type network struct {
	bridge wire.Bridge
	sets   []ipam.RangeSet
	routes []wire.Route // the config's and the cluster's networks; never defaults of our own
}

// lease reads subnet.env. Whatever is wrong with it, the runtime should try again: the agent writes it when
// it has a lease.
func (c *config) lease() (subnet.Env, error) {
	env, err := subnet.ReadEnv(c.subnetFile)
	if errors.Is(err, fs.ErrNotExist) {
		return env, cnierr.New(types.ErrTryAgainLater,
			"%s does not exist: the agent (twilld) on this node has not leased a subnet yet, look at its log", c.subnetFile)
	}
	if err != nil {
		return env, cnierr.New(types.ErrTryAgainLater, "%v; the agent (twilld) writes the file when it has a lease", err)
	}
	if boot := subnet.BootID(); boot != "" && env.BootID != "" && env.BootID != boot {
		return env, cnierr.New(types.ErrTryAgainLater, "%s is of an earlier boot: the agent (twilld) on this node "+
			"has not leased a subnet since, look at its log", c.subnetFile)
	}
	return env, nil
}

// network joins the config with the node's lease. The order of the range sets is flannel's: IPv4 first, so
// that last_reserved_ip.0 and .1 mean the same to both.
func (c *config) network() (*network, error) {
	env, err := c.lease()
	if err != nil {
		return nil, err
	}
	n := &network{wire.Bridge{Name: c.bridge, MTU: c.mtu}, c.ranges, slices.Clone(c.routes)}
	if c.mtu == 0 {
		n.bridge.MTU = env.MTU
	}
	for _, s := range env.Subnets {
		if len(c.ranges) > 0 {
			break
		}
		r, err := ipam.NewRange(s, netip.Addr{}, netip.Addr{}, netip.Addr{})
		if err != nil {
			return nil, cnierr.New(types.ErrInvalidNetworkConfig, "%s: %v", c.subnetFile, err)
		}
		n.sets = append(n.sets, ipam.RangeSet{r})
	}
	ranges := slices.Concat(n.sets...)
	for _, cluster := range env.Networks {
		// Pods with other addresses are in a network of their own, which leads to no other node.
		if slices.ContainsFunc(ranges, func(r ipam.Range) bool { return r.Subnet.Overlaps(cluster) }) {
			n.routes = append(n.routes, wire.Route{Dst: cluster})
		}
	}
	for _, r := range ranges {
		if p := r.WithLength(r.Gateway); r.Subnet.Contains(r.Gateway) && !slices.Contains(n.bridge.Gateways, p) {
			n.bridge.Gateways = append(n.bridge.Gateways, p)
		}
	}
	return n, nil
}

// podRoutes returns every route of a pod with these addresses, with its gateway: first what the config says,
// then the cluster's networks, then a default route for each family. Of two to one destination the first
// stays, and a pod's own subnet needs none.
func (n *network) podRoutes(grants []ipam.Grant, defaults bool) []wire.Route {
	candidates := slices.Clone(n.routes)
	for _, g := range grants {
		if defaults {
			zero, _ := g.Gateway.Prefix(0)
			candidates = append(candidates, wire.Route{Dst: zero, Via: g.Gateway})
		}
	}
	var all []wire.Route
	for _, r := range candidates {
		if !r.Via.IsValid() {
			r.Via = gatewayFor(r.Dst, grants)
		}
		same := func(o wire.Route) bool { return o.Dst == r.Dst }
		own := func(g ipam.Grant) bool { return g.Prefix.Masked() == r.Dst }
		if r.Via.IsValid() && !slices.ContainsFunc(all, same) && !slices.ContainsFunc(grants, own) {
			all = append(all, r)
		}
	}
	return all
}

// gatewayFor returns the first gateway of dst's family, invalid for a family that the pod does not have.
func gatewayFor(dst netip.Prefix, grants []ipam.Grant) netip.Addr {
	for _, g := range grants {
		if netstate.FamilyOf(g.Gateway) == netstate.FamilyOf(dst.Addr()) {
			return g.Gateway
		}
	}
	return netip.Addr{}
}
