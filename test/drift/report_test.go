//go:build soak

package drift

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// outcome is what became of a move.
type outcome string

const (
	refused  outcome = "refused"   // by the kernel
	nothing  outcome = "no effect" // altered nothing that anybody reports
	repaired outcome = "repaired"
	free     outcome = "free"     // by Documentation/drift.md, and no packet is lost
	named    outcome = "named"    // by the doctor's first finding
	late     outcome = "LATE"     // repaired, but not in time
	stays    outcome = "STAYS"    // is in no list, and no packet is lost
	hurts    outcome = "HURTS"    // packets are lost, and nobody names it
	harms    outcome = "HARMS"    // packets were lost that the move has nothing to do with
	noisy    outcome = "NOISY"    // the log has more than a line a cause
	misleads outcome = "MISLEADS" // named, and the command that the doctor offers does not heal
)

var (
	outcomes = []outcome{refused, nothing, repaired, free, named, late, stays, hurts, harms, noisy, misleads}
	failures = outcomes[5:]
)

// table is how often each kind of move had each outcome.
type table map[string]map[outcome]int

// results are those of a run.
type results struct {
	table
	times map[bool][]time.Duration // of repairs, of what is announced and what is not
	fails []string
}

// book writes down an outcome. What fails is printed with the command that makes the move again.
func (r *run) book(m move, v verdict) {
	key := m.kind() + ": " + m.attr
	if r.table[key] == nil {
		r.table[key] = map[outcome]int{}
	}
	r.table[key][v.outcome]++
	if v.outcome == repaired {
		r.times[v.announced] = append(r.times[v.announced], v.took)
	}
	r.Logf("%-9s %6d ms  #%d %s", v.outcome, v.took.Milliseconds(), m.number, m)
	if v.outcome == named {
		r.Logf("          %s", v.why)
	}
	if slices.Contains(failures, v.outcome) {
		again := r.again(m)
		r.fails = append(r.fails, fmt.Sprintf("%s | %s | %s", v.outcome, m, again))
		r.Errorf("%s: %s\n      %s\n      %s", v.outcome, m, v.why, again)
	}
}

// String is the table, then the times of the repairs, and then what failed.
func (r results) String() string {
	var b strings.Builder
	total := map[outcome]int{}
	for _, key := range slices.Sorted(maps.Keys(r.table)) {
		fmt.Fprintf(&b, "%-40s%s\n", key, counts(r.table[key]))
		for o, n := range r.table[key] {
			total[o] += n
		}
	}
	fmt.Fprintf(&b, "%-40s%s\nrepairs of what the kernel announces: %s\nrepairs of what it does not: %s\n",
		"total", counts(total), percentiles(r.times[true]), percentiles(r.times[false]))
	return b.String() + strings.Join(r.fails, "\n")
}

func counts(of map[outcome]int) string {
	var words string
	for _, o := range outcomes {
		if n := of[o]; n > 0 {
			words += fmt.Sprintf(" %s %d", o, n)
		}
	}
	return words
}

func percentiles(times []time.Duration) string {
	if len(times) == 0 {
		return "none"
	}
	slices.Sort(times)
	at := func(p int) int64 { return times[len(times)*p/100].Milliseconds() }
	return fmt.Sprintf("%d, p50 %d ms, p99 %d ms, most %d ms", len(times), at(50), at(99),
		times[len(times)-1].Milliseconds())
}
