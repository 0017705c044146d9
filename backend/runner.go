package backend

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Runner is a Backend of which a part is not kernel state: a process that moves packets, or commands that are run.
type Runner interface {
	Backend
	// Prepare runs before anything is published. It is tried again until it returns nil or ctx is done.
	Prepare(ctx context.Context, env Env) error
	// Run works until ctx is done and then returns nil; after an error it is started again. It gets every Input
	// after the kernel was brought to it, and as a part of a Transition before, too; one that it does not take is replaced by
	// the next. The first may be what an earlier agent of this boot brought the kernel to.
	Run(ctx context.Context, env Env, inputs <-chan Input) error
}

// Env is what the program around a Runner gives it.
type Env struct {
	Dir    string       // where it may keep files
	Log    *slog.Logger // an attribute "err" is logged in full once
	Report func(Health) // of a Reporter: gets each change of its health
}

// Reporter is a Runner that says itself how it does: that its Run works does not mean that packets pass.
type Reporter interface {
	Runner
	// Reports is called by nobody: it only says that Run calls Env.Report.
	Reports()
}

// Health is how a Reporter does.
type Health struct {
	Seen     bool      // it worked once: until then the node is not ready
	Wrong    time.Time // since when it is known not to work; zero: it is not
	Err      error     // of the last attempt, nil if it succeeded; an attempt that fails says nothing of what is there
	Troubles []Trouble // for the doctor
	Calls    int       // of somebody else's API since the start
	Writes   int       // of these, changes
	Failures int       // of these, those with an error
}

// Trouble is something that is wrong outside the kernel.
type Trouble struct {
	ID     string `json:"id"`     // of the doctor's finding
	Object string `json:"object"` // what it is about
	Actual string `json:"actual"`
	Fix    string `json:"fix,omitempty"` // a command; empty: the finding's own advice
}

// Planner is a Backend that changes something besides the kernel.
type Planner interface {
	Backend
	// Plan returns a line for each change that Run would make now. It writes nothing.
	Plan(ctx context.Context, env Env, in Input) ([]string, error)
}

// Input is what Desired was called with.
type Input struct {
	Node     Node
	Snapshot subnet.Snapshot
	Synced   bool // the snapshot is the store's own; else it is remembered, and peers missing from it may not have left
}

// Requirer is a Backend that needs a program that not every machine, or not every image, has.
type Requirer interface {
	Backend
	// Require says what is missing, nil if nothing is.
	Require() error
}

// Direct is a Backend that may route to peers through the underlay, without a device of its own, as
// flannel's of its kind does.
type Direct interface {
	Backend
	Direct() bool
}

// Transition is a Backend that has others of before beside it, until the peers have followed.
type Transition interface {
	Backend
	// Parts are the backends that it is made of, the network config's first, and Types their types.
	Parts() []Backend
	Types() []string
	// For returns what a node needs that publishes local: the network config's backend alone, once the peers have followed.
	For(local subnet.Lease) Backend
	// Lease returns what a node should publish whose subnets and addresses are lease's, and that published last. Works says
	// whether packets can take the network config's way. A nil snapshot says nothing of the peers.
	Lease(node Node, lease, last subnet.Lease, snap *subnet.Snapshot, works bool, now time.Time) (subnet.Lease, error)
	// Kept returns the key Backend of the network configs of before that a node needs that publishes local.
	Kept(local subnet.Lease) []json.RawMessage
}

// Parts returns what a backend is made of: itself, or the parts of a Transition.
func Parts(b Backend) []Backend {
	if t, ok := b.(Transition); ok {
		return t.Parts()
	}
	return []Backend{b}
}

// Left tells what flannel's agent with this backend may have left, for netstate's kernel.
func Left(b Backend, pools []subnet.Pool) []netstate.Left {
	if _, ok := b.(ExternalRoutes); ok {
		return nil
	}
	d, ok := b.(Direct)
	var list []netstate.Left
	for _, p := range pools {
		list = append(list, netstate.Left{Network: p.Network, Bits: p.SubnetLen, Gateways: ok && d.Direct()})
	}
	return list
}

// ByUnderlay is a Backend whose packets to peers leave through the underlay as they are, by whatever route the node has: a
// router of the network knows the way.
type ByUnderlay interface {
	Backend
	ByUnderlay()
}

// ExternalRoutes is a Backend that does not own its routes: someone else writes them, without Twill's mark.
// A route into the cluster's networks is theirs then, and not what a flannel agent left.
type ExternalRoutes interface {
	Backend
	ExternalRoutes()
}

// Devices returns the devices that a backend wants on a node of these pools, with made-up addresses: their kinds say what it
// needs of the kernel. wireguard says that the kernel has devices of this kind.
func Devices(b Backend, pools []subnet.Pool, wireguard bool) (devices []netstate.Object) {
	node := Node{Name: "node", WireGuard: wireguard}
	lease := subnet.Lease{Node: node.Name}
	for _, p := range pools {
		u := Underlay{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 1500}
		if p.Family() == netstate.IPv6 {
			u.Local = netip.MustParseAddr("2001:db8::1")
		}
		u.Public = u.Local
		node.Underlays = append(node.Underlays, u)
		lease.Stacks = append(lease.Stacks, subnet.Stack{Subnet: p.Subnet(0), Underlay: u.Local})
	}
	want, _ := b.Desired(node, subnet.Snapshot{Local: lease})
	for _, o := range want.Sorted() {
		if netstate.IsOverlay(o) {
			devices = append(devices, o)
		}
	}
	return devices
}
