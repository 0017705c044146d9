package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

const (
	resync     = time.Minute            // how often the loop reconciles when nothing happens
	minPause   = 10 * time.Millisecond  // the least time between two reconciles: a burst of events is one reconcile
	maxPause   = 200 * time.Millisecond // see reconcileLoop
	firstRetry = 100 * time.Millisecond // the pause after the first of a row of errors; it doubles up to lastRetry
	lastRetry  = 10 * time.Second

	// verifyDelay is how long the loop leaves the incremental update's writes alone before it reads the
	// kernel: most of the kernel's notifications in this time are of these writes.
	verifyDelay = 200 * time.Millisecond

	// checkpointAfter is how long a start waits for the store before it uses the checkpoint's leases.
	checkpointAfter = 3 * time.Second

	// nodeIPTimeout is how long a start waits for the node's own address to come to an interface
	// before it takes the default route's: a network manager or a DHCP client may be slower than
	// the agent.
	nodeIPTimeout = 30 * time.Second

	// transitionPause is how often the loop reconciles while the node's backend takes another's place: what the node publishes
	// depends on the time, too.
	transitionPause = 10 * time.Second

	// maxRounds bounds the rounds of one reconcile: a device that was made again needs a second one
	// for what the kernel deleted with it, and a switched backend a third for a name or port that
	// was still in use.
	maxRounds = 4
)

// loopState is what only the loop's goroutine knows.
type loopState struct {
	started    time.Time
	published  []netip.Addr // what peers were told of this node in an earlier run
	node       backend.Node // the facts of the last reconcile
	addrs      []netip.Addr // of this machine, at the last reconcile
	gateways   []netip.Addr // of the underlay, likewise
	desired    desiredCache
	switched   switched
	applied    netstate.State // what the kernel was brought to, nil if anything that matters is missing
	verifyAt   time.Time      // when to verify what the incremental update wrote
	contention contention
	refusal    refusal
	retry      loop.Backoff
}

func newBackoff() loop.Backoff { return loop.Backoff{First: firstRetry, Last: lastRetry} }

// desiredCache is what the backend wanted last, and for what: thousands of objects, which stay the
// same while only the kernel changes.
type desiredCache struct {
	node   backend.Node
	snap   *subnet.Snapshot
	exempt []netip.Prefix
	want   netstate.State
	skips  []subnet.Skip // what is left out of it
}

// reconcileLoop is the goroutine that owns the kernel. After each reconcile it pauses for half the
// time that it took, so that a flood of triggers takes at most two thirds of a processor, and after
// a change of the leases as workBudget says.
func (a *Agent) reconcileLoop(ctx context.Context) error {
	defer close(a.saves)
	defer close(a.outputs)
	defer close(a.oldSubnets.asked)
	timer := time.NewTimer(0)
	defer timer.Stop()
	triggers, changes, budget := pacer{events: a.triggers}, pacer{events: a.leases.changed}, newWorkBudget()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-triggers.resume:
			triggers.resume = nil
			continue
		case <-changes.resume:
			changes.resume = nil
			continue
		case <-changes.next():
			a.status.begin()
			began := cpuTime()
			if !a.incremental(ctx) {
				timer.Reset(a.reconcile(ctx))
			} else if wait := time.Until(a.loop.verifyAt); wait > 0 {
				timer.Reset(wait)
				triggers.pause(wait)
			}
			a.status.end()
			changes.pause(budget.pauseAfter(cpuTime() - began))
			continue
		case <-triggers.next():
		case <-timer.C:
		}
		a.status.begin()
		began := time.Now()
		timer.Reset(a.reconcile(ctx))
		a.status.end()
		triggers.pause(min(max(minPause, time.Since(began)/2), maxPause))
	}
}

