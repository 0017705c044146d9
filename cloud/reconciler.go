package cloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

// View is what the Reconciler works from. Only the newest counts.
type View struct {
	Local    []netip.Addr // of the underlay, one an address family
	Snapshot subnet.Snapshot
	Synced   bool // the snapshot is the store's own, and says of which subnets nobody has a lease
}

// Reconciler keeps the routes of one node.
type Reconciler struct {
	Cloud  Cloud
	Pools  []subnet.Pool
	Log    *slog.Logger
	Report func(Health) // gets every change of the health
	// Record is what an earlier run saved, zero if nothing.
	Record Record
	// Save gets every change of the record.
	Save func(Record)
}

// Record is what a Reconciler leaves for the next one, and for who takes its routes away.
type Record struct {
	Local  []netip.Addr `json:"local"`  // by which Self was found
	Routes []Route      `json:"routes"` // of this node
	Seen   bool         `json:"seen"`   // they were seen in the cloud
}

// How the provider is asked. Its limits are for all nodes of an account together, so no node asks much.
const (
	callsPerSecond, callBurst = 1, 5

	checkEvery = 10 * time.Minute // ±50 %, so that nodes that started together do not ask together
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute

	// A change may be invisible for a while: reads lag behind writes.
	lag = 30 * time.Second
	// troublesEvery is how often the provider is asked for what else may be wrong.
	troublesEvery = time.Hour
)

// secondLook is the pause until a peer's missing route, or an own one that is pending, is looked for again: it may be late.
const secondLook = 30 * time.Second

// afterWrite are the pauses until a change is looked for, and looked for again.
var afterWrite = []time.Duration{2 * time.Second, 30 * time.Second, time.Minute}

// keeper is a Reconciler that runs.
type keeper struct {
	Reconciler
	limit  *rate.Limiter
	view   View
	self   Self
	health Health

	local    []netip.Addr     // of which self was asked
	wrote    map[string]write // by key
	unsure   int              // how many of afterWrite have passed
	retry    loop.Backoff
	checked  time.Time // when troubles were looked for
	found    []Trouble // then
	dead     map[string]time.Time
	disputes disputes
	unrouted map[netip.Prefix]time.Time // peers' subnets without a route, since when
	pending  bool                       // a route is there, and not active yet
	withheld bool                       // a change waits for the store
}

// write is a change of this node's own.
type write struct {
	change Change
	at     time.Time
}

// Run keeps the routes until ctx is done. An error of the provider is reported and tried again, and ends nothing.
func (r Reconciler) Run(ctx context.Context, views <-chan View) error {
	k := &keeper{Reconciler: r, limit: rate.NewLimiter(callsPerSecond, callBurst),
		retry: loop.Backoff{First: firstRetry, Last: lastRetry}, wrote: map[string]write{},
		dead: map[string]time.Time{}, disputes: disputes{}, unrouted: map[netip.Prefix]time.Time{}, unsure: len(afterWrite)}
	timer := time.NewTimer(0)
	timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case v := <-views:
			if !k.take(v) {
				continue
			}
		case <-timer.C:
			if len(k.view.Snapshot.Local.Stacks) == 0 {
				continue // the lease is gone for now: the next one asks for a look
			}
		}
		timer.Reset(k.round(ctx))
	}
}

// take notes a view, and reports whether it asks for a look at the cloud. Peers that come and go ask for none, and a lease that
// is gone keeps its routes until there is another one: that may be the same again. What an earlier run has seen counts: a
// provider whose API is away must not make a node unready that is started again.
func (k *keeper) take(v View) bool {
	same := slices.Equal(v.Local, k.view.Local) && slices.EqualFunc(v.Snapshot.Local.Stacks, k.view.Snapshot.Local.Stacks,
		func(a, b subnet.Stack) bool { return a.Subnet == b.Subnet })
	confirmed := v.Synced && k.withheld
	k.view = v
	if len(v.Snapshot.Local.Stacks) == 0 || same && !confirmed {
		return false
	}
	if seen := k.Record.covers(v); seen != k.health.Seen {
		k.health.Seen = seen
		k.Report(k.health)
	}
	return true
}

