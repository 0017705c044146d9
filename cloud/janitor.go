package cloud

import (
	"maps"
	"slices"
	"time"

	"github.com/twill-net/twill/subnet"
)

// buriedAfter is how long a route must have been dead, in at least two looks, before it is deleted.
const buriedAfter = 10 * time.Minute

// janitor returns the deletion of dead routes of nobody, if this node is the one with the lowest subnet. Two nodes may both
// think so for a while: deleting twice does no harm.
func (k *keeper) janitor(have []Route) (changes []Change) {
	s := k.view.Snapshot
	if !k.view.Synced || len(s.Skips) > 0 || !isLowest(s) {
		clear(k.dead)
		return nil
	}
	now := map[string]time.Time{}
	for _, r := range Dead(have, s, k.Pools) {
		since, known := k.dead[key(r)]
		if !known {
			since = time.Now()
		}
		now[key(r)] = since
		if known && time.Since(since) >= buriedAfter {
			changes = append(changes, Change{Op: Delete, Route: r})
		}
	}
	clear(k.dead)
	maps.Copy(k.dead, now)
	return changes
}

// disputes are the times at which a route of this node's was found to lead to somebody else.
type disputes map[string][]time.Time

// A route that was taken so often in such a time is left to whoever writes it, until that time is over.
const (
	maxDisputes   = 3
	disputeWindow = 10 * time.Minute
)

// isContended reports whether a change takes a route from somebody else that was taken too often already.
func (d disputes) isContended(c Change, self Self, now time.Time) bool {
	return isTaking(c, self) && len(d.recent(key(c.Route), now)) >= maxDisputes
}

// note keeps that a change was made.
func (d disputes) note(c Change, self Self, now time.Time) {
	if isTaking(c, self) {
		d[key(c.Route)] = append(d.recent(key(c.Route), now), now)
	}
}

func (d disputes) recent(route string, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(d[route]), func(t time.Time) bool { return now.Sub(t) >= disputeWindow })
}

// isTaking reports whether a change ends a route of somebody else's that works.
func isTaking(c Change, self Self) bool {
	theirs := c.Old
	if c.Op == Delete {
		theirs = c.Route
	}
	return c.Op != Create && theirs.State != Blackhole && theirs.Target != self.Target
}

// isLowest reports whether no other node's subnet is before this node's.
func isLowest(s subnet.Snapshot) bool {
	return len(s.Local.Stacks) > 0 && !slices.ContainsFunc(s.Peers, func(l subnet.Lease) bool {
		return len(l.Stacks) > 0 && l.Stacks[0].Subnet.Compare(s.Local.Stacks[0].Subnet) < 0
	})
}