// reconcile gathers the facts, computes what is wanted, and brings the kernel to it. It returns
// after what time to reconcile again if nothing happens.
func (a *Agent) reconcile(ctx context.Context) time.Duration {
	select {
	case <-a.triggers: // what happened before is seen now
	default:
	}
	node, err := a.gatherFacts(ctx)
	if err != nil {
		logged := a.causes.Error(a.Log, "choose the underlay", err)
		isTooLarge := errors.As(err, &tooLargeError{})
		if logged && isTooLarge {
			a.event("Warning", "NetworkDoesNotFit", err.Error())
		}
		if len(node.Underlays) == 0 || isTooLarge && len(a.loop.node.Underlays) == 0 { // later on, what stands is still kept
			return firstRetry * 10
		}
	}
	a.loop.node = node
	replace(a.facts, node)
	snap, synced := a.newestSnapshot()
	if snap == nil {
		return firstRetry
	}
	fit, err := a.leaveOut(node, *snap)
	if err != nil && len(fit.Node.Underlays) == 0 {
		a.status.update(synced, true, err)
		a.reportNetwork(result{err: err})
		return firstRetry * 10
	}
	want := a.desired(node, snap)
	if _, ok := a.Backend.(backend.Transition); ok && a.status.wasReady() {
		a.sendView(fit.Node, fit.Snapshot, synced) // a Runner is to know a peer before packets come, and to be gone before its device
	}
	r := a.converge(ctx, want, synced)
	if ctx.Err() != nil {
		return resync
	}
	a.loop.applied = nil
	if synced && !r.degraded() {
		a.setApplied(want)
		a.history.settled = snap
	}
	a.sendView(fit.Node, fit.Snapshot, synced)
	return a.finish(fit, *snap, synced, r)
}

// leaveOut returns what of the node can carry packets, and why it is not all of it.
func (a *Agent) leaveOut(node backend.Node, snap subnet.Snapshot) (fit backend.Input, err error) {
	fit.Node, fit.Snapshot, err = a.Fit(node, snap.WithEarlier())
	if err != nil {
		a.causes.Error(a.Log, "leave IPv6 out", err, "node", a.Node)
	}
	return fit, err
}

// setApplied notes that the kernel was brought to want.
func (a *Agent) setApplied(want netstate.State) {
	a.loop.applied = want
	if a.probesChecksums() {
		replace(a.checksums.applied, want)
	}
}

// gatherFacts reads the machine's facts. With an error, the node may still have the underlays that
// it had before.
func (a *Agent) gatherFacts(ctx context.Context) (backend.Node, error) {
	interfaces, err := a.Machine.Interfaces(ctx)
	if err != nil {
		return a.loop.node, err
	}
	a.redial(interfaces)
	why := ""
	if a.Shortcuts.On {
		why = a.fastPathOff()
		a.leaveDenied(interfaces) // once that is known
	}
	p := a.Planner
	p.Choice.Last, p.Choice.Settled = a.loop.published, p.Choice.Settled || time.Since(a.loop.started) > nodeIPTimeout
	if addrs := a.leases.nodeIPs.Load(); addrs != nil {
		p.Choice.NodeIPs = *addrs
	}
	if snap := a.leases.newest.Load(); snap != nil && len(snap.NodeIPs) > 0 {
		p.Choice.NodeIPs = snap.NodeIPs
	}
	node, err := p.Facts(interfaces, a.loop.node, a.Machine.RouteTo)
	a.loop.gateways = gatewaysOf(interfaces, node)
	a.exclude(node)
	a.checksums.facts(&node)
	node.FastPathOff = cmp.Or(node.FastPathOff, why)
	a.Metrics.checksums.Set(float64(len(node.ChecksumsBroken)))
	if err != nil {
		return node, err
	}
	return node, a.Carries(node)
}

// redial makes the store connect again when an address of this machine is gone: a connection from
// that address would only fail after many seconds.
func (a *Agent) redial(interfaces []netstate.Interface) {
	var now []netip.Addr
	for _, i := range interfaces {
		for _, p := range i.Addrs {
			now = append(now, p.Addr())
		}
	}
	gone := slices.ContainsFunc(a.loop.addrs, func(addr netip.Addr) bool { return !slices.Contains(now, addr) })
	a.loop.addrs = now
	if r, ok := a.Store.(subnet.Redialer); ok && gone {
		r.Redial()
	}
}