// covers reports whether the record has seen the routes that a view asks for.
func (r Record) covers(v View) bool {
	return r.Seen && slices.Equal(r.Local, v.Local) && !slices.ContainsFunc(v.Snapshot.Local.Stacks, func(s subnet.Stack) bool {
		return !slices.ContainsFunc(r.Routes, func(route Route) bool { return route.Dst == s.Subnet.Masked() })
	})
}

// round looks once and writes what differs. It returns the pause until the next round.
func (k *keeper) round(ctx context.Context) time.Duration {
	wrote, err := k.reconcile(ctx)
	if ctx.Err() != nil {
		return lastRetry
	}
	if k.health.Err = err; err != nil {
		k.health.Failures++
		k.diagnose(err)
		k.Report(k.health)
		pause := k.retry.Next()
		if errors.Is(err, ErrFull) || errors.Is(err, ErrDenied) {
			pause = lastRetry // somebody has to act
		}
		return pause/2 + rand.N(pause/2+1)
	}
	k.diagnose(nil)
	k.Report(k.health)
	k.retry.Reset()
	if wrote {
		k.unsure = 0
	}
	if k.unsure < len(afterWrite) {
		k.unsure++
		return afterWrite[k.unsure-1]
	}
	if k.isSuspicious() || k.pending {
		return secondLook
	}
	return checkEvery/2 + rand.N(checkEvery)
}

// reconcile reads, compares and writes.
func (k *keeper) reconcile(ctx context.Context) (wrote bool, err error) {
	if err := k.identify(ctx); err != nil {
		return false, err
	}
	if err := k.call(ctx); err != nil {
		return false, err
	}
	have, err := k.Cloud.List(ctx, k.self)
	if err != nil {
		if errors.Is(err, ErrDenied) {
			_ = k.troubles(ctx) // they say what is missing
		}
		return false, fmt.Errorf("list the routes of %s: %w", k.self.Network, err)
	}
	want := Want(k.self, k.view.Snapshot.Local)
	changes := slices.DeleteFunc(Diff(want, have, k.self, k.Pools), k.isFresh)
	k.note(want, have, changes)
	k.save(want)
	wrote, err = k.write(ctx, append(k.permitted(changes), k.janitor(have)...))
	if errors.Is(err, ErrThrottled) || ctx.Err() != nil {
		return wrote, err
	}
	found := k.troubles(ctx) // also why a write failed
	return wrote, cmp.Or(err, found)
}

// identify asks who this node is, again if its addresses have changed.
func (k *keeper) identify(ctx context.Context) error {
	if k.self.Target != "" && slices.Equal(k.local, k.view.Local) {
		return nil
	}
	if err := k.call(ctx); err != nil {
		return err
	}
	self, err := k.Cloud.Self(ctx, k.view.Local)
	if err != nil {
		return fmt.Errorf("find the network interface with %v in the metadata: %w", k.view.Local, err)
	}
	if self.Target != k.self.Target {
		k.checked = time.Time{} // whether another network interface forwards is not known
	}
	k.self, k.local = self, slices.Clone(k.view.Local)
	return nil
}

// save keeps the record.
func (k *keeper) save(want []Route) {
	r := Record{Local: slices.Clone(k.local), Routes: want, Seen: k.health.Seen}
	if r.Seen != k.Record.Seen || !slices.Equal(r.Local, k.Record.Local) || !slices.Equal(r.Routes, k.Record.Routes) {
		k.Record = r
		k.Save(r)
	}
}

// call waits until the provider may be asked again, and counts the call.
func (k *keeper) call(ctx context.Context) error {
	if err := k.limit.Wait(ctx); err != nil {
		return err
	}
	k.health.Calls++
	return nil
}

// troubles asks once in a while what else is wrong, and which tables there are.
func (k *keeper) troubles(ctx context.Context) error {
	if !k.checked.IsZero() && time.Since(k.checked) < troublesEvery {
		return nil
	}
	if err := k.call(ctx); err != nil {
		return err
	}
	found, err := k.Cloud.Check(ctx, k.self)
	if err != nil {
		return fmt.Errorf("check %s: %w", k.self.Target, err)
	}
	k.checked, k.found, k.local = time.Now(), found, nil
	return nil
}
