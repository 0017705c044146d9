package facts

import (
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/filter"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// TestTables: what a kernel holds is read with the words of all its rules, known or not, and what is altered shows.
func TestTables(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	runtime.LockOSThread() // in a namespace of its own; the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	f, err := filter.New()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for seed := range uint64(8) {
		w := policytest.New(seed)
		w.Cluster = int(seed % 4)
		s := w.Snapshot(4, 8)
		want, _ := policy.Desired(w.Site(1), s)
		have, err := f.Observe(t.Context(), want)
		if err == nil {
			err = f.Apply(t.Context(), netstate.Diff(want, have))
		}
		if err != nil {
			t.Fatal(err)
		}
		frame, _ := policy.Desired(w.Site(1), policy.Snapshot{})
		got, err := tables(t.Context(), frame)
		if err != nil {
			t.Fatal(err)
		}
		if d := netstate.Diff(want, got); len(d) > 0 {
			t.Errorf("seed %d: what is read differs:\n%s", seed, d)
		}
		if d := netstate.Diff(frame, known(frame, &doctor.Policies{Tables: got})); len(d) > 0 {
			t.Errorf("seed %d: without the policies an intact table is thought to need\n%s", seed, d)
		}
	}
	if out, err := exec.Command("nft", "insert rule ip6 twill-policy egress accept").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	frame, _ := policy.Desired(policytest.New(7).Site(1), policy.Snapshot{})
	got, err := tables(t.Context(), frame)
	if d := netstate.Diff(frame, known(frame, &doctor.Policies{Tables: got})); err != nil || len(d) != 1 ||
		d[0].Key() != (netstate.Filter{Family: netstate.IPv6, Name: "egress"}).Key() {
		t.Errorf("a rule too many: got %s, %v", d, err)
	}
}
