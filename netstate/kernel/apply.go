package kernel

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Apply carries out every change of p that it can and joins the errors of the others. A missing object on
// delete is success. Objects of kinds that are not the kernel package's (chains) are an error.
func (k *Kernel) Apply(ctx context.Context, p netstate.Plan) error {
	a, err := k.newApplier()
	if err != nil {
		return err
	}
	b := newBatch(k.bulk, &k.echoes)
	defer b.drop()
	var errs []error
	slowly := func(changes ...netstate.Change) {
		for _, c := range changes {
			if err := a.change(c); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", c, err))
			}
		}
	}
	for _, c := range p {
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		taken := b.takes(a, c)
		if !taken || b.full() {
			slowly(b.flush()...)
		}
		if !taken {
			slowly(c)
		}
	}
	slowly(b.flush()...)
	return errors.Join(errs...)
}

// applier is one Apply: the handle and the interface indices as they were when it began, kept up to date by
// its own link changes.
type applier struct {
	nl    *netlink.Handle
	parts []Part
	links map[string]netlink.Link
}

func (k *Kernel) newApplier() (*applier, error) {
	links, err := k.links()
	if err != nil {
		return nil, err
	}
	a := &applier{nl: k.nl, parts: k.parts, links: make(map[string]netlink.Link, len(links))}
	for _, l := range links {
		a.links[l.Attrs().Name] = l
	}
	return a, nil
}

func (a *applier) change(c netstate.Change) error {
	for _, p := range a.parts {
		if p.Writes(c.Key().Kind) {
			return p.Apply(c)
		}
	}
	if c.Want == nil {
		return ignoreAbsent(a.remove(c.Was))
	}
	switch want := c.Want.(type) {
	case netstate.VXLAN:
		return a.putVXLAN(want)
	case netstate.Bridge:
		return a.putBridge(want)
	case netstate.Tun:
		return a.putTun(want)
	case netstate.Tunnel:
		return a.putTunnel(want)
	case netstate.WireGuard:
		return a.putWireGuard(want)
	case netstate.Sysctl:
		return writeSysctl(want)
	case netstate.Addr:
		return a.putAddr(want, c.Was)
	case netstate.Neigh, netstate.FDB:
		return a.putNeigh(want)
	case netstate.Route:
		return a.putRoute(want, c.Was)
	}
	return fmt.Errorf("a %s is not an object that this kernel package writes", c.Want.Key().Kind)
}

func (a *applier) remove(o netstate.Object) error {
	switch o := o.(type) {
	case netstate.VXLAN, netstate.Bridge, netstate.Tun, netstate.Tunnel, netstate.WireGuard, netstate.OtherLink:
		return a.deleteLink(o.Key().Name)
	case netstate.Addr:
		return a.deleteAddr(o)
	case netstate.Neigh, netstate.FDB:
		return a.deleteNeigh(o)
	case netstate.Route:
		return a.deleteRoute(o)
	}
	return fmt.Errorf("a %s is not an object that this kernel package deletes", o.Key().Kind)
}

// errNoDevice is what a change on a device that does not exist gets; on delete it is success.
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
