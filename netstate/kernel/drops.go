package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Drops returns how many packets each device has dropped since it was made, or had an error with, received or to be
// sent, as the kernel counts them in struct rtnl_link_stats64. Devices that do not exist are left out.
func (k *Kernel) Drops(devs []string) (map[string]uint64, error) {
	all := map[string]uint64{}
	for _, dev := range devs {
		l, err := k.nl.LinkByName(dev)
		switch {
		case errors.As(err, new(netlink.LinkNotFoundError)):
		case err != nil:
			return nil, fmt.Errorf("read what %s counts: %w", dev, err)
		case l.Attrs().Statistics != nil:
			s := l.Attrs().Statistics
			all[dev] = s.RxDropped + s.TxDropped + s.RxErrors + s.TxErrors
		}
	}
	return all, nil
}
