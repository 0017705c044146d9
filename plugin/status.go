package plugin

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// status says whether an ADD would succeed now and give a working network. If not, the error has code 50, or 51
// when the pods that are there are cut off too.
func status(_ context.Context, args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	n, err := newNetwork(c)
	if err == nil {
		err = n.room()
	}
	var e *types.Error
	if err != nil && (!errors.As(err, &e) || e.Code != types.ErrTryAgainLater && e.Code != types.ErrPluginNotAvailable) {
		return err
	}
	cut := c.cutOff(n)
	switch {
	case cut != "":
		return failure(types.ErrLimitedConnectivity, "%s; the agent (twilld) mends it, look at its log", cut)
	case e != nil:
		return failure(types.ErrPluginNotAvailable, "%s", e.Msg)
	}
	return nil
}

// cutOff is why pods that are plugged into the bridge have no network now, empty if they have. A bridge that is
// not there yet is no reason: there are no pods on it, and ADD makes it. n is nil where there is no lease.
func (c *config) cutOff(n *network) string {
	host, err := dialRTNL()
	if err != nil {
		return ""
	}
	defer host.close()
	link, err := host.link(c.bridge)
	if link == nil || err != nil {
		return ""
	}
	if link.Attrs().Flags&unix.IFF_UP == 0 {
		return c.bridge + " is down"
	}
	if n == nil {
		return ""
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return ""
	}
	for _, g := range n.gateways() {
		if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return prefixOf(a.IPNet) == g }) {
			return c.bridge + " does not have the pods' gateway address " + g.String()
		}
	}
	return ""
}

// room is an error when some range set has no free address, and says how full it is.
func (n *network) room() error {
	used := make([]int, len(n.sets))
	var err error
	for _, dir := range append(Neighbours(n.storeDir()), n.storeDir()) {
		err = errors.Join(err, (&store{dir: dir}).each(func(a netip.Addr, content []byte) {
			for i, set := range n.sets {
				if len(content) > 0 && set.find(a) >= 0 {
					used[i]++
				}
			}
		}))
	}
	if err != nil {
		return failure(types.ErrPluginNotAvailable, "read the reservations in %s: %v", n.storeDir(), err)
	}
	for i, set := range n.sets {
		if !set.holdsMoreThan(used[i]) {
			return failure(types.ErrPluginNotAvailable, "all %d addresses of %s are reserved in %s: "+
				"remove pods from this node or give its lease a larger subnet", used[i], set, n.storeDir())
		}
	}
	return nil
}

// holdsMoreThan says whether the set has more than that many addresses for pods; it never counts a whole /64.
func (s rangeSet) holdsMoreThan(used int) bool {
	count := 0
	s.next(netip.Addr{}, func(addrRange, netip.Addr) bool {
		count++
		return count > used
	})
	return count > used
}
