//go:build soak

package drift

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/host"
	"github.com/twill-net/twill/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// Within announced what the kernel announces is repaired; within polled what it does not.
const (
	announced = time.Second
	polled    = 5 * time.Second
)

// labs are the labs of a run. The time is divided among them.
var labs = []struct{ backend, family, firewall string }{
	{"vxlan", lab.Dual, "nftables"},
	{"vxlan", lab.Dual, "iptables"},
	{"host-gw", lab.Dual, "nftables"},
	{"wireguard", lab.Dual, "nftables"},
	{"udp", lab.Dual, "iptables"},
}

// TestDrift alters what is the agent's for DRIFT_TIME (10m). DRIFT_SEED repeats a run; DRIFT_LAB chooses a lab by its name;
// DRIFT_MOVE alters only attributes whose name contains it.
func TestDrift(t *testing.T) {
	seed, limit := uint64(time.Now().Unix()), 10*time.Minute
	var err error
	if s := os.Getenv("DRIFT_SEED"); s != "" {
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("DRIFT_SEED is %q: want a number", s)
		}
	}
	if s := os.Getenv("DRIFT_TIME"); s != "" {
		if limit, err = time.ParseDuration(s); err != nil {
			t.Fatalf("DRIFT_TIME is %q: want a duration, like 10m", s)
		}
	}
	t.Logf("DRIFT_SEED=%d", seed)
	program := filepath.Join(t.TempDir(), "twillctl")
	if out, err := exec.Command("go", "build", "-trimpath", "-o", program, "github.com/twill-net/twill/cmd/twillctl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, l := range labs {
		name := fmt.Sprintf("%s-%s", l.backend, l.firewall)
		if only := os.Getenv("DRIFT_LAB"); only != "" && only != name {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := &run{T: t, random: rand.New(rand.NewPCG(seed, uint64(i))), program: program, rows: map[string]*row{}}
			conf := fmt.Sprintf(`{"EnableIPv6": true, "Network": "10.244.0.0/16", "IPv6Network": "fc00:0::/48", "EnableNFTables": %t, "Backend": {"Type": %q}}`,
				l.firewall == "nftables", l.backend)
			r.spec = lab.Spec{Name: "drift", Nodes: 2, Pods: 2, Backend: l.backend, Family: l.family, Store: lab.File, NetConf: []byte(conf)}
			share := limit / time.Duration(len(labs))
			if os.Getenv("DRIFT_LAB") != "" {
				share = limit
			}
			r.fuzz(share)
		})
	}
}

// outcome is what became of a move.
type outcome string

const (
	refused  outcome = "refused"   // by the kernel
	nothing  outcome = "no effect" // altered nothing that anybody reports
	healed   outcome = "repaired"
	named    outcome = "named" // by the doctor's first finding
	harmless outcome = "stays" // and no packet is lost
	hurts    outcome = "HURTS" // and nobody names it
)

type row struct {
	count   map[outcome]int
	slowest time.Duration
	example string
}

type run struct {
	*testing.T
	random  *rand.Rand
	program string
	spec    lab.Spec
	lab     *lab.Lab
	node    *lab.Node
	healthy state
	rows    map[string]*row
	moves   int
}

func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// up brings up a fresh lab.
func (r *run) up() {
	r.Helper()
	if r.lab != nil {
		r.must(r.lab.Down())
	}
	r.lab = labtest.Up(r, r.spec)
	r.node = r.lab.Nodes()[0]
	r.settle()
}

