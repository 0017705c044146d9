package backend

import (
	"context"
	"log/slog"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Runner is a Backend of which a part is not kernel state: a process that moves packets, or commands that are run.
type Runner interface {
	Backend
	// Prepare runs before anything is published. It is tried again until it returns nil or ctx is done.
	Prepare(ctx context.Context, env Env) error
	// Run works until ctx is done and then returns nil; after an error it is started again. It gets every Input
	// after the kernel was brought to it; one that it does not take is replaced by the next. The first may
	// be what an earlier agent of this boot brought the kernel to.
	Run(ctx context.Context, env Env, inputs <-chan Input) error
}

// Env is what the program around a Runner gives it.
type Env struct {
	Dir string       // where it may keep files
	Log *slog.Logger // an attribute "err" is logged in full once
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

// ExternalRoutes is a Backend that does not own its routes: someone else writes them, without Twill's mark.
// A route into the cluster's networks is theirs then, and not what a flannel agent left.
type ExternalRoutes interface {
	Backend
	ExternalRoutes()
}
