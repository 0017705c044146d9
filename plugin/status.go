package plugin

import (
	"context"
	"errors"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// status says whether an ADD would succeed now; if not, the error has code 50.
func status(_ context.Context, args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	n, err := newNetwork(c)
	var e *types.Error
	if errors.As(err, &e) && e.Code == types.ErrTryAgainLater {
		return failure(types.ErrPluginNotAvailable, "%s", e.Msg)
	}
	if err != nil {
		return err
	}
	return n.room()
}

// room is an error when some range set has no free address, and says how full it is.
func (n *network) room() error {
	used := make([]int, len(n.sets))
	err := (&store{dir: n.storeDir()}).each(func(a netip.Addr, content []byte) {
		for i, set := range n.sets {
			if len(content) > 0 && set.find(a) >= 0 {
				used[i]++
			}
		}
	})
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
