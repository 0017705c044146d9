// Package eval measures the doctor: every fault of the library is injected into a healthy lab, and the doctor's first
// finding has to be that fault.
package eval

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/facts"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/faults"
	"github.com/twill-net/twill/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// column is a kind of lab that is injured.
type column struct{ name, backend, family string }

// columns are those whose packets the kernel moves, moved those whose packets the agent moves, and clouds those whose packets
// a cloud's router moves.
var (
	columns = []column{{"vxlan", "vxlan", lab.IPv4}, {"host-gw", "host-gw", lab.IPv4}, {"vxlan-ipv6", "vxlan", lab.IPv6}, {"vxlan-dual", "vxlan", lab.Dual}}
	clouds  = []column{{"aws-vpc", "aws-vpc", lab.IPv4}}
	// enforced are those whose agents enforce network policies.
	enforced = []column{{"policies", "vxlan", lab.IPv4}}
	moved    = []column{{"udp", "udp", lab.IPv4}, {"wireguard", "wireguard", lab.IPv4}, {"udp-ipv6", "udp", lab.IPv6}}
)

// everywhere reports whether every fault is injected into the labs of all columns, as TWILL_ALL asks for, and a table. Otherwise
// each is injected into one of them, in turn: the next fault's lab is the next column's.
func everywhere() bool { return os.Getenv("TWILL_ALL") != "" || os.Getenv("TWILL_TABLE") != "" }

// spec is of a lab of that kind.
func (c column) spec(name string) lab.Spec {
	return lab.Spec{Name: name, Backend: c.backend, Family: c.family, Store: lab.File, Nodes: 3, Pods: 2,
		NetworkPolicy: c.name == "policies"}
}

// result is one line of the table.
type result struct {
	fault, says string
	cells       map[string]string // by column
	stops       map[string]halt   // by column
}

// TestFaults injects every fault into a healthy lab while the agent is stopped: into one of the columns' labs, with TWILL_ALL
// into each. With TWILL_TABLE=FILE it does that too, and appends the results to that file.
func TestFaults(t *testing.T) {
	t.Parallel()
	e := evaluation{columns: columns, results: map[string]*result{}}
	for i, c := range columns {
		t.Run(c.name, func(t *testing.T) { e.run(t, fmt.Sprintf("doctor%d", i), c) })
	}
	e.write(t)
}

// TestFaultsOfUserspace is TestFaults for backends whose packets the agent moves.
func TestFaultsOfUserspace(t *testing.T) {
	t.Parallel()
	e := evaluation{columns: moved, results: map[string]*result{}, moved: true}
	for i, c := range moved {
		t.Run(c.name, func(t *testing.T) { e.run(t, fmt.Sprintf("doctorm%d", i), c) })
	}
	e.write(t)
}

// TestFaultsOfClouds is TestFaults for what goes wrong in a cloud's network, as a running agent reports it.
func TestFaultsOfClouds(t *testing.T) {
	t.Parallel()
	e := evaluation{columns: clouds, results: map[string]*result{}, only: "cloud-"}
	for i, c := range clouds {
		t.Run(c.name, func(t *testing.T) { e.run(t, fmt.Sprintf("doctorc%d", i), c) })
	}
	e.write(t)
}

// TestFaultsOfPolicies is TestFaults for what keeps network policies from being enforced.
func TestFaultsOfPolicies(t *testing.T) {
	t.Parallel()
	e := evaluation{columns: enforced, results: map[string]*result{}, only: "netpol-"}
	for i, c := range enforced {
		t.Run(c.name, func(t *testing.T) { e.run(t, fmt.Sprintf("doctorn%d", i), c) })
	}
	e.write(t)
}

// evaluation is one table.
type evaluation struct {
	columns    []column
	moved      bool   // the agent moves the packets
	only       string // how the names of the faults begin; empty: all
	results    map[string]*result
	right, all int
	took       []time.Duration // of each look
}

// run injects all faults into one lab.
func (e *evaluation) run(t *testing.T, name string, c column) {
	l := labtest.Up(t, c.spec(name))
	v := faults.NewTarget(l)
	awaitHealth(t, v)
	for i, f := range faults.All() {
		if f.Finding == "" || !f.Applies(l.Spec()) || !possible(f) || !strings.HasPrefix(f.Name, e.only) || !e.turn(i, f, c) {
			continue
		}
		f.KeepAgent = f.KeepAgent || e.moved && f.Probe
		if e.moved && !f.KeepAgent && after(f.Finding, "runner-down") {
			continue // that the agent was stopped for it hurts more
		}
		if e.results[f.Name] == nil {
			e.results[f.Name] = &result{f.Name, f.Description, map[string]string{}, map[string]halt{}}
		}
		t.Run(f.Name, func(t *testing.T) {
			e.all++
			got, took, stop := diagnose(t, f, v)
			e.took = append(e.took, took)
			e.results[f.Name].stops[c.name] = stop
			e.results[f.Name].cells[c.name] = cell(f, got, took)
			if len(got) == 0 || got[0].ID != f.Finding {
				t.Errorf("want %s first, got %s", f.Finding, ids(got))
			} else {
				e.right++
			}
		})
	}
}

// turn reports whether the i-th fault is injected into the lab of that column.
func (e *evaluation) turn(i int, f faults.Fault, c column) bool {
	if everywhere() {
		return true
	}
	fit := slices.DeleteFunc(slices.Clone(e.columns), func(c column) bool { return !f.Applies(c.spec("")) })
	return fit[i%len(fit)] == c
}

