package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// A node switches its backend while the lease that it published names another one: an earlier agent's, whose devices and
// routes carry packets. The new way is made first, the node publishes it once it is there, and what is not needed any more
// is deleted last. As long as a part of the new way cannot be made, the old one stays as it is, for peers too.

// switched is a snapshot of the store, and what the agent makes of it while its node switches.
type switched struct {
	of, is *subnet.Snapshot
}

// isSwitch reports whether a published lease is one of another backend.
func (a *Agent) isSwitch(published subnet.Lease) bool {
	return published.Backend != "" && !a.offers(published) && len(published.Stacks) > 0
}

// followed returns the store's snapshot with this node's lease as the node is about to publish it.
func (a *Agent) followed() *subnet.Snapshot {
	snap, s := a.leases.follow(), &a.loop.switched
	if snap == nil || !a.isSwitch(snap.Local) {
		*s = switched{}
		return snap
	}
	local := a.leaseFor(a.loop.node, snap.Local)
	if s.of != snap || !s.is.Local.Equal(local) {
		is := *snap
		is.Local = local
		*s = switched{snap, &is}
	}
	return s.is
}

// toPublish returns what this node should publish, given what it published last.
func (a *Agent) toPublish(node backend.Node, last subnet.Lease) subnet.Lease {
	return a.withEarlier(a.ofBackend(node, last), last)
}

// ofBackend returns toPublish without subnets of before. While the node switches, that is the backend before, until packets can
// take the new way.
func (a *Agent) ofBackend(node backend.Node, last subnet.Lease) subnet.Lease {
	if t, ok := a.Backend.(backend.Transition); ok && !a.isSwitch(last) {
		return a.transitionLease(t, node, last)
	}
	lease := a.leaseFor(node, last)
	if !a.isSwitch(last) || a.status.works() {
		return lease
	}
	lease.Backend = last.Backend
	for i, s := range lease.Stacks {
		old, _ := last.Stack(s.Family())
		lease.Stacks[i].Data = old.Data
	}
	return lease
}

// transitionLease returns what a node publishes whose backend takes another's place.
func (a *Agent) transitionLease(t backend.Transition, node backend.Node, last subnet.Lease) subnet.Lease {
	lease := a.bareLease(node)
	for i, s := range lease.Stacks {
		old, _ := last.Stack(s.Family())
		lease.Stacks[i].Subnet = old.Subnet
	}
	made, err := t.Lease(node, lease, last, a.leases.newest.Load(), a.status.works(), time.Now())
	if err != nil {
		a.causes.Error(a.Log, "make the backend's data", err, "node", a.Node)
		return last
	}
	return made
}

// inTransition reports whether the backend of a node that publishes local still takes another's place.
func (a *Agent) inTransition(local subnet.Lease) bool {
	_, ok := a.Planner.For(local).Backend.(backend.Transition)
	return ok
}

// announce has the snapshot kept for the next start, and of a node that switches what it is published: both once packets
// can take the new way.
func (a *Agent) announce(node backend.Node, snap subnet.Snapshot, synced bool) {
	switching := a.loop.switched.is != nil
	if a.inTransition(snap.Local) {
		replace(a.facts, node)
	}
	if works := a.status.works(); switching && works {
		replace(a.facts, node)
	} else if switching {
		return
	}
	if synced {
		replace(a.saves, snap)
	}
}

// A switch has steps. All changes of one are made before those of the next, and deletes are no step: they come last.
const (
	ownDevices = iota // the new devices, with what is on them
	peerRoutes        // the routes to peers
	allElse
	switchSteps
)

// stepOf returns the step of a switch to which a change belongs, false for a delete.
func stepOf(c netstate.Change, want netstate.State) (step int, ok bool) {
	if c.Want == nil || isFast(c) {
		return 0, false
	}
	link, ours := want[netstate.Key{Kind: netstate.KindLink, Name: deviceOf(c.Want)}]
	switch {
	case ours && !netstate.IsOverlay(link): // the pods' bridge, which may have to be made first
		return allElse, true
	case c.Key().Kind == netstate.KindRoute:
		return peerRoutes, true
	case ours:
		return ownDevices, true
	}
	return allElse, true
}

