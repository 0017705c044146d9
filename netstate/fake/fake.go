// Package fake is a kernel in memory: it does, destroys and refuses what Linux 6.18 does with netstate objects, as
// the suite in netstatetest proves for both. Of tunnels it has IPv4's, and no WireGuard and no IPsec, which tests of the
// agent do not need, and it holds firewall chains and the fast path's objects, which cost it nothing.
package fake

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
)

// Kernel is a network namespace in memory. It may be used by several goroutines.
type Kernel struct {
	left     []netstate.Left
	mu       sync.Mutex
	links    map[string]*link
	entries  netstate.State // addresses, neighbours and FDB entries, of all links
	routes   []route        // of one slot, the first is the one that packets take
	sysctls  map[string]string
	chains   netstate.State
	fast     netstate.State // the fast path's objects
	indices  int
	watchers map[chan struct{}]bool
	faults   Faults
}

// Faults are asked before something happens; their errors are what then happens instead. Nil: none.
type Faults struct {
	Change  func(netstate.Change) error
	Observe func() error
	Watch   func() error
}

// New returns a kernel without any interface; left as for netstate/kernel.New.
func New(left ...netstate.Left) *Kernel {
	return &Kernel{left: left, links: map[string]*link{}, entries: netstate.State{}, sysctls: map[string]string{},
		chains: netstate.State{}, fast: netstate.State{}, watchers: map[chan struct{}]bool{}}
}

// SetFaults replaces the faults.
func (k *Kernel) SetFaults(f Faults) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults = f
}

// Index returns the interface index of a link, 0 if there is none: a recreated link has another.
func (k *Kernel) Index(name string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l, ok := k.links[name]; ok {
		return l.index
	}
	return 0
}

// Observe returns what is ours, as netstate/kernel has it, and all chains.
func (k *Kernel) Observe(ctx context.Context, want netstate.State) (netstate.State, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.faults.Observe != nil {
		if err := k.faults.Observe(); err != nil {
			return nil, err
		}
	}
	state := netstate.State{}
	state.Merge(k.chains)
	state.Merge(k.fast)
	for _, l := range k.links {
		if k.owns(l.Name, want) {
			state.Add(l.object())
		}
	}
	for _, o := range k.entries {
		key := o.Key()
		if k.owns(key.Name, want) && (key.Kind == netstate.KindAddr || k.links[key.Name].kind == "vxlan") &&
			(want[o.Key()] != nil || !linkLocal(key.Prefix.Addr())) {
			state.Add(o)
		}
	}
	k.observeRoutes(want, state)
	for key, o := range want {
		if value, ok := k.sysctl(key.Name); ok && key.Kind == netstate.KindSysctl {
			state.Add(o.(netstate.Sysctl).Observed(value))
		}
		if l, ok := k.links[key.Name]; ok && key.Kind == netstate.KindOffload {
			state.Add(netstate.Offload{Dev: key.Name, On: !l.offloadOff})
		}
	}
	return state, ctx.Err()
}

func (k *Kernel) owns(dev string, want netstate.State) bool {
	l, ok := k.links[dev]
	_, wanted := want[netstate.Key{Kind: netstate.KindLink, Name: dev}]
	return ok && (wanted || l.alias == netstate.Mark)
}

func linkLocal(a netip.Addr) bool { return a.IsLinkLocalUnicast() || a.IsMulticast() }

// Apply carries out all of p that it can and joins the errors.
func (k *Kernel) Apply(ctx context.Context, p netstate.Plan) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, c := range p {
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		if err := k.change(c); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c, err))
		}
	}
	return errors.Join(errs...)
}

func (k *Kernel) change(c netstate.Change) error {
	if k.faults.Change != nil {
		if err := k.faults.Change(c); err != nil {
			return err
		}
	}
	if c.Want == nil {
		k.remove(c.Was)
		return nil
	}
	return k.put(c.Want, c.Was)
}

func (k *Kernel) put(want, was netstate.Object) error {
	switch o := want.(type) {
	case netstate.VXLAN, netstate.Bridge, netstate.Tun:
		return k.putLink(o)
	case netstate.Tunnel:
		if o.External {
			return fmt.Errorf("an external %s is not an object that this kernel writes", o.Key().Kind)
		}
		return k.putLink(o)
	case netstate.Sysctl:
		return k.setSysctl(o.Name, o.Value)
	case netstate.Offload:
		return k.setOffload(o)
	case netstate.Addr:
		if was, ok := was.(netstate.Addr); ok && (was.Extra != "" || was.Peer.IsValid()) {
			k.remove(was)
		}
		return k.putEntry(o)
	case netstate.Neigh:
		return k.putEntry(o)
	case netstate.FDB:
		return k.putFDB(o, true)
	case netstate.Route:
		return k.putRoute(o, was)
	case netstate.Chain, netstate.Strays:
		k.chains.Add(o)
		k.changed("")
		return nil
	case netstate.Program:
		if _, err := k.link(o.Dev); err != nil {
			return err
		}
		k.fast.Add(o)
		return nil
	case netstate.Shortcut, netstate.PodPort, netstate.Switch:
		k.fast.Add(o)
		return nil
	}
	return fmt.Errorf("a %s is not an object that this kernel writes", want.Key().Kind)
}

// remove deletes an object, and what the kernel deletes with it; what is absent stays absent.
func (k *Kernel) remove(o netstate.Object) {
	switch o := o.(type) {
	case netstate.VXLAN, netstate.Bridge, netstate.Tun, netstate.Tunnel, netstate.OtherLink:
		k.deleteLink(o.Key().Name)
	case netstate.Addr:
		k.deleteAddr(o)
	case netstate.Neigh:
		delete(k.entries, o.Key())
		k.changed(o.Dev)
	case netstate.FDB:
		k.deleteFDB(o)
	case netstate.Route:
		k.deleteRoute(o)
	case netstate.Chain, netstate.Strays:
		delete(k.chains, o.Key())
		k.changed("")
	case netstate.Shortcut, netstate.PodPort, netstate.Switch, netstate.Program:
		delete(k.fast, o.Key())
	}
}

// Put places objects as another program would, each in its slot: no faults, but the kernel's own refusals.
func (k *Kernel) Put(objects ...netstate.Object) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, o := range objects {
		errs = append(errs, k.put(o, nil))
	}
	return errors.Join(errs...)
}

// Remove deletes objects as another program would, with what the kernel deletes with them.
func (k *Kernel) Remove(objects ...netstate.Object) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, o := range objects {
		k.remove(o)
	}
}

// Watch hints at every change that is not about a veth device.
func (k *Kernel) Watch(ctx context.Context) (<-chan struct{}, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.faults.Watch != nil {
		if err := k.faults.Watch(); err != nil {
			return nil, err
		}
	}
	hints := make(chan struct{}, 1)
	k.watchers[hints] = true
	context.AfterFunc(ctx, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.unsubscribe(hints)
	})
	return hints, nil
}

// Overflow ends all subscriptions, as a burst of changes does.
func (k *Kernel) Overflow() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for hints := range k.watchers {
		k.unsubscribe(hints)
	}
}

func (k *Kernel) unsubscribe(hints chan struct{}) {
	if k.watchers[hints] {
		delete(k.watchers, hints)
		close(hints)
	}
}

// changed hints that something on dev is new.
func (k *Kernel) changed(dev string) {
	if strings.HasPrefix(dev, "veth") {
		return
	}
	for hints := range k.watchers {
		loop.Notify(hints)
	}
}