// after reports whether one finding is a weaker cause than another.
func after(id, other string) bool {
	rank := func(id string) int {
		return slices.IndexFunc(doctor.Catalogue(), func(k doctor.Kind) bool { return k.ID == id })
	}
	return rank(id) > rank(other)
}

// write ends a table.
func (e *evaluation) write(t *testing.T) {
	t.Logf("%d of %d faults are the first finding", e.right, e.all)
	slices.Sort(e.took)
	if n := len(e.took); n > 0 {
		t.Logf("nine looks in ten took less than %s", e.took[n*9/10])
	}
	if path := os.Getenv("TWILL_TABLE"); path != "" {
		check(t, appendTo(path, fmt.Sprintf("## %s\n\n%s\n%s\n", t.Name(), e.table(), e.stopsTable())))
	}
}

// diagnose injects one fault, asks the doctor, and heals.
func diagnose(t *testing.T, f faults.Fault, v *faults.Target) ([]doctor.Finding, time.Duration, halt) {
	t.Helper()
	if !f.KeepAgent {
		check(t, v.Node.KillAgent())
	}
	if err := f.Inject(t.Context(), v); err != nil {
		t.Fatal(errors.Join(err, f.Heal(t.Context(), v)))
	}
	began := time.Now()
	seen := lookAt(t, v.Lab, v.Node, probing(f))
	got := doctor.Check(seen)
	took := time.Since(began)
	stop := follow(t, f, v, seen, got)
	check(t, f.Heal(t.Context(), v))
	awaitHealth(t, v)
	awaitPing(t, v)
	if v.Lab.Spec().Backend == "aws-vpc" {
		// Its agent looks at the cloud's tables every half minute or less often, and remembers the fault until then.
		check(t, v.Peer.RestartAgent(t.Context()))
	}
	return got, took, stop
}

// probing is what the doctor sends to find a fault: to the peers as always, or what it does with --probe.
func probing(f faults.Fault) doctor.Probing {
	if f.Probe {
		return doctor.AllProbes
	}
	return doctor.PeerProbes
}

// lookAt gathers a node's facts as twillctl doctor --lab does. That gives an agent half a second to answer: one that has to
// wait for a processor is asked again.
func lookAt(t *testing.T, l *lab.Lab, n *lab.Node, probe doctor.Probing) (f doctor.Facts) {
	t.Helper()
	o := facts.Options{Checkpoint: n.CheckpointFile(), SubnetFile: n.SubnetFile(), CNIDir: n.Dir(),
		BinDir: filepath.Dir(l.Spec().Programs.Plugin), CNICache: n.CNICache(), Probe: probe}
	testwait.Until(t, "the agent of "+n.Name+" answers the doctor", func() bool {
		check(t, n.Do(func() (err error) {
			f, err = facts.Gather(t.Context(), o)
			return err
		}))
		silent := f.Agent.Unresponsive || f.Agent.Metrics == nil || l.Spec().Backend == "aws-vpc" && f.Agent.Runner == nil
		return !f.Agent.Running || !silent
	})
	return f
}

// awaitHealth returns when the doctor finds nothing on the target. For some minutes a kernel may remember a small path MTU.
func awaitHealth(t *testing.T, v *faults.Target) {
	t.Helper()
	testwait.Nil(t, "the doctor finds nothing on the healed node", func() error {
		if got := doctor.Check(lookAt(t, v.Lab, v.Node, doctor.NoProbes)); len(got) > 0 {
			for _, addr := range v.Peer.Underlay() { // a neighbour that has failed stays so until somebody sends to it
				_, _ = v.Node.Ping(t.Context(), host.Ping{To: addr, Timeout: pingLimit})
			}
			return fmt.Errorf("%s, the first: %+v", ids(got), got[0])
		}
		return nil
	})
}

// awaitPing returns when the target's pods reach the peer's: IPv6 looks for duplicates before it uses a link again.
func awaitPing(t *testing.T, v *faults.Target) {
	t.Helper()
	src, dst := v.Node.Pods()[0], v.Peer.Pods()[0]
	testwait.Nil(t, "the pods of the healed node reach the peer's", func() error {
		_, err := src.Ping(t.Context(), host.Ping{To: dst.Addrs[0], Timeout: pingLimit})
		return err
	})
}

func ids(all []doctor.Finding) string {
	var list []string
	for _, f := range all {
		list = append(list, f.ID)
	}
	return "[" + strings.Join(list, " ") + "]"
}

func cell(f faults.Fault, got []doctor.Finding, took time.Duration) string {
	if len(got) == 0 {
		return "✗ nothing"
	}
	mark := "✓ "
	if got[0].ID != f.Finding {
		mark = "✗ "
	}
	text := fmt.Sprintf("%s%s, %d ms", mark, got[0].ID, took.Milliseconds())
	if f.Probe {
		text += " (--probe)"
	}
	return text
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// table is in the order of the library.
func (e *evaluation) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d are the first finding.\n\n| fault | what is done |", e.right, e.all)
	for _, c := range e.columns {
		fmt.Fprintf(&b, " %s |", c.name)
	}
	fmt.Fprintf(&b, "\n|---|---|%s\n", strings.Repeat("---|", len(e.columns)))
	for _, f := range faults.All() {
		if r := e.results[f.Name]; r != nil {
			fmt.Fprintf(&b, "| %s | %s |", r.fault, r.says)
			for _, c := range e.columns {
				fmt.Fprintf(&b, " %s |", r.cells[c.name])
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
