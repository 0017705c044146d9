package subnet

import (
	"context"
	"encoding/json"
	"net/netip"
)

// Store keeps the leases of a cluster. Every Store passes the suite in storetest.
type Store interface {
	// Last is the lease that the store knows for want's node (by its name or, in a store that has no names,
	// by its underlay addresses), and false if there is none. It claims nothing.
	Last(ctx context.Context, want Lease) (Lease, bool, error)

	// Acquire claims or refreshes the node's lease and publishes want's Backend, Underlay and Data. Subnets in
	// want are a wish, from an earlier life of this node. It blocks until there is a lease, the error is one
	// that waiting does not mend, or ctx is done. It can be called again, with other data.
	Acquire(ctx context.Context, want Lease) (Lease, error)

	// Watch calls f with complete snapshots, one after another, until ctx is done; then it returns nil. It
	// never calls f before the store is in sync, and survives every outage of the store: peers stay as they
	// were. It keeps the acquired lease: renews it, and publishes it again when someone removed or altered it.
	Watch(ctx context.Context, f func(Snapshot)) error
}

// Reporter is a Store that can also tell the cluster about a node. Both calls are best effort and quick: they
// queue, and the Store retries while Watch runs.
type Reporter interface {
	// Event records something that happened; kind is "Normal" or "Warning", reason is CamelCase.
	Event(kind, reason, message string)
	// Network says whether pods of this node can be reached.
	Network(up bool, reason, message string)
}

// Checkpointer is a Store that starts faster with what it knew before a restart.
type Checkpointer interface {
	// Checkpoint returns what the store wants to be given after a restart, as JSON.
	Checkpoint() json.RawMessage
	// Restore gives it back, before Watch. What the store cannot read it ignores.
	Restore(data json.RawMessage)
}

// Locator is a Store that can be asked for this node's own addresses before there is a snapshot.
type Locator interface {
	// NodeIPs returns what a Snapshot's NodeIPs will be. It retries until ctx is done.
	NodeIPs(ctx context.Context) ([]netip.Addr, error)
}

// Redialer is a Store that has connections to a server.
type Redialer interface {
	// Redial closes them, because an address of this node that they may come from is gone: TCP alone would
	// take many seconds to notice. The Store connects again by itself.
	Redial()
}
