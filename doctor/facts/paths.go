package facts

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/unusual"
)

// maxPaths is how many peers' paths are looked up; each costs two requests.
const maxPaths = 2000

// paths asks the kernel for the path to each peer.
func (g *gathering) paths() {
	neighbours := map[string]doctor.Neighbour{}
	all, err := g.kernel.Neighbours()
	if err != nil {
		g.unread("neighbours", err)
	}
	for _, n := range all {
		if n.Dev == g.Bridge && n.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 {
			g.PodNeighbours = append(g.PodNeighbours, doctor.PodNeighbour{Addr: n.IP, MAC: n.MAC})
		}
		neighbours[n.Dev+" "+n.IP.String()] = doctor.Neighbour{State: n.State, MAC: n.MAC}
	}
	for _, s := range g.Lease.Snapshot.Local.Stacks {
		pod := s.Subnet.Addr().Next().Next()
		g.Own = append(g.Own, doctor.OwnPath{Subnet: s.Subnet, Hop: g.lookup(pod)})
	}
	outside := g.options.Outside
	if g.options.Probe == doctor.AllProbes {
		outside = slices.Concat(outside, g.Gateways())
	}
	for _, a := range outside {
		p := doctor.OutPath{To: a, Hop: g.lookup(a)}
		p.Neighbour = neighbours[p.Hop.Dev+" "+p.NextHop().String()]
		g.Out = append(g.Out, p)
	}
	for _, peer := range g.Lease.Snapshot.WithEarlier().Peers {
		for _, s := range peer.Stacks {
			if len(g.Paths) == maxPaths || !s.Subnet.IsValid() {
				return
			}
			if _, wanted := g.Want.PeerRoute(s.Subnet); peer.Earlier && !wanted {
				continue // of a network that is no longer the pods'
			}
			pod := s.Subnet.Addr().Next().Next()
			p := doctor.Path{Node: peer.Node, Subnet: s.Subnet, Pod: pod, Underlay: s.Underlay}
			p.Hop, p.Outer = g.lookup(p.Pod), g.lookup(s.Underlay)
			next := s.Underlay
			if p.Outer.Via.IsValid() {
				next = p.Outer.Via
			}
			p.Neighbour = neighbours[p.Outer.Dev+" "+next.String()]
			g.Paths = append(g.Paths, p)
		}
	}
}

func (g *gathering) lookup(to netip.Addr) doctor.Hop {
	h, err := g.kernel.Lookup(to)
	if err != nil {
		return doctor.Hop{Error: err.Error()}
	}
	hop := doctor.Hop{Dev: h.Dev, Via: h.Via}
	if h.Dev == loopback {
		hop.By, hop.Fix = g.takes(to)
	}
	return hop
}

const loopback = "lo"

// takes returns what makes an address this host's: that a device has it, or a route.
func (g *gathering) takes(to netip.Addr) (by, fix string) {
	for _, i := range g.Interfaces {
		for _, a := range i.Addrs {
			if a.Addr() != to {
				continue
			}
			if a.IsSingleIP() { // one with a network may be the host's own, by which it is reached
				fix = fmt.Sprintf("ip addr del %s dev %s", a, i.Name)
			}
			return fmt.Sprintf("address %s dev %s", a, i.Name), fix
		}
	}
	route, _, err := unusual.Routed(unusual.Packet{Dst: to})
	if err != nil {
		g.unread("the route to "+to.String(), err)
	}
	return route.Text, route.Fix
}
