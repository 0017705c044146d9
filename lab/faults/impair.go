package faults

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

// impairments is the table of the router's rules that lose packets.
const impairments = "netdev impairments"

// Lose makes the underlay lose packets that the node sends: so many percent of them, and only those to one of
// the other nodes, if any is named. Neighbour discovery is spared over IPv4. Restore ends it.
func Lose(ctx context.Context, l *lab.Lab, percent int, from *lab.Node, to ...*lab.Node) error {
	if percent < 1 || percent > 100 {
		return fmt.Errorf("lose %d %% of the packets of %s: want 1 to 100", percent, from.Name)
	}
	if percent == 100 {
		return drop(ctx, l, "", from, to) // a random number modulo 100 is never less than 100, says nft
	}
	return drop(ctx, l, fmt.Sprintf("numgen random mod 100 < %d", percent), from, to)
}

// BlockUDP makes the underlay lose the node's UDP packets to a port, as a firewall between the nodes would.
func BlockUDP(ctx context.Context, l *lab.Lab, port int, from *lab.Node, to ...*lab.Node) error {
	return drop(ctx, l, fmt.Sprintf("udp dport %d", port), from, to)
}

func drop(ctx context.Context, l *lab.Lab, match string, from *lab.Node, to []*lab.Node) error {
	var addrs []netip.Addr
	for _, o := range to {
		addrs = append(addrs, o.Underlay()...)
	}
	chain := impairments + " from_" + from.Name
	rules := fmt.Sprintf(
		"add table %s\nadd chain %s { type filter hook ingress device %q priority 0; }\n",
		impairments,
		chain,
		from.Name,
	)
	if len(to) == 0 {
		rules += fmt.Sprintf("add rule %s meta protocol { ip, ip6 } %s drop\n", chain, match)
	}
	words := map[netstate.Family]string{netstate.IPv4: "ip", netstate.IPv6: "ip6"}
	for _, a := range addrs {
		rules += fmt.Sprintf("add rule %s %s daddr %s %s drop\n", chain, words[netstate.FamilyOf(a)], a, match)
	}
	return l.Router().LoadRules(ctx, rules)
}

// Restore ends all losses of the underlay, and repairs network cards that break checksums.
func Restore(ctx context.Context, l *lab.Lab) error {
	if err := l.Router().Do(restoreChecksums); err != nil {
		return err
	}
	return l.Router().LoadRules(ctx, fmt.Sprintf("add table %s\ndelete table %s\n", impairments, impairments))
}

// SetLinkMTU changes the MTU of the node's cable: of its far end only, which the node cannot see and where packets
// that are too long vanish without an error, or of both ends.
func SetLinkMTU(l *lab.Lab, n *lab.Node, mtu int, farOnly bool) error {
	ends := []struct {
		host host.Host
		dev  string
	}{{l.Router(), n.Name}, {n.Host, lab.NodeDevice}}
	if farOnly {
		ends = ends[:1]
	}
	for _, end := range ends {
		err := end.host.Links(func(nl *netlink.Handle) error {
			dev, err := nl.LinkByName(end.dev)
			if err != nil {
				return err
			}
			return nl.LinkSetMTU(dev, mtu)
		})
		if err != nil {
			return fmt.Errorf("set the MTU of %s in %s to %d: %w", end.dev, end.host.Name, mtu, err)
		}
	}
	return nil
}
