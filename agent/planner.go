package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/transition"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Planner computes what should exist on a node from the machine's facts and a snapshot of the
// leases. It is pure, and the same for the agent that applies the result, for a dry run and for the
// doctor.
type Planner struct {
	Node      string // its name
	Network   subnet.Config
	Backend   backend.Backend
	Choice    Choice                 // of the underlays
	WireGuard bool                   // the kernel has WireGuard
	Base      backend.BaseConfig     // its MTU is ignored: PodMTU counts
	Firewall  backend.FirewallConfig // its Stacks and Bridge are ignored: the leases' and Base's count
	Shortcuts backend.FastPath       // as the flags and the network config say; needs a backend.Accelerable
}

// For returns the Planner of a node that publishes local. Of a backend that takes another's place it has the parts that such a
// node needs.
func (p Planner) For(local subnet.Lease) Planner {
	if t, ok := p.Backend.(backend.Transition); ok {
		p.Backend = t.For(local)
	}
	return p
}

// Facts returns what a backend may know of a machine with these interfaces. Of the underlays that
// the rules allow it keeps the ones of before. With an error the underlays are those of before: a
// flapping interface is no reason to forget the peers.
func (p Planner) Facts(interfaces []netstate.Interface, before backend.Node, route routeTo) (backend.Node, error) {
	node := backend.Node{Name: p.Node, WireGuard: p.WireGuard, MACs: map[string]netstate.MAC{},
		ChecksumsBroken: map[string]bool{}}
	for _, i := range interfaces {
		node.MACs[i.Name] = i.MAC
		if i.Port.Name != "" && i.Port.Bridge != "" && i.Port.Bridge == p.Base.Bridge {
			node.Ports = append(node.Ports, i.Port)
		}
		p.countPort(i, &node)
		if i.Owned && i.ChecksumsOff && p.probesChecksums() {
			node.ChecksumsBroken[i.Name] = true
		}
		if i.LosesRA && !i.Owned {
			node.LosesRA = append(node.LosesRA, i.Name)
		}
		p.fastFacts(i, &node)
	}
	if mac, ok := before.MACs[p.Base.Bridge]; ok && node.MACs[p.Base.Bridge].IsUnicast() {
		node.MACs[p.Base.Bridge] = mac // pods have it in their ARP caches, whatever it became
	}
	var families []netstate.Family
	for _, pool := range p.Network.Pools {
		families = append(families, pool.Family())
	}
	underlays, err := p.Choice.pick(interfaces, families, before, route)
	if err != nil {
		underlays = before.Underlays
	}
	node.Underlays = measured(underlays, interfaces)
	node.Networks = p.networks(interfaces, underlays, before.Networks)
	if p.Shortcuts.On {
		node.FastPathOff = carries(underlays, interfaces)
	}
	return node, err
}

// measured returns the underlays with the MTUs of what their packets leave through.
func measured(underlays []backend.Underlay, interfaces []netstate.Interface) []backend.Underlay {
	var all []backend.Underlay
	for _, u := range underlays {
		ways := map[netip.Prefix]int{}
		for _, i := range interfaces {
			for _, w := range i.Ways {
				if !i.Owned && i.Name != loopback && netstate.FamilyOf(w.Dst.Addr()) == u.Family() {
					ways[w.Dst] = cmp.Or(w.MTU, i.MTU)
				}
			}
		}
		if u.Dev == loopback {
			u.MTU = widest(ways, u)
		}
		u.Narrow = narrow(ways, u.MTU)
		all = append(all, u)
	}
	return all
}

// loopback is an interface that may have the node's address, and that no packet leaves through.
const loopback = "lo"

// widest returns the MTU of an underlay whose address is on loopback: that of the default route, or else the largest.
func widest(ways map[netip.Prefix]int, u backend.Underlay) int {
	most := 0
	for dst, mtu := range ways {
		if dst.Bits() == 0 {
			return mtu
		}
		most = max(most, mtu)
	}
	return cmp.Or(most, u.MTU)
}

// narrow returns the ways of less than mtu, and those inside of one. On a router with many routes there mostly is none.
func narrow(ways map[netip.Prefix]int, mtu int) map[netip.Prefix]int {
	var all map[netip.Prefix]int
	if len(ways) == 0 || slices.Min(slices.Collect(maps.Values(ways))) >= mtu {
		return nil
	}
	for dst, way := range ways {
		inside := way < mtu
		for bits := 0; bits < dst.Bits() && !inside; bits++ {
			around, _ := dst.Addr().Prefix(bits) // so many bits there are
			other, ok := ways[around]
			inside = ok && other < mtu
		}
		if inside && all == nil {
			all = map[netip.Prefix]int{}
		}
		if inside {
			all[dst] = way
		}
	}
	return all
}

// fastFacts adds what only the fast path needs to know of an interface.
func (p Planner) fastFacts(i netstate.Interface, node *backend.Node) {
	if !p.Shortcuts.On || !i.Owned {
		return
	}
	if i.ChecksumsOff {
		set(&node.ChecksumsOff, i.Name)
	}
	if i.Queued {
		set(&node.Queued, i.Name)
	}
	if i.Beside != "" {
		if node.Beside == nil {
			node.Beside = map[string]string{}
		}
		node.Beside[i.Name] = i.Beside
	}
}

// set adds a name to a set, which is nil as long as it is empty.
func set(names *map[string]bool, name string) {
	if *names == nil {
		*names = map[string]bool{}
	}
	(*names)[name] = true
}

// minIPv6MTU is what every IPv6 link must carry, in bytes (RFC 8200): below it the kernel has no IPv6 at all.
const minIPv6MTU = 1280

