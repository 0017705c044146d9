package doctor

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// drift is the difference between what should be and what is.
type drift struct {
	*exam
	// gone are devices that are missing, down or another's: what was on them went with them, and is no cause.
	gone  map[string]bool
	peers map[netip.Prefix]string // names by subnet, and by the host prefixes of VTEP and underlay addresses
	// moved are FDB entries of wanted MACs that lead elsewhere: an altered entry, not a missing and a leftover one.
	moved map[netstate.MAC]netstate.FDB
}

// checkDrift makes findings of the plan.
func (e *exam) checkDrift() {
	d := drift{e, map[string]bool{}, peersByPrefix(e.Lease.Snapshot), map[netstate.MAC]netstate.FDB{}}
	wanted := map[netstate.MAC]bool{}
	for _, c := range e.Plan {
		if fdb, ok := c.Want.(netstate.FDB); ok {
			wanted[fdb.MAC] = true
		}
		if _, up := linkState(c.Was); c.Key().Kind == netstate.KindLink && c.Want != nil && !up {
			d.gone[c.Key().Name] = true
		}
	}
	for _, c := range e.Plan {
		if fdb, ok := c.Was.(netstate.FDB); ok && c.Want == nil && wanted[fdb.MAC] {
			d.moved[fdb.MAC] = fdb
		}
	}
	for _, c := range e.Plan {
		switch {
		case c.Key().Kind == netstate.KindLink:
			d.link(c)
		case c.Want == nil:
			d.leftover(c)
		case c.Was != nil || !d.gone[deviceOf(c.Want)]:
			d.change(c)
		}
	}
}

func peersByPrefix(snap subnet.Snapshot) map[netip.Prefix]string {
	names := map[netip.Prefix]string{}
	for _, p := range snap.WithEarlier().Peers {
		for _, s := range p.Stacks {
			for _, of := range []netip.Prefix{s.Subnet, netstate.Host(s.Subnet.Addr()), netstate.Host(s.Underlay)} {
				names[of] = p.Node
			}
		}
	}
	return names
}

