package facts

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/internal/smallfile"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/file"
	"github.com/twill-net/twill/subnet/kube"
)

// readLeases reads a file of leases, or of Nodes as kubectl prints them in JSON, and the network's config. guessed says that this
// has what the node's files and annotations tell, and not all options of the backend.
func (o Options) readLeases(path string) (saved agent.Saved, guessed bool, err error) {
	data := o.Leases
	if data == nil {
		if data, err = os.ReadFile(path); err != nil {
			return saved, false, err
		}
	}
	config, configErr := smallfile.Read(o.NetConf, smallfile.MB)
	if guessed = isNodes(data) && errors.Is(configErr, fs.ErrNotExist); guessed {
		config, configErr = o.networkOfEnv()
	}
	if configErr != nil {
		return saved, guessed, configErr
	}
	leases, skips, err := parseLeases(data, config)
	if err != nil {
		return saved, guessed, fmt.Errorf("read the leases of %s: %w", path, err)
	}
	name := o.NodeName()
	i := slices.IndexFunc(leases, func(l subnet.Lease) bool { return l.Node == name })
	if i < 0 {
		return saved, guessed, fmt.Errorf("%s has no lease of node %q: name the node with --node", path, name)
	}
	if guessed {
		config, err = withBackend(config, leases[i])
	}
	snap := subnet.Snapshot{Local: leases[i], Peers: slices.Delete(slices.Clone(leases), i, i+1), Skips: skips}
	return agent.Saved{Node: name, Network: config, Snapshot: snap}, guessed, err
}

// isNodes reports whether data is a list of objects, and not a file of leases.
func isNodes(data []byte) bool {
	var list struct{ Items []json.RawMessage }
	return json.Unmarshal(data, &list) == nil && list.Items != nil
}

func parseLeases(data, config []byte) ([]subnet.Lease, []subnet.Skip, error) {
	if !isNodes(data) {
		return file.Parse(data)
	}
	c, err := subnet.ParseConfig(config)
	if err != nil {
		return nil, nil, err
	}
	return kube.Leases("", c.Pools, data)
}

// networkOfEnv returns a network config of what flannel wrote into subnet.env: its config is a file of its own container.
func (o Options) networkOfEnv() ([]byte, error) {
	path := cmp.Or(o.SubnetFile, defaultSubnetFile)
	env, err := subnet.ReadEnv(path)
	if err != nil {
		return nil, fmt.Errorf("neither --net-config-path nor %s says what the network is: %w", path, err)
	}
	config := map[string]any{}
	for _, n := range env.Networks {
		if netstate.FamilyOf(n.Addr()) == netstate.IPv4 {
			config["Network"] = n
		} else {
			config["EnableIPv6"], config["IPv6Network"] = true, n
		}
	}
	config["EnableIPv4"] = config["Network"] != nil
	return json.Marshal(config)
}

// withBackend adds what a node's own annotations say of its backend: the type, and of VXLAN the number.
func withBackend(config []byte, own subnet.Lease) ([]byte, error) {
	var all map[string]any
	if err := json.Unmarshal(config, &all); err != nil {
		return nil, err
	}
	backend := map[string]any{"Type": own.Backend}
	for _, s := range own.Stacks {
		var data struct{ VNI int }
		if json.Unmarshal(s.Data, &data) == nil && data.VNI > 0 {
			backend["VNI"] = data.VNI
		}
	}
	all["Backend"] = backend
	return json.Marshal(all)
}
