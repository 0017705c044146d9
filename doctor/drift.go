package doctor

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// drift is one reading of a plan.
type drift struct {
	Facts
	// gone are devices that are missing, down or another's: what was on them went with them, and is no cause.
	gone  map[string]bool
	peers map[netip.Prefix]string // names by subnet, and by the host prefixes of VTEP and underlay addresses
	// moved are FDB entries of wanted MACs that lead elsewhere: an altered entry, not a missing and a leftover one.
	moved map[netstate.MAC]netstate.FDB
}

// checkDrift is about the difference between what should be and what is.
func checkDrift(f Facts) []Finding {
	d := drift{f, map[string]bool{}, peersByPrefix(f.Lease.Snapshot), map[netstate.MAC]netstate.FDB{}}
	wanted := map[netstate.MAC]bool{}
	for _, c := range f.Plan {
		if fdb, ok := c.Want.(netstate.FDB); ok {
			wanted[fdb.MAC] = true
		}
		if _, up := linkState(c.Was); c.Key().Kind == netstate.KindLink && c.Want != nil && !up {
			d.gone[c.Key().Name] = true
		}
	}
	for _, c := range f.Plan {
		if fdb, ok := c.Was.(netstate.FDB); ok && c.Want == nil && wanted[fdb.MAC] {
			d.moved[fdb.MAC] = fdb
		}
	}
	var all []Finding
	for _, c := range f.Plan {
		if finding, ok := d.finding(c); ok {
			all = append(all, finding)
		}
	}
	return all
}

func peersByPrefix(snap subnet.Snapshot) map[netip.Prefix]string {
	names := map[netip.Prefix]string{}
	for _, p := range snap.Peers {
		for _, s := range p.Stacks {
			names[s.Subnet], names[netstate.Host(s.Subnet.Addr())], names[netstate.Host(s.Underlay)] = p.Node, p.Node, p.Node
		}
	}
	return names
}

