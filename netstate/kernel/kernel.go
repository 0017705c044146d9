// Package kernel observes, applies and watches netstate objects on the Linux kernel over rtnetlink and
// /proc/sys. It is the only package that knows an interface index.
package kernel

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// Kernel is the network namespace that the process was in when New was called. One goroutine may use Observe
// and Apply; Watch runs beside it.
type Kernel struct {
	nl        *netlink.Handle
	bulk      *rtnl.Conn // for what there are thousands of
	left      []netstate.Left
	offloads  *offloads
	providers []Provider    // the last is offloads
	interval  time.Duration // pollInterval, or what a test sets
	filter    atomic.Pointer[filter]
	carriers  atomic.Pointer[map[int]bool] // indices of the interfaces with an address at the last Interfaces
}

// Provider observes and writes kinds of objects that rtnetlink does not carry. Watch polls it.
type Provider interface {
	Writes(netstate.Kind) bool
	// Observe gets the names of our links by type, as rtnetlink has it.
	Observe(devs map[string][]string, want netstate.State) (netstate.State, error)
	Apply(c netstate.Change) error
}

// Inspector is a Provider that knows what somebody else has where packets leave through devices.
type Inspector interface {
	// Beside returns that of some devices, by their names. Devices that are gone or have nothing are left out.
	Beside(devs []string) (map[string]string, error)
}

// beside asks all providers that know it.
func (k *Kernel) beside(devs []string) (map[string]string, error) {
	all := map[string]string{}
	for _, p := range k.providers {
		if i, ok := p.(Inspector); ok {
			some, err := i.Beside(devs)
			if err != nil {
				return nil, err
			}
			maps.Copy(all, some)
		}
	}
	return all, nil
}

// New opens the netlink sockets in the current network namespace. What a flannel agent left counts as ours.
func New(left []netstate.Left, providers ...Provider) (*Kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	var bulk *rtnl.Conn
	if err = h.SetSocketTimeout(rtnl.Timeout); err == nil {
		bulk, err = rtnl.Dial()
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	features, err := openOffloads()
	if err != nil {
		h.Close()
		bulk.Close()
		return nil, err
	}
	k := &Kernel{nl: h, bulk: bulk, left: left, offloads: features, providers: append(slices.Clone(providers), features),
		interval: pollInterval}
	k.filter.Store(newFilter(nil))
	return k, nil
}

// Close frees the sockets.
func (k *Kernel) Close() {
	k.nl.Close()
	k.bulk.Close()
	k.offloads.close()
}

// ownsLink reports whether a link is ours: by its mark and kind, or because want has one of that name (a flannel agent may
// have left it, without a mark).
func ownsLink(d device, want netstate.State) bool {
	_, wanted := want[netstate.Key{Kind: netstate.KindLink, Name: d.Name()}]
	return wanted || d.made()
}

// ownsRoute reports whether a route is ours: by its protocol, or left by a flannel agent on a device of ours or
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

// leftByFlannel reports whether a route may be the one to a peer of a flannel agent.
func (k *Kernel) leftByFlannel(r route) bool {
	return r.protocol == unix.RTPROT_BOOT && r.gw.IsValid() && slices.ContainsFunc(k.left, func(l netstate.Left) bool {
		return l.Bits == r.dst.Bits() && l.Network.Contains(r.dst.Addr())
	})
}

// inNetworks reports whether p is within a network that flannel's routes lead into.
func (k *Kernel) inNetworks(p netip.Prefix) bool {
	return slices.ContainsFunc(k.left, func(l netstate.Left) bool {
		return l.Network.Bits() <= p.Bits() && l.Network.Contains(p.Addr())
	})
}

// list calls do with each object of a kind: body is the header of the request.
func (k *Kernel) list(what string, kind int, body nl.NetlinkRequestData, do func([]byte) error) error {
	_, err := rtnl.Retry(what, func() (struct{}, error) {
		r := nl.NewNetlinkRequest(kind, unix.NLM_F_DUMP)
		r.AddData(body)
		return struct{}{}, k.bulk.List(r, do)
	})
	return err
}
