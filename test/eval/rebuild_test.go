package eval

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/faults"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/lab/rebuild"
)

// unheld are the faults that a report of the target does not hold, or that no lab can be brought to, and why.
var unheld = map[string]string{
	"state-lost":          "without a checkpoint there are no leases",
	"checkpoint-damaged":  "without a checkpoint there are no leases",
	"underlay-below-ipv6": "IPv6 is left out of the lease",
	"port-taken":          "a process has the port",
	"flannel-runs":        "it is a process",
	"network-manager":     "it is a process",
	"networkd":            "it is a process",
	"kube-proxy-cidr":     "it is a process",
	"env-contended":       "a process keeps writing the file",
	"conntrack-full":      "connections are not in a report",
	"udp-filtered-behind": "it is between the nodes",
	"udp-filtered-ahead":  "it is between the nodes",
	"tcp-lost":            "it is between the nodes",
	"path-mtu":            "it is between the nodes",
	"peer-unplugged":      "it is on the peer",
	"peer-readdressed":    "it is on the peer",
	"node-name-taken":     "another machine has the name",
	"underlay-taken":      "another machine has the address",
}

// TestRebuild injects faults into labs, and rebuilds a lab from nothing but what twillctl report writes of the target: the doctor
// has to say the same there first. It takes one fault in share, and all with TWILL_ALL.
func TestRebuild(t *testing.T) {
	t.Parallel()
	same, all := 0, 0
	var others []string
	for i, c := range columns {
		t.Run(c.name, func(t *testing.T) {
			v := faults.NewTarget(labtest.Up(t, c.spec(fmt.Sprintf("doctorr%d", i))))
			awaitHealth(t, v)
			for k, f := range faults.All() {
				fit := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return !f.Applies(c.spec("")) })
				if f.Finding == "" || !possible(f) || len(fit) == 0 || fit[k%len(fit)] != c || !everywhere() && k%share != 0 {
					continue
				}
				t.Run(f.Name, func(t *testing.T) {
					files, want := reported(t, f, v)
					got := rebuilt(t, fmt.Sprintf("doctorrb%d", i), f, files)
					if all++; got == want {
						same++
						if unheld[f.Name] != "" {
							t.Errorf("%s is named after all, although %s: it is held", got, unheld[f.Name])
						}
						return
					}
					others = append(others, f.Name)
					if unheld[f.Name] == "" {
						t.Errorf("the doctor says %q first in the rebuilt lab, want %q", got, want)
					}
				})
			}
		})
	}
	t.Logf("%d of %d rebuilt labs have the same first finding; not %s", same, all, strings.Join(others, ", "))
}

// reported injects a fault, and returns the files of a report and the doctor's first finding. The target is healed then.
func reported(t *testing.T, f faults.Fault, v *faults.Target) (map[string][]byte, string) {
	t.Helper()
	if !f.KeepAgent {
		check(t, v.Node.KillAgent())
	}
	err := f.Inject(t.Context(), v)
	defer func() {
		check(t, f.Heal(t.Context(), v))
		awaitHealth(t, v)
		awaitPing(t, v)
	}()
	check(t, err)
	seen := lookAt(t, v.Lab, v.Node, probing(f))
	files := rebuild.Collect(func(command ...string) ([]byte, error) {
		out, err := v.Node.Exec(t.Context(), command...)
		return []byte(out), err
	})
	files["facts.json"], err = json.Marshal(seen.WithoutSecrets())
	check(t, err)
	return files, first(t, doctor.Check(seen))
}

// rebuilt makes a lab of a report, and returns the doctor's first finding there.
func rebuilt(t *testing.T, name string, f faults.Fault, files map[string][]byte) string {
	t.Helper()
	r, err := rebuild.Read(files)
	if err != nil {
		return err.Error()
	}
	spec, err := r.Spec(lab.Spec{Name: name, Store: lab.File})
	check(t, err)
	l := labtest.Up(t, spec)
	check(t, r.Apply(t.Context(), l))
	for _, what := range r.Left() {
		t.Log("not carried over: ", what)
	}
	return first(t, doctor.Check(lookAt(t, l, l.Nodes()[0], probing(f))))
}

func first(t *testing.T, all []doctor.Finding) string {
	if len(all) == 0 {
		return "nothing"
	}
	t.Logf("%s, %s: %s", all[0].ID, all[0].Object, all[0].Actual)
	return all[0].ID
}
