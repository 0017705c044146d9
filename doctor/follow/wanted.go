package follow

import (
	"slices"
	"strconv"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate"
)

// Expects returns what Network.Expected is where the facts of nodes are known: what their agents want belongs there.
func Expects(nodes ...doctor.Facts) func(host string, o locate.Object) bool {
	return func(host string, o locate.Object) bool {
		return slices.ContainsFunc(nodes, func(f doctor.Facts) bool { return f.Node == host && IsExpected(f, o) })
	}
}

// IsExpected reports whether the agent of a node wants an object, or wanted it and leaves it.
func IsExpected(f doctor.Facts, o locate.Object) bool {
	return IsWanted(f.Want, o) || IsWanted(f.Left, o)
}

// IsWanted reports whether the agent of a node wants an object to be there as it is.
func IsWanted(want netstate.State, o locate.Object) bool {
	if w, ok := want[o.Key]; ok && isLike(w, o) {
		return true
	}
	for _, w := range want {
		if port, ok := w.(netstate.Port); ok && o.Dev == port.Name && isOfPort(port, o) || hasMTU(w, o) {
			return true
		}
	}
	return false
}

// isLike reports whether an object is what is wanted under its key.
func isLike(w netstate.Object, o locate.Object) bool {
	switch w := w.(type) {
	case netstate.Sysctl:
		return w.Observed(o.Value) == w
	case netstate.Neigh:
		return o.MAC == w.MAC.String()
	case netstate.FDB:
		return true
	case netstate.BridgeFDB:
		return o.Dev == w.Port
	case netstate.Policy:
		return o.Value == strconv.Itoa(w.Priority)
	}
	return false
}

// hasMTU reports whether an object is that a device has the MTU that it is wanted with.
func hasMTU(w netstate.Object, o locate.Object) bool {
	mtu := netstate.MTU(w)
	if port, ok := w.(netstate.Port); ok {
		mtu = port.MTU
	}
	return mtu > 0 && o.Kind == locate.Link && o.Dev == w.Key().Name && o.Is("mtu", strconv.Itoa(mtu))
}

// isOfPort reports whether a pod's port is as the plugin made it in what other ports are not.
func isOfPort(w netstate.Port, o locate.Object) bool {
	switch o.Kind {
	case locate.Link:
		return w.Group() != 0 && o.Is("group", strconv.FormatUint(uint64(w.Group()), 10))
	case locate.BridgePort:
		return o.Bridge == w.Bridge && (w.Hairpin && o.Is("hairpin", "on") || w.Isolated && o.Is("isolated", "on") ||
			w.Locked && (o.Is("locked", "on") || o.Is("learning", "off")))
	}
	return false
}
