//go:build soak

package causes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// aims are what a run must keep in one way of looking: how many of a hundred that hurt, and of a hundred harmless ones.
type aims struct{ place, object, green, alarms float64 }

func aimsOf(way string) aims {
	if way == outside {
		return aims{98, 95, 0, 1}
	}
	return aims{95, 85, 2, 1}
}

// results are what a run has found.
type results struct {
	verdicts []verdict
	rebuilt  int
	log      *os.File
	began    time.Time
	said     time.Time
}

func (r *run) open() {
	r.began, r.said = time.Now(), time.Now()
	if path := os.Getenv("CAUSES_LOG"); path != "" {
		f, err := os.Create(path)
		r.must(err)
		r.log = f
	}
}

func (r *run) close() {
	if r.log != nil {
		r.must(r.log.Close())
	}
}

// book notes a verdict, and says every ten seconds how far the run is.
func (r *run) book(v verdict) {
	r.verdicts = append(r.verdicts, v)
	if r.log != nil {
		r.must(json.NewEncoder(r.log).Encode(v))
	}
	if time.Since(r.said) > 10*time.Second {
		r.said = time.Now()
		s := r.sum("")
		fmt.Printf("%s: %d causes, %d hurt, %d green, %d places and %d objects right, %d false alarms, %d labs made anew\n",
			time.Since(r.began).Round(time.Second), s.drawn, s.hurt, s.green, s.place, s.object, s.alarms, r.rebuilt)
	}
}

// sum is one line of the table.
type sum struct {
	drawn, refused, harmless, repaired, flapping, told, hurt int
	green, place, object, alarms, latent, failed             int
	advised, misled                                          int
	took                                                     []float64 // of the doctor
}

func (r *run) sum(kind string) (s sum) {
	for _, v := range r.verdicts {
		if kind != "" && v.Kind != kind {
			continue
		}
		s.drawn++
		*map[outcome]*int{refused: &s.refused, harmless: &s.harmless, repaired: &s.repaired, flapping: &s.flapping,
			toldMTU: &s.told, hurts: &s.hurt}[v.Outcome]++
		for _, c := range []struct {
			yes   bool
			count *int
		}{{v.Green, &s.green}, {v.Where, &s.place}, {v.What, &s.object}, {v.False, &s.alarms}, {v.Latent, &s.latent},
			{v.Failed != "", &s.failed}, {v.Ran != "", &s.advised}, {v.Misled != "", &s.misled}} {
			if c.yes {
				*c.count++
			}
		}
		if v.Seconds > 0 {
			s.took = append(s.took, v.Seconds)
		}
	}
	slices.Sort(s.took)
	return s
}

func (s sum) cells() []any {
	return []any{s.drawn, s.refused, s.harmless, s.repaired, s.flapping, s.told, s.hurt, s.green, s.place, s.object,
		s.alarms, s.latent, s.failed, s.advised, s.misled, s.percentile(50), s.percentile(95)}
}

func (s sum) percentile(p int) string {
	if len(s.took) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f", s.took[min(len(s.took)*p/100, len(s.took)-1)])
}

// table is the table by kind.
func (r *run) table() string {
	var b strings.Builder
	heads := []string{"kind", "drawn", "refused", "harmless", "repaired", "flapping", "told", "hurt", "green",
		"place right",
		"object right", "false alarms", "latent", "failed", "advised", "misled", "p50 s", "p95 s"}
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(heads, " | "), strings.Repeat("---|", len(heads)))
	for _, k := range kinds {
		fmt.Fprintf(&b, "| %s |%s\n", k.name, row(r.sum(k.name).cells()))
	}
	fmt.Fprintf(&b, "| **all** |%s\n", row(r.sum("").cells()))
	return b.String()
}

func row(cells []any) string {
	var b strings.Builder
	for _, c := range cells {
		fmt.Fprintf(&b, " %v |", c)
	}
	return b.String()
}

// score is how right the doctor was in one way, about what can be seen in it.
type score struct{ hurt, harmless, green, place, object, alarms, failed, unseen int }

func (r *run) score(way, kind string) (s score) {
	for _, v := range r.verdicts {
		switch {
		case kind != "" && v.Kind != kind || v.Outcome != hurts && v.Outcome != harmless:
			continue
		case way != outside && !v.Seen:
			s.unseen++
			continue
		case v.Outcome == hurts:
			s.hurt++
		default:
			s.harmless++
		}
		o := v.by(way)
		for _, c := range []struct {
			yes   bool
			count *int
		}{{o.Green, &s.green}, {o.Where, &s.place}, {o.What, &s.object}, {o.False, &s.alarms}, {o.Failed != "", &s.failed}} {
			if c.yes {
				*c.count++
			}
		}
	}
	return s
}

