package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/netstate"
)

// The underlay is a namespace with a bridge per segment. It routes between the segments and to a host outside,
// which knows no way to the pods: their packets only find back when the node masquerades them.
const (
	underlayName = "underlay"
	outsideName  = "outside"
	NodeDevice   = "eth1" // a node's interface on the underlay
	secondDev    = "eth2" // of a node with two
)

var outsideNets = []link{
	{netip.MustParsePrefix("203.0.113.1/24"), netip.MustParsePrefix("203.0.113.2/24")},
	{netip.MustParsePrefix("2001:db8:33::1/64"), netip.MustParsePrefix("2001:db8:33::2/64")},
}

// link is one cable's addresses: the router's and the host's behind it.
type link struct{ router, host netip.Prefix }

// segments is the number of the underlay's segments.
func (s Spec) segments() int {
	if s.Underlay == L3 {
		return 2
	}
	return 1
}

// Segments are the networks of the underlay's segments, in the lab's families. Nodes take the segments in turn.
func (s Spec) Segments() (all [][]netip.Prefix) {
	for segment := range s.segments() {
		var networks []netip.Prefix
		for _, k := range s.links(segment + 1) {
			networks = append(networks, k.router.Masked())
		}
		all = append(all, networks)
	}
	return all
}

// links are the addresses of node number n; nodes take the segments in turn.
func (s Spec) links(n int) []link {
	segment := (n - 1) % s.segments()
	var links []link
	for _, f := range s.Families() {
		if f == netstate.IPv4 {
			links = append(links, segmentLink(segment, "192.168.%d.", 33, "%d", 100+n, 24))
		} else {
			links = append(links, segmentLink(segment, "fd%d::", 33, "%d", 100+n, 64))
		}
	}
	return links
}

func segmentLink(segment int, network string, base int, hostPart string, n, bits int) link {
	at := func(n int) netip.Prefix {
		text := fmt.Sprintf(network, base+segment) + fmt.Sprintf(hostPart, n)
		return netip.PrefixFrom(netip.MustParseAddr(text), bits)
	}
	return link{router: at(1), host: at(n)}
}

func bridgeName(segment int) string { return fmt.Sprintf("br%d", segment+1) }

// buildUnderlay makes the router with its bridges, and the host outside.
func (l *Lab) buildUnderlay(ctx context.Context) error {
	for _, h := range []host.Host{l.underlay, l.outside} {
		if err := h.Create(); err != nil {
			return err
		}
	}
	for name, value := range map[string]string{
		"net/ipv4/ip_forward":              "1",
		"net/ipv6/conf/all/forwarding":     "1",
		"net/ipv6/conf/default/accept_dad": "0",
	} {
		if err := l.setSysctl(l.underlay, name, value); err != nil {
			return err
		}
	}
	for segment := range l.spec.segments() {
		links := l.spec.links(segment + 1)
		err := l.underlay.Links(func(nl *netlink.Handle) error {
			if !l.spec.split() {
				return addBridge(nl, bridgeName(segment), links)
			}
			return errors.Join(
				addBridge(nl, bridgeName(segment), links[:1]),
				addBridge(nl, bridgeName(segment)+"b", links[1:]),
			)
		})
		if err != nil {
			return fmt.Errorf("build underlay segment %d: %w", segment+1, err)
		}
	}
	return errors.Join(l.addVagrantBridge(), l.plugOutside(ctx))
}

// addVagrantBridge is where the nodes' translating routers are plugged in, if there are any.
func (l *Lab) addVagrantBridge() error {
	for _, name := range append(l.spec.NodeNames(), "") {
		if l.spec.site(name).Vagrant {
			return l.underlay.Links(func(nl *netlink.Handle) error {
				return addBridge(nl, vagrantBridge, []link{vagrantUplink(1)})
			})
		}
	}
	return nil
}