// newestSnapshot returns the newest snapshot, nil if there is none yet, and whether it comes from
// the store in this run.
func (a *Agent) newestSnapshot() (snap *subnet.Snapshot, synced bool) {
	if snap := a.followed(); snap != nil {
		a.earlier.Store(nil)
		return snap, true
	}
	earlier := a.earlierSnapshot()
	if earlier == nil || time.Since(a.loop.started) < checkpointAfter {
		return nil, false
	}
	a.causes.Add(a.Log, slog.LevelWarn, "the store does not answer, going on with the checkpoint", "",
		"via", a.Settings.Checkpoint)
	return earlier, false
}

// desired returns the Planner's answer, and tells which peers are left out when that changed.
func (a *Agent) desired(node backend.Node, snap *subnet.Snapshot) netstate.State {
	cache, p := &a.loop.desired, a.planner()
	if cache.snap == snap && slices.Equal(cache.exempt, p.Firewall.Exempt) && reflect.DeepEqual(cache.node, node) {
		return cache.want
	}
	want, skips := p.Desired(node, *snap)
	a.reportSkips(append(slices.Clone(snap.Skips), skips...))
	a.reportOverlaps(node, snap)
	a.Metrics.observed(*snap, want)
	a.history.follow(snap)
	*cache = desiredCache{node, snap, p.Firewall.Exempt, want, skips}
	return want
}

// planner returns the Planner with what the masquerade file says now.
func (a *Agent) planner() Planner {
	p := a.Planner
	p.Firewall.Exempt = slices.Concat(p.Firewall.Exempt, a.Masquerade.Exempt())
	return p
}

// result is how a reconcile ended: what was wanted, what of it is not so and why, and what stays
// though it is not wanted.
type result struct {
	want netstate.State
	left netstate.Plan
	kept []keptGateway
	err  error
	held bool // the way to the peers is still that of before
}

// degraded reports whether the node's data path as a whole does not work, as opposed to the path to
// some peers or to a leftover that cannot be deleted.
func (r result) degraded() bool {
	if r.held || r.err != nil && len(r.left) == 0 || isAboutRules(r.err) {
		return true // not even read back
	}
	entries := 0
	for _, c := range r.left {
		switch {
		case c.Want == nil, isFast(c):
		case isEntry(c):
			entries++
		default:
			return true
		}
	}
	return entries > len(r.want)/2
}

// isEntry reports whether a change is about the path to a peer or a single pod, on which nothing else stands.
func isEntry(c netstate.Change) bool {
	switch c.Key().Kind {
	case netstate.KindNeigh, netstate.KindFDB, netstate.KindPeer, netstate.KindPort, netstate.KindShortcut,
		netstate.KindPodPort:
		return true
	case netstate.KindRoute: // but the one to this node's own pods
		r, put := c.Want.(netstate.Route)
		return !put || r.Protocol != netstate.KernelProtocol
	}
	return false
}

// converge brings the kernel to want: it reads, compares and writes until there is nothing to
// change. Without the store's own word nothing is deleted but shortcuts, without which packets go the kernel's way.
func (a *Agent) converge(ctx context.Context, want netstate.State, synced bool) result {
	var before netstate.Plan
	var applied error
	for round := range maxRounds {
		plan, kept, err := a.compare(ctx, want, synced)
		if switches := a.loop.switched.is != nil && len(plan) > 0; switches && round == 0 && (err == nil || isAboutRules(err)) {
			if r := a.makeFirst(ctx, result{want: want, left: plan, kept: kept, err: err}, synced); r.held {
				return r
			}
			continue
		}
		switch {
		case err != nil && !isAboutRules(err) || len(plan) == 0:
			return result{want: want, left: plan, kept: kept, err: err}
		case applied != nil && slices.Equal(plan, before):
			return result{want: want, left: plan, kept: kept, err: errors.Join(err, applied)} // to try again at once would not help
		}
		applied, before = a.repair(ctx, plan), plan
	}
	plan, kept, err := a.compare(ctx, want, synced)
	if err == nil && len(plan) > 0 {
		err = fmt.Errorf("%d objects are still not as wanted, the first: %s", len(plan), plan[0])
	}
	return result{want: want, left: plan, kept: kept, err: err}
}

