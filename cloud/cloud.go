// Package cloud keeps the routes to this node's pods in the routing tables of a cloud's network. The cloud's own router
// then carries packets between nodes, and the kernel needs no route to a peer.
//
// A Reconciler compares what the tables say with what this node's lease asks for, and writes the difference. A Cloud is
// one provider; its package is the only one that knows the provider's API.
package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/subnet"
)

// Cloud is one provider's API, seen from one node. Its methods make no retries of their own: the Reconciler paces them.
type Cloud interface {
	// Self returns who this node is, by the addresses of its underlay, as its metadata service says. Only which routing
	// tables its network interface uses may be asked of the API.
	Self(ctx context.Context, local []netip.Addr) (Self, error)
	// List returns all routes of Self's tables to single prefixes, whoever made them, from all pages.
	List(ctx context.Context, self Self) ([]Route, error)
	// Apply makes one change, and returns when the provider has taken it. It may not be visible yet. Where a provider cannot
	// replace a route at once, it is deleted and made.
	Apply(ctx context.Context, self Self, c Change) error
	// Check lets the node's network interface forward packets that are not from or for its own addresses, if the provider
	// permits that. It returns what else keeps packets from passing.
	Check(ctx context.Context, self Self) ([]Trouble, error)
}

// Options are what net-conf.json and the agent tell a provider's package.
type Options struct {
	Tables    []string // to keep; empty: the one that the node's network interface uses
	KeyID     string   // credentials; empty: where the provider's tools look for them
	KeySecret Secret
	Pools     []subnet.Pool
}

// Opener makes a provider's API from the options. It makes no request.
type Opener func(Options) (Cloud, error)

// Absent is what is said of a backend whose provider an agent does not contain.
func Absent(backend string) error {
	return fmt.Errorf("backend %s is a cloud's, and this twilld was built without clouds: take that of make build, or of the image ghcr.io/twill-net/twill", backend)
}

// Secret is a text that no verb of fmt prints, wherever it stands. The zero value is empty.
type Secret struct{ reveal func() string }

// NewSecret returns a secret with this text.
func NewSecret(text string) Secret { return Secret{func() string { return text }} }

// Reveal returns the text.
func (s Secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// Self is this node as the provider knows it.
type Self struct {
	Target  string   // what a route to this node names: eni-0123, an instance's path or ID
	Network string   // the VPC or network of the target
	Tables  []string // the routing tables to keep, none for a provider with one for each network
}

// Route is an entry of a routing table.
type Route struct {
	Table  string       `json:"table,omitempty"` // empty: the network's only one
	Dst    netip.Prefix `json:"dst"`
	Target string       `json:"target"`
	Name   string       `json:"name,omitempty"` // where a provider names routes
	Mark   string       `json:"mark,omitempty"` // where a provider lets routes be described: who made it
	State  State        `json:"-"`
}

func (r Route) String() string {
	text := fmt.Sprintf("%s via %s", r.Dst, r.Target)
	if r.Table != "" {
		text = r.Table + " " + text
	}
	if r.State != Active {
		text += " " + r.State.String()
	}
	return text
}

// State is what the provider does with packets for a route.
type State uint8

// The states.
const (
	Active    State = iota
	Pending         // it is being made
	Blackhole       // its target is gone: packets are dropped
)

func (s State) String() string { return [...]string{"active", "pending", "blackhole"}[s] }

// Op is what a Change does.
type Op uint8

// The operations.
const (
	Create Op = iota
	Replace
	Delete
)

// Change is one difference between the tables and what is wanted.
type Change struct {
	Op    Op
	Route Route // as it should be; of Delete, as it is
	Old   Route // of Replace: as it is
}

// String is the line of a dry run: "+ rtb-1 10.244.1.0/24 via eni-2".
func (c Change) String() string {
	switch c.Op {
	case Create:
		return "+ " + c.Route.String()
	case Replace:
		return fmt.Sprintf("~ %s (was via %s)", c.Route, c.Old.Target)
	}
	return "- " + c.Route.String()
}

// The troubles: IDs of the doctor's findings. The first four the Reconciler sees, the others a provider's Check.
const (
	RouteMissing  = "cloud-route-missing"  // no routing table leads to this node's pods
	RouteWrong    = "cloud-route-wrong"    // somebody else keeps writing the route to this node's pods
	PeerUnrouted  = "cloud-peer-unrouted"  // no routing table leads to a peer's pods
	TableFull     = "cloud-table-full"     // a routing table has as many routes as it may have
	ForwardingOff = "cloud-forwarding-off" // packets that are not from or for the node's own addresses are dropped
	Denied        = "cloud-denied"         // the node's role lacks a permission
	Unlisted      = "cloud-table-unlisted" // a subnet of the network uses a routing table that is not kept
	Overlap       = "cloud-overlap"        // the cluster's network is part of the cloud's own
)

// Trouble is something that keeps packets from passing although the routes are right.
type Trouble struct {
	ID     string // of the doctor's finding
	Object string // what it is about
	Actual string
	Fix    string
}

// The classes of a provider's errors. An implementation wraps its error with one of them; any other error is tried again.
var (
	ErrThrottled = errors.New("the provider limits the rate of calls")
	ErrBusy      = errors.New("another change of the network is under way")
	ErrFull      = errors.New("the routing table is full")
	ErrDenied    = errors.New("the node's role does not permit it")
	ErrExists    = errors.New("there is such a route already")
	ErrGone      = errors.New("there is no such route")
)
