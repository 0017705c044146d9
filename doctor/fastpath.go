package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/twill-net/twill/netstate"
)

// FastPath is what this node has of the fast path. That conntrack's parameters are not as it needs them is in the plan.
type FastPath struct {
	Wanted   bool      // by the agent's flags or the network config
	Compared bool      // the plan has its objects
	Devices  []string  // that programs are attached to
	Dir      string    // the BPF file system of its pins; empty: the usual one
	Unpinned bool      // there are no pins of the maps that an agent of this version has
	Deadline time.Time // when they leave all packets to the kernel if no agent extends that; zero: they do
	Paused   time.Time // somebody has them leave all packets to the kernel until then; zero: nobody
	// Fast are packets that took it, and Untracked and Tracked those of which conntrack knew no connection, or not enough of
	// one, since the maps were made.
	Fast, Untracked, Tracked uint64
}

// FastPathStatus is what the agent says of the fast path.
type FastPathStatus struct {
	On     bool
	Why    string            // it is off
	Beside map[string]string // why pods' ports are without it, by their names
}

// fewPackets is how many packets may have been unknown to conntrack before anything is said of it.
const fewPackets = 1000

// checkFastPath is about the fast path as a whole; the plan has its entries and programs.
func (e *exam) checkFastPath() {
	f, says := e.FastPath, e.Agent.FastPath
	attached := "programs on " + strings.Join(f.Devices, " ")
	if f.Wanted && says != nil && !says.On && len(e.Lease.Snapshot.Peers) > 0 {
		e.find(fastPathOff, "the fast path", "on", "off: "+says.Why, "")
	}
	switch {
	case f.Unpinned && says != nil && says.On:
		e.find(fastPathMissing, "the fast path", "pins, by which other programs find it", "no pins of this version's maps", "")
	case len(f.Devices) == 0:
	case !f.Wanted:
		e.find(fastPathOrphan, "the fast path", "none: nobody wants one here", attached, "")
	case f.Deadline.IsZero():
		e.find(fastPathOrphan, "the fast path", "an agent that has them work on", attached+", for which none did in ten minutes", "")
	case f.Paused.IsZero() && f.Fast == 0 && f.Untracked >= fewPackets && f.Tracked < f.Untracked/10:
		// A connection has one packet that is unknown, its first, and others follow that are known.
		e.find(fastPathNoHits, "the fast path", "packets of connections that conntrack knows",
			fmt.Sprintf("%d packets of connections that it does not know", f.Untracked), "")
	}
}

// fastPathState says in a word or two how the fast path does: nothing where nobody wants one.
func (f Facts) fastPathState() string {
	says := f.Agent.FastPath
	switch {
	case !f.FastPath.Wanted:
		return ""
	case says != nil && !says.On, len(f.FastPath.Devices) == 0, f.FastPath.Deadline.IsZero():
		return "off"
	case !f.FastPath.Paused.IsZero():
		return "paused until " + f.FastPath.Paused.Format(time.TimeOnly)
	}
	return "on"
}

// fast adds the finding about a part of the fast path that is missing, or other than it should be.
func (d drift) fast(c netstate.Change) {
	object, k, command := c.Key().Name, changed(fastPathMissing, fastPathAltered, c), ""
	if k == fastPathAltered {
		command = d.FastPath.pause()
	}
	switch o := c.Want.(type) {
	case netstate.Shortcut:
		d.ofPeer(k, o.Dst, c, command)
		d.calm()
		return
	case netstate.PodPort:
		object = o.Addr.String()
	case netstate.Switch:
		object = "the fast path's settings"
	}
	d.drifted(k, object, c, command)
	d.calm()
}

// pause returns the command that has packets take the kernel's own path, empty where they do. Without an agent they do for
// good after ten minutes.
func (f FastPath) pause() string {
	switch {
	case !f.works():
		return ""
	case f.Dir != "":
		return "twillctl fastpath pause 10m --bpffs=" + f.Dir
	}
	return "twillctl fastpath pause 10m"
}

// works reports whether packets may take the fast path.
func (f FastPath) works() bool { return f.Paused.IsZero() && !f.Deadline.IsZero() }

// calm makes the last finding a risk where no packet takes the fast path.
func (d drift) calm() {
	if !d.FastPath.works() {
		d.found[len(d.found)-1].Severity = Risk
	}
}
