package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// Apply carries out every change of p that it can and joins the errors of the others. A missing object on
// delete is success. Objects of kinds that are not the kernel package's (chains) are an error.
func (k *Kernel) Apply(ctx context.Context, p netstate.Plan) error {
	k.filter.Load().expect(p)
	a, err := k.newApplier()
	if err != nil {
		return err
	}
	a.plan = p
	var errs []error
	note := func(c netstate.Change, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c, err))
		}
	}
	batch := make(netstate.Plan, 0, rtnl.MaxBatch)
	flush := func() {
		a.batch(batch, note)
		batch = batch[:0]
	}
	for _, c := range p {
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		bulk := inBulk(c.Key().Kind)
		if bulk {
			batch = append(batch, c)
		}
		if !bulk || len(batch) == rtnl.MaxBatch {
			flush()
		}
		if !bulk {
			note(c, a.change(c))
		}
	}
	flush()
	return errors.Join(errs...)
}

// batch sends the requests of many changes together. What fails is done again alone: a lost answer says nothing,
// and each request can be repeated.
func (a *applier) batch(changes netstate.Plan, note func(netstate.Change, error)) {
	sent, requests := make(netstate.Plan, 0, len(changes)), make([]*nl.NetlinkRequest, 0, len(changes))
	for _, c := range changes {
		r, err := a.request(c)
		if err != nil {
			if c.Want != nil {
				note(c, err)
			}
			continue
		}
		sent, requests = append(sent, c), append(requests, r)
	}
	for i, err := range a.bulk.Do(requests...) {
		if c := sent[i]; err != nil && (c.Want != nil || ignoreAbsent(err) != nil) {
			note(c, a.alone(c))
		}
	}
}

// alone carries out one change of a kind that is written in bulk. IPv6 never replaces several next hops by one: there the
// old route goes first, and comes back if the new one is refused.
func (a *applier) alone(c netstate.Change) error {
	err := a.do(c)
	want, ok := c.Want.(netstate.Route)
	if !ok || err == nil {
		return err
	}
	if c.Was != nil && want.Onlink && want.Via.Is6() && errors.Is(err, unix.EINVAL) {
		err = a.behind(want, c)
	}
	if c.Was != nil && err != nil {
		if err := a.do(netstate.Change{Was: c.Was}); err != nil {
			return err
		}
		if err = a.do(netstate.Change{Want: c.Want}); err != nil {
			err = errors.Join(err, a.do(netstate.Change{Want: c.Was}))
		}
	}
	return explainGateway(want, err)
}

// behind replaces a route by one with an onlink gateway that resolves through another device now, as by the old route itself:
// IPv6 refuses that (EINVAL, seen on 6.1 and 6.18). Meanwhile the gateway has a route of its own, so that no packet is lost,
// unless somebody else has one there.
func (a *applier) behind(want netstate.Route, c netstate.Change) error {
	way := netstate.Route{Dst: netip.PrefixFrom(want.Via, want.Via.BitLen()), Dev: want.Dev, Metric: want.Metric, Protocol: netstate.Protocol}
	r, err := a.route(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, way)
	if err == nil {
		err = errors.Join(a.bulk.Do(r)...)
	}
	if err != nil {
		return err
	}
	return errors.Join(a.do(c), a.do(netstate.Change{Was: way}))
}

func (a *applier) do(c netstate.Change) error {
	r, err := a.request(c)
	if err == nil {
		err = errors.Join(a.bulk.Do(r)...)
	}
	if c.Want == nil {
		return ignoreAbsent(err)
	}
	if errors.Is(err, unix.EEXIST) && a.appends(c) {
		return nil // the kernel has made it for the address meanwhile
	}
	return err
}

// appends reports whether a route goes behind another device's, which to replace would take its network away. What is
// replaced is the first: if that is ours, the new one takes its place, and packets go on as before.
func (a *applier) appends(c netstate.Change) bool {
	first, foreign := a.filter.Load().foreign[c.Key()]
	return foreign && (first || c.Was == nil)
}

// replaced reports whether the plan puts another entry in the place of one that it deletes: a unicast MAC has only one,
// so the old one is gone. One with a group of destinations stays (seen on 6.18).
func (a *applier) replaced(was netstate.FDB) bool {
	return was.MAC.IsUnicast() && was.Dst.IsValid() && slices.ContainsFunc(a.plan, func(c netstate.Change) bool {
		want, ok := c.Want.(netstate.FDB)
		return ok && want.Dev == was.Dev && want.MAC == was.MAC
	})
}

// explainGateway adds the meaning of "Nexthop has invalid gateway": host-gw towards a peer behind a router.
func explainGateway(r netstate.Route, err error) error {
	unreachable := errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EINVAL)
	if unreachable && r.Via.IsValid() && !r.Onlink && !r.Outer.IsValid() {
		return fmt.Errorf("gateway %s is not on the same L2 segment as %s, use the vxlan backend to reach it: %w",
			r.Via, r.Dev, err)
	}
	return err
}

// applier is one Apply with the links as they were when it began, kept up to date by its own changes.
type applier struct {
	*Kernel
	links map[string]netlink.Link
	plan  netstate.Plan
}

func (k *Kernel) newApplier() (*applier, error) {
	names, err := k.linkNames()
	if err != nil {
		return nil, err
	}
	a := &applier{Kernel: k, links: make(map[string]netlink.Link, len(names))}
	for index, name := range names {
		a.links[name] = linkOf(name, index)
	}
	return a, nil
}

func (a *applier) change(c netstate.Change) error {
	for _, p := range a.providers {
		if p.Writes(c.Key().Kind) {
			return p.Apply(c)
		}
	}
	if c.Want == nil {
		return ignoreAbsent(a.remove(c.Was))
	}
	switch want := c.Want.(type) {
	case netstate.VXLAN, netstate.Bridge, netstate.Tun, netstate.Tunnel, netstate.WireGuard:
		return a.putLink(want)
	case netstate.Sysctl:
		return putSysctl(want)
	case netstate.Addr:
		return a.putAddr(want, c.Was)
	case netstate.Port:
		return a.putPort(want)
	}
	return fmt.Errorf("a %s is not an object that this kernel package writes", c.Want.Key().Kind)
}

func (a *applier) remove(o netstate.Object) error {
	switch o := o.(type) {
	case netstate.VXLAN, netstate.Bridge, netstate.Tun, netstate.Tunnel, netstate.WireGuard, netstate.OtherLink:
		return a.deleteLink(o.Key().Name)
	case netstate.Addr:
		return a.deleteAddr(o)
	}
	return fmt.Errorf("a %s is not an object that this kernel package deletes", o.Key().Kind)
}

// errNoDevice is the error of a change on a device that does not exist; on delete it is success.
var errNoDevice = errors.New("no such device")

func (a *applier) link(name string) (netlink.Link, error) {
	if l, ok := a.links[name]; ok {
		return l, nil
	}
	return nil, fmt.Errorf("%s: %w", name, errNoDevice)
}

// ignoreAbsent makes a delete of what is not there a success.
func ignoreAbsent(err error) error {
	for _, absent := range [...]error{unix.ENOENT, unix.ESRCH, unix.ENODEV, unix.EADDRNOTAVAIL, errNoDevice} {
		if errors.Is(err, absent) {
			return nil
		}
	}
	return err
}
