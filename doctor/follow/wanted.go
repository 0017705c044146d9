package follow

import (
	"strings"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate"
)

// IsWanted reports whether the agent of a node wants an object to be there as it is.
func IsWanted(want netstate.State, o locate.Object) bool {
	text := strings.ToLower(o.Text)
	for _, w := range want {
		switch w := w.(type) {
		case netstate.Sysctl:
			value, ok := strings.CutPrefix(text, dotted(w.Name)+" = ")
			if o.Kind == locate.Sysctl && ok && w.Observed(value) == w {
				return true
			}
		case netstate.Neigh:
			if o.Kind == locate.Neighbour && o.Dev == w.Dev && strings.HasPrefix(text, w.IP.String()+" ") &&
				strings.Contains(text, w.MAC.String()) {
				return true
			}
		case netstate.FDB:
			if o.Kind == locate.FDB && o.Dev == w.Dev && strings.Contains(text, w.MAC.String()) &&
				strings.Contains(text, w.Dst.String()) {
				return true
			}
		}
	}
	return false
}

// swap writes a sysctl's path as sysctl(8) does: a dot in a device's name becomes a slash.
var swap = strings.NewReplacer("/", ".", ".", "/")

func dotted(path string) string { return strings.ToLower(swap.Replace(path)) }
