// Package agent keeps the kernel in the state that the current leases ask for. Everything that
// happens (the store changed, the kernel changed, time passed) only triggers a reconcile. One
// goroutine reconciles, and it alone writes to the kernel.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/agent/checksum"
	"github.com/twill-net/twill/agent/keptfile"
	"github.com/twill-net/twill/agent/masquerade"
	"github.com/twill-net/twill/agent/reach"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/internal/causes"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/steps"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Machine is the facts from which an underlay is chosen.
type Machine interface {
	Interfaces(ctx context.Context) ([]netstate.Interface, error)
	// RouteTo returns the interface through which packets to dst leave now, and the address that
	// they are sent from.
	RouteTo(dst netip.Addr) (dev string, src netip.Addr, err error)
}

// Policies protect the pods of this node by network policies.
type Policies interface {
	// Protect is told what pods of this node get addresses from. It returns nil once policies are enforced there; until
	// then the agent writes no lease for the CNI plugin, so that no pod starts.
	Protect(subnets []netip.Prefix) error
	// Leases is told which nodes' pods addresses can be of, and where packets of nodes come from: as subnet.Snapshot.Leases
	// returns it.
	Leases(all []subnet.Lease)
	// Enforced returns nil while the node's rules are as policies ask, or else why they are not.
	Enforced() error
	// Claimed returns how many pods of other nodes claim addresses of this node's, and what to say of the first.
	Claimed() (some []string, pods int)
	// LeftOut returns the NetworkPolicies that are left out because of what they cost, by namespace/name, and the
	// ClusterNetworkPolicies of which the last version stays.
	LeftOut() (policies, refused []string)
	// Audited returns whether policies are only audited, and what they would have denied.
	Audited() (audits bool, denied []netstate.Denied)
	// Ready returns why policies have not been enforced for a minute; nil if they were.
	Ready() error
	// Unmarked returns the marks that pods' ports have lost, by the ports' names.
	Unmarked() map[string]string
	// Denied returns the addresses of this node's pods that have an open connection which policies deny, or an error while
	// that is not known.
	Denied() (map[netip.Addr]bool, error)
	// DeniedChanged notifies when Denied returns something else.
	DeniedChanged() <-chan struct{}
}

// Config is what an Agent is made of. Nothing of it is optional but what says so.
type Config struct {
	Planner
	Store   subnet.Store
	Kernel  Kernel
	Machine Machine
	// Live counts the pods of this node that have an address of a subnet. Optional: without it a
	// changed lease takes the old gateway address from the bridge at once.
	Live func(netip.Prefix) (int, error)
	// Masquerade names networks that are exempt from masquerading, beside those of Firewall. Optional.
	Masquerade *masquerade.File
	// ProbeChecksum finds out whether packets to a peer's end of the overlay arrive if the NIC computes their checksums.
	// Optional: without it nobody does.
	ProbeChecksum func(context.Context, netip.Addr) (checksum.Result, error)
	// Resolved reports whether a neighbour of the underlay has answered for its MAC. Optional with Settings.ReachPeers 0.
	Resolved func(netip.Addr) bool
	// APIServer returns where the store last reached the API server, invalid before. Optional: then there is none.
	APIServer func() netip.AddrPort
	// Policies enforce network policies. Optional: without it nobody does.
	Policies Policies
	// FastPath has Kernel's programs work. Optional: without it no packet takes the fast path.
	FastPath FastPath
	// Freed is closed when subnet.env may be written, since no address of an earlier boot is in use. Optional.
	Freed <-chan struct{}
	// Refused is why the backend of the network config cannot work on this node: the Planner has the one of before, and the
	// node is not ready. Nil: it can.
	Refused error
	// Steps are what the start does. Optional.
	Steps    *steps.Table
	Settings Settings // of these the agent uses SubnetFile, Checkpoint and Conflist
	Log      *slog.Logger
	Metrics  *Metrics
}

