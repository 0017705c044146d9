package doctor

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// drift is one reading of a plan.
type drift struct {
	Facts
	// gone are devices that are missing, down or another's: what stood on them went with them, and is no cause.
	gone  map[string]bool
	peers map[netip.Prefix]string // names by subnet, and by the host prefix of its VTEP address
	// moved is the wanted FDB entries whose MAC has another destination: one altered entry, and not two.
	moved map[netstate.MAC]netstate.FDB
}

// checkDrift makes findings of the difference between what should be and what is.
func checkDrift(f Facts) []Finding {
	d := drift{f, map[string]bool{}, peersBySubnet(f.Lease.Snapshot), map[netstate.MAC]netstate.FDB{}}
	wanted := map[netstate.MAC]netstate.FDB{}
	for _, c := range f.Plan {
		if fdb, ok := c.Want.(netstate.FDB); ok {
			wanted[fdb.MAC] = fdb
		}
		if c.Key().Kind == netstate.KindLink && c.Want != nil && !isUp(c.Was) {
			d.gone[c.Key().Name] = true
		}
	}
	for _, c := range f.Plan {
		if fdb, ok := c.Was.(netstate.FDB); ok && c.Want == nil {
			if want, ok := wanted[fdb.MAC]; ok {
				d.moved[fdb.MAC] = want
			}
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

// isUp is false also for what is not there, or of another type.
func isUp(o netstate.Object) bool {
	switch l := o.(type) {
	case netstate.VXLAN:
		return l.Up
	case netstate.Bridge:
		return l.Up
	case netstate.Tun:
		return l.Up
	case netstate.Tunnel:
		return l.Up
	case netstate.WireGuard:
		return l.Up
	}
	return false
}

func peersBySubnet(snap subnet.Snapshot) map[netip.Prefix]string {
	names := map[netip.Prefix]string{}
	for _, p := range snap.Peers {
		for _, s := range p.Stacks {
			names[s.Subnet], names[netstate.Host(s.Subnet.Addr())], names[netstate.Host(s.Underlay)] = p.Node, p.Node, p.Node
		}
	}
	return names
}

// finding is what one change means; not ok: it is the consequence of another.
func (d drift) finding(c netstate.Change) (Finding, bool) {
	switch {
	case c.Key().Kind == netstate.KindLink:
		return d.link(c)
	case d.gone[deviceOf(c)] && c.Was == nil:
		return Finding{}, false
	case c.Want == nil:
		return d.leftover(c)
	}
	switch want := c.Want.(type) {
	case netstate.Sysctl:
		return d.sysctl(want, c)
	case netstate.Addr:
		id := "vtep-address"
		if want.Dev == d.Bridge {
			id = "gateway-address"
		}
		return evidence(id, want.Dev, c, fmt.Sprintf("ip addr add %s dev %s", want.Prefix, want.Dev)), true
	case netstate.Neigh:
		return evidence(changed("neighbour", c), d.peer(netstate.Host(want.IP)), c,
			fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud permanent", want.IP, want.MAC, want.Dev)), true
	case netstate.FDB:
		return d.fdb(want, c), true
	case netstate.Policy:
		return evidence(changed("route", c), d.peer(want.Dst), c, ""), true
	case netstate.Listener:
		return evidence("vtep-altered", want.Dev, c, ""), true
	case netstate.Peer:
		return evidence(changed("peer", c), d.peer(want.Allowed[0]), c, ""), true
	case netstate.Route:
		return evidence(changed("route", c), d.peer(want.Dst), c, "ip "+strings.Replace(want.String(), "route", "route replace", 1)+" proto 116"), true
	case netstate.Chain:
		return d.chain(want, c), true
	}
	return Finding{}, false
}

// deviceOf is the device that the changed object stands on.
func deviceOf(c netstate.Change) string {
	switch o := c.Want.(type) {
	case netstate.Route:
		return o.Dev
	case netstate.Sysctl:
		if parts := strings.Split(o.Name, "/"); len(parts) == 5 {
			return parts[3]
		}
	case netstate.Addr, netstate.Neigh, netstate.FDB, netstate.Listener:
		return c.Key().Name
	case netstate.Peer:
		return o.Dev
	}
	return ""
}

func changed(what string, c netstate.Change) string {
	if c.Was == nil {
		return what + "-missing"
	}
	return what + "-altered"
}

// evidence is a finding with the two objects of a change side by side.
func evidence(id, object string, c netstate.Change, fix string) Finding {
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
	return find(id, object, expected, actual, fix)
}

func (d drift) peer(p netip.Prefix) string {
	if name, ok := d.peers[p]; ok {
		return "peer " + name
	}
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func (d drift) fdb(want netstate.FDB, c netstate.Change) Finding {
	fix := fmt.Sprintf("bridge fdb replace %s dev %s dst %s self permanent", want.MAC, want.Dev, want.Dst)
	if _, ok := d.moved[want.MAC]; ok {
		for _, other := range d.Plan {
			if was, ok := other.Was.(netstate.FDB); ok && other.Want == nil && was.MAC == want.MAC {
				c.Was = was
			}
		}
	}
	return evidence(changed("fdb", c), d.peer(netstate.Host(want.Dst)), c, fix)
}

// sysctl tells the parameters apart that have a name of their own.
func (d drift) sysctl(want netstate.Sysctl, c netstate.Change) (Finding, bool) {
	id := "sysctl"
	switch {
	case want.Name == "net/ipv4/ip_forward" || want.Name == "net/ipv6/conf/all/forwarding":
		id = "ip-forward-off"
	case strings.HasSuffix(want.Name, "/rp_filter"):
		// 0 lets packets pass as well as 2 does.
		if was, ok := c.Was.(netstate.Sysctl); ok && was.Value == "0" && d.Sysctls["net/ipv4/conf/all/rp_filter"] == "0" {
			return Finding{}, false
		}
		id = "rp-filter"
	}
	return evidence(id, want.Name, c, fmt.Sprintf("sysctl -w %s=%s", want.Name, want.Value)), true
}

func (d drift) chain(want netstate.Chain, c netstate.Change) Finding {
	id := "forward-rules"
	switch want.Role {
	case netstate.Postrouting:
		id = "masquerade-missing"
	case netstate.GuardInput, netstate.GuardForward:
		id = "guard-rules"
	}
	return evidence(id, c.Key().Name, c, "")
}

// leftover is what is there and nobody wants.
func (d drift) leftover(c netstate.Change) (Finding, bool) {
	switch was := c.Was.(type) {
	case netstate.FDB:
		if _, ok := d.moved[was.MAC]; ok {
			return Finding{}, false
		}
	case netstate.Addr:
		if was.Dev == d.Bridge {
			return evidence("bridge-address-foreign", was.Dev, c, fmt.Sprintf("ip addr del %s dev %s", was.Prefix, was.Dev)), true
		}
	case netstate.Chain:
		return evidence("leftover-rules", c.Key().Name, c, ""), true
	case netstate.Route:
		if was.Nth > 0 && d.peers[was.Dst] != "" {
			return evidence("route-altered", d.peer(was.Dst), c, ""), true
		}
	}
	return evidence("leftover-entries", deleted(c.Was), c, ""), true
}

// deleted is the object of a leftover: where it stands.
func deleted(o netstate.Object) string {
	k := o.Key()
	if k.Kind == netstate.KindRoute {
		return k.Prefix.String()
	}
	return k.Name
}
