package policy_test

import (
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// TestLog: with the log there is a rule before each one that drops, with the same conditions, which names its chain; all else
// is as without it.
func TestLog(t *testing.T) {
	logged := 0
	for seed := range uint64(20) {
		w := policytest.New(seed)
		w.Cluster = int(seed % 4)
		s, site := w.Snapshot(4, 6), w.Site(1)
		without, _ := policy.Desired(site, s)
		site.Log = true
		with, _ := policy.Desired(site, s)
		if len(with) != len(without) {
			t.Errorf("seed %d: %d objects with the log, and %d without", seed, len(with), len(without))
		}
		for key, o := range without {
			if f, ok := o.(netstate.Filter); ok && f.Name != "node" {
				changed, _ := with[key].(netstate.Filter)
				logged += compare(t, f.Name, changed.Rules, f.Rules)
			} else if with[key] != o {
				t.Errorf("seed %d: %s is %s with the log", seed, o, with[key])
			}
		}
	}
	if logged < 100 {
		t.Errorf("only %d rules log", logged)
	}
}

// compare compares the rules of a chain with the log with those without it, and returns how many log.
func compare(t *testing.T, chain, with, without string) (logged int) {
	t.Helper()
	var want []string
	for _, line := range strings.Split(without, "\n") {
		matches, drops := strings.CutSuffix(line, "counter drop")
		if strings.HasPrefix(line, "backwards") { // which drops after it has answered with a reset
			matches, drops = strings.CutSuffix(line, "new counter reset")
		}
		if drops {
			want = append(want, matches+"log "+chain)
			logged++
		}
		want = append(want, line)
	}
	if with != strings.Join(want, "\n") {
		t.Errorf("chain %s has with the log\n%s\nwant\n%s", chain, with, strings.Join(want, "\n"))
	}
	return logged
}
