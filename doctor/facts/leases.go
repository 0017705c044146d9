package facts

import (
	"fmt"
	"os"
	"slices"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/file"
)

// readLeases makes of a lease file what a checkpoint would hold: what this node knows if those are all leases.
func (s Settings) readLeases(path string) (agent.Saved, error) {
	network, err := os.ReadFile(s.NetConf)
	if err != nil {
		return agent.Saved{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return agent.Saved{}, err
	}
	leases, skips, err := file.Parse(data)
	if err != nil {
		return agent.Saved{}, fmt.Errorf("read the leases of %s: %w", path, err)
	}
	i := slices.IndexFunc(leases, func(l subnet.Lease) bool { return l.Node == s.Node })
	if i < 0 {
		return agent.Saved{}, fmt.Errorf("%s has no lease of node %q: name the node with --node", path, s.Node)
	}
	snap := subnet.Snapshot{Local: leases[i], Peers: slices.Delete(slices.Clone(leases), i, i+1), Skips: skips}
	return agent.Saved{Node: s.Node, Network: network, Snapshot: snap}, nil
}