// deviceOf returns the device that an object is or stands on, and another name for what stands on none.
func deviceOf(o netstate.Object) string {
	switch o := o.(type) {
	case netstate.Peer:
		return o.Dev
	case netstate.Route:
		return o.Dev
	case netstate.Sysctl:
		if parts := strings.Split(o.Name, "/"); len(parts) > 3 && parts[2] == "conf" { // net/ipv4/conf/DEVICE/…
			return parts[3]
		}
	}
	return o.Key().Name
}

// makeFirst makes the steps of a switch, and returns how things are then: held, if the old way may not go. Of a step that
// fails nothing that comes later was touched.
func (a *Agent) makeFirst(ctx context.Context, r result, synced bool) result {
	if err := a.abandons(r.left); err != nil {
		r.err, r.held = err, true
		return r
	}
	for step := range switchSteps {
		part := ofStep(r.left, r.want, step)
		for tries := 0; len(part) > 0; tries++ { // a device that is made again needs a second one
			applied := a.repair(ctx, part)
			r.left, r.kept, r.err = a.compare(ctx, r.want, synced)
			part = ofStep(r.left, r.want, step)
			failed := fails(part, r.want)
			if r.err != nil && !isAboutRules(r.err) || failed && tries > 0 {
				if r.err = errors.Join(r.err, applied); r.err == nil {
					r.err = fmt.Errorf("this is still not as wanted: %s", part[0])
				}
				r.err, r.held = fmt.Errorf("the way to the peers stays as it was: %w", r.err), true
				return r
			}
			if !failed {
				break
			}
		}
	}
	return r
}

// ofStep returns the changes of a plan that belong to a step.
func ofStep(plan netstate.Plan, want netstate.State, step int) netstate.Plan {
	return slices.DeleteFunc(slices.Clone(plan), func(c netstate.Change) bool {
		s, ok := stepOf(c, want)
		return !ok || s != step
	})
}

// fails reports whether what is left of a step keeps packets from taking the new way: anything but entries, or most of the
// entries of a kind. A single peer that cannot be reached is not worth the others' waiting.
func fails(left netstate.Plan, want netstate.State) bool {
	entries := map[netstate.Kind]int{}
	for _, c := range left {
		if !isEntry(c) {
			return true
		}
		entries[c.Key().Kind]++
	}
	for kind, left := range entries {
		all := 0
		for key := range want {
			if key.Kind == kind {
				all++
			}
		}
		if 2*left > all {
			return true
		}
	}
	return false
}

// abandons returns an error if a switch would leave out, for good, peers to which routes lead: their segment is none
// that the new backend reaches. What they publish is taken for the new backend's, since they are to follow.
func (a *Agent) abandons(plan netstate.Plan) error {
	snap := a.loop.switched.is
	if snap == nil {
		return nil
	}
	from, pretend := a.loop.switched.of.Local.Backend, *snap
	pretend.Peers = slices.Clone(snap.Peers)
	for i, p := range pretend.Peers {
		if p.Backend == from {
			pretend.Peers[i].Backend = a.Network.Backend
		}
	}
	reached := reachedBy(plan, snap.Peers)
	_, skips := a.Backend.Desired(a.loop.node, pretend)
	var names []string
	why := ""
	for _, s := range skips {
		if s.Code == subnet.OffLink && reached[s.Node] {
			names, why = append(names, s.Node), cmp.Or(why, s.Detail)
			delete(reached, s.Node) // it may be left out for each address family
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("the backend %s would leave out peers that this node reaches now, and the node stays with %s: %s: %s",
		a.Network.Backend, from, few(names), clip(why))
}

// reachedBy returns the names of the peers of whose routes a plan changes or deletes one.
func reachedBy(plan netstate.Plan, peers []subnet.Lease) map[string]bool {
	routed, reached := map[netip.Prefix]bool{}, map[string]bool{}
	for _, c := range plan {
		if was, ok := c.Was.(netstate.Route); ok {
			routed[was.Dst] = true
		}
	}
	for _, p := range peers {
		for _, s := range p.Stacks {
			if routed[s.Subnet] {
				reached[p.Node] = true
			}
		}
	}
	return reached
}

// few returns the first names of a list, and how many more there are: "node3, node4, node5 and 2 more".
func few(names []string) string {
	const shown = 3
	if more := len(names) - shown; more > 0 {
		return fmt.Sprintf("%s and %d more", clip(strings.Join(names[:shown], ", ")), more)
	}
	return clip(strings.Join(names, ", "))
}