// repair writes a plan to the kernel, and counts what it repairs.
func (a *Agent) repair(ctx context.Context, plan netstate.Plan) error {
	err := a.apply(ctx, plan)
	if err == nil {
		a.loop.contention.record(plan, time.Now())
	}
	return err
}

// apply writes a plan to the kernel.
func (a *Agent) apply(ctx context.Context, plan netstate.Plan) error {
	began := time.Now()
	err := a.Kernel.Apply(ctx, plan)
	took := time.Since(began)
	a.logPlan(plan, took, err)
	a.history.applied(a.loop.desired.snap, plan, took, err)
	return err
}

// compare returns what to change now. Not changed are gateways that pods need, which it returns
// too, and objects that someone else keeps changing back; with a rulesError, neither are the firewall's rules.
func (a *Agent) compare(ctx context.Context, want netstate.State, synced bool) (netstate.Plan, []keptGateway, error) {
	have, err := a.Kernel.Observe(ctx, want)
	if err != nil {
		err = fmt.Errorf("read the kernel's state: %w", err)
	}
	if err != nil && !isAboutRules(err) {
		return nil, nil, err
	}
	plan := netstate.Diff(want, have)
	kept, now := a.keptGateways(plan, want), time.Now()
	return slices.DeleteFunc(plan, func(c netstate.Change) bool {
		return !synced && c.Want == nil && !isFast(c) || a.loop.contention.suppressed(c.Key(), now) || hasGone(c, have) ||
			slices.ContainsFunc(kept, func(k keptGateway) bool { return c.Want == nil && c.Was == k.addr })
	}), kept, err
}

// hasGone reports whether a change adds a pod for the fast path that has gone since the facts were read.
func hasGone(c netstate.Change, have netstate.State) bool {
	pod, ok := c.Want.(netstate.PodPort)
	if !ok {
		return false
	}
	_, there := have[netstate.Port{Name: pod.Dev}.Key()]
	return !there
}

// finish hands over the files of what fits, tells the world how the reconcile ended, and returns when to reconcile again.
func (a *Agent) finish(fit backend.Input, snap subnet.Snapshot, synced bool, r result) time.Duration {
	degraded, wasReady := r.degraded(), a.status.wasReady()
	a.logResult(r)
	a.finishFastPath(fit.Node, r)
	if !degraded {
		err := a.keepFiles(fit.Node, fit.Snapshot, synced)
		degraded = err != nil && !wasReady
		r.err = errors.Join(r.err, err)
	}
	a.status.update(synced, degraded, r.err)
	a.Metrics.finished(r, a.status.Ready() == nil)
	a.reportKeptGateways(r.kept)
	if synced && a.publishEarlier(r.kept) {
		replace(a.facts, a.loop.node)
	}
	if a.reach != nil {
		a.paths.Store(pathsOf(fit, a.loop.desired.skips, a.loop.gateways, r.want))
	}
	a.reportPodMTU(fit)
	a.reportContention()
	a.reportNetwork(r)
	a.announce(fit.Node, snap, synced)
	switch {
	case r.err != nil:
		return a.loop.retry.Next()
	case a.loop.contention.suppressing(time.Now()):
		return time.Second
	}
	a.loop.retry.Reset()
	if a.inTransition(snap.Local) {
		return transitionPause
	}
	return resync
}