// addBridge makes a bridge with the router's addresses. Multicast snooping would hold back neighbour discovery
// until it has learned who listens. A bridge whose MAC was not set takes the lowest one of its ports: it would
// change when a node joins or leaves, and the other nodes' ARP entries for the router be wrong for half a minute.
func addBridge(nl *netlink.Handle, name string, links []link) error {
	off := false
	mac := net.HardwareAddr{0x02, 0, 0, 0, 0, name[len(name)-1]}
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: mac}, MulticastSnooping: &off}
	if err := nl.LinkAdd(br); err != nil {
		return err
	}
	for _, k := range links {
		if err := addAddr(nl, br, k.router); err != nil {
			return err
		}
	}
	return nl.LinkSetUp(br)
}

func (l *Lab) plugOutside(ctx context.Context) error {
	if err := (wire{l.underlay, outsideName, "", l.outside, NodeDevice, 0}).lay(ctx); err != nil {
		return err
	}
	err := l.underlay.Links(func(nl *netlink.Handle) error {
		dev, err := nl.LinkByName(outsideName)
		if err != nil {
			return err
		}
		for _, k := range l.outsideLinks() {
			if err := addAddr(nl, dev, k.router); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("address the underlay's way out: %w", err)
	}
	return l.address(l.outside, NodeDevice, l.outsideLinks(), true)
}

// outsideLinks are the addresses of the way out, in the lab's families.
func (l *Lab) outsideLinks() []link {
	var links []link
	for _, f := range l.spec.Families() {
		for _, k := range outsideNets {
			if netstate.FamilyOf(k.host.Addr()) == f {
				links = append(links, k)
			}
		}
	}
	return links
}

// setSysctl passes over IPv6's where the machine has no IPv6 and the lab needs none.
func (l *Lab) setSysctl(h host.Host, name, value string) error {
	err := h.SetSysctl(name, value)
	if errors.Is(err, fs.ErrNotExist) && l.spec.Family == IPv4 && strings.HasPrefix(name, "net/ipv6/") {
		return nil
	}
	return err
}

// address gives an interface of a host its addresses and, if it is the way out, default routes. A host that
// forwards asks for its neighbours with its link-local address, and cannot for the one or two seconds of that
// address's duplicate detection.
func (l *Lab) address(h host.Host, name string, links []link, wayOut bool) error {
	if err := l.setSysctl(h, "net/ipv6/conf/"+name+"/accept_dad", "0"); err != nil {
		return err
	}
	err := h.Links(func(nl *netlink.Handle) error {
		dev, err := nl.LinkByName(name)
		if err != nil {
			return err
		}
		if err := nl.LinkSetUp(dev); err != nil {
			return err
		}
		for _, k := range links {
			if err := addAddr(nl, dev, k.host); err != nil {
				return err
			}
			if !wayOut {
				continue
			}
			route := &netlink.Route{LinkIndex: dev.Attrs().Index, Gw: k.router.Addr().AsSlice()}
			if err := nl.RouteAdd(route); err != nil {
				return fmt.Errorf("default route via %s: %w", k.router.Addr(), err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("address %s of %s: %w", name, h.Name, err)
	}
	return nil
}

func addAddr(nl *netlink.Handle, dev netlink.Link, p netip.Prefix) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD // usable at once: nobody else is here
	}
	if err := nl.AddrAdd(dev, addr); err != nil {
		return fmt.Errorf("address %s on %s: %w", p, dev.Attrs().Name, err)
	}
	return nil
}

// waitCarrier returns when eth1 passes packets: the kernel opens a device's queue some time after its carrier
// came, and drops what is sent before.
func waitCarrier(ctx context.Context, h host.Host) error {
	return poll(ctx, time.Millisecond, func() (bool, error) {
		up := false
		err := h.Links(func(nl *netlink.Handle) error {
			dev, err := nl.LinkByName(NodeDevice)
			up = err == nil && dev.Attrs().OperState == netlink.OperUp
			return err
		})
		return up, err
	})
}

// poll asks again and again until the answer is yes, an error, or ctx is done.
func poll(ctx context.Context, interval time.Duration, ok func() (bool, error)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if yes, err := ok(); yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
