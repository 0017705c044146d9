package subnet

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"time"
)

// Store keeps the leases of a cluster. Every Store passes the suite in storetest.
type Store interface {
	// Last returns the lease that the store knows for want's node (by its name or, in a store without names, by its
	// underlay addresses), and false if there is none. It claims nothing.
	Last(ctx context.Context, want Lease) (Lease, bool, error)

	// Acquire claims or refreshes the node's lease and publishes want's Backend, Underlay and Data. Subnets in want
	// are preferred, if they are free. It blocks until there is a lease, the error is one that waiting does not
	// mend, or ctx is done. It can be called again, with other data.
	Acquire(ctx context.Context, want Lease) (Lease, error)

	// Watch calls f with complete snapshots, one after another, until ctx is done; then it returns nil. It never
	// calls f before the store is in sync. During an outage of the store peers stay as they were. Watch renews the
	// acquired lease, and publishes it again when someone removed or altered it.
	Watch(ctx context.Context, f func(Snapshot)) error
}

// Reporter is a Store that can also report a node's state to the cluster. Its calls are best effort and return at
// once: the Store sends what is queued, and retries, while Watch runs.
type Reporter interface {
	// Event records something that happened; kind is "Normal" or "Warning", reason is CamelCase.
	Event(kind, reason, message string)
	// Network sets whether pods of this node can be reached.
	Network(up bool, reason, message string)
	// Reached sets whether packets come back from all that this node asks for an answer.
	Reached(all bool, reason, message string)
}

// Object is an object of the Kubernetes API.
type Object struct {
	APIVersion, Kind, Namespace, Name, UID string
}

// ObjectReporter is a Store that can tell users of objects what became of them.
type ObjectReporter interface {
	// ObjectEvent is Event about another object than the node.
	ObjectEvent(about Object, kind, reason, message string)
}

// Disputed is a Store in which two machines can write one record, because they have one name.
type Disputed interface {
	// OnDispute sets what Watch calls each time that somebody else has written another underlay address into this
	// node's record, with what was written. Call it before Watch, which publishes the own lease again.
	OnDispute(func(written Lease))
}

// Moved reports whether written is a lease at another underlay address than l, in a family that both have.
func (l Lease) Moved(written Lease) bool {
	return slices.ContainsFunc(written.Stacks, func(w Stack) bool {
		s, ok := l.Stack(w.Family())
		return ok && w.Underlay.IsValid() && s.Underlay != w.Underlay
	})
}

// Checkpointer is a Store that starts faster with data from before a restart.
type Checkpointer interface {
	// Checkpoint returns the data to keep, as JSON.
	Checkpoint() json.RawMessage
	// Restore takes data of an earlier Checkpoint; call it before Watch. Unreadable data is ignored.
	Restore(data json.RawMessage)
}

// Lessor is a Store that may choose the subnets of nodes itself.
type Lessor interface {
	// Leases reports whether it does: it gives a new node a subnet of the network config's pools.
	Leases() bool
}

// Locator is a Store that knows this node's own addresses before there is a snapshot.
type Locator interface {
	// NodeIPs returns what a Snapshot's NodeIPs will be. It retries until ctx is done.
	NodeIPs(ctx context.Context) ([]netip.Addr, error)
}

// Renewer is a Store whose leases end unless it renews them.
type Renewer interface {
	// Renewal returns when the acquired lease ends, the zero time if it does not by itself, and how many attempts in a
	// row have failed since it was to be renewed.
	Renewal() (ends time.Time, failed int)
}

// Redialer is a Store that has connections to a server.
type Redialer interface {
	// Redial closes them. Call it when an address of this node that they may come from is gone: TCP alone takes many
	// seconds to notice. The Store connects again by itself.
	Redial()
}
