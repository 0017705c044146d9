package facts

import (
	"fmt"
	"os"
	"slices"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/file"
)

// readLeases returns what a checkpoint would hold if the leases of a file were all there are.
func (o Options) readLeases(path string) (agent.Saved, error) {
	network, err := os.ReadFile(o.NetConf)
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
	i := slices.IndexFunc(leases, func(l subnet.Lease) bool { return l.Node == o.Node })
	if i < 0 {
		return agent.Saved{}, fmt.Errorf("%s has no lease of node %q: name the node with --node", path, o.Node)
	}
	snap := subnet.Snapshot{Local: leases[i], Peers: slices.Delete(slices.Clone(leases), i, i+1), Skips: skips}
	return agent.Saved{Node: o.Node, Network: network, Snapshot: snap}, nil
}