// settle waits until nothing changes any more, and takes what it sees for health.
func (r *run) settle() {
	r.Helper()
	for last, deadline := (state)(nil), time.Now().Add(20*time.Second); ; {
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

func (r *run) pause(d time.Duration) {
	select {
	case <-r.Context().Done():
	case <-time.After(d):
	}
}

func (r *run) look() state {
	r.Helper()
	_, devices, err := find(r.Context(), r.node)
	r.must(err)
	s, err := look(r.Context(), r.node, devices)
	r.must(err)
	return s
}

func (r *run) fuzz(limit time.Duration) {
	r.up()
	only := os.Getenv("DRIFT_MOVE")
	for began := time.Now(); time.Since(began) < limit && r.Context().Err() == nil; {
		objects, _, err := find(r.Context(), r.node)
		r.must(err)
		m := draw(r.random, objects)
		if only != "" && !strings.Contains(m.attr, only) {
			continue
		}
		r.moves++
		r.try(m)
	}
	r.report()
}

// try makes one move, judges what comes of it, and takes it back.
func (r *run) try(m move) {
	plans := r.plans()
	if out, err := r.shell(m.do); err != nil {
		r.book(m, refused, 0, strings.TrimSpace(out+" "+err.Error()))
		r.restore(m)
		return
	}
	began := time.Now()
	altered := false
	var left []string
	for {
		left = diff(r.healthy, r.look())
		took := time.Since(began)
		switch {
		case len(left) == 0 && altered:
			r.book(m, healed, took, "")
			r.unharmed(m)
			return
		case len(left) == 0 && r.plans() > plans: // before anybody could look
			r.book(m, healed, took, "")
			r.unharmed(m)
			return
		case len(left) == 0 && took > announced/2:
			r.book(m, nothing, 0, "")
			r.unharmed(m)
			return
		case len(left) > 0:
			altered = true
		}
		if took > polled {
			break
		}
		r.pause(50 * time.Millisecond)
	}
	r.judge(m, left)
	r.restore(m)
}

// judge decides about what is not repaired: do packets get lost, and does the doctor name it?
func (r *run) judge(m move, left []string) {
	lost := r.lost()
	finding, title := r.doctor()
	what := strings.Join(left, "\n      ")
	switch {
	case lost == "" && finding == "":
		r.book(m, harmless, 0, what)
	case lost == "":
		r.book(m, named, 0, title+"\n      "+what)
	case finding != "":
		r.book(m, named, 0, lost+"; "+title+"\n      "+what)
	default:
		r.book(m, hurts, 0, lost+"\n      "+what)
		r.Errorf("%s\n   %s, and the doctor finds nothing\n      %s", m, lost, what)
	}
}

// unharmed fails when packets are lost although everything looks as before.
func (r *run) unharmed(m move) {
	for deadline := time.Now().Add(announced); ; {
		lost := r.lost()
		if lost == "" {
			return
		}
		if time.Now().After(deadline) {
			r.book(m, hurts, 0, lost)
			r.Errorf("%s\n   %s, though everything reported is as it was", m, lost)
			r.restore(m)
			return
		}
	}
}

// restore takes a move back; where that does not suffice it makes a new lab.
func (r *run) restore(m move) {
	out, err := r.shell(m.undo)
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); r.pause(100 * time.Millisecond) {
		if len(diff(r.healthy, r.look())) == 0 && r.lost() == "" {
			return
		}
	}
	r.Logf("%s: cannot be taken back (%s %v): a new lab", m, strings.TrimSpace(out), err)
	r.up()
}

// plans returns how often the node's agent has written to the kernel.
func (r *run) plans() int {
	log, err := os.ReadFile(r.node.Log())
	r.must(err)
	return strings.Count(string(log), `msg="applied a plan"`)
}

func (r *run) shell(command string) (string, error) {
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	var out strings.Builder
	err := r.node.Attach(ctx, strings.NewReader(""), &out, &out, "sh", "-c", command)
	return out.String(), err
}

// lost sends packets of both sizes between all pods, and returns who did not hear from whom, empty if all did.
func (r *run) lost() string {
	var bad []string
	for _, from := range r.lab.Pods() {
		mtu, err := from.MTU()
		if err != nil {
			return err.Error()
		}
		for _, to := range r.lab.Pods() {
			if from == to || from.ID() == to.ID() || from.Node.Name != r.node.Name && to.Node.Name != r.node.Name {
				continue
			}
			for _, addr := range to.Addrs {
				for _, size := range []int{0, mtu} {
					if _, err := from.Ping(r.Context(), host.Ping{To: addr, Size: size, DontFragment: size > 0, Timeout: 300 * time.Millisecond}); err != nil {
						bad = append(bad, fmt.Sprintf("%s to %s %s size %d: %v", from.ID(), to.ID(), addr, size, err))
						if len(bad) > 3 {
							return strings.Join(bad, ", ") + " …"
						}
						break
					}
				}
			}
		}
	}
	return strings.Join(bad, ", ")
}

// doctor returns the identifier and the title of its first finding.
func (r *run) doctor() (id, title string) {
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
	defer cancel()
	out, _ := r.node.Exec(ctx, r.program, "doctor", "-o", "json") // exits 1 with findings
	var report struct {
		Findings []struct{ ID, Title, Object string }
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return "", "doctor: " + err.Error()
	}
	if len(report.Findings) == 0 {
		return "", ""
	}
	f := report.Findings[0]
	return f.ID, f.ID + ": " + f.Title + " (" + f.Object + ")"
}

func (r *run) book(m move, o outcome, took time.Duration, example string) {
	kind, _, _ := strings.Cut(m.object, " ")
	key := kind + ": " + m.attr
	if r.rows[key] == nil {
		r.rows[key] = &row{count: map[outcome]int{}}
	}
	w := r.rows[key]
	w.count[o]++
	w.slowest = max(w.slowest, took)
	if example != "" && (w.example == "" || o == hurts) {
		w.example = m.do + "\n      " + example
	}
	r.Logf("%-9s %6d ms  %s", o, took.Milliseconds(), m)
	if o == harmless || o == hurts {
		r.Logf("      %s", example)
	}
}

func (r *run) report() {
	var b strings.Builder
	total := map[outcome]int{}
	for _, key := range slices.Sorted(maps.Keys(r.rows)) {
		w := r.rows[key]
		fmt.Fprintf(&b, "%-40s", key)
		for _, o := range []outcome{refused, nothing, healed, named, harmless, hurts} {
			if n := w.count[o]; n > 0 {
				fmt.Fprintf(&b, " %s %d", o, n)
				total[o] += n
			}
		}
		if w.slowest > 0 {
			fmt.Fprintf(&b, " (%d ms)", w.slowest.Milliseconds())
		}
		b.WriteByte('\n')
	}
	r.Logf("%d moves: %v\n%s", r.moves, total, b.String())
}
