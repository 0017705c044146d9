package facts

import (
	"errors"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/netstate"
)

// ofFlannel reports whether the node's agent is flannel's: the leases were given, no agent of Twill's runs, and none has left a
// checkpoint.
func (g *gathering) ofFlannel() bool {
	if g.options.LeaseFile == "" || g.options.Twills || g.Agent.Running {
		return false
	}
	_, err := agent.ReadCheckpoint(g.settings.Checkpoint)
	return errors.Is(err, fs.ErrNotExist)
}

// hasTwills reports whether something in the kernel is what an agent of Twill's wrote, and flannel did not: a marked tunnel, or a
// route of Twill's protocol. Twill's plugin, which marks the bridge, also works with flannel.
func hasTwills(have netstate.State) bool {
	for _, o := range have {
		is := false
		switch o := o.(type) {
		case netstate.VXLAN:
			is = o.Marked
		case netstate.Tun:
			is = o.Marked
		case netstate.Tunnel:
			is = o.Marked
		case netstate.Route:
			is = o.Protocol == netstate.Protocol
		}
		if is {
			return true
		}
	}
	return false
}

// forwarding are the parameters that nodes of flannel need, too.
var forwarding = []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"}

// flannels returns what flannel should have written and has not: the part of the plan that is about devices of the overlay, their
// addresses, and the entries of peers. The bridge is its CNI plugin's, and Twill's rules and other parameters are no business of it.
func flannels(want, have netstate.State, bridge string) netstate.Plan {
	written := []netstate.Kind{netstate.KindLink, netstate.KindAddr, netstate.KindRoute, netstate.KindNeigh, netstate.KindFDB}
	return slices.DeleteFunc(netstate.Diff(want, alike(have)), func(c netstate.Change) bool {
		if s, ok := c.Want.(netstate.Sysctl); ok {
			return !slices.Contains(forwarding, s.Name)
		}
		return c.Want == nil || !slices.Contains(written, c.Key().Kind) || deviceOf(c.Want) == bridge
	})
}

// deviceOf returns the device that an object is of, or is.
func deviceOf(o netstate.Object) string {
	if r, ok := o.(netstate.Route); ok { // others have it for a name
		return r.Dev
	}
	return o.Key().Name
}

// alike returns flannel's objects with what Twill would have given them that changes no packet: the mark of a device, and the
// protocol of a route.
func alike(have netstate.State) netstate.State {
	all := netstate.State{}
	for _, o := range have {
		switch o := o.(type) {
		case netstate.VXLAN:
			o.Marked = true
			all.Add(o)
		case netstate.Tun:
			o.Marked = true
			all.Add(o)
		case netstate.Tunnel:
			o.Marked = true
			all.Add(o)
		case netstate.Route:
			if o.Protocol == unix.RTPROT_BOOT { // of routes that name none
				o.Protocol = netstate.Protocol
			}
			all.Add(o)
		default:
			all.Add(o)
		}
	}
	return all
}
