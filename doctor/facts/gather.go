package facts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/agent/masquerade"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fastpath"
	"github.com/twill-net/twill/netstate/firewall"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/netstate/wireguard"
	"github.com/twill-net/twill/netstate/xfrm"
	"github.com/twill-net/twill/subnet"
)

// gathering is one look at a node.
type gathering struct {
	*doctor.Facts
	options   Options
	settings  agent.Settings
	kernel    *kernel.Kernel
	firewall  *firewall.Firewall
	wireguard *wireguard.WireGuard // nil where it is not used
	ipsec     *xfrm.Policies       // nil where the kernel has none
	fastPath  *fastpath.Provider   // nil where none is pinned
	apiServer *kubeclient.Server   // nil: it may not be asked
}

// settleTime is how long a running agent may take to write its checkpoint after it wrote the kernel's state.
const settleTime = 1100 * time.Millisecond

// Gather looks at the node in whose network namespace the calling thread is. It changes nothing. If a running agent
// is about to repair something, or to write its checkpoint, things differ for a moment: so what differs is looked at
// twice. An error means that nothing can be said; what else could not be read is in the facts.
func Gather(ctx context.Context, o Options) (doctor.Facts, error) {
	f, err := look(ctx, o)
	if err != nil || !f.Agent.Running || len(f.Plan)+len(f.Policies.Plan) == 0 {
		return f, err
	}
	select {
	case <-ctx.Done():
		return f, ctx.Err()
	case <-time.After(settleTime):
	}
	return look(ctx, o)
}

func look(ctx context.Context, o Options) (doctor.Facts, error) {
	if err := mayLook(); err != nil {
		return doctor.Facts{}, err
	}
	f := doctor.Facts{Release: kernelRelease(), Programs: processes(), Want: netstate.State{}, Have: netstate.State{}}
	g := gathering{options: o, Facts: &f, firewall: firewall.New()}
	defer g.firewall.Close()
	g.agent()
	g.lease()
	if o.LeaseFile != "" && f.Lease.Error != "" {
		return f, fmt.Errorf("--lease-file: %s", f.Lease.Error)
	}
	g.env()
	if err := g.openKernel(); err != nil {
		return f, err
	}
	defer g.closeKernel()
	queues := g.queues()
	if err := g.machine(ctx); err != nil {
		return f, err
	}
	if f.OfFlannel = g.ofFlannel(); f.OfFlannel && f.Lease.Guessed {
		f.Unread = append(f.Unread, "the options of flannel's backend, as DirectRouting, Port and MTU: give its net-conf.json with --net-config-path")
	}
	f.NoModules = missing(needed(f.Lease.Network), f.Release)
	if l := f.Lease; l.Error == "" && !l.Missing && !l.Hidden {
		g.plan(ctx)
		g.paths()
	}
	g.deviceDrops()
	f.API = g.api(ctx)
	if o.Probe != doctor.NoProbes {
		g.probe()
	}
	g.runtime()
	g.kept()
	if err := g.cutOff(ctx); err != nil {
		g.unread("pods without an interface", err)
	}
	f.Sysctls, f.SizedOutside = sysctls(g.sysctlNames()), isReadOnly(connectionsMax)
	_, withIPv6 := f.Lease.Network.Pool(netstate.IPv6)
	chains, unread := chains(withIPv6)
	f.Chains, f.ChainsUnread, f.Unread = chains, len(unread) > 0, append(f.Unread, unread...)
	g.networkPolicies(ctx)
	g.drops(ctx, queues)
	return f, ctx.Err()
}

// isHidden notes what may not be read from here, and reports whether that is the error. It is no finding.
func (g *gathering) isHidden(what string, err error) bool {
	if !errors.Is(err, fs.ErrPermission) {
		return false
	}
	g.unread(what, err)
	return true
}

func (g *gathering) unread(what string, err error) {
	g.Unread = append(g.Unread, fmt.Sprintf("%s: %v", what, err))
}

