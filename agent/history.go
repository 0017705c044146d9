package agent

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Event is something that happened to this node's network.
type Event struct {
	At    time.Time `json:"at"`
	Kind  string    `json:"kind"`            // start, lease, change, repair or error
	Peer  string    `json:"peer,omitempty"`  // whom it is about, if that is one node
	Text  string    `json:"text"`            // one line, for people
	Count int       `json:"count,omitempty"` // how many changes this event stands for; 0: one
	Took  float64   `json:"took,omitempty"`  // milliseconds, of a change or a repair
}

// History is the JSON that /history answers: what the agent remembers.
type History struct {
	Node    string    `json:"node"`
	Since   time.Time `json:"since"`             // nothing older is known
	Dropped int       `json:"dropped,omitempty"` // events that were forgotten, because there were too many
	Events  []Event   `json:"events"`            // oldest first
}

// What the agent remembers at most, and how many leases of one change are events of their own.
const (
	remembered   = time.Hour
	maxEvents    = 1000
	maxLeaseRows = 20
)

// history is a bounded list of events. Any goroutine may ask.
type history struct {
	mu      sync.Mutex
	since   time.Time
	events  []Event // oldest first
	dropped int

	// What only the loop's goroutine knows.
	leases  *subnet.Snapshot // that were compared last
	settled *subnet.Snapshot // for which the kernel was as wanted: what is changed since is repaired
}

// add notes an event now.
func (h *history) add(e Event) {
	e.At, e.Text = time.Now().UTC(), clip(e.Text)
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.events); n > 0 && h.events[n-1].same(e) {
		h.events[n-1].At, h.events[n-1].Count = e.At, max(1, h.events[n-1].Count)+max(1, e.Count)
		return
	}
	old := max(0, len(h.events)+1-maxEvents)
	h.dropped += old
	for old < len(h.events) && e.At.Sub(h.events[old].At) > remembered {
		old++
	}
	h.events = append(slices.Delete(h.events, 0, old), e)
}

// same reports whether an error is the one before again.
func (e Event) same(o Event) bool { return e.Kind == "error" && e.Kind == o.Kind && e.Text == o.Text }

// report returns what is remembered.
func (h *history) report(node string) History {
	h.mu.Lock()
	defer h.mu.Unlock()
	begin := time.Now().Add(-remembered)
	r := History{Node: node, Since: begin.UTC(), Dropped: h.dropped, Events: []Event{}}
	if h.since.After(begin) {
		r.Since = h.since
	}
	for _, e := range h.events {
		if e.At.After(begin) {
			r.Events = append(r.Events, e)
		}
	}
	if h.dropped > 0 && len(r.Events) > 0 {
		r.Since = r.Events[0].At
	}
	return r
}

// start notes that the agent began.
func (h *history) start(backend string) {
	h.mu.Lock()
	h.since = time.Now().UTC()
	h.mu.Unlock()
	h.add(Event{Kind: "start", Text: "the agent started, with the backend " + backend})
}

// follow notes which leases changed.
func (h *history) follow(now *subnet.Snapshot) {
	before := h.leases
	if h.leases = now; before == nil || before == now {
		return
	}
	left := make(map[string]subnet.Lease, len(before.Peers))
	for _, p := range before.Peers {
		left[p.Node] = p
	}
	var events []Event
	for _, p := range now.Peers {
		old, known := left[p.Node]
		delete(left, p.Node)
		switch {
		case !known:
			events = append(events, Event{Kind: "lease", Peer: clip(p.Node), Text: "joined: " + where(p)})
		case !old.Equal(p):
			events = append(events, Event{Kind: "lease", Peer: clip(p.Node), Text: moved(old, p)})
		}
	}
	for _, p := range left {
		events = append(events, Event{Kind: "lease", Peer: clip(p.Node), Text: "left: " + where(p)})
	}
	if !before.Local.Equal(now.Local) {
		events = append(events, Event{Kind: "lease", Text: "this node's own lease: " + where(now.Local)})
	}
	if more := len(events) - maxLeaseRows; more > 0 {
		events = append(events[:maxLeaseRows], Event{Kind: "lease", Text: fmt.Sprintf("%d more leases changed", more), Count: more})
	}
	for _, e := range events {
		h.add(e)
	}
}

// where says what a lease gives to which node.
func where(l subnet.Lease) string {
	text := ""
	for i, s := range l.Stacks {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s at %s", s.Subnet, s.Underlay)
	}
	return text
}

// moved says how a lease changed.
func moved(old, now subnet.Lease) string {
	if was, is := where(old), where(now); was != is {
		return "moved: " + is + ", before " + was
	}
	return "what its backend publishes changed"
}

// applied notes a plan that was written to the kernel. What is changed for leases that the kernel was brought to before
// is a repair: somebody else had changed it.
func (h *history) applied(leases *subnet.Snapshot, plan netstate.Plan, took time.Duration, err error) {
	e := Event{Kind: "change", Text: plan[0].String(), Count: len(plan), Took: float64(took.Microseconds()) / 1000}
	if leases != nil && leases == h.settled {
		e.Kind = "repair"
	}
	if more := len(plan) - 1; more > 0 {
		e.Text = clip(e.Text) + fmt.Sprintf(", and %d more", more)
	} else {
		e.Count = 0
	}
	h.add(e)
	if err != nil {
		_, first := firstError(err)
		h.add(Event{Kind: "error", Text: first})
	}
}
