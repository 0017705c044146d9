//go:build soak

package drift

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Within announced what the kernel announces is repaired; within polled what it does not.
const (
	announced = time.Second
	polled    = 5 * time.Second
)

// quiet is how long after a move that altered nothing a repair may still be logged, and how long something free must
// stay before it is believed that the rest was repaired.
const quiet = 150 * time.Millisecond

// mostLines is how many lines a move may add to the agent's log.
const mostLines = 4

// trial is one move that was made.
type trial struct {
	*run
	move      move
	began     time.Time
	made      time.Time     // the move's command ended
	announced bool          // by the kernel, to whom listens
	altered   bool          // it was seen to have altered something
	dirty     time.Duration // when it was last seen not to be repaired
	log       int64         // its size before
	marks     []mark
}

// verdict is what became of a move.
type verdict struct {
	outcome
	took      time.Duration // to the repair
	announced bool
	why       string
}

// try makes one move, judges what comes of it, and takes it back.
func (r *run) try(m move) {
	v := r.attempt(m)
	if v.outcome == late { // perhaps the machine was busy
		v = r.attempt(m)
	}
	r.book(m, v)
}

func (r *run) attempt(m move) verdict {
	t := trial{run: r, move: m, log: r.logSize(), marks: r.marks()}
	seen := r.events.count(m.entry())
	t.began = time.Now()
	out, err := r.alter(m)
	t.made = time.Now()
	if err != nil && len(diff(r.healthy, r.look())) == 0 {
		return verdict{outcome: refused, why: strings.TrimSpace(out + " " + err.Error())}
	}
	t.announced = m.kind() == "file" || r.events.count(m.entry()) > seen
	v := t.wait()
	v.announced = t.announced
	if v.outcome == named {
		ran, misled := t.follow()
		if v.why += describe("the doctor's commands", ran); misled != "" {
			v.outcome, v.why = misleads, v.why+describe("they do not heal", []string{misled})
		}
	}
	if slices.Contains(failures, v.outcome) && v.outcome != noisy {
		v.why += describe("the agent's log", t.lines())
	}
	switch v.outcome {
	case repaired, nothing, late, harms, noisy:
		r.restore(m, m.leaves != "", func() (string, error) { return r.shell(m.leaves) })
	default:
		r.restore(m, true, func() (string, error) { return r.undo(m) })
	}
	return v
}

// limit is within which the move has to be repaired.
func (t *trial) limit() time.Duration {
	if t.announced {
		return patient(announced)
	}
	return patient(polled)
}

// patient returns a longer time where the machine is busy.
func patient(d time.Duration) time.Duration {
	return time.Duration(float64(d) * min(max(load(), 1), 3))
}

// load returns how many processes want each processor.
func load() (load float64) {
	data, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, _ = fmt.Sscan(string(data), &load)
	}
	return load / float64(runtime.NumCPU())
}

// wait looks until the move is repaired, has altered nothing but what is free, or the time is over.
func (t *trial) wait() verdict {
	for {
		began := time.Since(t.began)
		left := diff(t.healthy, t.look())
		took := time.Since(t.began)
		if len(left) > 0 {
			t.altered, t.dirty = true, began
		}
		rest := bound(left)
		switch {
		case len(left) == 0 && (t.altered || len(t.repairs()) > 0):
			return t.afterRepair(min(took, max(t.dirty, t.logged(took))))
		case len(left) == 0 && time.Since(t.made) > quiet:
			return t.unharmed(nothing)
		case len(left) > 0 && len(rest) == 0 && time.Since(t.made) > quiet:
			return t.unharmed(free)
		case took > t.limit():
			return t.judge(rest)
		}
		t.pause(5 * time.Millisecond)
	}
}

// unharmed returns the outcome if no packets are lost.
func (t *trial) unharmed(o outcome) verdict {
	lost := t.dead()
	if lost == "" {
		return verdict{outcome: o}
	}
	if id, title := t.doctorDuring(func() { t.lost() }); id != "" {
		return verdict{outcome: named, why: title}
	}
	return verdict{outcome: hurts, why: lost + ", though all that is reported is as it was, or free"}
}

// afterRepair judges a repair: was it in time, are packets lost now, were those lost that have nothing to do with the
// move, and has the log too many lines?
func (t *trial) afterRepair(took time.Duration) verdict {
	v := t.unharmed(repaired)
	if v.outcome != repaired {
		return v
	}
	v.took = took
	if took > t.limit() {
		return verdict{outcome: late, why: fmt.Sprintf("repaired after %d ms", took.Milliseconds())}
	}
	if harmed := t.bystanders(t.marks, t.move.scope); harmed != "" {
		return verdict{outcome: harms, why: harmed}
	}
	if lines := t.lines(); len(lines) > mostLines {
		return verdict{outcome: noisy, why: describe(fmt.Sprintf("%d lines", len(lines)), lines)}
	}
	return v
}

// judge decides about what is not repaired: do packets get lost, and does the doctor name it?
func (t *trial) judge(left []change) verdict {
	found := make(chan [2]string, 1)
	go func() {
		id, title := t.doctor()
		found <- [2]string{id, title}
	}()
	t.forget()
	lost := t.dead()
	finding := <-found
	what := describe("altered", brief(left))
	switch now := bound(diff(t.healthy, t.look())); {
	case finding[0] != "":
		return verdict{outcome: named, why: finding[1] + what}
	case lost != "":
		return verdict{outcome: hurts, why: lost + what}
	case len(now) == 0:
		return verdict{outcome: late, why: fmt.Sprintf("repaired after more than %d ms%s", t.limit().Milliseconds(), what)}
	}
	return verdict{outcome: stays, why: what}
}

// logged returns when the agent said that it had written the last of the repair, which is earlier than somebody who
// looks can see it.
func (t *trial) logged(seen time.Duration) time.Duration {
	lines := t.repairs()
	if len(lines) == 0 {
		return seen
	}
	word, _, _ := strings.Cut(strings.TrimPrefix(lines[len(lines)-1], "time="), " ")
	at, err := time.Parse(time.RFC3339Nano, word)
	if err != nil {
		return seen
	}
	return max(at.Sub(t.began), 0)
}

// repairs returns the agent's lines about repairs since the move, also those for debugging: it repeats no cause for
// others.
func (t *trial) repairs() []string {
	return slices.DeleteFunc(t.logLines(), func(line string) bool {
		return !strings.Contains(line, `msg="applied a plan"`) && !strings.Contains(line, `msg="put a file back"`)
	})
}

// lines returns what the agent told everybody since the move, without what it says of earlier ones: that they are over.
func (t *trial) lines() []string {
	return slices.DeleteFunc(t.logLines(), func(line string) bool {
		return strings.Contains(line, "level=DEBUG") || strings.Contains(line, `: over"`)
	})
}

func (t *trial) logLines() []string {
	data, err := os.ReadFile(t.node.Log())
	t.must(err)
	return slices.Collect(strings.Lines(string(data[min(int(t.log), len(data)):])))
}

func (r *run) logSize() int64 {
	info, err := os.Stat(r.node.Log())
	r.must(err)
	return info.Size()
}