// agent asks the agent for its settings and how it is doing.
func (g *gathering) agent() {
	var err error
	g.settings, g.Agent, err = g.options.settings()
	g.Bridge = g.settings.Bridge
	switch {
	case err == nil && g.settings.Healthz != "":
		askHealth(&g.Agent, g.settings.Healthz)
	case err != nil && !g.Agent.Running && !errors.Is(err, unix.ECONNREFUSED):
		g.unread("the agent", err)
	}
}

// usesWireGuard reports whether a backend is wireguard, or has it as a part.
func usesWireGuard(b backend.Backend) bool {
	return slices.ContainsFunc(backend.Parts(b), func(part backend.Backend) bool {
		_, ok := part.(wireguard.Secrets)
		return ok
	})
}

// openKernel opens the kernel's state, with its IPsec policies if it has any, and its WireGuard if the backend uses
// that.
func (g *gathering) openKernel() (err error) {
	var parts []kernel.Provider
	g.ipsec, err = xfrm.Open()
	switch {
	case err == nil:
		parts = append(parts, g.ipsec)
	case !errors.Is(err, xfrm.ErrMissing):
		return err
	}
	b, _, err := registry.NewKept(g.Lease.Network)
	if err != nil {
		b = nil // plan reports it
	}
	if usesWireGuard(b) {
		g.wireguard, err = wireguard.Open(nil)
		switch {
		case err == nil:
			parts = append(parts, g.wireguard)
		case !errors.Is(err, wireguard.ErrMissing):
			return err
		}
	}
	g.openFastPath(b)
	if g.FastPath.Compared {
		parts = append(parts, g.fastPath)
	}
	g.kernel, err = kernel.New(backend.Left(b, g.Lease.Network.Pools), parts...)
	return err
}

func (g *gathering) closeKernel() {
	g.kernel.Close()
	if g.ipsec != nil {
		g.ipsec.Close()
	}
	if g.wireguard != nil {
		_ = g.wireguard.Close()
	}
	if g.fastPath != nil {
		g.fastPath.Close()
	}
}

func (g *gathering) networks() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range g.Lease.Network.Pools {
		list = append(list, p.Network)
	}
	return list
}