// finding returns what one change means; false: it is the consequence of another.
func (d drift) finding(c netstate.Change) (Finding, bool) {
	switch {
	case c.Key().Kind == netstate.KindLink:
		return d.link(c)
	case c.Was == nil && d.gone[deviceOf(c.Want)]:
		return Finding{}, false
	case c.Want == nil:
		return d.leftover(c)
	}
	switch want := c.Want.(type) {
	case netstate.Sysctl:
		return d.sysctl(want, c)
	case netstate.Addr:
		k := vtepAddress
		if want.Dev == d.Bridge {
			k = gatewayAddress
		}
		f := evidence(k, want.Dev, c, fmt.Sprintf("ip addr add %s dev %s", want.Prefix, want.Dev))
		f.family = netstate.FamilyOf(want.Prefix.Addr())
		return f, true
	case netstate.Neigh:
		return d.ofPeer(changed(neighbourMissing, neighbourAltered, c), netstate.Host(want.IP), c,
			fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud permanent", want.IP, want.MAC, want.Dev)), true
	case netstate.FDB:
		if was, ok := d.moved[want.MAC]; ok {
			c.Was = was
		}
		return d.ofPeer(changed(fdbMissing, fdbAltered, c), netstate.Host(want.Dst), c,
			fmt.Sprintf("bridge fdb replace %s dev %s dst %s self permanent", want.MAC, want.Dev, want.Dst)), true
	case netstate.Policy:
		return d.ofPeer(changed(routeMissing, routeAltered, c), want.Dst, c, ""), true
	case netstate.Listener:
		return evidence(vtepAltered, want.Dev, c, ""), true
	case netstate.Peer:
		return d.ofPeer(changed(peerMissing, peerAltered, c), want.Allowed[0], c, ""), true
	case netstate.Route:
		return d.ofPeer(changed(routeMissing, routeAltered, c), want.Dst, c,
			"ip "+strings.Replace(want.String(), "route", "route replace", 1)+" proto 116"), true
	case netstate.Chain:
		return evidence(chainKind(want), c.Key().Name, c, ""), true
	}
	return Finding{}, false
}

// deviceOf returns the device that an object is on.
func deviceOf(o netstate.Object) string {
	switch o := o.(type) {
	case netstate.Route:
		return o.Dev
	case netstate.Sysctl:
		if parts := strings.Split(o.Name, "/"); len(parts) == 5 {
			return parts[3]
		}
	case netstate.Addr, netstate.Neigh, netstate.FDB, netstate.Listener:
		return o.Key().Name
	case netstate.Peer:
		return o.Dev
	}
	return ""
}

func changed(missing, altered kind, c netstate.Change) kind {
	if c.Was == nil {
		return missing
	}
	return altered
}

// evidence returns a finding with the two objects of a change side by side.
func evidence(k kind, object string, c netstate.Change, fix string) Finding {
	expected, actual := "nothing", "nothing"
	if c.Want != nil {
		expected = c.Want.String()
	}
	if c.Was != nil {
		actual = c.Was.String()
	}
	if fix != "" && c.Want != nil {
		fix += "   (or " + heals + ")"
	}
	return find(k, object, expected, actual, fix)
}

// ofPeer is evidence about the peer that p belongs to, or about p.
func (d drift) ofPeer(k kind, p netip.Prefix, c netstate.Change, fix string) Finding {
	object := p.String()
	name, ok := d.peers[p]
	switch {
	case ok:
		object = "peer " + name
	case p.IsSingleIP():
		object = p.Addr().String()
	}
	f := evidence(k, object, c, fix)
	f.peer = name
	return f
}

func (d drift) sysctl(want netstate.Sysctl, c netstate.Change) (Finding, bool) {
	k := sysctl
	switch {
	case want.Name == "net/ipv4/ip_forward" || want.Name == "net/ipv6/conf/all/forwarding":
		k = ipForwardOff
	case strings.HasSuffix(want.Name, "/rp_filter"):
		// 0 lets packets pass as well as 2 does.
		if was, ok := c.Was.(netstate.Sysctl); ok && was.Value == "0" && d.Sysctls["net/ipv4/conf/all/rp_filter"] == "0" {
			return Finding{}, false
		}
		k = rpFilter
	}
	return evidence(k, want.Name, c, fmt.Sprintf("sysctl -w %s=%s", want.Name, want.Value)), true
}

func chainKind(want netstate.Chain) kind {
	switch want.Role {
	case netstate.Postrouting:
		return masqueradeMissing
	case netstate.GuardInput, netstate.GuardForward:
		return guardRules
	}
	return forwardRules
}

// leftover returns the finding about what is there and should not be.
func (d drift) leftover(c netstate.Change) (Finding, bool) {
	switch was := c.Was.(type) {
	case netstate.FDB:
		if _, ok := d.moved[was.MAC]; ok {
			return Finding{}, false
		}
	case netstate.Addr:
		if was.Dev == d.Bridge {
			return evidence(bridgeAddressForeign, was.Dev, c, fmt.Sprintf("ip addr del %s dev %s", was.Prefix, was.Dev)), true
		}
	case netstate.Chain:
		return evidence(leftoverRules, c.Key().Name, c, ""), true
	case netstate.Route:
		if was.Nth > 0 && d.peers[was.Dst] != "" {
			return d.ofPeer(routeAltered, was.Dst, c, ""), true
		}
		return evidence(leftoverEntries, was.Dst.String(), c, ""), true
	}
	return evidence(leftoverEntries, c.Key().Name, c, ""), true
}

// link returns what a change of a device means.
func (d drift) link(c netstate.Change) (Finding, bool) {
	name := c.Key().Name
	if c.Want == nil {
		return evidence(leftoverEntries, name, c, "ip link del "+name), true
	}
	k, fix := linkKind(c)
	return evidence(k, name, c, fix), true
}

func linkKind(c netstate.Change) (k kind, fix string) {
	name := c.Key().Name
	missing, down, otherMTU, altered := vtepMissing, vtepDown, vtepMTU, vtepAltered
	if _, ok := c.Want.(netstate.Bridge); ok {
		missing, down, otherMTU, altered = bridgeMissing, bridgeDown, bridgeMTU, bridgeAltered
	}
	mtu, _ := linkState(c.Want)
	oldMTU, up := linkState(c.Was)
	vxlan, isVXLAN := c.Want.(netstate.VXLAN)
	was, _ := c.Was.(netstate.VXLAN)
	switch {
	case c.Was == nil:
		return missing, ""
	case reflect.TypeOf(c.Was) != reflect.TypeOf(c.Want), was.VNI != vxlan.VNI:
		return deviceForeign, "ip link del " + name
	case !up:
		return down, fmt.Sprintf("ip link set %s up", name)
	case was.MAC != vxlan.MAC:
		return vtepMAC, fmt.Sprintf("ip link set %s address %s", name, vxlan.MAC)
	case isVXLAN && !netstate.SameDevice(was, vxlan):
		return altered, ""
	case oldMTU != mtu:
		return otherMTU, fmt.Sprintf("ip link set %s mtu %d", name, mtu)
	}
	return altered, ""
}

// linkState returns the MTU of a device and whether it is up: 0 and false for anything else.
func linkState(o netstate.Object) (mtu int, up bool) {
	switch l := o.(type) {
	case netstate.VXLAN:
		return l.MTU, l.Up
	case netstate.Bridge:
		return l.MTU, l.Up
	case netstate.Tun:
		return l.MTU, l.Up
	case netstate.Tunnel:
		return l.MTU, l.Up
	case netstate.WireGuard:
		return l.MTU, l.Up
	}
	return 0, false
}
