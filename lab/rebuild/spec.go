package rebuild

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// These bound a rebuilt lab.
const (
	maxNodes = 24
	maxPods  = 8 // on each node
)

// backends are those that a lab has without a cloud, and without commands of the cluster's.
var backends = []string{"vxlan", "host-gw", "udp", "ipip", "wireguard", "ipsec", "alloc"}

var labName = regexp.MustCompile(`^[a-z][a-z0-9]{0,9}$`)

// Spec adds to a spec what the report says of the cluster: nodes, leases, network config, and how many pods the node has.
// Pods that the spec says stay.
func (r *Report) Spec(spec lab.Spec) (lab.Spec, error) {
	network := r.facts.Lease.Network
	if !slices.Contains(backends, network.Backend) {
		return spec, fmt.Errorf("its backend is %q: a lab can be rebuilt of %s", network.Backend, strings.Join(backends, ", "))
	}
	conf, err := netConf(network)
	if err != nil {
		return spec, err
	}
	spec.NetConf, spec.Backend = conf, network.Backend
	spec.Family = map[bool]string{true: lab.IPv4, false: lab.IPv6}[network.Pools[0].Family() == netstate.IPv4]
	if len(network.Pools) > 1 {
		spec.Family = lab.Dual
	}
	if spec.Pods == 0 {
		spec.Pods = max(min(len(r.ports()), maxPods), 1)
	}
	spec.NetworkPolicy = spec.NetworkPolicy || r.facts.Agent.Policies != nil
	spec.FastPath = spec.FastPath || r.facts.Agent.FastPath != nil
	r.leaveMachines()
	return r.addNodes(spec)
}

// addNodes names the nodes, and keeps for each the subnet that it had.
func (r *Report) addNodes(spec lab.Spec) (lab.Spec, error) {
	all := r.nodes()
	if len(all) > maxNodes {
		r.leave("%d of %d nodes: a rebuilt lab has %d", len(all)-maxNodes, len(all), maxNodes)
		own := slices.IndexFunc(all, r.isOwn)
		all = append(all[max(0, own-maxNodes+1):], all[:max(0, own-maxNodes+1)]...)[:maxNodes]
	}
	sites := spec.Sites
	spec.Nodes, spec.Names, spec.Sites = len(all), nil, map[string]lab.Site{}
	var taken []netip.Prefix
	for i, l := range all {
		name := l.Node
		if !labName.MatchString(name) || slices.Contains(spec.Names, name) || slices.Contains([]string{"underlay", "outside"}, name) {
			name = fmt.Sprintf("n%d", i+1)
			for slices.ContainsFunc(all, func(o subnet.Lease) bool { return o.Node == name }) {
				name += "x"
			}
			r.leave("node name %q: it is %s here", l.Node, name)
		}
		spec.Names = append(spec.Names, name)
		site, ok := sites[name]
		if !ok {
			site = sites[""]
		}
		site.MTU = cmp.Or(site.MTU, r.cableMTU())
		if kept := r.subnets(l); len(site.Subnets) == 0 && r.holds(l) && !overlap(taken, kept) {
			site.Subnets = kept
			taken = append(taken, kept...)
		}
		spec.Sites[name] = site
	}
	return spec, nil
}

func (r *Report) isOwn(l subnet.Lease) bool { return l.Node == r.leases()[0].Node }

// subnets are those of a lease, one a pool, and none if it has others.
func (r *Report) subnets(l subnet.Lease) []netip.Prefix {
	var all []netip.Prefix
	for i, p := range r.facts.Lease.Network.Pools {
		if i >= len(l.Stacks) || !p.Network.Overlaps(l.Stacks[i].Subnet) || l.Stacks[i].Subnet.Bits() != p.SubnetLen {
			return nil
		}
		all = append(all, l.Stacks[i].Subnet)
	}
	return all
}

// holds reports whether nobody older has one of the lease's subnets.
func (r *Report) holds(l subnet.Lease) bool {
	for _, older := range r.leases() {
		if older.Node == l.Node {
			return true
		}
		if overlap(r.subnets(older), r.subnets(l)) {
			return false
		}
	}
	return false
}

func overlap(a, b []netip.Prefix) bool {
	return slices.ContainsFunc(a, func(p netip.Prefix) bool { return slices.ContainsFunc(b, p.Overlaps) })
}

// cableMTU is that of all nodes' underlay, 0 for the usual one. An underlay that was changed under running pods is the
// node's own.
func (r *Report) cableMTU() int {
	u := r.facts.Underlay.Underlays
	if len(u) == 0 || r.facts.Env.Env.MTU != r.facts.PodMTU || u[0].MTU == 1500 || u[0].MTU < 1280 || u[0].MTU > 65535 {
		return 0
	}
	return u[0].MTU
}

// netConf is the net-conf.json of which the config was read, without what the report leaves out.
func netConf(c subnet.Config) ([]byte, error) {
	conf := map[string]any{"EnableIPv4": false}
	for _, p := range c.Pools {
		if !p.Network.IsValid() {
			return nil, fmt.Errorf("its network is %s: want a prefix", p.Network)
		}
		prefix := ""
		if p.Family() == netstate.IPv6 {
			prefix = "IPv6"
			conf["EnableIPv6"] = true
		} else {
			conf["EnableIPv4"] = true
		}
		conf[prefix+"Network"], conf[prefix+"SubnetLen"] = p.Network, p.SubnetLen
		conf[prefix+"SubnetMin"], conf[prefix+"SubnetMax"] = p.Min, p.Max
	}
	options := map[string]any{}
	if len(c.Options) > 0 {
		if err := json.Unmarshal(c.Options, &options); err != nil {
			return nil, fmt.Errorf("its backend's options: %w", err)
		}
	}
	options["Type"] = c.Backend
	if c.Backend == "ipsec" {
		options["PSK"] = rand.Text() + rand.Text() + rand.Text() + rand.Text()
	}
	conf["Backend"] = options
	if c.NFTables != nil {
		conf["EnableNFTables"] = *c.NFTables
	}
	return json.Marshal(conf)
}

// leaveMachines notes what no lab carries over.
func (r *Report) leaveMachines() {
	r.leave("kernel %s and network cards: they are this machine's", r.facts.Release)
	r.leave("secrets and keys: they are made anew")
	for _, p := range r.facts.Programs {
		r.leave("process %s", p.Name)
	}
	r.leave("other nodes' state: the report is of %s alone", r.facts.Node)
}
