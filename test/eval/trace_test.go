package eval

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab/faults"
	"github.com/twill-net/twill/lab/walk"
	"github.com/twill-net/twill/netstate"
)

// pingLimit is how long a packet may take before it is lost, and watchFor how long lost ones are watched.
const (
	pingLimit = 500 * time.Millisecond
	watchFor  = 300 * time.Millisecond
)

// halt is where a packet of a fault's target ends: by trace, by what was seen of real packets, and the kernel's word.
type halt struct{ trace, seen, kernel string }

// follow traces a packet from a pod of the target to one of the peer. It has to stop, at the place where the
// fault is (ends) and for the fault or what that took with it, when a real one does not arrive, and not to
// stop when it does. A real packet must have been seen as far as the node that trace names, and no node on
// the way may drop it but that one.
func follow(t *testing.T, f faults.Fault, v *faults.Target, near doctor.Facts, got []doctor.Finding) halt {
	t.Helper()
	far := lookAt(t, v.Lab, v.Peer, probing(f))
	if !f.Probe { // a trace asks no peers
		near.Probes, far.Probes = nil, nil
	}
	near.Node, far.Node = v.Node.Name, v.Peer.Name
	src, dst := v.Node.Pods()[0], v.Peer.Pods()[0]
	flow := doctor.Flow{Src: src.Addrs[0], Dst: dst.Addrs[0], From: v.Node.Name, To: v.Peer.Name}
	trace := doctor.Follow(near, far, flow)
	if trace.Stopped != nil && trace.Stopped.Node == v.Peer.Name && trace.Stopped.Finding == cloud.PeerUnrouted {
		// The fault has lasted until the peer's agent missed the route, too. It is right, and hides where the fault is.
		far.Agent.Runner.Troubles = nil
		if again := doctor.Follow(near, far, flow); again.Stopped != nil {
			trace = again
		}
	}
	mustEnd(t, f, v, trace.Stopped)
	ping := func(patience time.Duration) error {
		_, err := src.Ping(t.Context(), host.Ping{To: dst.Addrs[0], Timeout: patience})
		return err
	}
	if trace.Stopped == nil {
		// Peers may follow what the fault wrote for some seconds more, as where two machines publish one lease.
		testwait.Nil(t, fmt.Sprintf("a ping is answered, since trace does not stop: %+v %+v", trace.Forward, trace.Back),
			func() error { return ping(pingLimit) })
		return halt{}
	}
	switch {
	case ping(pingLimit) == nil:
		t.Errorf("the ping is answered, and trace stops: %+v", *trace.Stopped)
		return halt{}
	case !slices.ContainsFunc(got, func(x doctor.Finding) bool { return x.ID == trace.Stopped.Finding }):
		t.Errorf("trace stops at what is not the fault, nor a consequence of it: %+v", *trace.Stopped)
	}
	seen, err := walk.Watch(t.Context(), v.Lab, src, dst, netstate.FamilyOf(src.Addrs[0]), watchFor)
	check(t, err)
	return compare(t, trace, seen)
}

// veth is the name of a pod's device, which is another one in each run.
var veth = regexp.MustCompile(`veth[0-9a-f]+`)

// compare holds the trace against what real packets did: none may be lost before it gets to the node that trace names.
func compare(t *testing.T, trace doctor.Trace, seen doctor.Traffic) halt {
	t.Helper()
	h := halt{trace: trace.Stopped.Node + ", " + trace.Stopped.Place}
	last, lost := seen.Lost()
	if !lost {
		t.Errorf("trace stops, and no packet was lost: %+v", seen)
	}
	h.seen = fmt.Sprintf("%s, %s", last.Host, veth.ReplaceAllString(last.Dev, "veth…"))
	if last.Dev == "" {
		h.seen = "nothing leaves " + last.Host
	}
	if order := []string{"node1/pod1", "node1", "underlay", "node2", "node2/pod1"}; len(trace.Back) == 0 && len(seen.Back) == 0 &&
		slices.Index(order, last.Host) < slices.Index(order, trace.Stopped.Node)-1 {
		t.Errorf("trace stops at %s, and packets were seen last on %s", trace.Stopped.Node, last)
	}
	for _, d := range seen.Drops {
		h.kernel = d.Host + ": " + d.Reason
	}
	return h
}

// stopsTable is where packets end, for the faults that stop them.
func (e *evaluation) stopsTable() string {
	stops := func(r *result) bool {
		return slices.ContainsFunc(slices.Collect(maps.Values(r.stops)), func(s halt) bool { return s.trace != "" })
	}
	if !slices.ContainsFunc(slices.Collect(maps.Values(e.results)), stops) {
		return ""
	}
	var b strings.Builder
	if !e.moved {
		fmt.Fprint(&b, "Where the packets of these faults end: by `trace`, which looks at tables only; by real packets, which were watched\n"+
			"on every device of the way; and by the kernel's own word for dropping them, where it says one. A packet that no\n"+
			"route takes leaves by the default route, and the underlay's router drops it.\n\n")
	}
	fmt.Fprint(&b, "| fault | trace stops at | last seen | the kernel says |\n|---|---|---|---|\n")
	for _, f := range faults.All() {
		r := e.results[f.Name]
		if r == nil {
			continue
		}
		for _, c := range e.columns[:min(2, len(e.columns))] {
			if s, ok := r.stops[c.name]; ok && s.trace != "" {
				fmt.Fprintf(&b, "| %s, %s | %s | %s | %s |\n", r.fault, c.name, s.trace, s.seen, s.kernel)
			}
		}
	}
	return b.String()
}
