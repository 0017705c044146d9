package doctor

import (
	"fmt"
	"slices"

	"github.com/twill-net/twill/backend"
)

// IsOurs reports whether a device is one of Twill's: the bridge, or the backend's.
func (f Facts) IsOurs(dev string) bool { return dev == f.Bridge || f.Want[linkKey(dev)] != nil }

// Carries reports whether pods' packets pass through a device: one of Twill's, a pod's port, or the underlay's.
func (f Facts) Carries(dev string) bool {
	return f.IsOurs(dev) || f.isPort(dev) ||
		slices.ContainsFunc(f.Underlay.Underlays, func(u backend.Underlay) bool { return u.Dev == dev })
}

// checkQdiscs is about queueing disciplines that somebody attached. They are anyone's to attach, so only those that
// drop packets now are findings, and of those of one device the first: what it holds drops with it.
func (e *exam) checkQdiscs() {
	found := ""
	for _, q := range e.Qdiscs {
		if q.Dropped == 0 || q.Dev == found || q.limitsPod() && e.isPort(q.Dev) {
			continue
		}
		found = q.Dev
		f := e.find(qdiscDrops, q.Dev, "no packet dropped",
			fmt.Sprintf("%s %s at %s: %d packets dropped and %d passed while the doctor looked",
				q.Kind, q.Handle, q.Hook, q.Dropped, q.Passed),
			fmt.Sprintf("tc qdisc del dev %s %s", q.Dev, q.Hook))
		f.Fix += ", unless somebody shapes this traffic on purpose"
		if e.isPort(q.Dev) {
			f.port = q.Dev
		}
	}
}

// limitsPod reports whether the discipline is what the plugin bandwidth attaches to the port of a pod that has a limit.
func (q Qdisc) limitsPod() bool { return q.Kind == "tbf" && q.Handle == "1:" && q.Hook == "root" }

// isPort reports whether a device is a pod's port.
func (f Facts) isPort(dev string) bool {
	return slices.ContainsFunc(f.Ports, func(p Port) bool { return p.Name == dev && p.Pod })
}
