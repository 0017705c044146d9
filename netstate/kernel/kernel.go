// Package kernel observes, applies and watches netstate objects on the Linux kernel over rtnetlink and
// /proc/sys. It is the only package that knows an interface index.
package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Kernel is the network namespace that the process was in when New was called. One goroutine may use Observe
// and Apply; Watch runs beside it.
type Kernel struct {
	nl       *netlink.Handle
	bulk     *socket // for what there are thousands of
	left     []netstate.Left
	parts    []Part
	filter   atomic.Pointer[filter]
	echoes   echoes
	carriers atomic.Pointer[map[int]bool] // indices of the interfaces that had an address at the last look
}

// filter is what Watch needs of the last Observe to tell our messages from the others.
type filter struct {
	links   map[int]bool            // indices of our links; true: its neighbours are ours too
	objects map[int]netstate.Object // what they were
	names   map[int]string          // of all links
	wanted  map[string]bool         // names of links
	sysctls []string
	devs    map[string][]string // names of our links by type
}

// socketTimeout bounds one netlink request; dumps of 30,000 objects take a tenth of it.
const socketTimeout = 10 * time.Second

// Part observes and writes kinds of objects that rtnetlink does not carry. Watch asks it again and again.
type Part interface {
	Writes(netstate.Kind) bool
	// Observe gets the names of our links by type, as rtnetlink has it.
	Observe(devs map[string][]string, want netstate.State) (netstate.State, error)
	Apply(c netstate.Change) error
}

// New opens the netlink sockets in the current network namespace. What a flannel agent left counts as ours.
func New(left []netstate.Left, parts ...Part) (*Kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	bulk, err := openSocket(socketTimeout)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open a second netlink socket: %w", err)
	}
	k := &Kernel{nl: h, bulk: bulk, left: left, parts: parts}
	if err := h.SetSocketTimeout(socketTimeout); err != nil {
		k.Close()
		return nil, fmt.Errorf("set the netlink timeout: %w", err)
	}
	k.filter.Store(&filter{})
	return k, nil
}

// Close frees the sockets.
func (k *Kernel) Close() {
	k.nl.Close()
	k.bulk.close()
}

// ownsLink says whether a link is ours: by its mark, or because want has one of that name (a flannel agent may
// have left it, without a mark).
func ownsLink(a *netlink.LinkAttrs, want netstate.State) bool {
	_, wanted := want[netstate.Key{Kind: netstate.KindLink, Name: a.Name}]
	return wanted || a.Alias == netstate.Mark
}

// ownsRoute reports whether a main-table route is ours: by its protocol, or left by a flannel agent on a device of ours or
// elsewhere.
func (o *observation) ownsRoute(r route, onOwned bool) bool {
	switch r.protocol {
	case netstate.Protocol:
		return true
	case unix.RTPROT_BOOT:
		return onOwned || slices.ContainsFunc(o.left, func(l netstate.Left) bool {
			return r.dst.Bits() == l.Bits && l.Made(decodeRoute(r, o.names), o.want)
		})
	case unix.RTPROT_STATIC:
		return onOwned
	}
	return false
}

// inNetworks reports whether p is within a network that flannel's routes lead into.
func (k *Kernel) inNetworks(p netip.Prefix) bool {
	return slices.ContainsFunc(k.left, func(l netstate.Left) bool {
		return l.Network.Bits() <= p.Bits() && l.Network.Contains(p.Addr())
	})
}

// dumpTries is how often a dump that the kernel interrupted (because something changed meanwhile) is begun
// again. While 200 pods' veths are made as fast as the kernel can, about four of five lists of 400 links are
// interrupted (seen on 6.18); at 3 ms each, this many still take less time than the burst.
const dumpTries = 50

// dump runs a netlink dump to a consistent end. Every dump goes through here.
func dump[T any](what string, f func() ([]T, error)) ([]T, error) {
	for try := 1; ; try++ {
		items, err := f()
		switch {
		case err == nil:
			return items, nil
		case errors.Is(err, netlink.ErrDumpInterrupted), errors.Is(err, unix.EINTR):
			if try < dumpTries {
				continue
			}
		}
		return nil, fmt.Errorf("list %s: %w", what, err)
	}
}
