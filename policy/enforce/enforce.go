// Package enforce keeps a node's kernel as the policies of the cluster ask. It is a loop of its own, beside the network's:
// policies never delay a route.
package enforce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/internal/causes"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/subnet"
)

// Kernel is where the tables are.
type Kernel interface {
	// Observe returns what the tables hold.
	Observe(ctx context.Context, want netstate.State) (netstate.State, error)
	// Apply makes all of the plan that packets can notice at once. After an error the tables have to be observed.
	Apply(ctx context.Context, p netstate.Plan) error
	// Watch notifies when somebody else may have changed the tables; the channel is closed when the subscription broke.
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// Ports are the ports of the node's pods.
type Ports interface {
	// List returns all, as the CNI plugin made them.
	List() ([]netstate.Port, error)
	// Watch notifies when one comes or goes; the channel is closed when the subscription broke.
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// Config is what an Enforcer is made of.
type Config struct {
	Node   string
	Bridge string // of the pods
	// Networks are what the pods of all nodes get addresses from.
	Networks []netip.Prefix
	Source   policy.Source
	Kernel   Kernel
	Ports    Ports
	// Connections is needed where packets of open ones take the fast path, past the tables. Optional.
	Connections Connections
	// Forget deletes what the kernel tracks of connections that end in some subnets and may have begun in the other
	// direction: UDP's, and what began in the middle. It returns how many there were. Optional.
	Forget   func(subnets []netip.Prefix) (int, error)
	Log      *slog.Logger
	Metrics  *Metrics
	Counters Counters // of packets that were denied
	Logs     bool     // rules tell of packets that they drop: LogDenied writes them to Log
	Audit    bool     // what policies deny is counted, and passes; nothing waits for them
	// Event tells the cluster something about this node, as subnet.Reporter has it. Optional.
	Event func(kind, reason, message string)
	// ObjectEvent tells it something about an object, as subnet.ObjectReporter has it. Optional.
	ObjectEvent func(about subnet.Object, kind, reason, message string)
	// Budget is what policies may cost this node. Optional: without it they may cost anything.
	Budget *policy.Budget
}

const (
	resync     = 10 * time.Minute       // how often the tables are read when nothing happens
	firstRetry = 100 * time.Millisecond // the pause after the first of a row of errors; it doubles up to lastRetry
	lastRetry  = 10 * time.Second
	gatherFor  = 2 * time.Millisecond  // how long a change waits for others
	minPause   = 10 * time.Millisecond // the least time between two reconciles, likewise

	// patience is how long a start waits for the source before it looks for what an earlier agent left.
	patience = 3 * time.Second
)

// Enforcer keeps the tables. Make it with New, run it once.
type Enforcer struct {
	Config
	causes   causes.Log
	denials  causes.Log // packets that were denied, of which there may be many
	counting counting
	inbox    inbox
	wake     chan struct{}
	hurry    chan struct{} // somebody waits for the next reconcile
	denies   chan struct{} // open connections may be denied now
	rejudged chan struct{} // what Denied returns has changed

	mu       sync.Mutex
	subnets  []netip.Prefix // of this node, which the agent tells
	leases   []subnet.Lease // as policy.Snapshot has them
	followed int            // the inbox's last of what the kernel enforces
	progress chan struct{}  // closed when followed changes
	chains   map[netstate.Key]policy.Chain
	enforced error     // why pods may not start yet; nil: the tables are there
	failed   error     // why the last reconcile failed; nil: it did not
	since    time.Time // when the first of a row of reconciles failed
	claimed  claimed
	leftOut  leftOut
	unmarked map[string]string   // the marks that ports have lost, by name
	denied   map[netip.Addr]bool // as Denied has it
	judged   error               // why that is not known; nil: it is

	// What follows is the loop's own.
	tableMu  sync.Mutex             // of writing to table, and of others' reading
	table    *policy.Table          // nil: there is none, or it has to be made anew
	snapshot func() policy.Snapshot // nil: the source has nothing yet
	made     policy.Site            // for which it was made
	have     netstate.State         // what the kernel has; nil: it has to be read
	ports    []netstate.Port        // nil: they have to be read
	claims   claims
	budget   budget
	started  time.Time
	restored bool      // the tables are an earlier agent's
	unread   bool      // the last reading failed: what is wanted is written without another one
	doubt    time.Time // until when the table has the site's Doubt; zero: it has not
	gap      bool      // connections may have begun that nobody judged
}

// New makes an Enforcer that has not touched anything yet.
func New(cfg Config) *Enforcer {
	return &Enforcer{Config: cfg, claims: newClaims(), budget: newBudget(), counting: counting{from: cfg.Counters},
		wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1), denies: make(chan struct{}, 1), rejudged: make(chan struct{}, 1),
		progress: make(chan struct{}),
		enforced: fmt.Errorf("network policies are not %s yet", cfg.done()),
		judged:   errors.New("network policies have not judged the connections that are open yet")}
}

// done says what is done with policies.
func (c Config) done() string {
	if c.Audit {
		return "audited"
	}
	return "enforced"
}

// Protect tells what this node's pods get addresses from. It returns nil once policies are enforced there: until then no
// pod may start, unless they are only audited.
func (e *Enforcer) Protect(subnets []netip.Prefix) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(subnets, e.subnets) {
		e.subnets = slices.Clone(subnets)
		e.enforced = fmt.Errorf("network policies are not %s in %v yet", e.done(), subnets)
		e.notify()
	}
	if e.Audit {
		return nil
	}
	return e.enforced
}

