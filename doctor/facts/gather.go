package facts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/firewall"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/netstate/wireguard"
	"github.com/twill-net/twill/netstate/xfrm"
	"github.com/twill-net/twill/plugin/wire"
	"github.com/twill-net/twill/subnet"
)

// gathering is one look at a node.
type gathering struct {
	*doctor.Facts
	set       Settings
	kernel    *kernel.Kernel
	firewall  *firewall.Firewall
	wireguard *wireguard.WireGuard // nil where it is not used
	policies  *xfrm.Policies       // nil where the kernel has none
	conf      conf
}

// settles is how long a running agent may take to write its checkpoint after it wrote the kernel's state.
const settles = 1100 * time.Millisecond

// Gather looks at the node in whose network namespace the calling thread is. It reads, and changes nothing. While an
// agent is about to repair, or to write down what it did, things differ for a moment: what differs is looked at twice.
// An error is one after which nothing can be said; what else could not be read stands in the facts.
func Gather(ctx context.Context, s Settings) (doctor.Facts, error) {
	f, err := look(ctx, s)
	if err != nil || !f.Agent.Running || len(f.Plan) == 0 {
		return f, err
	}
	select {
	case <-ctx.Done():
		return f, ctx.Err()
	case <-time.After(settles):
	}
	return look(ctx, s)
}

func look(ctx context.Context, s Settings) (doctor.Facts, error) {
	f := doctor.Facts{Bridge: s.Bridge, Release: kernelRelease(), Programs: processes(), Want: netstate.State{}, Have: netstate.State{}}
	g := gathering{set: s, Facts: &f, firewall: firewall.New()}
	defer g.firewall.Close()
	g.lease()
	g.env()
	f.Agent = agentOf(s, f.Programs)
	err := g.openKernel()
	if err != nil {
		return f, err
	}
	defer g.kernel.Close()
	defer g.closeParts()
	if err := g.machine(ctx); err != nil {
		return f, err
	}
	f.NoModules = missing(needed(f.Lease.Network), f.Release)
	if f.Lease.Error == "" && !f.Lease.Missing {
		g.plan(ctx)
		g.ways()
	}
	f.API = g.api(ctx)
	if s.Probe {
		g.probe()
	}
	f.CNI, g.conf = cni(s)
	if f.IPAM, err = reservations(s, g.conf, f.Env.Env); err != nil {
		g.unread("reservations", err)
	}
	f.Sysctls = sysctls(g.sysctlNames())
	var missing []string
	f.Chains, missing = chains(g.has(netstate.IPv6))
	f.Unread = append(f.Unread, missing...)
	return f, ctx.Err()
}

func (g *gathering) unread(what string, err error) {
	g.Unread = append(g.Unread, fmt.Sprintf("%s: %v", what, err))
}

// openKernel brings the kernel's IPsec policies along if it has any, and its WireGuard where the backend uses that.
func (g *gathering) openKernel() (err error) {
	var parts []kernel.Provider
	g.policies, err = xfrm.Open()
	switch {
	case err == nil:
		parts = append(parts, g.policies)
	case !errors.Is(err, xfrm.ErrMissing):
		return err
	}
	if strings.EqualFold(g.Lease.Network.Backend, "wireguard") {
		g.wireguard, err = wireguard.Open(nil)
		switch {
		case err == nil:
			parts = append(parts, g.wireguard)
		case !errors.Is(err, wireguard.ErrMissing):
			return err
		}
	}
	b, _, err := registry.New(g.Lease.Network.Backend, g.networks(), g.Lease.Network.Options)
	if err != nil {
		b = nil // told of where it is needed
	}
	g.kernel, err = kernel.New(backend.Left(b, g.Lease.Network.Pools), parts...)
	return err
}

func (g *gathering) closeParts() {
	if g.policies != nil {
		g.policies.Close()
	}
	if g.wireguard != nil {
		_ = g.wireguard.Close()
	}
}

func (g *gathering) networks() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range g.Lease.Network.Pools {
		list = append(list, p.Network)
	}
	return list
}

// has says whether pods have addresses of a family.
func (g *gathering) has(f netstate.Family) bool {
	_, ok := g.Lease.Network.Pool(f)
	return ok
}

// lease reads the checkpoint.
func (g *gathering) lease() {
	l := &g.Lease
	l.Path = g.set.Checkpoint
	read := agent.ReadCheckpoint
	if g.set.LeaseFile != "" {
		l.Path, read = g.set.LeaseFile, g.set.readLeases
	}
	saved, err := read(l.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.Missing = true
		return
	case err == nil:
		l.Network, err = subnet.ParseConfig(saved.Network)
	}
	if err != nil {
		l.Error = err.Error()
		return
	}
	l.Snapshot, g.Node = saved.Snapshot, saved.Node
}

// env reads subnet.env.
func (g *gathering) env() {
	e := &g.Env
	e.Path, e.Boot = g.set.SubnetFile, bootID()
	var err error
	if e.Env, err = subnet.ReadEnv(e.Path); errors.Is(err, fs.ErrNotExist) {
		e.Missing = true
	} else if err != nil {
		e.Error = err.Error()
	}
}

