package cloud

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Health is how the routes of this node are.
type Health struct {
	Seen     bool      // they were seen in the cloud: pods of this node can be reached
	Wrong    time.Time // since when they are known to be wrong; zero: they are not
	Err      error     // of the last round, nil if it succeeded
	Troubles []Trouble
	// Calls are all requests since the start, Writes those that changed something, and Failures the rounds that failed.
	Calls, Writes, Failures int
}

// errDisputed is the error of a route that others write again and again.
var errDisputed = errors.New("somebody else keeps writing it")

// note keeps the health: the routes are right if nothing of this node's has to be written. A peer whose route is missing in
// two looks in a row has none.
func (k *keeper) note(want, have []Route, changes []Change) {
	missing := slices.ContainsFunc(changes, func(c Change) bool { // or another route takes a part of its packets
		return c.Op != Delete || c.Route.Target != k.self.Target
	})
	unseen := slices.ContainsFunc(want, func(w Route) bool { // it was made just now, or is pending
		return !slices.ContainsFunc(have, func(h Route) bool {
			return h.Table == w.Table && h.Dst == w.Dst && h.Target == w.Target && h.State == Active
		})
	})
	k.pending = unseen && !missing
	switch {
	case missing && k.health.Wrong.IsZero():
		k.health.Wrong = time.Now()
	case !missing && !unseen:
		k.health.Seen, k.health.Wrong = true, time.Time{}
	}
	k.notePeers(have)
}

// notePeers notes which peers' subnets no table leads to.
func (k *keeper) notePeers(have []Route) {
	routed := map[netip.Prefix]bool{}
	for _, h := range have {
		routed[h.Dst] = routed[h.Dst] || h.State != Blackhole
	}
	now := map[netip.Prefix]time.Time{}
	for _, l := range k.view.Snapshot.Peers {
		for _, s := range l.Stacks {
			if p := s.Subnet.Masked(); !routed[p] {
				now[p] = time.Now()
				if since, ok := k.unrouted[p]; ok {
					now[p] = since
				}
			}
		}
	}
	k.unrouted = now
}

// isSuspicious reports whether a peer's route was missing for the first time.
func (k *keeper) isSuspicious() bool {
	for _, since := range k.unrouted {
		if time.Since(since) < unroutedAfter {
			return true
		}
	}
	return false
}

// unroutedAfter is how long a peer may take to write its route.
const unroutedAfter = 20 * time.Second

// diagnose puts what is wrong into the health: what the provider said when it was asked, what the error of a round says,
// and what the last look at the tables showed.
func (k *keeper) diagnose(err error) {
	all := slices.Clone(k.found)
	add := func(id, object, actual string) {
		all = slices.DeleteFunc(all, func(t Trouble) bool { return t.ID == id && t.Object == object })
		all = append(all, Trouble{ID: id, Object: object, Actual: actual})
	}
	own := k.ownRoutes()
	if errors.Is(err, ErrFull) {
		add(TableFull, own, err.Error())
	}
	if errors.Is(err, ErrDenied) {
		add(Denied, k.self.Target, err.Error())
	}
	switch {
	case errors.Is(err, errDisputed):
		add(RouteWrong, own, err.Error())
	case !k.health.Wrong.IsZero() || !k.health.Seen:
		add(RouteMissing, own, k.cause(err))
	}
	for _, p := range slices.SortedFunc(maps.Keys(k.unrouted), netip.Prefix.Compare) {
		if time.Since(k.unrouted[p]) >= unroutedAfter && k.view.Synced {
			add(PeerUnrouted, p.String(), "no routing table has a route to it")
		}
	}
	k.health.Troubles = all
}

// cause returns why there is no route.
func (k *keeper) cause(err error) string {
	switch {
	case err != nil:
		return err.Error()
	case k.withheld:
		return "another one is there, and the store has not answered yet whose subnet it is"
	case k.pending:
		return "it is there, and not active yet"
	}
	return "it is not in the routing table"
}

// ownRoutes names this node's routes, and before it is known which they are its subnets.
func (k *keeper) ownRoutes() string {
	var names []string
	for _, s := range k.view.Snapshot.Local.Stacks {
		names = append(names, s.Subnet.Masked().String())
	}
	text := strings.Join(names, ", ")
	if k.self.Target != "" {
		text += " via " + k.self.Target
	}
	return text
}