func (v verdict) by(way string) opinion {
	return map[string]opinion{outside: v.opinion, inside: v.Inside, through: v.Through}[way]
}

// waysTable compares the ways by kind.
func (r *run) waysTable() string {
	var b strings.Builder
	b.WriteString("| kind |")
	for _, w := range ways {
		fmt.Fprintf(&b, " %s: hurt | green | place right | object right | harmless | false alarms | not looked at |", w)
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---|", 7*len(ways)))
	line := func(name, kind string) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, w := range ways {
			s := r.score(w, kind)
			b.WriteString(row([]any{s.hurt, s.green, s.place, s.object, s.harmless, s.alarms, s.unseen}))
		}
		b.WriteByte('\n')
	}
	for _, k := range kinds {
		line(k.name, k.name)
	}
	line("**all**", "")
	return b.String()
}

// missed are the causes that the doctor was wrong about.
func (r *run) missed() string {
	var b strings.Builder
	for _, v := range r.verdicts {
		if v.Misled != "" {
			fmt.Fprintf(&b, "misled (%s): %s: %s\n   %s (%s)\n   lost: %s\n", cmp.Or(v.By, "doctor"), cmp.Or(v.Ran, "nothing was run"),
				v.Misled, v.Cause, v.Lab, v.Why)
		}
		for _, w := range ways {
			if what := v.by(w).wrong(v.Outcome); what != "" && (w == outside || v.Seen) {
				fmt.Fprintf(&b, "%s: %s\n   %s (%s)\n   lost: %s\n   first: %s\n", w, what, v.Cause, v.Lab, v.Why, v.by(w).First)
			}
		}
	}
	return b.String()
}

// wrong says what is wrong with an opinion, and is empty if it is right.
func (o opinion) wrong(about outcome) string {
	switch {
	case o.Failed != "":
		return "failed: " + o.Failed
	case o.False:
		return "false alarm"
	case about != hurts:
	case o.Green:
		return "green"
	case !o.Where:
		return "wrong place"
	case !o.What:
		return fmt.Sprintf("object not named: want one of %q", o.Missing)
	}
	return ""
}

// finish writes what was found, and fails if it is not good enough.
func (r *run) finish() {
	s := r.sum("")
	took := time.Since(r.began)
	head := fmt.Sprintf("CAUSES_SEED=%d: %d causes in %s, %.1f s each; labs made anew: %d\n\n", r.seed, s.drawn,
		took.Round(time.Second), took.Seconds()/float64(max(s.drawn, 1)), r.rebuilt)
	tables := head + r.table() + "\n" + r.waysTable()
	fmt.Printf("%s\n%s", tables, r.missed())
	if path := os.Getenv("CAUSES_TABLE"); path != "" {
		r.must(os.WriteFile(path, []byte(tables), 0o644))
	}
	for _, w := range ways {
		r.check(w)
	}
	if s.misled > 0 {
		r.Errorf("the commands that were offered do not heal %d causes", s.misled)
	}
}

// check fails if the doctor is not good enough in one way.
func (r *run) check(way string) {
	s, a := r.score(way, ""), aimsOf(way)
	percent := func(part, of int) float64 { return 100 * float64(part) / float64(max(of, 1)) }
	if p := percent(s.place, s.hurt); p < a.place && s.hurt > 0 {
		r.Errorf("%s: the place is right for %.1f %% of the causes that hurt, want %.0f %%", way, p, a.place)
	}
	if p := percent(s.object, s.hurt); p < a.object && s.hurt > 0 {
		r.Errorf("%s: the object is right for %.1f %% of the causes that hurt, want %.0f %%", way, p, a.object)
	}
	if p := percent(s.alarms, s.harmless); p > a.alarms {
		r.Errorf("%s: %.1f %% of the harmless causes are false alarms, want at most %.0f %%", way, p, a.alarms)
	}
	if p := percent(s.green, s.hurt); p > a.green {
		r.Errorf("%s: nothing is broken, says the doctor of %.1f %% of the causes that hurt, want at most %.0f %%", way, p, a.green)
	}
	if s.failed > 0 {
		r.Errorf("%s: the doctor failed %d times", way, s.failed)
	}
}
