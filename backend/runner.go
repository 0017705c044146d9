package backend

import (
	"context"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Runner is a Backend of which a part is not kernel state: a process that moves packets, or commands that are run.
type Runner interface {
	Backend
	// Prepare runs before anything is published. It is tried again until it returns nil or ctx is done.
	Prepare(ctx context.Context, site Site) error
	// Run works until ctx is done and then returns nil; after an error it is started again. It gets every View
	// that comes after the kernel was brought to it; one that it does not take is replaced by the next. The first may
	// be what an earlier agent of this boot brought the kernel to.
	Run(ctx context.Context, site Site, views <-chan View) error
}

// Site is what a Runner has of the program around it.
type Site struct {
	Dir string // where it may keep files
	// Say tells people what happened; args are keys and values. An error makes it an error.
	Say func(text string, err error, args ...any)
}

// View is what Desired was asked with.
type View struct {
	Node     Node
	Snapshot subnet.Snapshot
	Synced   bool // the snapshot is the store's own; else it is remembered, and nobody can be said to have left
}

// Requirer is a Backend that needs a program that not every machine, or not every image, has.
type Requirer interface {
	Backend
	// Require says what is missing, nil if nothing is.
	Require() error
}

// Direct is a Backend that may route to peers through the underlay, without a device of its own, as flannel's of its kind does.
type Direct interface {
	Backend
	Direct() bool
}

// Left tells what flannel's agent with this backend may have left, for netstate's kernel.
func Left(b Backend, pools []subnet.Pool) []netstate.Left {
	if _, ok := b.(Outsider); ok {
		return nil
	}
	d, ok := b.(Direct)
	var list []netstate.Left
	for _, p := range pools {
		list = append(list, netstate.Left{Network: p.Network, Bits: p.SubnetLen, Gateways: ok && d.Direct()})
	}
	return list
}

// Outsider is a Backend whose paths someone else writes, without Twill's mark: a route into the cluster's networks is
// theirs then, and not what a flannel agent left.
type Outsider interface {
	Backend
	Outside()
}
