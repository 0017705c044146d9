// Package agent keeps the kernel in the state that the current leases ask for. Everything that happens (the
// store changed, the kernel said something, time passed) only says "look again"; one goroutine looks, and it
// alone touches the kernel.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Kernel is what the agent reads and writes.
type Kernel interface {
	// Observe is what is ours, and what stands in the slots that want names.
	Observe(ctx context.Context, want netstate.State) (netstate.State, error)
	// Apply does all of the plan that it can and joins the errors.
	Apply(ctx context.Context, p netstate.Plan) error
	// Watch sends hints that something may have changed; the channel is closed when the subscription broke.
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// Machine is the facts from which an underlay is chosen.
type Machine interface {
	Interfaces(ctx context.Context) ([]netstate.Interface, error)
	// RouteTo is the interface through which packets to dst leave now, and the address that they are sent from.
	RouteTo(dst netip.Addr) (dev string, src netip.Addr, err error)
}

// Config is everything that an Agent needs; nothing of it is optional but what says so.
type Config struct {
	Planner
	Store      subnet.Store
	Kernel     Kernel
	Machine    Machine
	SubnetFile string
	Checkpoint string // optional: where lease and peers are kept for a start without the store
	// Live counts the pods of this node that have an address of a subnet. Optional: without it a changed lease takes
	// the old gateway address from the bridge at once.
	Live     func(netip.Prefix) (int, error)
	Settings Settings // optional: what the checkpoint says of this agent's flags
	Conflist Conflist // optional: the runtime's config, installed when the data path works
	Log      *slog.Logger
	Metrics  *Metrics
}

// Agent is one node's agent. Make it with New, run it once.
type Agent struct {
	Config
	status   Status
	kicks    chan struct{}
	news     chan struct{}                   // the store has a newer snapshot
	nodes    chan backend.Node               // the newest facts, for the publisher
	views    chan backend.View               // the newest view, for a backend that runs
	snapshot atomic.Pointer[subnet.Snapshot] // the store's
	peers    *peers
	taken    *subnet.Snapshot             // the last one of the store that peers were told of
	reminder *time.Timer                  // rings news when a record that waits may be followed
	leased   atomic.Pointer[subnet.Lease] // what Acquire gave
	nodeIPs  atomic.Pointer[[]netip.Addr] // the store's, before there is a snapshot
	warmth   warmth
	begun    time.Time
	told     []netip.Addr // what peers were told of this node in an earlier run
	fights   fights
	node     backend.Node // the last complete facts
	asked    asked
	right    netstate.State      // what the kernel was brought to, nil if anything of it is not so
	unseen   time.Time           // when the first write was made that no look has judged yet
	addrs    map[netip.Addr]bool // of this machine, at the last look
	skips    skips
	conflist string               // why it stays as it was, empty if it does not
	saves    chan subnet.Snapshot // the newest leases, for the checkpoint
	saved    *subnet.Snapshot     // what keepCheckpoint wrote
}

// resync is how often the agent looks without any hint.
const resync = time.Minute

// minPause is the least time between two looks: a burst of hints is one look.
const minPause = 10 * time.Millisecond

// New makes an agent that has not touched anything yet.
func New(cfg Config) *Agent {
	a := &Agent{Config: cfg, kicks: make(chan struct{}, 1), news: make(chan struct{}, 1), nodes: make(chan backend.Node, 1),
		views: make(chan backend.View, 1), saves: make(chan subnet.Snapshot, 1), peers: newPeers(nil), skips: newSkips()}
	if _, ok := cfg.Backend.(backend.Runner); ok {
		a.status.down = errors.New("it has not started yet")
	}
	if c, ok := cfg.Backend.(backend.Claimer); ok {
		a.peers.claim = c.Claim
	}
	return a
}

// Run works until ctx is done and then returns nil; what it wrote to the kernel stays. An error is one that
// waiting does not mend.
func (a *Agent) Run(ctx context.Context) error {
	a.begun, a.told = time.Now(), CheckpointAddrs(a.Checkpoint)
	a.remember()
	a.restoreStore()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.watchKernel(ctx) })
	group.Go(func() error { return a.keepLease(ctx, group) })
	group.Go(func() error { return a.loop(ctx) })
	group.Go(func() error { return a.keepCheckpoint(ctx) })
	if r, ok := a.Backend.(backend.Runner); ok {
		group.Go(func() error { return a.runBackend(ctx, r) })
	}
	return group.Wait()
}

// kick makes the loop look again.
func (a *Agent) kick() { ring(a.kicks) }

// ring leaves word in a channel that has room for one.
func ring(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// loop is the goroutine that owns the kernel. After a look it rests from kicks, and after what the store's changes cost from these.
func (a *Agent) loop(ctx context.Context) error {
	defer close(a.saves)
	timer := time.NewTimer(0)
	defer timer.Stop()
	kicks, news, limit, forNews := gate{c: a.kicks, open: a.kicks}, gate{c: a.news, open: a.news}, newNewsLimit(), false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-kicks.rested:
			kicks.open = kicks.c
			continue
		case <-news.rested:
			news.open = news.c
			continue
		case <-news.open:
			began := used()
			switch a.hurry(ctx) {
			case lookNow:
				forNews = true
				a.kick()
			case wrote:
				timer.Reset(a.untilLook())
			}
			news.rest(workedSince(limit, began))
			continue
		case <-kicks.open:
		case <-timer.C:
		}
		began, worked := time.Now(), used()
		timer.Reset(a.pass(ctx))
		kicks.rest(min(max(minPause, time.Since(began)/2), 20*minPause))
		if forNews {
			news.rest(workedSince(limit, worked))
			forNews = false
		}
	}
}

// pause waits, and is false when ctx ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// watchKernel turns kernel hints into kicks. When the subscription breaks, everything is looked at again.
func (a *Agent) watchKernel(ctx context.Context) error {
	for ctx.Err() == nil {
		hints, err := a.Kernel.Watch(ctx)
		if err != nil {
			a.Log.Error("watch the kernel", "err", err)
			pause(ctx, time.Second)
			continue
		}
		a.kick()
		for range hints {
			a.kick()
		}
		if ctx.Err() == nil {
			a.Log.Warn("the subscription to kernel changes broke, subscribing again")
			pause(ctx, minPause)
		}
	}
	return nil
}