// Fit returns node and snap without IPv6, and an error that says why, if pods' packets would be too small for it. IPv4
// needs nothing of it. On a node without IPv4 nothing is left.
func (p Planner) Fit(node backend.Node, snap subnet.Snapshot) (backend.Node, subnet.Snapshot, error) {
	p = p.For(snap.Local)
	_, ok := node.Underlay(netstate.IPv6)
	mtu := p.Backend.MTU(node)
	if !ok || mtu >= minIPv6MTU {
		return node, snap, nil
	}
	smallest := node.Underlays[0]
	for _, u := range node.Underlays[1:] {
		if p.mtuOver(node, u) < p.mtuOver(node, smallest) {
			smallest = u
		}
	}
	err := fmt.Errorf("pods would have an MTU of %d bytes, and IPv6 needs %d: raise the MTU of %s from %d to %d",
		mtu, minIPv6MTU, smallest.Dev, smallest.MTU, smallest.MTU+minIPv6MTU-mtu)
	node.Underlays = slices.DeleteFunc(slices.Clone(node.Underlays), func(u backend.Underlay) bool { return u.Family() == netstate.IPv6 })
	snap.Local.Stacks = slices.DeleteFunc(slices.Clone(snap.Local.Stacks), func(s subnet.Stack) bool { return s.Family() == netstate.IPv6 })
	return node, snap, err
}

// mtuOver returns what pods would have if u were the only underlay.
func (p Planner) mtuOver(node backend.Node, u backend.Underlay) int {
	node.Underlays = []backend.Underlay{u}
	return p.Backend.MTU(node)
}

// tooLargeError is that the network config asks for more than the machine can carry.
type tooLargeError struct{ error }

// Carries returns an error if the machine cannot carry what the network config says.
func (p Planner) Carries(node backend.Node) error {
	for _, part := range backend.Parts(p.Backend) {
		if b, ok := part.(backend.Fitter); ok {
			if err := b.Fits(node); err != nil {
				return tooLargeError{err}
			}
		}
	}
	return nil
}

// probesChecksums reports whether the backend wants to know whether checksums arrive.
func (p Planner) probesChecksums() bool {
	return slices.ContainsFunc(backend.Parts(p.Backend), func(part backend.Backend) bool {
		b, ok := part.(backend.ChecksumProber)
		return ok && b.ProbesChecksums()
	})
}

// Desired returns everything that should exist on the node, and the peers that are left out. Of what does not Fit it
// wants nothing.
func (p Planner) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	p = p.For(snap.Local)
	node, snap, _ = p.Fit(node, snap.WithEarlier())
	want, skips := p.Backend.Desired(node, p.seen(snap))
	base, firewall := p.Base, p.Firewall
	base.MTU = p.PodMTU(node)
	firewall.Stacks, firewall.Bridge = nil, base.Bridge
	for _, stack := range snap.Local.Stacks {
		pool, ok := p.Network.Pool(stack.Family())
		if !ok {
			continue
		}
		s := backend.FirewallStack{Cluster: pool.Network, Pod: stack.Subnet, Overlays: overlays(want, stack.Family()),
			Outside: outside(node)}
		s.Earlier = stack.Earlier()
		p.expose(&s)
		s.Inside = backend.Inside(pool.Network, node, snap)
		firewall.Stacks = append(firewall.Stacks, s)
	}
	want.Merge(backend.Base(base, node, snap.Local))
	p.fastPath(want, node)
	addDeviceSysctls(want)
	want.Add(backend.FirewallChains(firewall)...)
	return want, skips
}

// seen returns a snapshot as the backend sees it, in what it wants and in what its Runner does.
func (p Planner) seen(snap subnet.Snapshot) subnet.Snapshot {
	return transition.Seen(p.Network.Backend, p.Backend, snap)
}

// expose adds what the backend's packets are between nodes. While one takes another's place, all of them are. If one is strict,
// all are, unless another one sends plain: no packet that is for a peer leaves by the default route meanwhile.
func (p Planner) expose(s *backend.FirewallStack) {
	for _, part := range backend.Parts(p.Backend) {
		if b, ok := part.(backend.Exposed); ok {
			s.Guarded = append(s.Guarded, b.Wrapped(netstate.FamilyOf(s.Cluster.Addr())))
		}
		if b, ok := part.(backend.Direct); ok && b.Direct() {
			s.Plain = true
		}
		if b, ok := part.(backend.Strict); ok && b.Strict() {
			s.Strict = true
		}
	}
	s.Strict = s.Strict && !s.Plain
}

// addDeviceSysctls adds what the devices in want need for the families of their addresses. What the backend said of one
// of these parameters counts.
func addDeviceSysctls(want netstate.State) {
	var sysctls []netstate.Sysctl
	for _, o := range want {
		addr, isAddr := o.(netstate.Addr)
		if link, ours := want[netstate.Key{Kind: netstate.KindLink, Name: addr.Dev}]; isAddr && ours {
			sysctls = append(sysctls, backend.DeviceSysctls(link, netstate.FamilyOf(addr.Prefix.Addr()))...)
		}
	}
	for _, s := range sysctls {
		if _, said := want[s.Key()]; !said {
			want.Add(s)
		}
	}
}

// overlays returns the devices in want that encapsulate one family's packets, by their names.
func overlays(want netstate.State, f netstate.Family) (devices []string) {
	for _, o := range want {
		if addr, ok := o.(netstate.Addr); ok && netstate.FamilyOf(addr.Prefix.Addr()) == f {
			if netstate.IsOverlay(want[netstate.Key{Kind: netstate.KindLink, Name: addr.Dev}]) {
				devices = append(devices, addr.Dev)
			}
		}
	}
	slices.Sort(devices)
	return slices.Compact(devices)
}