// machine is the interfaces, ports, routes and rules.
func (g *gathering) machine(ctx context.Context) error {
	var err error
	if g.Interfaces, err = g.kernel.Interfaces(ctx); err != nil {
		return err
	}
	ports, err := g.kernel.Ports()
	if err != nil {
		return err
	}
	for _, p := range ports {
		g.Ports = append(g.Ports, doctor.Port{Name: p.Name, Master: p.Master, Up: p.Up, Pod: p.Pod})
	}
	attached, err := wire.AttachedPods()
	if err != nil {
		g.unread("pods", err)
	}
	for a, port := range attached.Addrs {
		g.Pods = append(g.Pods, doctor.Pod{Addr: a, Port: port})
	}
	if g.Rules, err = g.kernel.Rules(); err != nil {
		g.unread("policy rules", err)
	}
	all, err := routes()
	if err != nil {
		g.unread("routes", err)
	}
	for _, r := range all {
		if slices.ContainsFunc(g.networks(), func(n netip.Prefix) bool { return n.Overlaps(r.Dst) && r.Dst.Bits() >= n.Bits() }) {
			g.Routes = append(g.Routes, r)
		}
	}
	return nil
}

// planner returns the agent's.
func (g *gathering) planner() (agent.Planner, error) {
	c := agent.Planner{Node: g.Node, Network: g.Lease.Network, Choice: g.set.Choice, WireGuard: g.wireguard != nil,
		Base: backend.BaseConfig{Bridge: g.Bridge, Blackhole: g.set.Blackhole}, Firewall: g.set.Firewall}
	for _, s := range g.Lease.Snapshot.Local.Stacks {
		c.Choice.NodeIPs = append(c.Choice.NodeIPs, s.Underlay)
	}
	var err error
	c.Backend, _, err = registry.New(c.Network.Backend, g.networks(), c.Network.Options)
	return c, err
}

// plan compares what should be with what is.
func (g *gathering) plan(ctx context.Context) {
	c, err := g.planner()
	if err != nil {
		g.Lease.Error = err.Error()
		return
	}
	if g.Underlay, err = c.Facts(g.Interfaces, backend.Node{}, g.kernel.RouteTo); err != nil {
		g.UnderlayError = err.Error()
		return
	}
	rules, err := g.firewall.Observe(ctx)
	if err != nil {
		g.unread("firewall", err)
	}
	c.Firewall.Mode = mode(c.Network.NFTables, rules)
	c.Firewall.Random = c.Firewall.Random && g.firewall.RandomFully(c.Firewall.Mode)
	g.PodMTU = c.Backend.MTU(g.Underlay)
	want, skips := c.Desired(g.Underlay, g.Lease.Snapshot)
	g.Want, g.Skips = want, append(slices.Clone(g.Lease.Snapshot.Skips), skips...)
	if g.Have, err = g.kernel.Observe(ctx, g.Want); err != nil {
		g.unread("kernel", err)
		return
	}
	g.Have.Merge(rules)
	g.Plan = netstate.Diff(g.Want, g.Have)
	g.port()
}

// mode is the firewall's: what the config says, else the one that the agent has written in. To try the kernel, as the
// agent does, would be a write.
func mode(told *bool, have netstate.State) netstate.Mode {
	if told != nil && !*told {
		return netstate.IPTables
	}
	count := map[netstate.Mode]int{}
	for _, o := range have {
		if c, ok := o.(netstate.Chain); ok {
			count[c.Mode]++
		}
	}
	if told == nil && count[netstate.IPTables] > count[netstate.NFTables] {
		return netstate.IPTables
	}
	return netstate.NFTables
}

// port looks who has the UDP port of a VXLAN device that is not there. Of one that is, the kernel itself has it.
func (g *gathering) port() {
	for _, o := range g.Want.Sorted() {
		if v, ok := o.(netstate.VXLAN); ok && g.Have[v.Key()] == nil && g.PortOwner == "" {
			g.PortOwner = portOwner(v.Port, v.Local.Is4())
		}
	}
}

// mostWays is how many peers' ways are asked for; each costs two questions.
const mostWays = 2000

// ways asks the kernel for the way to each peer.
func (g *gathering) ways() {
	neighbours := map[string]kernel.Neighbour{}
	if all, err := g.kernel.Neighbours(); err != nil {
		g.unread("neighbours", err)
	} else {
		for _, n := range all {
			neighbours[n.Dev+" "+n.IP.String()] = n
		}
	}
	for _, p := range g.Lease.Snapshot.Peers {
		for _, s := range p.Stacks {
			if len(g.Ways) == mostWays || !s.Subnet.IsValid() {
				return
			}
			w := doctor.Way{Node: p.Node, Subnet: s.Subnet, Pod: s.Subnet.Addr().Next().Next(), Underlay: s.Underlay}
			w.Hop, w.Outer = g.hop(w.Pod), g.hop(s.Underlay)
			next := s.Underlay
			if w.Outer.Via.IsValid() {
				next = w.Outer.Via
			}
			if n, ok := neighbours[w.Outer.Dev+" "+next.String()]; ok {
				w.Neighbour = n.State + " " + n.MAC
			}
			g.Ways = append(g.Ways, w)
		}
	}
}

func (g *gathering) hop(to netip.Addr) doctor.Hop {
	h, err := g.kernel.Lookup(to)
	if err != nil {
		return doctor.Hop{Error: err.Error()}
	}
	return doctor.Hop{Dev: h.Dev, Via: h.Via}
}

// sysctlNames are the parameters that checks ask for.
func (g *gathering) sysctlNames() []string {
	names := []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/rp_filter",
		"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables",
		"net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max"}
	for _, dev := range doctor.Forwarders(*g.Facts) {
		names = append(names, "net/ipv4/conf/"+dev+"/forwarding", "net/ipv4/conf/"+dev+"/rp_filter")
	}
	return names
}
