//go:build soak

package causes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
)

// outcome is what a cause did to packets.
type outcome string

const (
	refused  outcome = "refused"  // by the kernel, or it is the whole machine's
	harmless outcome = "harmless" // all arrive
	repaired outcome = "repaired" // by the agent
	flapping outcome = "flapping" // now these are lost, now others
	toldMTU  outcome = "told"     // senders know that packets are too long for the path: they are not lost
	hurts    outcome = "hurt"     // the same are lost again and again
)

// verdict is what became of a cause.
type verdict struct {
	Number  int     `json:"number"`
	Kind    string  `json:"kind"`
	Lab     string  `json:"lab"`
	Cause   string  `json:"cause"`
	Place   string  `json:"place"`
	Outcome outcome `json:"outcome"`
	Why     string  `json:"why,omitempty"` // it was refused, or what was lost

	opinion         // from outside
	Seen    bool    `json:"seen,omitempty"` // agents have the right to look where it is
	Inside  opinion `json:"inside,omitzero"`
	Through opinion `json:"through,omitzero"`
	Latent  bool    `json:"latent,omitempty"` // packets are lost as soon as neighbours are forgotten

	By     string `json:"by,omitempty"`     // whose advice was followed, if not the doctor's
	Ran    string `json:"ran,omitempty"`    // the commands that were offered
	Misled string `json:"misled,omitempty"` // what these did not do

	Left string  `json:"left,omitempty"` // what undoing left behind
	Took float64 `json:"took"`
}

// settle is how long a cause may take until packets notice it, and healed when an agent has repaired it.
const (
	settle = 300 * time.Millisecond
	cached = 1500 * time.Millisecond
	healed = 3 * time.Second
)

// try injects a cause, looks what it does to packets, asks the doctor, and takes it back.
func (r *run) try(c *cause) verdict {
	v := variants[r.variant]
	t := &trial{run: r, verdict: verdict{Number: c.number, Kind: c.kind, Place: c.place,
		Cause: c.String(), Lab: v.backend + " " + v.family}, began: time.Now()}
	before := processors()
	i, err := inject(r.Context(), r.lab, c)
	t.injected = i
	if err != nil {
		t.Outcome, t.Why = refused, lastLine(err)
	} else {
		t.observe()
		if slices.Contains([]outcome{harmless, hurts, toldMTU}, t.Outcome) {
			t.diagnose()
		}
	}
	t.heal()
	t.Took = time.Since(t.began).Seconds()
	if idle, yes := before.saturated(); yes {
		return verdict{Number: t.Number, Kind: t.Kind, Lab: t.Lab, Cause: t.Cause, Place: t.Place, Outcome: refused,
			Why: fmt.Sprintf("the machine was saturated: %.0f %% idle", 100*idle), opinion: opinion{First: t.First}, Left: t.Left, Took: t.Took}
	}
	return t.verdict
}

// lastLine is the end of an error, without the line that only points to a word.
func lastLine(err error) string {
	lines := strings.Split(err.Error(), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Trim(l, " ^\t") == "" })
	return strings.Join(lines[max(0, len(lines)-2):], " | ")
}

// trial is one cause that was injected.
type trial struct {
	*run
	verdict
	injected *injected
	began    time.Time
}

// observe has packets sent until it is known what the cause does to them.
func (t *trial) observe() {
	made := time.Now()
	matrix := func() losses { return t.oracle.matrix(t.Context(), patience) }
	t.pause(settle)
	first := matrix()
	if len(first) == 0 {
		t.pause(cached - time.Since(made))
		if first = matrix(); len(first) == 0 {
			t.Outcome = harmless
			return
		}
	}
	if t.agentSees() {
		t.pause(healed - time.Since(made))
	} else {
		t.pause(cached - time.Since(made))
	}
	second := matrix()
	third := matrix()
	same := first.both(second).both(third)
	switch {
	case len(same.real()) > 0:
		t.Outcome, t.Why = hurts, same.String()
	case len(same) > 0:
		t.Outcome, t.Why = toldMTU, same.String()
	case len(second.real()) > 0 && len(third.real()) > 0 && t.losesAtRandom():
		t.Outcome, t.Why = hurts, third.String()
	case len(second) == 0 && len(third) == 0 && t.agentSees():
		t.Outcome, t.Why = repaired, first.String()
	default:
		t.Outcome, t.Why = flapping, first.String()
	}
}

// losesAtRandom reports whether some packets are lost, now these and now others, however long their answers may take: on a
// busy machine some come late.
func (t *trial) losesAtRandom() bool {
	for range 2 {
		if len(t.oracle.matrix(t.Context(), 4*patience).real()) == 0 {
			return false
		}
	}
	return true
}

// agentSees reports whether a cause is where an agent may repair it.
func (t *trial) agentSees() bool {
	return slices.ContainsFunc(t.injected.places(), func(p string) bool {
		return p != underlay && !strings.Contains(p,
			"/")
	})
}

// latent reports whether packets are lost when neighbours are looked for anew: then the cause was hidden only.
func (t *trial) latent() bool {
	for _, place := range t.world.places() {
		h, err := t.lab.Find(place)
		t.must(err)
		_, err = h.Exec(t.Context(), "ip", "neigh", "flush", "all")
		t.must(err)
	}
	first := t.oracle.matrix(t.Context(), patience)
	t.pause(settle)
	return len(first.both(t.oracle.matrix(t.Context(), patience)).real()) > 0
}

// cutsOff reports whether a pod does not reach the outside, where the other pods do not answer for it.
func (t *trial) cutsOff() bool {
	_, outside := t.lab.Outside()
	return slices.ContainsFunc(t.lab.Pods(), func(p *lab.Pod) bool {
		return slices.ContainsFunc(outside, func(a netip.Addr) bool {
			_, err := p.Ping(t.Context(), host.Ping{To: a, Timeout: patience})
			return err != nil
		})
	})
}

// heal takes the cause back, and makes the lab anew if it is not as it was.
func (t *trial) heal() {
	err := t.injected.undo(t.Context())
	t.Left = t.left()
	if err != nil && t.Left == "" && t.Outcome == harmless && t.agentSees() {
		t.Outcome, t.False, t.Inside.False, t.Through.False = repaired, false, false, false // there was nothing to take back any more
	} else if err != nil && t.Left == "" && t.Ran == "" && t.Outcome != refused && t.Outcome != harmless {
		t.Left = lastLine(err)
	}
	if t.Left == "" && t.Outcome != harmless && t.Outcome != refused {
		if lost := t.awaitHealth(2 * time.Second); len(lost) > 0 {
			t.Left = "lost: " + lost.String()
		}
	}
	if t.Left != "" {
		t.rebuild()
	}
}

// left is the first line in which a place is not as it was.
func (t *trial) left() string {
	for _, place := range t.injected.places() {
		now, err := state(t.Context(), t.lab, place)
		if err != nil {
			return err.Error()
		}
		if d := firstDifference(t.healthy[place], now); d != "" {
			return place + d
		}
	}
	return ""
}

// firstDifference is the first line that only one of two texts has.
func firstDifference(before, after string) string {
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, line := range was {
		if !slices.Contains(is, line) {
			return " lacks: " + line
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			return " has: " + line
		}
	}
	return ""
}

// places are the namespaces that a cause alters.
func (c *cause) places() []string {
	var names []string
	for _, s := range c.steps {
		names = append(names, s.in)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
