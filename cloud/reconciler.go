package cloud

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/twill-net/twill/subnet"
)

// View is what the Reconciler works from. Only the newest counts.
type View struct {
	Local    []netip.Addr // of the underlay, one an address family
	Snapshot subnet.Snapshot
	Synced   bool // the snapshot is the store's own, and says of which subnets nobody has a lease
}

// Health is how the routes of this node are.
type Health struct {
	Seen     bool      // they were seen in the cloud once: pods of this node can be reached
	Wrong    time.Time // since when they are known to be wrong; zero: they are not
	Err      error     // of the last call, nil if it succeeded
	Troubles []Trouble
}

// Reconciler keeps the routes of one node.
type Reconciler struct {
	Cloud  Cloud
	Pools  []subnet.Pool
	Log    *slog.Logger
	Report func(Health) // gets every change of the health
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

// afterWrite are the pauses until a change is looked for, and looked for again.
var afterWrite = []time.Duration{5 * time.Second, 30 * time.Second, time.Minute}

// keeper is a Reconciler that runs.
type keeper struct {
	Reconciler
	limit  *rate.Limiter
	view   View
	self   Self
	health Health

	local    []netip.Addr     // of which self was asked
	wrote    map[string]write // by table and destination
	unsure   int              // how many of afterWrite have passed
	retry    time.Duration
	checked  time.Time // when troubles were looked for
	dead     map[string]time.Time
	disputes disputes
}

// write is a change of this node's own.
type write struct {
	change Change
	at     time.Time
}

// Run keeps the routes until ctx is done. An error of the provider is reported and tried again, and ends nothing.
func (r Reconciler) Run(ctx context.Context, views <-chan View) error {
	k := &keeper{Reconciler: r, limit: rate.NewLimiter(callsPerSecond, callBurst), wrote: map[string]write{},
		dead: map[string]time.Time{}, unsure: len(afterWrite)}
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
		}
		timer.Reset(k.round(ctx))
	}
}

// take notes a view, and reports whether it asks for a look at the cloud. Peers that come and go ask for none.
func (k *keeper) take(v View) bool {
	same := slices.Equal(v.Local, k.view.Local) && slices.EqualFunc(v.Snapshot.Local.Stacks, k.view.Snapshot.Local.Stacks,
		func(a, b subnet.Stack) bool { return a.Subnet == b.Subnet })
	k.view = v
	return !same && len(v.Snapshot.Local.Stacks) > 0
}

// round looks once and writes what differs. It returns the pause until the next round.
func (k *keeper) round(ctx context.Context) time.Duration {
	wrote, err := k.reconcile(ctx)
	if ctx.Err() != nil {
		return lastRetry
	}
	if k.health.Err = err; err != nil {
		k.Report(k.health)
		k.retry = min(max(2*k.retry, firstRetry), lastRetry)
		if errors.Is(err, ErrFull) || errors.Is(err, ErrDenied) {
			k.retry = lastRetry // somebody has to act
		}
		return k.retry/2 + rand.N(k.retry/2+1)
	}
	k.Report(k.health)
	k.retry = 0
	if wrote {
		k.unsure = 0
	}
	if k.unsure < len(afterWrite) {
		k.unsure++
		return afterWrite[k.unsure-1]
	}
	return checkEvery/2 + rand.N(checkEvery)
}

// reconcile reads, compares and writes.
func (k *keeper) reconcile(ctx context.Context) (wrote bool, err error) {
	if err := k.identify(ctx); err != nil {
		return false, err
	}
	if err := k.limit.Wait(ctx); err != nil {
		return false, err
	}
	have, err := k.Cloud.List(ctx, k.self)
	if err != nil {
		return false, fmt.Errorf("list the routes of %s: %w", k.self.Network, err)
	}
	want := Want(k.self, k.view.Snapshot.Local)
	changes := slices.DeleteFunc(Diff(want, have, k.self, k.Pools), k.isFresh)
	k.note(want, changes)
	for _, c := range append(changes, k.janitor(have)...) {
		if k.disputes.isContended(c, time.Now()) {
			return wrote, fmt.Errorf("%s: somebody else keeps writing it, now %s", c, c.Old)
		}
		if err := k.apply(ctx, c); err != nil {
			return wrote, err
		}
		wrote = true
	}
	return wrote, k.troubles(ctx)
}

// identify asks who this node is, again if its addresses have changed.
func (k *keeper) identify(ctx context.Context) error {
	if k.self.Target != "" && slices.Equal(k.local, k.view.Local) {
		return nil
	}
	self, err := k.Cloud.Self(ctx, k.view.Local)
	if err != nil {
		return fmt.Errorf("find the network interface with %v in the metadata: %w", k.view.Local, err)
	}
	k.self, k.local = self, slices.Clone(k.view.Local)
	return nil
}

// isFresh reports whether a change is one that was made just now: the tables that were read are older.
func (k *keeper) isFresh(c Change) bool {
	w, ok := k.wrote[key(c.Route)]
	return ok && time.Since(w.at) < lag && w.change.Op.result() == c.Op.result() && w.change.Route.Target == c.Route.Target
}

// result reports whether there is a route after the operation.
func (o Op) result() bool { return o != Delete }

func key(r Route) string { return r.Table + " " + r.Dst.String() }

// note keeps the health: the routes are right if nothing of this node's has to be written.
func (k *keeper) note(want []Route, changes []Change) {
	missing := slices.ContainsFunc(changes, func(c Change) bool { return c.Op != Delete })
	unseen := slices.ContainsFunc(want, func(w Route) bool {
		made, ok := k.wrote[key(w)]
		return ok && time.Since(made.at) < lag
	})
	switch {
	case missing && k.health.Wrong.IsZero():
		k.health.Wrong = time.Now()
	case !missing && !unseen:
		k.health.Seen, k.health.Wrong = true, time.Time{}
	}
}

func (k *keeper) apply(ctx context.Context, c Change) error {
	if err := k.limit.Wait(ctx); err != nil {
		return err
	}
	k.Log.Info("write a route of the cloud", "change", c.String())
	err := k.Cloud.Apply(ctx, k.self, c)
	if err != nil && !(errors.Is(err, ErrGone) && c.Op == Delete) {
		return fmt.Errorf("%s: %w", c, err)
	}
	k.wrote[key(c.Route)] = write{c, time.Now()}
	return nil
}

// troubles asks once in a while what else is wrong.
func (k *keeper) troubles(ctx context.Context) error {
	if !k.checked.IsZero() && time.Since(k.checked) < troublesEvery {
		return nil
	}
	if err := k.limit.Wait(ctx); err != nil {
		return err
	}
	found, err := k.Cloud.Check(ctx, k.self)
	if err != nil {
		return fmt.Errorf("check %s: %w", k.self.Target, err)
	}
	k.checked, k.health.Troubles = time.Now(), found
	return nil
}
