package agent

import (
	"context"
	"errors"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
)

// Kernel is what the agent reads and writes.
type Kernel interface {
	// Observe returns what is ours, and what stands in the slots that want names. With a rulesError it returns the
	// firewall's rules as they are wanted.
	Observe(ctx context.Context, want netstate.State) (netstate.State, error)
	// Apply does all of the plan that it can and joins the errors.
	Apply(ctx context.Context, p netstate.Plan) error
	// Watch notifies when something may have changed; the channel is closed when the subscription broke.
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// Rules is the kernel's firewall: like Kernel, but all that is ours is known by its name.
type Rules interface {
	Observe(ctx context.Context) (netstate.State, error)
	Apply(ctx context.Context, p netstate.Plan) error
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// Join makes one Kernel of the network state and the firewall.
func Join(net Kernel, rules Rules) Kernel { return joined{net, rules} }

type joined struct {
	net   Kernel
	rules Rules
}

func (j joined) Observe(ctx context.Context, want netstate.State) (netstate.State, error) {
	state, err := j.net.Observe(ctx, want)
	if err != nil {
		return nil, err
	}
	chains, err := j.rules.Observe(ctx)
	if err != nil {
		for _, o := range want {
			if o.Key().Kind == netstate.KindChain {
				state.Add(o)
			}
		}
		return state, rulesError{err}
	}
	state.Merge(chains)
	return state, nil
}

// rulesError is why nobody knows the firewall's rules. Links and routes are repaired all the same.
type rulesError struct{ error }

func (e rulesError) Unwrap() error { return e.error }

func isAboutRules(err error) bool { return errors.As(err, &rulesError{}) }

// Apply keeps the plan's order: chains are the last kind, so their changes stand together.
func (j joined) Apply(ctx context.Context, p netstate.Plan) error {
	var net, rules netstate.Plan
	for _, c := range p {
		if c.Key().Kind == netstate.KindChain {
			rules = append(rules, c)
		} else {
			net = append(net, c)
		}
	}
	var errs []error
	if len(rules) > 0 {
		errs = append(errs, j.rules.Apply(ctx, rules))
	}
	if len(net) > 0 {
		errs = append(errs, j.net.Apply(ctx, net))
	}
	return errors.Join(errs...)
}

// Watch ends when either subscription ends.
func (j joined) Watch(ctx context.Context) (<-chan struct{}, error) {
	ctx, cancel := context.WithCancel(ctx)
	net, err := j.net.Watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	rules, err := j.rules.Watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	events := make(chan struct{}, 1)
	go func() {
		defer cancel()
		defer close(events)
		forward(events, net, rules)
	}()
	return events, nil
}

// forward passes notifications on until one source is closed.
func forward(events chan<- struct{}, net, rules <-chan struct{}) {
	for {
		ok := false
		select {
		case _, ok = <-net:
		case _, ok = <-rules:
		}
		if !ok {
			return
		}
		loop.Notify(events)
	}
}
