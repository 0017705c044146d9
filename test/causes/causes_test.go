//go:build soak

package causes

import (
	"iter"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/test/agents"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// share is how many causes one lab gets before another one comes.
const share = 40

// variants are the labs of a run.
var variants = []struct{ backend, family string }{
	{"vxlan", lab.IPv4}, {"vxlan", lab.Dual}, {"host-gw", lab.IPv4}, {"host-gw", lab.Dual},
}

// options are what the environment asks for.
type options struct {
	seed  uint64
	count int
	only  []int // causes by their numbers; none: all
	kind  *regexp.Regexp
	place *regexp.Regexp
}

func readOptions(t *testing.T) options {
	o := options{seed: uint64(time.Now().Unix()), count: 1000}
	var err error
	if s := os.Getenv("CAUSES_SEED"); s != "" {
		if o.seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("CAUSES_SEED is %q: want a number", s)
		}
	}
	if s := os.Getenv("CAUSES_COUNT"); s != "" {
		if o.count, err = strconv.Atoi(s); err != nil {
			t.Fatalf("CAUSES_COUNT is %q: want a number", s)
		}
	}
	if o.kind, err = regexp.Compile(os.Getenv("CAUSES_KIND")); err != nil {
		t.Fatalf("CAUSES_KIND: want a regular expression: %v", err)
	}
	if o.place, err = regexp.Compile(os.Getenv("CAUSES_PLACE")); err != nil {
		t.Fatalf("CAUSES_PLACE: want a regular expression: %v", err)
	}
	if s := os.Getenv("CAUSES_ONLY"); s != "" {
		if o.only, err = numbers(s); err != nil {
			t.Fatalf("CAUSES_ONLY is %q: want numbers like 3,17,20-29: %v", s, err)
		}
	}
	return o
}

// numbers reads a list like 3,17,20-29.
func numbers(list string) (all []int, err error) {
	for item := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(item, "-")
		from, err := strconv.Atoi(strings.TrimSpace(first))
		to := from
		if err == nil && isRange {
			to, err = strconv.Atoi(strings.TrimSpace(last))
		}
		if err != nil {
			return nil, err
		}
		for n := from; n <= to; n++ {
			all = append(all, n)
		}
	}
	return all, nil
}

// numbers are those of the causes to inject.
func (o options) numbers() iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, n := range o.only {
			if !yield(n) {
				return
			}
		}
		for n := 0; n < o.count && len(o.only) == 0; n++ {
			if !yield(n) {
				return
			}
		}
	}
}

// TestCauses injects CAUSES_COUNT (1000) causes. CAUSES_SEED repeats a run, and CAUSES_ONLY=3,17,20-29 injects some of
// its causes only, CAUSES_KIND=REGEXP those of some kinds, CAUSES_PLACE=REGEXP those in some places. CAUSES_TABLE is a file for the table, CAUSES_LOG one for a
// line of JSON for each cause.
func TestCauses(t *testing.T) {
	o := readOptions(t)
	r := &run{T: t, options: o, program: filepath.Join(labtest.BinDir(t), "twillctl"), variant: -1}
	t.Logf("CAUSES_SEED=%d", o.seed)
	defer r.down()
	r.open()
	defer r.close()
	defer r.finish() // also of a run that ends early
	for n := range o.numbers() {
		if t.Context().Err() != nil {
			break
		}
		if c := newCause(o.seed, n, exampleWorld(), nil); !o.kind.MatchString(c.kind) || !o.place.MatchString(c.place) {
			continue
		}
		r.prepare(n)
		r.book(r.try(newCause(o.seed, n, r.world, nil)))
	}
}

// run is a lab, and what was found in it so far.
type run struct {
	*testing.T
	options
	program string
	cluster []string // the environment in which the lab is one
	variant int
	lab     *lab.Lab
	world   *world
	oracle  *oracle
	healthy map[string]string // the state of each place
	results
}

func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// prepare has a healthy lab of the variant that the cause is for.
func (r *run) prepare(number int) {
	variant := (number/share + int(r.seed%uint64(len(variants)))) % len(variants)
	if r.lab != nil && r.variant == variant {
		return
	}
	r.down()
	r.variant = variant
	r.up()
}

// up brings up a lab.
func (r *run) up() {
	v := variants[r.variant]
	spec := labtest.Spec(lab.Spec{Name: "causes", Backend: v.backend, Family: v.family, Store: lab.File, Nodes: 3,
		Pods: 2})
	spec.Dir = lab.DefaultDir               // where twillctl looks
	_, err := lab.Down(spec.Dir, spec.Name) // what a crashed run left
	r.must(err)
	r.lab, err = lab.Up(r.Context(), spec, nil)
	r.must(err)
	r.cluster, err = agents.Cluster(r.lab, r.program, r.TempDir())
	r.must(err)
	pings, err := r.lab.Converge(r.Context(), testwait.Limit)
	r.must(err)
	for _, p := range pings {
		if !p.OK() {
			r.Fatalf("nothing was injected, and %s does not reach %s: %s", p.From, p.To, p.Error)
		}
	}
	r.world, err = newWorld(r.lab)
	r.must(err)
	r.oracle, err = newOracle(r.Context(), r.lab)
	r.must(err)
	if lost := r.awaitHealth(time.Minute); len(lost) > 0 {
		r.Fatalf("nothing was injected, and packets are lost: %s", lost)
	}
	r.rest()
}

// rest waits until nothing changes any more: IPv6 looks for duplicates of its addresses for a while.
func (r *run) rest() {
	for deadline := time.Now().Add(time.Minute); ; {
		now := r.states()
		if maps.Equal(now, r.healthy) {
			return
		}
		if time.Now().After(deadline) {
			for place, state := range now {
				r.Logf("%s%s", place, firstDifference(r.healthy[place], state))
			}
			r.Fatal("nothing was injected, and the lab does not come to rest")
		}
		r.healthy = now
		r.pause(500 * time.Millisecond)
	}
}

func (r *run) states() map[string]string {
	var mu sync.Mutex
	all := map[string]string{}
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	for _, place := range r.world.places() {
		group.Go(func() error {
			s, err := state(r.Context(), r.lab, place)
			mu.Lock()
			defer mu.Unlock()
			all[place] = s
			return err
		})
	}
	r.must(group.Wait())
	return all
}

// down removes the lab.
func (r *run) down() {
	if r.lab == nil {
		return
	}
	r.oracle.close()
	if err := r.lab.Down(); err != nil {
		r.Error(err)
	}
	r.lab, r.healthy = nil, nil
}

// rebuild makes the lab anew, which is cheaper than to find out what it lacks.
func (r *run) rebuild() {
	r.rebuilt++
	r.down()
	r.up()
}

// awaitHealth returns what is still lost when the time is over, and nothing as soon as nothing is.
func (r *run) awaitHealth(limit time.Duration) losses {
	for deadline := time.Now().Add(limit); ; r.pause(100 * time.Millisecond) {
		lost := r.oracle.matrix(r.Context(), patience)
		if len(lost) == 0 || time.Now().After(deadline) || r.Context().Err() != nil {
			return lost
		}
	}
}

func (r *run) pause(d time.Duration) {
	select {
	case <-r.Context().Done():
	case <-time.After(d):
	}
}
