package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/twill-net/twill/subnet"
)

// Trip is a packet's way between two pods and its reply's, over the nodes whose facts there are.
type Trip struct {
	Schema int    `json:"schema"`
	Src    string `json:"src"`
	Dst    string `json:"dst"`
	There  []Step `json:"there"`
	Back   []Step `json:"back,omitempty"` // empty when the packet did not arrive
	// Stopped is the step that stops it; nil: nothing that was seen does.
	Stopped *Step `json:"stopped,omitempty"`
	Live    *Live `json:"live,omitempty"` // with --live: what became of real packets
}

// Trace follows a packet over the facts of its two nodes (which can be the same), and the reply if it arrives.
func Trace(from, to Facts, j Journey) Trip {
	t := Trip{Schema: Schema, Src: j.Src.String(), Dst: j.Dst.String()}
	var stopped bool
	for _, part := range []struct {
		to    *[]Step
		steps []Step
	}{{&t.There, Leave(from, j)}, {&t.There, Arrive(to, j)}, {&t.Back, Leave(to, j.Back())}, {&t.Back, Arrive(from, j.Back())}} {
		*part.to = append(*part.to, part.steps...)
		if t.Stopped, stopped = last(part.steps); stopped {
			return t
		}
	}
	return t
}

// last is the last step, if the packet stops there.
func last(steps []Step) (*Step, bool) {
	if len(steps) == 0 {
		return nil, false
	}
	s := steps[len(steps)-1]
	if s.Stops == "" || strings.HasPrefix(s.Stops, soft) {
		return nil, false
	}
	return &s, true
}

// WriteJSON renders the trip for programs.
func (t Trip) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(t)
}

// WriteText renders the trip for people: a line for each place.
func (t Trip) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s → %s\n", t.Src, t.Dst)
	writeSteps(&b, t.There)
	if len(t.Back) > 0 {
		fmt.Fprintf(&b, "%s → %s, the reply\n", t.Dst, t.Src)
		writeSteps(&b, t.Back)
	}
	if t.Stopped == nil {
		fmt.Fprintln(&b, "✓ nothing that can be seen stops it")
	} else {
		fmt.Fprintf(&b, "✗ stops at %s, %s: %s\n  fix: %s\n  more: Documentation/doctor/%s.md\n", t.Stopped.Node, t.Stopped.Place, t.Stopped.Stops,
			or(t.Stopped.Fix, "see there"), t.Stopped.Finding)
	}
	if t.Live != nil {
		t.Live.write(&b, t.Src, t.Dst)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Trouble says whether a packet does not get through, or did not.
func (t Trip) Trouble() bool { return t.Stopped != nil || t.Live != nil && t.Live.Trouble() }

func writeSteps(b *strings.Builder, steps []Step) {
	for _, s := range steps {
		mark := "  "
		switch {
		case strings.HasPrefix(s.Stops, soft):
			mark = "! "
		case s.Stops != "":
			mark = "✗ "
		}
		fmt.Fprintf(b, "%s%-8s %-26s %s\n", mark, s.Node, s.Place, s.Entry)
	}
}

// TraceHere is Trace where the facts of one node are all there is: what the other would do is not seen.
func TraceHere(f Facts, j Journey) Trip {
	t := Trip{Schema: Schema, Src: j.Src.String(), Dst: j.Dst.String()}
	if f.Node == j.From {
		t.There, t.Back = Leave(f, j), Arrive(f, j.Back())
	} else {
		t.There, t.Back = Arrive(f, j), Leave(f, j.Back())
	}
	if s, stopped := last(t.There); stopped {
		t.Stopped, t.Back = s, nil
	} else if s, stopped := last(t.Back); stopped {
		t.Stopped = s
	}
	return t
}

// HolderOf is the node whose lease has the address, empty if none has.
func (f Facts) HolderOf(a netip.Addr) string {
	for _, l := range append([]subnet.Lease{f.Lease.Snapshot.Local}, f.Lease.Snapshot.Peers...) {
		for _, s := range l.Stacks {
			if s.Subnet.Contains(a) {
				return l.Node
			}
		}
	}
	return ""
}
