package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/internal/shell"
	"github.com/twill-net/twill/netstate"
)

// Finding is one thing that is wrong on a node.
type Finding struct {
	ID       string   `json:"id"`       // of the catalogue
	Title    string   `json:"title"`    // one sentence: what is wrong
	Place    string   `json:"place"`    // the host: node1, node1/pod1 for a pod, underlay
	Object   string   `json:"object"`   // what it is about: a peer, a device, a file
	Expected string   `json:"expected"` // what should be
	Actual   string   `json:"actual"`   // what is
	Why      string   `json:"why"`      // why it hurts
	Fix      string   `json:"fix"`      // how it is fixed, for people
	Page     string   `json:"page"`     // in the documentation
	Severity Severity `json:"severity"`
	Count    int      `json:"count"` // how many objects it is about
	// Command fixes it as it stands here, in a shell; empty: no single one does.
	Command string `json:"command,omitempty"`
	// Likely reports whether lost packets themselves speak for the object, and not only the place where they end.
	Likely bool     `json:"likely,omitempty"`
	More   []string `json:"more,omitempty"`

	peer   string          // the peer that it is about, empty if it is about no peer
	port   string          // likewise the port of a pod
	addrs  []netip.Addr    // likewise the addresses of a pod without a port
	family netstate.Family // likewise the only family that it concerns
}

// kind returns the entry of the catalogue.
func (f Finding) kind() kind { return kind(f.ID) }

// exam is an examination of one node.
type exam struct {
	Facts
	found []Finding
}

// find adds a finding, with the command that fixes it. Without one, the fix is what the catalogue says of the kind.
func (e *exam) find(k kind, object, expected, actual, command string) *Finding {
	c := catalogue[k]
	if c.Fix == heals {
		c.Fix = e.heals()
	}
	if command = harmless(command); e.OfFlannel && e.Lease.Guessed {
		command = "" // an option that is not known may be why it differs
	}
	e.found = append(e.found, Finding{ID: c.ID, Title: c.Title, Object: object, Expected: expected, Actual: actual,
		Why: c.Why, Fix: cmp.Or(command, c.Fix), Command: command, Page: k.page(), Severity: c.Severity, Count: 1})
	return &e.found[len(e.found)-1]
}

// heals is the fix of what the node's agent writes.
func (e *exam) heals() string {
	if e.OfFlannel {
		return flannelHeals
	}
	return heals
}

// harmless returns a command, or nothing if a shell would run more than it: devices and rules have the names that others
// gave them. A pod that gets a NIC can name it, and when the pod ends the NIC is the node's.
func harmless(command string) string {
	if !shell.IsPlain(command) {
		return ""
	}
	return command
}

// findPeer adds a finding about a peer.
func (e *exam) findPeer(k kind, peer, expected, actual, command string) *Finding {
	f := e.find(k, "peer "+peer, expected, actual, command)
	f.peer = peer
	return f
}

// says replaces the fix by one for people, unless it is empty. It is no command.
func (f *Finding) says(fix string) { f.Fix, f.Command = cmp.Or(fix, f.Fix), "" }

// Check returns everything that is wrong, the likeliest cause first. Findings of one kind are merged.
func Check(f Facts) []Finding { return merge(checkAll(f)) }

// checkAll is Check without merging.
func checkAll(f Facts) []Finding {
	e := exam{Facts: f}
	for _, check := range []func(*exam){(*exam).checkLease, (*exam).checkUnderlay, (*exam).checkDrift, (*exam).checkSkips,
		(*exam).checkSharedUnderlay, (*exam).checkPaths, (*exam).checkOutside, (*exam).checkOverlaps, (*exam).checkForwarding,
		(*exam).checkFirewall, (*exam).checkQdiscs, (*exam).checkPods, (*exam).checkKept, (*exam).checkMarks,
		(*exam).checkPodNeighbours, (*exam).checkCutOff, (*exam).checkEnv, (*exam).checkCNI, (*exam).checkReservations,
		(*exam).checkAgent, (*exam).checkAPI, (*exam).checkHost, (*exam).checkPolicies, (*exam).checkFastPath,
		(*exam).checkProbes} {
		check(&e)
	}
	slices.SortStableFunc(e.found, func(a, b Finding) int { return cmp.Compare(a.kind().rank(), b.kind().rank()) })
	return e.found
}

// maxShown is how many of one kind's objects a finding lists.
const maxShown = 5

// merge makes one finding of those of the same kind: a thousand missing routes have one cause.
func merge(all []Finding) []Finding {
	var merged []Finding
	for _, f := range all {
		last := len(merged) - 1
		if last < 0 || merged[last].ID != f.ID {
			merged = append(merged, f)
			continue
		}
		m := &merged[last]
		m.Count += f.Count
		if len(m.More) < maxShown {
			m.More = append(m.More, f.evidence())
		}
	}
	return merged
}

// evidence returns the finding's object and its states as one line.
func (f Finding) evidence() string {
	text := f.Object
	if f.Actual != "" {
		text += ": " + f.Actual
	}
	if f.Expected != "" {
		text += fmt.Sprintf(" (expected %s)", f.Expected)
	}
	return text
}
