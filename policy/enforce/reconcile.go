package enforce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/subnet"
)

// reconcile brings the tables to what is wanted now.
func (e *Enforcer) reconcile(ctx context.Context) error {
	began, site := time.Now(), e.site()
	if len(site.Subnets) == 0 {
		return nil // the agent has no lease yet; what happens until then waits
	}
	n := e.inbox.take()
	if n.tables {
		e.have = nil
	}
	change, ok := e.Source.Take()
	if ok {
		e.snapshot = change.Snapshot
	}
	if e.snapshot == nil {
		return e.restore(ctx, site)
	}
	var err error
	if site.Ports, err = e.readPorts(n); err != nil {
		return err
	}
	ended := e.endDoubt()
	site.Doubt = !e.doubt.IsZero()
	plan, followed := e.follow(n, change, site)
	switch {
	case !followed:
		plan = e.make(ctx, e.snapshot(), site)
	case ended:
		plan = append(plan, e.setDoubt(false)...)
	}
	e.reportClaims()
	if e.have == nil {
		if plan, err = e.compare(ctx, n); err != nil {
			return err
		}
	}
	if err := e.apply(ctx, plan, began); err != nil {
		return err
	}
	e.forget(site)
	if e.have == nil || e.table.MayDeny(plan) {
		loop.Notify(e.denies)
	}
	e.have = e.table.State()
	e.setEnforced(site, nil)
	e.setFollowed(n.last)
	return nil
}

// readPorts returns the pods' ports. If they cannot be read, the table has to be made anew after that: the news are lost.
func (e *Enforcer) readPorts(n news) (ports []netstate.Port, err error) {
	if e.ports == nil || n.ports {
		if e.ports, err = e.Ports.List(); err != nil {
			e.ports = nil
			e.setTable(nil)
			return nil, fmt.Errorf("read which ports pods have: %w", err)
		}
		e.reportUnmarked()
	}
	return e.ports, nil
}

