package lab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/lab/host"
)

// weatherTable is where the underlay's own mishaps stand.
const weatherTable = "netdev weather"

// nft loads rules, which only scripts and unusual sites need: a plain lab does without the program.
func nft(h host.Host, rules string) error {
	var said bytes.Buffer
	if err := h.Attach(context.Background(), strings.NewReader(rules), io.Discard, &said, "nft", "-f", "-"); err != nil {
		return fmt.Errorf("load rules into %s with nft: %w: %s", h.Name, err, strings.TrimSpace(said.String()))
	}
	return nil
}

// Drop makes the underlay lose packets that the node sends: so many percent of them, and only those to one of
// the other nodes, if any is named. Neighbour discovery is spared over IPv4. Mend ends it.
func (n *Node) Drop(percent int, to ...*Node) error {
	if percent < 1 || percent > 100 {
		return fmt.Errorf("lose %d %% of the packets of %s: want 1 to 100", percent, n.Name)
	}
	if percent == 100 {
		return n.discard("", to) // a random number modulo 100 is never less than 100, says nft
	}
	return n.discard(fmt.Sprintf("numgen random mod 100 < %d", percent), to)
}

// DropUDP makes the underlay lose the node's UDP packets to a port, as a firewall between the nodes would.
func (n *Node) DropUDP(port int, to ...*Node) error {
	return n.discard(fmt.Sprintf("udp dport %d", port), to)
}

func (n *Node) discard(match string, to []*Node) error {
	var addrs []netip.Addr
	for _, o := range to {
		addrs = append(addrs, o.Underlay()...)
	}
	chain := "from_" + n.Name
	rules := fmt.Sprintf("add table %s\nadd chain %s %s { type filter hook ingress device %q priority 0; }\n", weatherTable, weatherTable, chain, n.Name)
	if len(to) == 0 {
		rules += fmt.Sprintf("add rule %s %s meta protocol { ip, ip6 } %s drop\n", weatherTable, chain, match)
	}
	for _, a := range addrs {
		family := "ip6"
		if a.Is4() {
			family = "ip"
		}
		rules += fmt.Sprintf("add rule %s %s %s daddr %s %s drop\n", weatherTable, chain, family, a, match)
	}
	return nft(n.lab.underlay, rules)
}

// Mend ends all losses of the underlay.
func (l *Lab) Mend() error {
	return nft(l.underlay, fmt.Sprintf("add table %s\ndelete table %s\n", weatherTable, weatherTable))
}

// SetLinkMTU changes the MTU of the node's cable: of its far end only, which the node cannot see and where packets
// that are too long vanish without a word, or of both ends.
func (n *Node) SetLinkMTU(mtu int, farOnly bool) error {
	ends := []struct {
		host host.Host
		dev  string
	}{{n.lab.underlay, n.Name}, {n.Host, nodeDev}}
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