// lease reads the checkpoint, or the lease file.
func (g *gathering) lease() {
	l := &g.Lease
	l.Path = g.settings.Checkpoint
	read := agent.ReadCheckpoint
	if g.options.LeaseFile != "" {
		l.Path = g.options.LeaseFile
		read = func(path string) (saved agent.Saved, err error) {
			saved, l.Guessed, err = g.options.readLeases(path)
			return saved, err
		}
	}
	saved, err := read(l.Path)
	switch {
	case err != nil && g.options.LeaseFile != "": // it was asked for, and is no finding
	case errors.Is(err, fs.ErrNotExist):
		l.Missing = true
		return
	case g.isHidden("the agent's checkpoint", err):
		l.Hidden = true
		return
	case err == nil:
		l.Network, err = subnet.ParseConfig(saved.Network)
		l.Network.Kept = saved.Kept
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
	e.Path, e.Boot = g.settings.SubnetFile, subnet.BootID()
	var err error
	switch e.Env, err = subnet.ReadEnv(e.Path); {
	case errors.Is(err, fs.ErrNotExist):
		e.Missing = true
	case g.isHidden("the lease of the CNI plugin", err):
		e.Hidden = true
	case err != nil:
		e.Error = err.Error()
	}
}

// machine reads the interfaces, ports, pods, routes and rules.
func (g *gathering) machine(ctx context.Context) error {
	var err error
	if g.Interfaces, err = g.kernel.Interfaces(ctx); err != nil {
		return err
	}
	if err := g.ports(); err != nil {
		return err
	}
	if g.PolicyRules, err = g.kernel.Rules(); err != nil {
		g.unread("policy rules", err)
	}
	routes, err := g.kernel.Routes()
	if err != nil {
		g.unread("routes", err)
	}
	for _, r := range routes {
		for _, n := range g.networks() {
			if n.Contains(r.Dst.Addr()) && r.Dst.Bits() >= n.Bits() {
				g.Routes = append(g.Routes, doctor.Route(r))
			}
		}
	}
	return nil
}

// deviceDrops reads what Twill's own devices count.
func (g *gathering) deviceDrops() {
	var ours []string
	for _, i := range g.Interfaces {
		if g.IsOurs(i.Name) {
			ours = append(ours, i.Name)
		}
	}
	var err error
	if g.Drops, err = g.kernel.Drops(ours); err != nil {
		g.unread("what devices have dropped", err)
	}
}

// planner returns the agent's.
func (g *gathering) planner() (agent.Planner, error) {
	p := agent.Planner{Node: g.Node, Network: g.Lease.Network, Choice: g.settings.Choice, WireGuard: g.wireguard != nil,
		Base: backend.BaseConfig{Bridge: g.Bridge, Blackhole: g.settings.Blackhole,
			Filter: g.settings.Policies.On()},
		Firewall: g.settings.Firewall}
	for _, s := range g.Lease.Snapshot.Local.Stacks {
		p.Choice.NodeIPs = append(p.Choice.NodeIPs, s.Underlay)
	}
	var err error
	p.Backend, _, err = registry.NewKept(p.Network, p.Firewall.Clusters...)
	p.Shortcuts = g.shortcuts(p.Backend)
	return p, err
}

// exempt returns the networks that the agent's file exempts from masquerading. A container's agent may have the file in
// its own file system only.
func (g *gathering) exempt() ([]netip.Prefix, error) {
	if g.settings.Masquerade == "" {
		return nil, nil
	}
	c, err := masquerade.Read(g.seenByAgent(g.settings.Masquerade))
	return c.Exempt, err
}

// seenByAgent returns the path of a file that the agent knows by another path, if it runs in a container.
func (g *gathering) seenByAgent(path string) string {
	if g.Agent.PID == 0 {
		return path
	}
	return filepath.Join("/proc", strconv.Itoa(g.Agent.PID), "root", path)
}

// plan compares what should be with what is.
func (g *gathering) plan(ctx context.Context) {
	p, err := g.planner()
	if err != nil {
		g.Lease.Error = err.Error()
		return
	}
	g.besideFastPath()
	if g.Underlay, err = p.Facts(g.Interfaces, backend.Node{}, g.kernel.RouteTo); err != nil {
		g.NoUnderlay = g.withoutUnderlay(p, err)
		g.Left = g.left(p)
		return
	}
	if err := p.Carries(g.Underlay); err != nil {
		g.NoUnderlay = g.ofAll(err)
		return
	}
	chains, noChains := g.firewall.Observe(ctx)
	if noChains != nil {
		g.unread("firewall", noChains)
	}
	p.Firewall.Mode = mode(p.Network.NFTables, chains)
	p.Firewall.Random = p.Firewall.Random && g.firewall.RandomFully(p.Firewall.Mode)
	var leftOut error
	if g.Underlay, g.Lease.Snapshot, leftOut = p.Fit(g.Underlay, g.Lease.Snapshot); leftOut != nil {
		g.LeftOut = leftOut.Error()
	}
	p = p.For(g.Lease.Snapshot.Local)
	if t, ok := p.Backend.(backend.Transition); ok {
		g.Ways = t.Types()
	}
	_, g.ByUnderlay = p.Backend.(backend.ByUnderlay)
	g.PodMTU, g.FullMTU = p.PodMTU(g.Underlay), p.Backend.MTU(g.Underlay)
	exempt, noExempt := g.exempt()
	p.Firewall.Exempt = slices.Concat(p.Firewall.Exempt, exempt)
	want, skips := p.Desired(g.Underlay, g.Lease.Snapshot)
	g.Want, g.Skips = want, append(slices.Clone(g.Lease.Snapshot.Skips), skips...)
	if g.Have, err = g.kernel.Observe(ctx, g.Want); err != nil {
		g.unread("kernel", err)
		return
	}
	g.Have.Merge(chains)
	g.Plan = netstate.Diff(g.Want, g.Have)
	if noChains != nil { // which ones it has is not known
		g.Plan = slices.DeleteFunc(g.Plan, func(c netstate.Change) bool { return c.Key().Kind == netstate.KindChain })
	}
	if noExempt != nil { // the agent goes on with what the file said before
		g.unread("networks that are not masqueraded", noExempt)
		g.Plan = slices.DeleteFunc(g.Plan, isMasquerade)
	}
	if g.OfFlannel = g.OfFlannel && !hasTwills(g.Have); g.OfFlannel {
		g.Plan = flannels(g.Want, g.Have, g.Bridge)
	}
	g.portOwner()
}

// left returns what an agent leaves in place that finds no underlay any more: what it made for the one of the leases.
func (g *gathering) left(p agent.Planner) netstate.State {
	var before backend.Node
	for _, s := range g.Lease.Snapshot.Local.Stacks {
		before.Underlays = append(before.Underlays, backend.Underlay{Local: s.Underlay, Public: s.Underlay})
	}
	node, _ := p.Facts(g.Interfaces, before, g.kernel.RouteTo) // the error is known
	state, _ := p.For(g.Lease.Snapshot.Local).Desired(node, g.Lease.Snapshot)
	return state
}

func isMasquerade(c netstate.Change) bool {
	chain, ok := c.Want.(netstate.Chain)
	return ok && chain.Role == netstate.Postrouting
}

// withoutUnderlay returns the families for which no underlay can be chosen even if they are alone, and why. If there
// is none of these, err concerns all of them.
func (g *gathering) withoutUnderlay(p agent.Planner, err error) map[netstate.Family]string {
	alone := map[netstate.Family]string{}
	for _, pool := range g.Lease.Network.Pools {
		p.Network.Pools = []subnet.Pool{pool}
		if _, err := p.Facts(g.Interfaces, backend.Node{}, g.kernel.RouteTo); err != nil {
			alone[pool.Family()] = err.Error()
		}
	}
	if len(alone) == 0 {
		return g.ofAll(err)
	}
	return alone
}

// ofAll returns an error as that of each family.
func (g *gathering) ofAll(err error) map[netstate.Family]string {
	all := map[netstate.Family]string{}
	for _, pool := range g.Lease.Network.Pools {
		all[pool.Family()] = err.Error()
	}
	return all
}

// mode returns the firewall's: as the config says, else the one that the agent has written in. The agent tries what
// the kernel has, but that is a write.
func mode(nft *bool, have netstate.State) netstate.Mode {
	if nft != nil && !*nft {
		return netstate.IPTables
	}
	count := map[netstate.Mode]int{}
	for _, o := range have {
		if c, ok := o.(netstate.Chain); ok {
			count[c.Mode]++
		}
	}
	if nft == nil && count[netstate.IPTables] > count[netstate.NFTables] {
		return netstate.IPTables
	}
	return netstate.NFTables
}

// portOwner finds what has the UDP port of a VXLAN device that does not exist. If the device exists, the kernel has it.
func (g *gathering) portOwner() {
	for _, o := range g.Want.Sorted() {
		if v, ok := o.(netstate.VXLAN); ok && g.Have[v.Key()] == nil && g.PortOwner == "" {
			h := g.kernel.PortHolder(v)
			g.PortOwner, g.PortDevice = h.Text, h.Device
		}
	}
}

const connectionsMax = "net/netfilter/nf_conntrack_max"

// sysctlNames returns the parameters that checks ask for.
func (g *gathering) sysctlNames() []string {
	names := []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/rp_filter",
		"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables",
		"net/netfilter/nf_conntrack_count", connectionsMax}
	for _, dev := range g.Forwarders() {
		names = append(names, "net/ipv4/conf/"+dev+"/forwarding", "net/ipv4/conf/"+dev+"/rp_filter")
	}
	for _, o := range g.Want {
		if s, ok := o.(netstate.Sysctl); ok {
			names = append(names, s.Name)
		}
	}
	return names
}