// Agent is one node's agent. Make it with New, run it once.
type Agent struct {
	Config
	status     status
	causes     causes.Log
	files      *keptfile.Keeper
	earlier    atomic.Pointer[Saved] // what an earlier run left, until the store is in sync; nil: nothing
	leases     *leases
	skips      skips
	disputes   disputes
	renewals   renewals
	history    history
	loop       loopState
	checksums  checksums
	oldSubnets oldSubnets
	triggers   chan struct{}      // each one makes the loop reconcile
	facts      chan backend.Node  // the newest, for the publisher
	views      chan backend.Input // the newest, for a backend that runs
	outputs    chan nodeFiles     // the newest, to write
	written    atomic.Pointer[written]
	blocked    atomic.Pointer[string] // why the loop last found the fast path forbidden, which may have changed; nil: it has not looked
	saves      chan subnet.Snapshot   // the newest, for the checkpoint
	paths      atomic.Pointer[paths]
	reach      *reach.Prober // nil: no peer is asked
}

// New makes an agent that has not touched anything yet.
func New(cfg Config) *Agent {
	a := &Agent{Config: cfg, leases: newLeases(cfg.Backend), skips: newSkips(),
		checksums: newChecksums(), triggers: make(chan struct{}, 1),
		facts: make(chan backend.Node, 1), views: make(chan backend.Input, 1), saves: make(chan subnet.Snapshot, 1),
		outputs: make(chan nodeFiles, 1), oldSubnets: newOldSubnets()}
	if a.Settings.ReachPeers > 0 {
		a.reach = a.prober()
	}
	a.files = keptfile.New(cfg.Log, &a.causes)
	if _, ok := cfg.Backend.(backend.Runner); ok {
		a.status.runnerErr = errors.New("it has not started yet")
	}
	_, a.status.reports = cfg.Backend.(backend.Reporter)
	a.loop.started, a.loop.retry, a.status.began = time.Now(), newBackoff(), time.Now()
	return a
}

// Run works until ctx is done and then returns nil; what it wrote to the kernel stays. An error is
// one that waiting does not resolve.
func (a *Agent) Run(ctx context.Context) error {
	a.loop.started = time.Now()
	a.history.start(a.Network.Backend)
	if a.Refused != nil {
		a.Log.Error("the network config is not followed", "node", a.Node, "err", a.Refused)
		a.event("Warning", "BackendRefused", clip(a.Refused.Error()))
	}
	end := a.Steps.Begin("reads the checkpoint " + a.Settings.Checkpoint)
	a.restoreCheckpoint()
	end()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.watchKernel(ctx) })
	group.Go(func() error { return a.publish(ctx, group) })
	group.Go(func() error { return a.reconcileLoop(ctx) })
	group.Go(a.writeFiles)
	group.Go(a.countOldPods)
	if a.Freed != nil {
		group.Go(func() error { return a.awaitFreed(ctx) })
	}
	group.Go(func() error { return a.writeCheckpoints(ctx) })
	group.Go(func() error { return a.Masquerade.Run(ctx, a.trigger) })
	group.Go(func() error { return a.watchRenewal(ctx) })
	if a.reach != nil {
		group.Go(func() error { return a.reach.Run(ctx) })
	}
	if r, ok := a.Backend.(backend.Runner); ok {
		group.Go(func() error { return a.runBackend(ctx, r) })
	}
	if a.probesChecksums() {
		group.Go(func() error { return a.probeChecksums(ctx) })
	}
	if a.Shortcuts.On && a.FastPath != nil {
		group.Go(func() error { return a.watchFastPath(ctx) })
	}
	return group.Wait()
}

// KeepFiles puts the files that Run writes back at the moment that somebody alters or deletes them, until ctx is done.
// Without it, Run does so once a minute.
func (a *Agent) KeepFiles(ctx context.Context) error { return a.files.Run(ctx) }

// trigger makes the loop reconcile.
func (a *Agent) trigger() { loop.Notify(a.triggers) }

// replace puts the newest value into a channel that has room for one, in place of one that nobody
// has taken yet.
func replace[T any](c chan T, newest T) {
	for {
		select {
		case c <- newest:
			return
		case <-c:
		}
	}
}

// watchKernel makes triggers of the kernel's notifications.
func (a *Agent) watchKernel(ctx context.Context) error {
	loop.Subscribe(ctx, a.Kernel.Watch, a.trigger, func(err error) {
		if errors.Is(err, loop.ErrBroken) {
			a.causes.Add(a.Log, slog.LevelWarn, "the subscription to kernel changes broke, subscribing again", "")
			return
		}
		a.causes.Error(a.Log, "watch the kernel", err)
	})
	return nil
}
