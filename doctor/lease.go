package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// checkLease is about the checkpoint, without which nothing else can be judged.
func checkLease(f Facts) []Finding {
	switch {
	case f.Lease.Missing && f.Env.Missing:
		return []Finding{find("no-lease", f.Lease.Path, "the lease and the peers of this node", "no such file, and no "+f.Env.Path, "")}
	case f.Lease.Missing:
		return []Finding{find("lease-damaged", f.Lease.Path, "the lease and the peers of this node", "no such file", "")}
	case f.Lease.Error != "":
		return []Finding{find("lease-damaged", f.Lease.Path, "the lease and the peers of this node", f.Lease.Error, "rm "+f.Lease.Path+" and restart twilld")}
	}
	return nil
}

// checkUnderlay is about the interface that carries everything.
func checkUnderlay(f Facts) []Finding {
	if f.UnderlayError != "" {
		return []Finding{find("underlay-missing", "the underlay", "an interface that is up and has an address", f.UnderlayError, "")}
	}
	var all []Finding
	for _, stack := range f.Lease.Snapshot.Local.Stacks {
		u, ok := f.Underlay.Underlay(stack.Family())
		if ok && u.Public != stack.Underlay {
			all = append(all, find("underlay-address", u.Dev, "peers send to "+stack.Underlay.String(),
				fmt.Sprintf("%s has %s", u.Dev, u.Public), ""))
		}
	}
	if env := f.Env.Env.MTU; f.Env.Error == "" && !f.Env.Missing && f.PodMTU != 0 && env != f.PodMTU && deviceHasMTU(f, env) {
		all = append(all, find("underlay-mtu", "the underlay", fmt.Sprintf("MTU for pods %d bytes, by the interface as it is now", f.PodMTU),
			fmt.Sprintf("pods have %d, of when the agent wrote %s", env, f.Env.Path), ""))
	}
	if f.PortOwner != "" {
		all = append(all, find("udp-port-taken", "UDP port of the VXLAN", "the kernel's own socket", f.PortOwner, ""))
	}
	return all
}

// deviceHasMTU says whether the bridge or the VTEP still has the MTU that was written down: then the underlay's
// changed, and not the file.
func deviceHasMTU(f Facts, mtu int) bool {
	for _, o := range f.Have {
		switch l := o.(type) {
		case netstate.VXLAN:
			if l.MTU == mtu {
				return true
			}
		case netstate.Bridge:
			if l.MTU == mtu {
				return true
			}
		}
	}
	return false
}

// skipFindings are the findings for codes of which there is more to say than that a peer is left out.
var skipFindings = map[subnet.Code]string{subnet.DuplicateMAC: "duplicate-mac", subnet.DuplicateKey: "duplicate-key",
	subnet.DuplicateSubnet: "duplicate-subnet", subnet.OwnAddress: "duplicate-underlay"}

// checkSkips is about peers whose records cannot be used.
func checkSkips(f Facts) []Finding {
	var all []Finding
	for _, s := range f.Skips {
		all = append(all, find(cmp.Or(skipFindings[s.Code], "peer-skipped"), "peer "+s.Node, "a record of its own", s.Detail, ""))
	}
	return append(all, checkSharedUnderlay(f)...)
}

// checkSharedUnderlay is about peers that have one underlay address, which is nothing wrong by itself: nodes behind one NAT do, and
// a machine does that was renamed. But a record of a node that is gone, or one that is not true, may be among them.
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
			all = append(all, find("duplicate-underlay", "peer "+peer.Node, "an underlay address of its own",
				fmt.Sprintf("%s is %s's too", s.Underlay, other), ""))
		}
	}
	return all
}

// checkWays asks whether the kernel would really send to each peer as its tables say.
func checkWays(f Facts) []Finding {
	drifted := map[netip.Prefix]bool{}
	for _, c := range f.Plan {
		if c.Key().Kind == netstate.KindRoute {
			drifted[c.Key().Prefix] = true
		}
	}
	var all []Finding
	for _, w := range f.Ways {
		all = append(all, checkOuter(f, w)...)
		shadows := shadowsOf(f, w)
		all = append(all, shadows...)
		if want := wantedDevice(f, w.Subnet); want != "" && !drifted[w.Subnet] && w.Hop.Dev != want && len(shadows) == 0 {
			all = append(all, diverted(f, w, want))
		}
	}
	return all
}

