package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// checkLease is about the checkpoint, without which nothing else can be judged.
func (e *exam) checkLease() {
	const want = "the lease and the peers of this node"
	switch l := e.Lease; {
	case l.Hidden: // it is not looked at, which is no finding
	case l.Missing && e.Env.Missing:
		e.find(noLease, l.Path, want, "no such file, and no "+e.Env.Path, "")
	case l.Missing:
		e.find(leaseDamaged, l.Path, want, "no such file", "")
	case l.Error != "":
		e.find(leaseDamaged, l.Path, want, l.Error, "rm "+l.Path).Fix += " and restart twilld"
	}
}

// checkUnderlay is about the interface that carries everything.
func (e *exam) checkUnderlay() {
	if len(e.NoUnderlay) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(e.NoUnderlay)))
		e.find(underlayMissing, strings.TrimSpace("the underlay "+e.ownAddress(first)), "an interface that is up and has an address", e.NoUnderlay[first], "")
		return
	}
	if e.LeftOut != "" {
		e.find(familyLeftOut, "the underlay", "pods with IPv6", e.LeftOut, "")
	}
	for _, stack := range e.Lease.Snapshot.Local.Stacks {
		u, ok := e.Underlay.Underlay(stack.Family())
		if ok && u.Public != stack.Underlay {
			e.find(underlayAddress, u.Dev, "peers send to "+stack.Underlay.String(),
				fmt.Sprintf("%s has %s", u.Dev, u.Public), "")
		}
	}
	for _, t := range e.Taken {
		u, _ := e.Underlay.Underlay(netstate.FamilyOf(t.Addr))
		f := e.find(underlayTaken, u.Dev, fmt.Sprintf("nobody else answers for %s", t.Addr), fmt.Sprintf("%s does", t.MAC), "")
		if e.reaches(netstate.FamilyOf(t.Addr)) {
			f.Severity = Risk
		}
	}
	env := e.Env.Env.MTU
	isRead := e.Env.Error == "" && !e.Env.Missing && !e.Env.Hidden
	if isRead && e.PodMTU != 0 && env != e.PodMTU && env != e.FullMTU && e.hasMTU(env) {
		e.find(underlayMTU, "the underlay",
			fmt.Sprintf("pods have an MTU of %d bytes, as the interface allows now", e.PodMTU),
			fmt.Sprintf("pods have %d, from when the agent wrote %s", env, e.Env.Path), "")
	} else if p, ok := e.oversized(); ok {
		e.find(podMTU, p.Name, fmt.Sprintf("an MTU of %d bytes, as new pods get", e.PodMTU),
			fmt.Sprintf("%d, from when the pod was made", p.MTU), "")
	}
	if e.PortOwner != "" {
		f := e.find(udpPortTaken, "UDP port of the VXLAN", "the kernel's own socket", e.PortOwner, "")
		if e.PortDevice != "" {
			f.says("delete the device if nobody needs it (ip link del " + e.PortDevice +
				"), or set another Port in net-conf.json's Backend on all nodes")
		}
	}
}

// oversized returns a pod's port with a larger MTU than new pods get.
func (f Facts) oversized() (Port, bool) {
	i := slices.IndexFunc(f.Ports, func(p Port) bool {
		return p.Pod && p.Master != "" && p.Master == f.Bridge && f.PodMTU != 0 && p.MTU > f.PodMTU
	})
	if i < 0 {
		return Port{}, false
	}
	return f.Ports[i], true
}

// hasMTU reports whether the bridge or the overlay's device still has the MTU of subnet.env: then the underlay's
// changed, and not the file.
func (f Facts) hasMTU(mtu int) bool {
	for _, o := range f.Have {
		if have, _ := linkState(o); have != 0 && have == mtu {
			return true
		}
	}
	return false
}

// skipKinds are the findings for codes that say more than that a peer is left out.
var skipKinds = map[subnet.Code]kind{subnet.DuplicateMAC: duplicateMAC, subnet.DuplicateKey: duplicateKey,
	subnet.DuplicateSubnet: duplicateSubnet, subnet.OwnAddress: duplicateUnderlay}

// checkSkips is about peers whose records cannot be used.
func (e *exam) checkSkips() {
	for _, s := range e.Skips {
		e.findPeer(cmp.Or(skipKinds[s.Code], peerSkipped), s.Node, "a record of its own", s.Detail, "")
	}
}

// checkSharedUnderlay is about peers with the same underlay address. That is nothing wrong by itself: nodes behind
// one NAT have it, and a machine that was renamed. But one of the records may be of a node that is gone, or wrong.
func (e *exam) checkSharedUnderlay() {
	first := map[netip.Addr]string{}
	for _, peer := range e.Lease.Snapshot.Peers {
		for _, s := range peer.Stacks {
			other, ok := first[s.Underlay]
			if !ok {
				first[s.Underlay] = peer.Node
				continue
			}
			e.findPeer(duplicateUnderlay, peer.Node, "an underlay address of its own",
				fmt.Sprintf("%s is %s's too", s.Underlay, other), "")
		}
	}
}

// ownAddress returns the address of a family that peers know this node by, empty if it has none.
func (f Facts) ownAddress(family netstate.Family) string {
	for _, s := range f.Lease.Snapshot.Local.Stacks {
		if netstate.FamilyOf(s.Underlay) == family {
			return s.Underlay.String()
		}
	}
	return ""
}

// reaches reports whether all peers that were asked over a family answer.
func (f Facts) reaches(family netstate.Family) bool {
	asked := false
	for _, p := range f.Probes {
		if netstate.FamilyOf(p.To) == family {
			asked = true
			if !p.OK {
				return false
			}
		}
	}
	return asked
}
