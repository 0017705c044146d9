package facts

import (
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/netstate/kernel"
)

// TestSince: what was dropped before does not count, unless the counter began again, as that of a discipline that was
// attached since.
func TestSince(t *testing.T) {
	g := gathering{Facts: &doctor.Facts{Bridge: "cni0"}}
	q := func(dev, handle string, passed, drops uint32) kernel.Qdisc {
		return kernel.Qdisc{Dev: dev, Kind: "tbf", Handle: handle, Hook: "root", Passed: passed, Drops: drops}
	}
	for name, test := range map[string]struct {
		before, now     kernel.Qdisc
		dropped, passed uint32
	}{
		"nothing new":    {q("cni0", "8001:", 7, 5), q("cni0", "8001:", 9, 5), 0, 2},
		"new drops":      {q("cni0", "8001:", 7, 5), q("cni0", "8001:", 7, 8), 3, 0},
		"attached since": {q("cni0", "8001:", 7, 5), q("cni0", "8002:", 1, 6), 6, 1},
		"same handle":    {q("cni0", "8001:", 7, 5), q("cni0", "8001:", 1, 2), 2, 1},
	} {
		all := g.since([]kernel.Qdisc{test.before}, []kernel.Qdisc{test.now})
		if len(all) != 1 || all[0].Dropped != test.dropped || all[0].Passed != test.passed || all[0].Hook != "root" {
			t.Errorf("%s: got %+v", name, all)
		}
	}
	if all := g.since(nil, []kernel.Qdisc{q("docker0", "1:", 0, 9)}); len(all) > 0 {
		t.Errorf("on a device of others: %+v", all)
	}
}
