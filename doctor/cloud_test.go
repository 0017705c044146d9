package doctor

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/subnet"
)

// TestTroubles: what the agent says of the cloud is found, and what this program does not know is not.
func TestTroubles(t *testing.T) {
	f := Facts{Agent: Agent{Running: true, Runner: &Runner{Running: true}}}
	peer := subnet.Lease{Node: "node2", Stacks: []subnet.Stack{{Subnet: netip.MustParsePrefix("10.244.2.0/24")}}}
	f.Lease.Snapshot.Peers = []subnet.Lease{peer}
	for k := range right {
		f.Agent.Runner.Troubles = append(f.Agent.Runner.Troubles, Trouble{ID: string(k), Object: "10.244.2.0/24", Actual: "wrong", Fix: "do it"})
	}
	f.Agent.Runner.Troubles = append(f.Agent.Runner.Troubles, Trouble{ID: "route-missing", Object: "no trouble"}, Trouble{ID: "of-a-newer-agent"})
	found := map[string]Finding{}
	for _, finding := range Check(f) {
		found[finding.ID] = finding
	}
	for k := range right {
		got, ok := found[string(k)]
		if !ok || got.Fix == "" || got.Expected == "" || got.Actual == "" {
			t.Errorf("%s: got %+v", string(k), got)
		}
	}
	if _, ok := found["route-missing"]; ok || found["cloud-peer-unrouted"].Object != "peer node2" {
		t.Errorf("found %+v", found)
	}
}