// diverted is a peer whose route is right and not used.
func diverted(f Facts, w Way, want string) Finding {
	if len(f.Rules) > 0 {
		return find("policy-rule", "peer "+w.Node, "packets to "+w.Pod.String()+" leave by dev "+want,
			w.Hop.String()+"; rules: "+strings.Join(f.Rules, "; "), "")
	}
	return find("route-shadowed", "peer "+w.Node, "packets to "+w.Pod.String()+" leave by dev "+want, w.Hop.String(), "")
}

// shadowsOf are the more specific routes into a peer's subnet.
func shadowsOf(f Facts, w Way) []Finding {
	var all []Finding
	for _, r := range f.Routes {
		if r.Dst.Bits() > w.Subnet.Bits() && w.Subnet.Contains(r.Dst.Addr()) {
			all = append(all, shadow(f, r, w))
		}
	}
	return all
}

func shadow(f Facts, r Route, w Way) Finding {
	return find("route-shadowed", "peer "+w.Node, w.Subnet.String()+" dev "+wantedDevice(f, w.Subnet), r.String(), "ip route del "+r.String())
}

// checkOuter is about the way to the peer's own address.
func checkOuter(f Facts, w Way) []Finding {
	u, ok := f.Underlay.Underlay(netstate.FamilyOf(w.Underlay))
	switch {
	case !ok:
	case w.Outer.Error != "":
		return []Finding{find("underlay-unreachable", "peer "+w.Node, w.Underlay.String()+" is reached by dev "+u.Dev, w.Outer.Error, "ip route get "+w.Underlay.String())}
	case strings.HasPrefix(w.Neighbour, "permanent"), strings.HasPrefix(w.Neighbour, "failed"):
		return []Finding{find("underlay-neighbour", "peer "+w.Node, "the neighbour entry of its next hop is learnt, and reachable",
			w.Neighbour, fmt.Sprintf("ip neigh del %s dev %s", w.Underlay, w.Outer.Dev))}
	}
	return nil
}

// checkOverlaps is about other networks of this machine in the addresses of pods.
func checkOverlaps(f Facts) []Finding {
	var all []Finding
	for _, pool := range f.Lease.Network.Pools {
		for _, i := range f.Interfaces {
			if _, ours := f.Have[netstate.Key{Kind: netstate.KindLink, Name: i.Name}]; ours || i.Name == f.Bridge || i.Name == "lo" {
				continue
			}
			for _, p := range i.Addrs {
				if p.Masked().Overlaps(pool.Network) {
					all = append(all, find("network-overlap", i.Name, "no address in "+pool.Network.String(), p.String(), ""))
				}
			}
		}
	}
	return all
}

// checkForwarding is about single devices, which ip_forward does not show.
func checkForwarding(f Facts) []Finding {
	if f.Sysctls["net/ipv4/ip_forward"] != "1" {
		return nil // it is said already
	}
	var all []Finding
	for _, dev := range Forwarders(f) {
		name := "net/ipv4/conf/" + dev + "/forwarding"
		if value, ok := f.Sysctls[name]; ok && value != "1" {
			all = append(all, find("device-forwarding-off", dev, name+" = 1", name+" = "+value, "sysctl -w "+name+"=1"))
		}
	}
	return all
}

// Forwarders are the devices by which pods' packets come in.
func Forwarders(f Facts) []string {
	devs := []string{f.Bridge}
	seen := map[string]bool{f.Bridge: true}
	for _, o := range f.Want.Sorted() {
		if r, ok := o.(netstate.Route); ok && r.Dst.Addr().Is4() && r.Dev != "" && !seen[r.Dev] {
			seen[r.Dev] = true
			devs = append(devs, r.Dev)
		}
	}
	return devs
}