// change adds the finding about what is missing, or other than it should be.
func (d drift) change(c netstate.Change) {
	switch want := c.Want.(type) {
	case netstate.Sysctl:
		d.sysctl(want, c)
	case netstate.Offload:
		_, offload, _ := strings.Cut(want.String(), " ")
		d.drifted(vtepAltered, want.Dev, c, "ethtool -K "+offload)
	case netstate.Addr:
		k := vtepAddress
		if want.Dev == d.Bridge {
			k = gatewayAddress
		}
		f := d.drifted(k, want.Dev, c, addressCommand(want))
		f.family = netstate.FamilyOf(want.Prefix.Addr())
	case netstate.Neigh:
		d.ofPeer(changed(neighbourMissing, neighbourAltered, c), netstate.Host(want.IP), c,
			fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud permanent", want.IP, want.MAC, want.Dev))
	case netstate.FDB:
		if was, ok := d.moved[want.MAC]; ok {
			c.Was = was
		}
		d.ofPeer(changed(fdbMissing, fdbAltered, c), netstate.Host(want.Dst), c,
			fmt.Sprintf("bridge fdb replace %s dev %s dst %s self permanent", want.MAC, want.Dev, want.Dst))
	case netstate.Port:
		d.port(want, c)
	case netstate.BridgeFDB:
		d.drifted(podPort, want.Port, c, "")
	case netstate.Policy:
		d.ofPeer(changed(routeMissing, routeAltered, c), want.Dst, c, "")
	case netstate.Listener:
		d.drifted(vtepAltered, want.Dev, c, "")
	case netstate.Peer:
		d.ofPeer(changed(peerMissing, peerAltered, c), want.Allowed[0], c, "")
	case netstate.Route:
		if want.Protocol == netstate.KernelProtocol {
			f := d.drifted(ownRoute, want.Dst.String(), c,
				"ip "+strings.Replace(want.String(), "route", "route replace", 1))
			f.family = netstate.FamilyOf(want.Dst.Addr())
			return
		}
		d.ofPeer(changed(routeMissing, routeAltered, c), want.Dst, c,
			"ip "+strings.Replace(want.String(), "route", "route replace", 1)+d.protocol())
	case netstate.Chain:
		d.drifted(chainKind(want), c.Key().Name, c, "")
	case netstate.Shortcut, netstate.PodPort, netstate.Switch, netstate.Program:
		d.fast(c)
	}
}

// port adds the finding about a pod's port, unless it is a consequence or checkPods says it.
func (d drift) port(want netstate.Port, c netstate.Change) {
	was, _ := c.Was.(netstate.Port)
	if !d.gone[want.Bridge] && was.Bridge != "" && was.Up {
		d.drifted(podPort, want.Name, c, "").port = want.Name
	}
}

// protocol is what a command says of the routes of the node's agent: flannel's name none.
func (e *exam) protocol() string {
	if e.OfFlannel {
		return ""
	}
	return fmt.Sprintf(" proto %d", netstate.Protocol)
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
	case netstate.Addr, netstate.Neigh, netstate.FDB, netstate.Listener, netstate.Offload:
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

// drifted adds a finding with the two objects of a change side by side.
func (d drift) drifted(k kind, object string, c netstate.Change, command string) *Finding {
	expected, actual := "nothing", "nothing"
	if c.Want != nil {
		expected = c.Want.String()
	}
	if c.Was != nil {
		actual = c.Was.String()
	}
	f := d.find(k, object, expected, actual, command)
	if command != "" && c.Want != nil {
		f.Fix += "   (or " + d.heals() + ")"
	}
	return f
}

// ofPeer adds a finding like drifted about the peer that p belongs to, or about p itself.
func (d drift) ofPeer(k kind, p netip.Prefix, c netstate.Change, command string) {
	object := p.String()
	name, ok := d.peers[p]
	switch {
	case ok:
		object = "peer " + name
	case p.IsSingleIP():
		object = p.Addr().String()
	}
	d.drifted(k, object, c, command).peer = name
}

func (d drift) sysctl(want netstate.Sysctl, c netstate.Change) {
	k := sysctl
	switch {
	case want.Name == "net/ipv4/ip_forward" || want.Name == "net/ipv6/conf/all/forwarding":
		k = ipForwardOff
	case strings.HasSuffix(want.Name, "/forwarding") || strings.HasPrefix(want.Name, "net/bridge/"):
		return // a check of its own names it
	case strings.HasSuffix(want.Name, "/rp_filter"):
		was, _ := c.Was.(netstate.Sysctl)
		if was.Value == "0" && d.Sysctls["net/ipv4/conf/all/rp_filter"] == "0" {
			return // it lets packets pass as well as 2 does
		}
		k = rpFilter
	}
	d.drifted(k, want.Name, c, fmt.Sprintf("sysctl -w %s=%s", want.Name, want.Value))
}

// addressCommand adds an address, or makes one that is there what it should be.
func addressCommand(a netstate.Addr) string {
	if a.NoDAD {
		return fmt.Sprintf("ip addr replace %s dev %s nodad", a.Prefix, a.Dev)
	}
	return fmt.Sprintf("ip addr replace %s dev %s", a.Prefix, a.Dev)
}

func chainKind(want netstate.Chain) kind {
	switch want.Role {
	case netstate.Postrouting:
		return masqueradeMissing
	case netstate.GuardInput, netstate.GuardForward, netstate.GuardSource:
		return guardRules
	}
	return forwardRules
}

// leftover adds the finding about what exists and should not.
func (d drift) leftover(c netstate.Change) {
	k, object, fix := leftoverEntries, c.Key().Name, ""
	switch was := c.Was.(type) {
	case netstate.FDB:
		if _, ok := d.moved[was.MAC]; ok {
			return
		}
	case netstate.BridgeFDB:
		k, object = podPort, was.Port
	case netstate.Addr:
		if was.Dev == d.Bridge {
			k, fix = bridgeAddressForeign, fmt.Sprintf("ip addr del %s dev %s", was.Prefix, was.Dev)
		}
	case netstate.Chain, netstate.Strays:
		k = leftoverRules
	case netstate.Shortcut:
		object = was.Dst.String()
	case netstate.PodPort:
		object = was.Addr.String()
	case netstate.Route:
		if was.Nth > 0 && d.peers[was.Dst] != "" {
			d.ofPeer(routeAltered, was.Dst, c, "")
			return
		}
		object = was.Dst.String()
	}
	d.drifted(k, object, c, fix)
}

// link adds the finding about a device.
func (d drift) link(c netstate.Change) {
	k, fix := leftoverEntries, "ip link del "+c.Key().Name
	if c.Want != nil {
		k, fix = linkKind(c)
	}
	d.drifted(k, c.Key().Name, c, fix)
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
