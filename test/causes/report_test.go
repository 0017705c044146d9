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

// The thresholds that a run must keep.
const (
	wantPlace  = 98.0 // of a hundred that hurt
	wantObject = 95.0
	mostFalse  = 1.0 // of a hundred harmless ones
)

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

// missed are the causes that the doctor was wrong about.
func (r *run) missed() string {
	var b strings.Builder
	for _, v := range r.verdicts {
		what := ""
		switch {
		case v.Failed != "":
			what = "failed: " + v.Failed
		case v.False:
			what = "false alarm"
		case v.Misled != "":
			what = fmt.Sprintf("misled (%s): %s: %s", cmp.Or(v.By, "doctor"), cmp.Or(v.Ran, "nothing was run"), v.Misled)
		case v.Outcome != hurts:
		case v.Green:
			what = "green"
		case !v.Where:
			what = "wrong place"
		case !v.What:
			what = fmt.Sprintf("object not named: want one of %q", v.Missing)
		}
		if what != "" {
			fmt.Fprintf(&b, "%s\n   %s (%s)\n   lost: %s\n   first: %s\n", what, v.Cause, v.Lab, v.Why, v.First)
		}
	}
	return b.String()
}

// finish writes what was found, and fails if it is not good enough.
func (r *run) finish() {
	s := r.sum("")
	took := time.Since(r.began)
	head := fmt.Sprintf("CAUSES_SEED=%d: %d causes in %s, %.1f s each; labs made anew: %d\n\n", r.seed, s.drawn,
		took.Round(time.Second), took.Seconds()/float64(max(s.drawn, 1)), r.rebuilt)
	fmt.Printf("%s%s\n%s", head, r.table(), r.missed())
	if path := os.Getenv("CAUSES_TABLE"); path != "" {
		r.must(os.WriteFile(path, []byte(head+r.table()), 0o644))
	}
	percent := func(part, of int) float64 { return 100 * float64(part) / float64(max(of, 1)) }
	if p := percent(s.place, s.hurt); p < wantPlace && s.hurt > 0 {
		r.Errorf("the place is right for %.1f %% of the causes that hurt, want %.0f %%", p, wantPlace)
	}
	if p := percent(s.object, s.hurt); p < wantObject && s.hurt > 0 {
		r.Errorf("the object is right for %.1f %% of the causes that hurt, want %.0f %%", p, wantObject)
	}
	if p := percent(s.alarms, s.harmless); p > mostFalse {
		r.Errorf("%.1f %% of the harmless causes are false alarms, want at most %.0f %%", p, mostFalse)
	}
	if s.green > 0 {
		r.Errorf("nothing is broken, says the doctor of %d causes that hurt", s.green)
	}
	if s.misled > 0 {
		r.Errorf("the commands that were offered do not heal %d causes", s.misled)
	}
	if s.failed > 0 {
		r.Errorf("the doctor failed %d times", s.failed)
	}
}
