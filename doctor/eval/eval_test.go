// Package eval measures the doctor: every fault of the library is injected into a healthy lab, and the doctor's first
// finding has to be that fault.
package eval

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/facts"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/faults"
	"github.com/twill-net/twill/lab/host"
	"github.com/twill-net/twill/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// recovery is how long a healed node may take until the doctor finds nothing.
const recovery = 10 * time.Second

// limit is how long one look may take.
const limit = 2 * time.Second

// columns are the labs that are injured.
var columns = []struct{ name, backend, family string }{
	{"vxlan", "vxlan", lab.IPv4}, {"host-gw", "host-gw", lab.IPv4}, {"vxlan-ipv6", "vxlan", lab.IPv6}, {"vxlan-dual", "vxlan", lab.Dual},
}

// result is one line of the table.
type result struct {
	fault, says string
	cells       map[string]string // by column
	stops       map[string]halt   // by column
}

// TestFaults injects every fault into a healthy lab while the agent is stopped. With TWILL_TABLE=FILE it writes the
// results there, after the line that begins them.
func TestFaults(t *testing.T) {
	results := map[string]*result{}
	right, all := 0, 0
	for i, column := range columns {
		l := labtest.Up(t, lab.Spec{Name: fmt.Sprintf("doctor%d", i), Backend: column.backend, Family: column.family, Store: lab.File, Nodes: 3, Pods: 2})
		v := faults.NewVictim(l)
		awaitHealth(t, v)
		for _, f := range faults.All() {
			if f.Finding == "" || !f.Applies(l.Spec()) {
				continue
			}
			if results[f.Name] == nil {
				results[f.Name] = &result{f.Name, f.Says, map[string]string{}, map[string]halt{}}
			}
			t.Run(column.name+"/"+f.Name, func(t *testing.T) {
				all++
				got, took, stop := diagnose(t, f, v)
				results[f.Name].stops[column.name] = stop
				results[f.Name].cells[column.name] = cell(f, got, took)
				switch {
				case len(got) == 0 || got[0].ID != f.Finding:
					t.Errorf("want %s first, got %s", f.Finding, ids(got))
				case took > limit:
					t.Errorf("took %s, want less than %s", took, limit)
				default:
					right++
				}
			})
		}
	}
	t.Logf("%d of %d faults are the first finding", right, all)
	if path := os.Getenv("TWILL_TABLE"); path != "" {
		check(t, writeTable(path, table(results, right, all)+"\n"+stopsTable(results)))
	}
}

// diagnose injects one fault, asks the doctor, and heals.
func diagnose(t *testing.T, f faults.Fault, v *faults.Victim) ([]doctor.Finding, time.Duration, halt) {
	t.Helper()
	if !f.KeepAgent {
		check(t, v.Node.KillAgent())
	}
	if err := f.Inject(t.Context(), v); err != nil {
		t.Fatal(errors.Join(err, f.Heal(t.Context(), v)))
	}
	began := time.Now()
	seen, err := look(t.Context(), v, f.Probe)
	check(t, err)
	got := doctor.Check(seen)
	took := time.Since(began)
	stop := follow(t, f, v, seen, got)
	check(t, f.Heal(t.Context(), v))
	awaitHealth(t, v)
	awaitPing(t, v)
	return got, took, stop
}

// look gathers the victim's facts as twillctl doctor --lab does.
func look(ctx context.Context, v *faults.Victim, probe bool) (f doctor.Facts, err error) {
	return lookAt(ctx, v.Lab, v.Node, probe)
}

func lookAt(ctx context.Context, l *lab.Lab, n *lab.Node, probe bool) (f doctor.Facts, err error) {
	s := facts.FromFlags(n.AgentFlags(), nil)
	s.CNIDir, s.BinDir = n.Dir(), filepath.Dir(l.Spec().Programs.Plugin)
	s.Probe = probe
	err = n.Do(func() (err error) {
		f, err = facts.Gather(ctx, s)
		return err
	})
	return f, err
}

// awaitHealth returns when the doctor finds nothing on the victim.
func awaitHealth(t *testing.T, v *faults.Victim) {
	t.Helper()
	for deadline := time.Now().Add(recovery); ; {
		seen, err := look(t.Context(), v, false)
		check(t, err)
		got := doctor.Check(seen)
		if len(got) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s the healed node still has %s, the first: %+v", recovery, ids(got), got[0])
		}
	}
}

// awaitPing returns when the victim's pods reach the peer's: IPv6 looks for duplicates before it uses a link again.
func awaitPing(t *testing.T, v *faults.Victim) {
	t.Helper()
	src, dst := v.Node.Pods()[0], v.Peer.Pods()[0]
	for deadline := time.Now().Add(recovery); ; {
		_, err := src.Ping(t.Context(), host.Ping{To: dst.Addrs[0], Timeout: pingLimit})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s the pods of the healed node do not reach the peer's: %v", recovery, err)
		}
	}
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

// marker is the line after which a document has the results.
const marker = "<!-- results -->\n"

func writeTable(path, table string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, _, ok := strings.Cut(string(data), marker)
	if !ok {
		return fmt.Errorf("%s has no line %q", path, marker)
	}
	return os.WriteFile(path, []byte(head+marker+table), 0o644)
}

// table is in the order of the library.
func table(results map[string]*result, right, all int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d are the first finding.\n\n| fault | what is done |", right, all)
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.name)
	}
	fmt.Fprintf(&b, "\n|---|---|%s\n", strings.Repeat("---|", len(columns)))
	for _, f := range faults.All() {
		if r := results[f.Name]; r != nil {
			fmt.Fprintf(&b, "| %s | %s |", r.fault, r.says)
			for _, c := range columns {
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
