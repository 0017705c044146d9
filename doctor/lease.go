package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/subnet"
)

// checkLease is about the checkpoint, without which nothing else can be judged.
func checkLease(f Facts) []Finding {
	const want = "the lease and the peers of this node"
	switch l := f.Lease; {
	case l.Missing && f.Env.Missing:
		return []Finding{find(noLease, l.Path, want, "no such file, and no "+f.Env.Path, "")}
	case l.Missing:
		return []Finding{find(leaseDamaged, l.Path, want, "no such file", "")}
	case l.Error != "":
		return []Finding{find(leaseDamaged, l.Path, want, l.Error, "rm "+l.Path+" and restart twilld")}
	}
	return nil
}

// checkUnderlay is about the interface that carries everything.
func checkUnderlay(f Facts) []Finding {
	if len(f.NoUnderlay) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(f.NoUnderlay)))
		return []Finding{find(underlayMissing, "the underlay", "an interface that is up and has an address", f.NoUnderlay[first], "")}
	}
	var all []Finding
	for _, stack := range f.Lease.Snapshot.Local.Stacks {
		u, ok := f.Underlay.Underlay(stack.Family())
		if ok && u.Public != stack.Underlay {
			all = append(all, find(underlayAddress, u.Dev, "peers send to "+stack.Underlay.String(),
				fmt.Sprintf("%s has %s", u.Dev, u.Public), ""))
		}
	}
	env := f.Env.Env.MTU
	if f.Env.Error == "" && !f.Env.Missing && f.PodMTU != 0 && env != f.PodMTU && deviceHasMTU(f, env) {
		all = append(all, find(underlayMTU, "the underlay",
			fmt.Sprintf("pods have an MTU of %d bytes, as the interface allows now", f.PodMTU),
			fmt.Sprintf("pods have %d, from when the agent wrote %s", env, f.Env.Path), ""))
	}
	if f.PortOwner != "" {
		all = append(all, find(udpPortTaken, "UDP port of the VXLAN", "the kernel's own socket", f.PortOwner, ""))
	}
	return all
}

// deviceHasMTU reports whether the bridge or the overlay's device still has the MTU of subnet.env: then the underlay's changed, and
// not the file.
func deviceHasMTU(f Facts, mtu int) bool {
	for _, o := range f.Have {
		if have, _ := linkState(o); have != 0 && have == mtu {
			return true
		}
	}
	return false
}

// skipKinds are the findings for the codes of which there is more to say than that a peer is left out.
var skipKinds = map[subnet.Code]kind{subnet.DuplicateMAC: duplicateMAC, subnet.DuplicateKey: duplicateKey,
	subnet.DuplicateSubnet: duplicateSubnet, subnet.OwnAddress: duplicateUnderlay}

// checkSkips is about peers whose records cannot be used.
func checkSkips(f Facts) []Finding {
	var all []Finding
	for _, s := range f.Skips {
		all = append(all, findPeer(cmp.Or(skipKinds[s.Code], peerSkipped), s.Node, "a record of its own", s.Detail, ""))
	}
	return all
}

// checkSharedUnderlay is about peers with the same underlay address. That is nothing wrong by itself: nodes behind one NAT
// have it, and a machine that was renamed. But one of the records may be of a node that is gone, or wrong.
func checkSharedUnderlay(f Facts) []Finding {
	var all []Finding
	first := map[netip.Addr]string{}
	for _, peer := range f.Lease.Snapshot.Peers {
		for _, s := range peer.Stacks {
			other, ok := first[s.Underlay]
			if !ok {
				first[s.Underlay] = peer.Node
				continue
			}
			all = append(all, findPeer(duplicateUnderlay, peer.Node, "an underlay address of its own",
				fmt.Sprintf("%s is %s's too", s.Underlay, other), ""))
		}
	}
	return all
}
