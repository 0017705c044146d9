package follow

import (
	"fmt"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate"
)

// Expects returns what Network.Expected is where the facts of nodes are known: what their agents want belongs there.
func Expects(nodes ...doctor.Facts) func(host string, o locate.Object) bool {
	return func(host string, o locate.Object) bool {
		return slices.ContainsFunc(nodes, func(f doctor.Facts) bool { return f.Node == host && IsWanted(f.Want, o) })
	}
}

// IsWanted reports whether the agent of a node wants an object to be there as it is.
func IsWanted(want netstate.State, o locate.Object) bool {
	text := strings.ToLower(o.Text)
	for _, w := range want {
		if isLike(w, o, text) || hasMTU(w, o, text) {
			return true
		}
	}
	return false
}

// isLike reports whether an object, with its text in lower case, is what is wanted.
func isLike(w netstate.Object, o locate.Object, text string) bool {
	switch w := w.(type) {
	case netstate.Sysctl:
		value, ok := strings.CutPrefix(text, dotted(w.Name)+" = ")
		return o.Kind == locate.Sysctl && ok && w.Observed(value) == w
	case netstate.Neigh:
		return o.Kind == locate.Neighbour && o.Dev == w.Dev && strings.HasPrefix(text, w.IP.String()+" ") &&
			strings.Contains(text, w.MAC.String())
	case netstate.FDB:
		return o.Kind == locate.FDB && o.Dev == w.Dev && strings.Contains(text, w.MAC.String()) &&
			strings.Contains(text, w.Dst.String())
	case netstate.BridgeFDB:
		return o.Kind == locate.FDB && o.Dev == w.Port && strings.HasPrefix(text, w.MAC.String()+" ") &&
			strings.Contains(text, " master ")
	case netstate.Port:
		return o.Dev == w.Name && slices.Contains(portTexts(w), text)
	case netstate.Policy:
		return o.Kind == locate.IPsec && strings.Contains(text, fmt.Sprintf(" priority %d ", w.Priority)) &&
			strings.HasPrefix(text, fmt.Sprintf("src %s dst %s dir %s ", w.Src, w.Dst, w.Dir))
	}
	return false
}

// hasMTU reports whether an object is that a device has the MTU that it is wanted with.
func hasMTU(w netstate.Object, o locate.Object, text string) bool {
	mtu := netstate.MTU(w)
	if port, ok := w.(netstate.Port); ok {
		mtu = port.MTU
	}
	name := w.Key().Name
	return mtu > 0 && o.Kind == locate.Link && o.Dev == name && text == strings.ToLower(fmt.Sprintf("%s: mtu %d", name, mtu))
}

// portTexts returns what is said of a pod's port that is as the plugin made it, and not as other ports are.
func portTexts(w netstate.Port) (all []string) {
	add := func(set bool, format string, values ...any) {
		if set {
			all = append(all, strings.ToLower(fmt.Sprintf(format, values...)))
		}
	}
	add(w.Group() != 0, "%s: group %d", w.Name, w.Group())
	add(w.Hairpin, "%s of %s: hairpin on", w.Name, w.Bridge)
	add(w.Isolated, "%s of %s: isolated on", w.Name, w.Bridge)
	add(w.Locked, "%s of %s: locked on", w.Name, w.Bridge)
	add(w.Locked, "%s of %s: learning off", w.Name, w.Bridge)
	return all
}

// swap writes a sysctl's path as sysctl(8) does: a dot in a device's name becomes a slash.
var swap = strings.NewReplacer("/", ".", ".", "/")

func dotted(path string) string { return strings.ToLower(swap.Replace(path)) }