// Leases tells which nodes' pods addresses can be of, and where nodes' packets come from, as policy.Snapshot has it.
func (e *Enforcer) Leases(all []subnet.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.EqualFunc(all, e.leases, subnet.Lease.Equal) {
		e.leases = all
		e.inbox.moved()
		e.notify()
	}
}

// Subnets returns what this node's pods get addresses from; nothing before the agent has told it.
func (e *Enforcer) Subnets() []netip.Prefix { return e.site().Subnets }

// Flush waits until the kernel enforces all that the source has told until now, for the ports that there are now.
func (e *Enforcer) Flush(ctx context.Context) error {
	last := e.inbox.plugged()
	e.notify()
	for {
		e.mu.Lock()
		followed, progress := e.followed, e.progress
		e.mu.Unlock()
		if followed >= last {
			return nil
		}
		loop.Notify(e.hurry)
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for network policies to be enforced: %w", ctx.Err())
		case <-progress:
		}
	}
}

// Enforced returns nil while the tables are as policies ask, those that audit too, or else why they are not.
func (e *Enforcer) Enforced() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed != nil {
		return e.failed
	}
	return e.enforced
}

// setFailed notes how a reconcile ended.
func (e *Enforcer) setFailed(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed == nil {
		e.since = time.Now()
	}
	e.failed = err
	e.Metrics.setFailing(err != nil)
}

// failingFor is how long reconciles may fail before the node is not ready.
const failingFor = time.Minute

// Ready returns why policies have not been enforced for a minute; nil if they were.
func (e *Enforcer) Ready() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if failing := time.Since(e.since); e.failed != nil && failing >= failingFor {
		return fmt.Errorf("network policies have not been %s for %s: %w", e.done(), failing.Round(time.Second), e.failed)
	}
	return nil
}

// notify wakes the loop.
func (e *Enforcer) notify() { loop.Notify(e.wake) }

// Run works until ctx is done. What it wrote to the kernel stays, and goes on protecting the pods that are there; new ones
// cannot send before an agent knows them.
func (e *Enforcer) Run(ctx context.Context) error {
	e.started = time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return e.Source.Watch(ctx, e.notify)
	})
	group.Go(func() error {
		return e.watch(ctx, "watch the tables of network policies", e.Kernel.Watch, e.inbox.altered)
	})
	group.Go(func() error {
		return e.watch(ctx, "watch pods' ports", e.Ports.Watch, func() { e.inbox.plugged() })
	})
	group.Go(func() error { return e.loop(ctx) })
	if e.Connections != nil {
		group.Go(func() error { return e.judgeConnections(ctx) })
	}
	return group.Wait()
}

// watch makes the loop read what it is notified of.
func (e *Enforcer) watch(
	ctx context.Context, task string, subscribe func(context.Context) (<-chan struct{}, error), note func(),
) error {
	loop.Subscribe(ctx, subscribe, func() {
		note()
		e.notify()
	}, func(err error) {
		if !errors.Is(err, loop.ErrBroken) { // what a broken one missed is noted at once
			e.causes.Error(e.Log, task, err)
		}
	})
	return nil
}

// loop reconciles whenever something happened.
func (e *Enforcer) loop(ctx context.Context) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	retry, ended := loop.Backoff{First: firstRetry, Last: lastRetry}, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
			e.gather(ctx, time.Until(ended.Add(minPause)))
		case <-timer.C:
			if e.doubt.IsZero() {
				e.inbox.altered()
			}
		}
		err := e.reconcile(ctx)
		ended = time.Now()
		e.setFailed(err)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			e.have = nil
			e.causes.Error(e.Log, "enforce network policies", err)
			e.Metrics.errors.Inc()
			timer.Reset(retry.Next())
			continue
		case e.table == nil:
			timer.Reset(patience)
		case !e.doubt.IsZero():
			timer.Reset(time.Until(e.doubt))
		default:
			timer.Reset(resync)
		}
		retry.Reset()
	}
}

// gather lets more changes come, unless somebody waits for those that came.
func (e *Enforcer) gather(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(max(pause, gatherFor))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-e.hurry:
	case <-timer.C:
	}
}
