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

// isContended notes that a route has to be replaced, and reports whether that happened too often.
func (d *disputes) isContended(c Change, now time.Time) bool {
	if c.Op != Replace || c.Old.State == Blackhole {
		return false
	}
	if *d == nil {
		*d = disputes{}
	}
	var recent []time.Time
	for _, t := range (*d)[key(c.Route)] {
		if now.Sub(t) < disputeWindow {
			recent = append(recent, t)
		}
	}
	if len(recent) < maxDisputes {
		recent = append(recent, now)
		(*d)[key(c.Route)] = recent
		return false
	}
	(*d)[key(c.Route)] = recent
	return true
}

// isLowest reports whether no other node's subnet is before this node's.
func isLowest(s subnet.Snapshot) bool {
	return len(s.Local.Stacks) > 0 && !slices.ContainsFunc(s.Peers, func(l subnet.Lease) bool {
		return len(l.Stacks) > 0 && l.Stacks[0].Subnet.Compare(s.Local.Stacks[0].Subnet) < 0
	})
}
