package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// keptGateway is an address of the bridge that is not wanted any more, because the node's lease
// changed, and stays because pods have it as their gateway. It goes with the last of them; new pods
// have addresses of the new subnet.
type keptGateway struct {
	addr netstate.Addr
	pods int
	err  error // pods could not be counted; in doubt they keep their gateway
}

// oldSubnets counts the pods that have addresses of subnets that this node had before. To count reads the reservations
// and pods' namespaces, so it is done beside the loop, which asks in each round.
type oldSubnets struct {
	asked chan []netip.Prefix // the newest, to count
	known atomic.Pointer[map[netip.Prefix]counted]

	// published are those that the node's record is to have, so that peers reach their pods; nil before there is a lease.
	published atomic.Pointer[[]netip.Prefix]
}

type counted struct {
	pods int
	err  error
}

// errUncounted is why a gateway stays that pods may have.
var errUncounted = errors.New("its pods are not counted yet")

func newOldSubnets() oldSubnets { return oldSubnets{asked: make(chan []netip.Prefix, 1)} }

// countOldPods is the goroutine that counts. The loop is told of what changes.
func (a *Agent) countOldPods() error {
	for asked := range a.oldSubnets.asked {
		if a.count(asked) {
			a.trigger()
		}
	}
	return nil
}

// count counts the pods of the subnets that were asked for, forgets all others, and reports whether that changed
// anything.
func (a *Agent) count(asked []netip.Prefix) (changed bool) {
	now := make(map[netip.Prefix]counted, len(asked))
	for _, p := range asked {
		pods, err := a.Live(p)
		now[p] = counted{pods, err}
	}
	before := a.oldSubnets.known.Swap(&now)
	return before == nil || !maps.EqualFunc(*before, now, func(x, y counted) bool {
		return x.pods == y.pods && fmt.Sprint(x.err) == fmt.Sprint(y.err)
	})
}

// OldGateways returns the addresses of the pods' bridge that a plan would delete and pods may have as their gateway. An
// address within a subnet that is wanted is none: its pods have the wanted one.
func (p Planner) OldGateways(plan netstate.Plan, want netstate.State) (old []netstate.Addr) {
	for _, c := range plan {
		addr, ok := c.Was.(netstate.Addr)
		if ok && c.Want == nil && addr.Dev == p.Base.Bridge && !inWantedSubnet(addr, want) {
			old = append(old, addr)
		}
	}
	return old
}

// keptGateways returns those that a plan would delete.
func (a *Agent) keptGateways(plan netstate.Plan, want netstate.State) (kept []keptGateway) {
	if a.Live == nil {
		return nil
	}
	var asked []netip.Prefix
	known := a.oldSubnets.known.Load()
	for _, addr := range a.OldGateways(plan, want) {
		asked = append(asked, addr.Prefix)
		n := counted{err: errUncounted}
		if known != nil {
			if found, ok := (*known)[addr.Prefix]; ok {
				n = found
			}
		}
		if n.err != nil || n.pods > 0 {
			kept = append(kept, keptGateway{addr, n.pods, n.err})
		}
	}
	if len(asked) > 0 || known != nil && len(*known) > 0 {
		replace(a.oldSubnets.asked, asked)
	}
	return kept
}

// publishEarlier has the subnets of kept gateways published, of which pods are known: what is not counted yet stays as it is. It
// reports whether that changed anything. Peers reach these pods as long as nobody has a lease of their subnet.
func (a *Agent) publishEarlier(kept []keptGateway) (changed bool) {
	before := a.oldSubnets.published.Load()
	var now []netip.Prefix
	for _, k := range kept {
		p := k.addr.Prefix.Masked()
		if !errors.Is(k.err, errUncounted) || before != nil && slices.Contains(*before, p) {
			now = append(now, p)
		}
	}
	slices.SortFunc(now, netip.Prefix.Compare)
	a.oldSubnets.published.Store(&now)
	return before == nil || !slices.Equal(*before, now)
}

// withEarlier returns a lease that says of which subnets before its own the node still has pods, given what it published last.
func (a *Agent) withEarlier(lease, last subnet.Lease) subnet.Lease {
	lease.Stacks = slices.Clone(lease.Stacks)
	published := a.oldSubnets.published.Load()
	for i, s := range lease.Stacks {
		if published != nil {
			lease.Stacks[i] = s.WithEarlier(*published)
			continue
		}
		old, _ := last.Stack(s.Family())
		lease.Stacks[i] = s.WithEarlier(old.Earlier())
	}
	return lease
}

// startEarlier notes of which subnets the node may still have pods, given the lease that it got and those of before. It reports
// whether the lease moved.
func (a *Agent) startEarlier(lease subnet.Lease, before ...subnet.Lease) (moved bool) {
	var earlier []netip.Prefix
	for _, b := range before {
		for _, s := range lease.Stacks {
			old, ok := b.Stack(s.Family())
			if ok && old.Subnet.IsValid() && old.Subnet != s.Subnet {
				earlier, moved = append(earlier, old.Subnet), true
			}
			earlier = append(earlier, old.Earlier()...)
		}
	}
	slices.SortFunc(earlier, netip.Prefix.Compare)
	earlier = slices.Compact(earlier)
	a.oldSubnets.published.Store(&earlier)
	return moved
}

// inWantedSubnet reports whether the bridge has another wanted address with a subnet that holds addr.
func inWantedSubnet(addr netstate.Addr, want netstate.State) bool {
	for _, o := range want {
		if w, ok := o.(netstate.Addr); ok && w.Dev == addr.Dev && w.Prefix.Contains(addr.Prefix.Addr()) {
			return true
		}
	}
	return false
}

func (a *Agent) reportKeptGateways(kept []keptGateway) {
	for _, k := range kept {
		if k.err != nil {
			if !errors.Is(k.err, errUncounted) {
				a.causes.Error(a.Log, "count the pods of "+k.addr.Prefix.Masked().String(), k.err)
			}
			continue
		}
		old := k.addr.Prefix.Masked()
		text := fmt.Sprintf("%d pods have addresses of %s, which is not this node's subnet any more: "+
			"other nodes reach them until another one has it, and flannel's do not: delete them", k.pods, old)
		if a.causes.Add(a.Log, slog.LevelWarn, "pods of an old lease", old.String(),
			"node", a.Node, "dst", old, "pods", k.pods, "reason", text) {
			a.event("Warning", "PodsOfOldLease", text)
		}
	}
}
