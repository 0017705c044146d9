//go:build soak

package drift

import (
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// labs are the labs of a run. The time is divided among them.
var labs = []struct{ backend, firewall string }{
	{"vxlan", "nftables"},
	{"vxlan", "iptables"},
	{"host-gw", "nftables"},
	{"wireguard", "nftables"},
	{"udp", "iptables"},
}

// options are what the environment asks for.
type options struct {
	seed   uint64
	limit  time.Duration
	lab    string // one of them only
	number int    // that move only, if not 0
	known  bool   // those that cases_test.go lists
	only   *regexp.Regexp
}

func readOptions(t *testing.T) options {
	o := options{seed: uint64(time.Now().Unix()), limit: 10 * time.Minute, lab: os.Getenv("DRIFT_LAB")}
	only := os.Getenv("DRIFT_MOVE")
	var err error
	if o.only, err = regexp.Compile(only); err != nil {
		t.Fatalf("DRIFT_MOVE is %q: want a number or a regular expression: %v", only, err)
	}
	if s := os.Getenv("DRIFT_SEED"); s != "" {
		if o.seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("DRIFT_SEED is %q: want a number", s)
		}
	}
	if s := os.Getenv("DRIFT_TIME"); s != "" {
		if o.limit, err = time.ParseDuration(s); err != nil {
			t.Fatalf("DRIFT_TIME is %q: want a duration, like 10m", s)
		}
	}
	o.known = only == "known"
	if o.number, err = strconv.Atoi(only); err == nil {
		o.only = regexp.MustCompile("")
	}
	return o
}

// TestDrift alters what is the agent's for DRIFT_TIME (10m). DRIFT_SEED repeats a run; DRIFT_LAB chooses a lab by its
// name; DRIFT_MOVE is the number of the one move to make, a regular expression that matches the
// moves to make, or "known" for those that once were not repaired.
func TestDrift(t *testing.T) {
	o := readOptions(t)
	t.Logf("DRIFT_SEED=%d", o.seed)
	program := filepath.Join(labtest.BinDir(t), "twillctl")
	for _, l := range labs {
		name := l.backend + "-" + l.firewall
		if o.lab != "" && o.lab != name {
			continue
		}
		t.Run(name, func(t *testing.T) {
			conf := fmt.Sprintf(`{"EnableIPv6": true, "Network": "10.244.0.0/16", "IPv6Network": "fc00:0::/48",
				"EnableNFTables": %t, "Backend": {"Type": %q}}`, l.firewall == "nftables", l.backend)
			r := &run{T: t, options: o, name: name, program: program, results: results{table{}, map[bool][]time.Duration{}, nil},
				spec: lab.Spec{Name: "drift", Nodes: 3, Pods: 1, Backend: l.backend, Family: lab.Dual, Store: lab.File,
					NetConf: []byte(conf)}}
			share := o.limit
			if o.lab == "" {
				share /= time.Duration(len(labs))
			}
			r.fuzz(share)
		})
	}
}

// run is what happens in one lab.
type run struct {
	*testing.T
	options
	name    string
	program string
	spec    lab.Spec
	lab     *lab.Lab
	node    *lab.Node
	camera  *camera
	events  *events
	flows   []*flow
	space   space
	healthy picture
	results
}

func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// fuzz makes moves until the time is over, or those that were asked for.
func (r *run) fuzz(limit time.Duration) {
	defer r.down()
	r.up()
	began, moves := time.Now(), 0
	for m := range r.moves() {
		if time.Since(began) > limit || r.Context().Err() != nil {
			break
		}
		moves++
		r.try(m)
	}
	if moves == 0 {
		r.Errorf("no move matches %s", r.only)
	}
	r.Logf("%d moves in %s, %.0f a minute\n%s", moves, time.Since(began).Round(time.Second),
		float64(moves)/time.Since(began).Minutes(), r.results)
}

// moves returns the moves to make: those that were asked for, or random ones without end.
func (r *run) moves() iter.Seq[move] {
	switch {
	case r.known:
		return r.knownMoves
	case r.number != 0:
		return slices.Values([]move{r.draw(r.number)})
	case r.only.String() != "":
		return r.matching
	}
	return func(yield func(move) bool) {
		for n := 1; yield(r.draw(n)); n++ {
		}
	}
}

// up brings up a fresh lab: two pods on the node that is altered, and one on each of its two peers.
func (r *run) up() {
	r.Helper()
	r.down()
	spec := labtest.Spec(r.spec)
	_, err := lab.Down(spec.Dir, spec.Name) // what a crashed run left
	r.must(err)
	r.lab, err = lab.Up(r.Context(), spec, nil)
	r.must(err)
	r.node = r.lab.Nodes()[0]
	_, err = r.node.AddPod(r.Context(), "pod2")
	r.must(err)
	pings, err := r.lab.Converge(r.Context(), testwait.Limit)
	r.must(err)
	for _, p := range pings {
		if !p.OK() {
			r.Fatalf("nothing was altered, and %s does not reach %s: %s", p.From, p.To, p.Error)
		}
	}
	r.camera, err = newCamera(r.node)
	r.must(err)
	objects, err := find(r.Context(), r.lab, r.camera)
	r.must(err)
	r.space = newSpace(objects)
	r.events, err = watchEvents(r.node)
	r.must(err)
	r.flows, err = startFlows(r.lab)
	r.must(err)
	r.settle()
	for deadline := time.Now().Add(polled); ; {
		id, title := r.doctor()
		if id == "" {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("nothing was altered, and the doctor finds %s", title)
		}
	}
}

// down ends the lab and what looks at it.
func (r *run) down() {
	if r.lab == nil {
		return
	}
	for _, f := range r.flows {
		f.stream.Close()
	}
	r.flows = nil
	if r.camera != nil {
		r.camera.close()
	}
	if r.events != nil {
		r.events.close()
	}
	if err := r.lab.Down(); err != nil {
		r.Error(err)
	}
	_, _ = exec.Command("ip", "netns", "del", litter+"away").CombinedOutput()
	r.lab, r.camera, r.events = nil, nil, nil
}

// settle waits until nothing changes any more, and takes what it sees for health.
func (r *run) settle() {
	r.Helper()
	for last, deadline := (picture)(nil), time.Now().Add(testwait.Limit); ; {
		now := r.look()
		if last != nil && len(diff(last, now)) == 0 && !now.tentative() {
			r.healthy = now
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("nothing was altered, and the node does not come to rest: %v", diff(last, now))
		}
		last = now
		r.pause(500 * time.Millisecond)
	}
}

func (r *run) look() picture {
	r.Helper()
	p, err := r.camera.take()
	r.must(err)
	return p
}

func (r *run) pause(d time.Duration) {
	select {
	case <-r.Context().Done():
	case <-time.After(d):
	}
}