// reportUnmarked logs of each port that has lost its mark. What was known of it still holds; an agent that starts does not
// know it.
func (e *Enforcer) reportUnmarked() {
	unmarked := map[string]string{}
	for _, p := range e.ports {
		if p.Extra == netstate.Unmarked {
			unmarked[p.Name] = p.Alias()
			e.causes.Add(e.Log, slog.LevelWarn, "a pod's port has lost the CNI plugin's mark, what was known of it still holds", p.Name,
				"port", p.Name, "mark", p.Alias())
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unmarked = unmarked
}

// Unmarked returns the marks that pods' ports have lost, by the ports' names. The caller must not alter it.
func (e *Enforcer) Unmarked() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unmarked
}

// currentLeases returns the nodes' leases as the agent told them last.
func (e *Enforcer) currentLeases() []subnet.Lease {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leases
}

// mostPods bounds the pods that the table follows. With more it is cheaper to make it anew.
const mostPods = 2000

// follow takes changes of pods, ports and leases into the table, and returns what to change in the kernel.
func (e *Enforcer) follow(n news, c policy.Change, site policy.Site) (plan netstate.Plan, ok bool) {
	if e.table == nil || c.Rules || len(c.Pods) > mostPods {
		return nil, false
	}
	e.tableMu.Lock()
	defer e.tableMu.Unlock()
	if n.leases && !e.table.FollowLeases(e.currentLeases()) {
		return nil, false
	}
	return e.table.Follow(site, c.Pods)
}

// make makes the table anew, and returns what to change in the kernel if that is as it was.
func (e *Enforcer) make(ctx context.Context, s policy.Snapshot, site policy.Site) netstate.Plan {
	s.Leases = e.currentLeases()
	table, skips := e.newTable(ctx, site, s)
	e.setTable(table)
	e.reportBudget(table.Spent())
	e.made = site
	chains := e.table.Chains()
	e.mu.Lock()
	e.chains = chains
	e.mu.Unlock()
	for _, skip := range skips {
		e.causes.Add(e.Log, slog.LevelWarn, "a part of a network policy cannot be understood", skip.Policy,
			"kind", skip.Kind, "policy", skip.Policy, "reason", skip.Err)
	}
	e.Metrics.made(e.table.State(), skips)
	return netstate.Diff(e.table.State(), e.have)
}

// compare reads the kernel, and returns what to change. If the last reading failed, as it may do where a table is too large,
// there is none: then all tables are made anew.
func (e *Enforcer) compare(ctx context.Context, n news) (netstate.Plan, error) {
	if e.unread {
		e.unread = false
		return netstate.Diff(e.table.State(), unreadable), nil
	}
	have, err := e.Kernel.Observe(ctx, e.table.State())
	if err != nil {
		e.unread = true
		return nil, fmt.Errorf("read the tables of network policies: %w", err)
	}
	if families := e.opened(have); len(families) > 0 && !e.Audit {
		have = e.endGap(ctx, families, have)
	}
	plan := netstate.Diff(e.table.State(), have)
	if n.tables && len(plan) > 0 && e.protects(e.made.Subnets) {
		e.causes.Add(e.Log, slog.LevelWarn, "the tables of network policies were changed by somebody else, they are put back", "",
			"objects", len(plan), "first", plan[0])
	}
	return plan, nil
}

// unreadable are tables of which nothing is known, so that each change of one makes it anew.
var unreadable = func() netstate.State {
	state := netstate.State{}
	for _, family := range []netstate.Family{netstate.IPv4, netstate.IPv6, netstate.Ethernet} {
		state.Add(netstate.Hook{Family: family, Extra: "the table could not be read"})
	}
	return state
}()

// apply writes a plan to the kernel.
func (e *Enforcer) apply(ctx context.Context, plan netstate.Plan, began time.Time) error {
	if len(plan) == 0 {
		return nil
	}
	if err := e.Kernel.Apply(ctx, plan); err != nil {
		return fmt.Errorf("write the tables of network policies: %w", err)
	}
	e.Metrics.applied(plan, time.Since(began))
	e.Log.Debug("network policies", "changes", len(plan), "first", plan[0], "took", time.Since(began).Round(time.Microsecond))
	return nil
}

// restore goes on with the tables that an earlier agent left, if they protect the node's addresses: pods that are there stay
// as they are, and new ones have no network until the source answers. After a boot there are no tables. Then no pod may
// start, as all would have new addresses, of which nobody knows the policies. One that audits deletes tables that enforce at
// once.
func (e *Enforcer) restore(ctx context.Context, site policy.Site) error {
	early := time.Since(e.started) < patience
	if e.restored || early && !site.Audit {
		return nil
	}
	ok, err := e.intact(ctx, site)
	if err == nil && !ok && site.Audit {
		err = e.open(ctx)
	}
	switch {
	case err != nil:
		return err
	case !ok:
		e.setEnforced(site, errors.New("network policies are not known yet: the API server has to answer first"))
		return nil
	case early:
		return nil
	}
	e.causes.Add(e.Log, slog.LevelWarn, "the API server does not answer, network policies stay as they were", "")
	e.restored = true
	e.setEnforced(site, nil)
	return nil
}

// open deletes all tables: they are not those of an agent that audits.
func (e *Enforcer) open(ctx context.Context) error {
	have, err := e.Kernel.Observe(ctx, nil)
	if err != nil {
		return fmt.Errorf("read the tables of network policies: %w", err)
	}
	return e.apply(ctx, netstate.Diff(nil, have), time.Now())
}

// intact reports whether the kernel has tables that policies of any kind may have made for a site, with a log or without.
func (e *Enforcer) intact(ctx context.Context, site policy.Site) (bool, error) {
	for _, site.Log = range []bool{false, true} {
		for _, want := range policy.Bases(site) {
			have, err := e.Kernel.Observe(ctx, want)
			if err != nil {
				return false, fmt.Errorf("read the tables of network policies: %w", err)
			}
			missing := false
			for key, o := range want {
				missing = missing || have[key] != o
			}
			if !missing {
				return true, nil
			}
		}
	}
	return false, nil
}

// site is this node as the agent sees it now.
func (e *Enforcer) site() policy.Site {
	e.mu.Lock()
	defer e.mu.Unlock()
	return policy.Site{Node: e.Node, Bridge: e.Bridge, Subnets: e.subnets, Networks: e.Networks, Log: e.Logs, Audit: e.Audit,
		Budget: e.Budget}
}

// protects reports whether policies are enforced for pods with addresses of these subnets, the agent has no others, and the last
// reconcile did not fail.
func (e *Enforcer) protects(subnets []netip.Prefix) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.enforced == nil && e.failed == nil && slices.Equal(subnets, e.subnets)
}

// setEnforced notes how the tables of a site are, unless the site has changed meanwhile.
func (e *Enforcer) setEnforced(site policy.Site, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Equal(site.Subnets, e.subnets) {
		e.enforced = err
	}
}

// setFollowed notes that the kernel enforces the changes up to a number.
func (e *Enforcer) setFollowed(last int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if last != e.followed {
		e.followed = last
		close(e.progress)
		e.progress = make(chan struct{})
	}
}
