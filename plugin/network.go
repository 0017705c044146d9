package plugin

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/subnet"
)

// route is a route of a pod; an invalid via means the gateway of its family.
type route struct {
	dst netip.Prefix
	via netip.Addr
}

// network is what pods of this node get: the config and the lease together.
type network struct {
	*config
	sets   []rangeSet
	routes []route // the cluster's networks and the config's, vias may be invalid; never defaults of our own
}

// lease reads subnet.env. Whatever is wrong with it, the runtime should try again: the agent writes it anew.
func (c *config) lease() (subnet.Env, error) {
	env, err := subnet.ReadEnv(c.subnetFile)
	if errors.Is(err, fs.ErrNotExist) {
		return env, failure(types.ErrTryAgainLater,
			"%s does not exist: the agent (twilld) on this node has not leased a subnet yet, look at its log", c.subnetFile)
	}
	if err != nil {
		return env, failure(types.ErrTryAgainLater, "%v; the agent (twilld) writes the file when it has a lease", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil && env.BootID != "" && env.BootID != strings.TrimSpace(string(boot)) {
		return env, failure(types.ErrTryAgainLater, "%s is of an earlier boot: the agent (twilld) on this node "+
			"has not leased a subnet since, look at its log", c.subnetFile)
	}
	return env, nil
}

// newNetwork joins the config with the node's lease. The order of the range sets is flannel's: IPv4 first, so
// that last_reserved_ip.0 and .1 mean the same to both.
func newNetwork(c *config) (*network, error) {
	env, err := c.lease()
	if err != nil {
		return nil, err
	}
	n := &network{config: c, sets: c.ranges, routes: slices.Clone(c.routes)}
	if n.mtu == 0 {
		n.mtu = env.MTU
	}
	for _, s := range env.Subnets {
		if len(c.ranges) > 0 {
			break
		}
		r, err := newRange(s, netip.Addr{}, netip.Addr{}, netip.Addr{})
		if err != nil {
			return nil, failure(types.ErrInvalidNetworkConfig, "%s: %v", c.subnetFile, err)
		}
		n.sets = append(n.sets, rangeSet{r})
	}
	for _, cluster := range env.Networks {
		n.routes = append(n.routes, route{dst: cluster})
	}
	return n, nil
}

// gateways is what the bridge answers to, with the subnet's length.
func (n *network) gateways() []netip.Prefix {
	var all []netip.Prefix
	for _, set := range n.sets {
		for _, r := range set {
			if p := r.prefix(r.gateway); r.subnet.Contains(r.gateway) && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	return all
}

// podRoutes is every route of a pod with these addresses, with its gateway: first what the config says, then the
// cluster's networks, then a default route for each family. Of two to one destination the first stays, and a
// pod's own subnet needs none.
func (n *network) podRoutes(grants []grant) []route {
	var all []route
	add := func(r route) {
		same := func(o route) bool { return o.dst == r.dst }
		own := func(g grant) bool { return g.prefix.Masked() == r.dst }
		if !slices.ContainsFunc(all, same) && !slices.ContainsFunc(grants, own) {
			all = append(all, r)
		}
	}
	for _, r := range n.routes {
		if via := gatewayFor(r.dst, grants); !r.via.IsValid() && via.IsValid() {
			r.via = via
		}
		if r.via.IsValid() {
			add(r)
		}
	}
	if !n.defaultGateway {
		return all
	}
	for _, g := range grants {
		zero := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if !g.gateway.Is4() {
			zero = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		add(route{zero, g.gateway})
	}
	return all
}

// gatewayFor is the first gateway of dst's family, invalid for a family that the pod does not have.
func gatewayFor(dst netip.Prefix, grants []grant) netip.Addr {
	for _, g := range grants {
		if g.gateway.Is4() == dst.Addr().Is4() {
			return g.gateway
		}
	}
	return netip.Addr{}
}
