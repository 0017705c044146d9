// Package cloudroute is the backend of all clouds whose own router carries packets between nodes: aws-vpc, gce and ali-vpc.
// Nothing is encapsulated, and the kernel needs no route to a peer: each node keeps the route to its own pods in the cloud's
// routing tables, by package cloud. What knows a provider's API is given to it, so that only the agent contains that.
package cloudroute

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Backend is one of the clouds.
type Backend struct {
	kind    string
	pools   []subnet.Pool
	options cloud.Options
	open    cloud.Opener // nil: this program does not contain it
}

// New returns what makes the backend of one type.
func New(kind string, pools []subnet.Pool) func([]netip.Prefix, json.RawMessage) (backend.Backend, []string, error) {
	return func(_ []netip.Prefix, raw json.RawMessage) (backend.Backend, []string, error) {
		options, warnings, err := parse(kind, raw)
		options.Pools = pools
		return &Backend{kind: kind, pools: pools, options: options}, warnings, err
	}
}

// Provide gives the backend its provider's API, of those that the program contains.
func (b *Backend) Provide(openers map[string]cloud.Opener) { b.open = openers[b.kind] }

// Require implements backend.Requirer.
func (b *Backend) Require() error {
	if b.open == nil {
		return cloud.Absent(b.kind)
	}
	return nil
}

// MTU is the underlay's: the smallest, if there are two.
func (*Backend) MTU(node backend.Node) int { return backend.SmallestMTU(node.Underlays) }

// Publish is nothing: flannel writes null.
func (*Backend) Publish(backend.Node, subnet.Lease, netstate.Family) (json.RawMessage, error) {
	return nil, nil
}

// Desired is nothing: packets to peers take the default route. Leases that contradict each other are reported.
func (b *Backend) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	_, skips := backend.Peers(b.networks(), node, snap)
	return netstate.State{}, skips
}

// ByUnderlay implements backend.ByUnderlay.
func (*Backend) ByUnderlay() {}

// tables are the keys of the configs that name routing tables: a name, or a list of them.
type tables []string

// UnmarshalJSON implements json.Unmarshaler.
func (t *tables) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		if one != "" {
			*t = tables{one}
		}
		return nil
	}
	var list []string
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf(`RouteTableID is %s: want a string such as "rtb-0123", or a list of them`, data)
	}
	for _, id := range list {
		if strings.TrimSpace(id) == "" {
			return errors.New("RouteTableID has an empty name: want the IDs of routing tables")
		}
	}
	*t = list
	return nil
}

// parse reads net-conf.json's Backend object as flannel's backends of these types did.
func parse(kind string, raw json.RawMessage) (o cloud.Options, warnings []string, err error) {
	switch kind {
	case "aws-vpc":
		var keys struct{ RouteTableID tables }
		warnings, err = backend.ParseOptions(raw, &keys)
		o.Tables = keys.RouteTableID
	case "ali-vpc":
		var keys struct {
			AccessKeyID, AccessKeySecret string
			RouteTableID                 tables
		}
		warnings, err = backend.ParseOptions(raw, &keys)
		o = cloud.Options{Tables: keys.RouteTableID, KeyID: keys.AccessKeyID, KeySecret: cloud.NewSecret(keys.AccessKeySecret)}
		if keys.AccessKeySecret != "" {
			warnings = append(warnings, "net-conf Backend has an AccessKeySecret, which everybody can read who may read the config: "+
				"better give the machines a RAM role, or the agent the variables ACCESS_KEY_ID and ACCESS_KEY_SECRET")
		}
		if (keys.AccessKeyID == "") != (keys.AccessKeySecret == "") && err == nil {
			err = errors.New("net-conf Backend: AccessKeyID and AccessKeySecret belong together: give both or none")
		}
	default:
		warnings, err = backend.ParseOptions(raw, &struct{}{})
	}
	return o, warnings, err
}
