package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
)

// The underlay's bridge has a namespace of its own: in the machine's, bridge-nf-call-iptables would filter it.
const bridgeName, nodeDev = "br0", "eth0"

func (s Spec) host(name string) host.Host { return host.Host{Name: s.Name + "-" + name} }

// Host is the network namespace of a node (or of "outside").
func (s Spec) Host(name string) host.Host { return s.host(name) }

func (s Spec) bridgeHost() host.Host { return s.host("net") }

// hosts is every namespace of the cluster, the bridge's last.
func (s Spec) hosts() []host.Host {
	var all []host.Host
	for n := 1; n <= s.Nodes; n++ {
		all = append(all, s.host(s.NodeName(n)))
	}
	return append(all, s.host("outside"), s.bridgeHost())
}

func (s Spec) buildUnderlay() error {
	net := s.bridgeHost()
	if err := net.Create(); err != nil {
		return err
	}
	err := net.Links(func(nl *netlink.Handle) error {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, MTU: mtu}}
		if err := nl.LinkAdd(br); err != nil {
			return fmt.Errorf("add bridge %s: %w", bridgeName, err)
		}
		return nl.LinkSetUp(br)
	})
	if err != nil {
		return err
	}
	if err := s.plug("outside", s.Outside()); err != nil {
		return err
	}
	for n := 1; n <= s.Nodes; n++ {
		if err := s.plug(s.NodeName(n), s.Underlay(n)); err != nil {
			return err
		}
	}
	return nil
}

// plug makes a host's namespace and its cable to the bridge.
func (s Spec) plug(name string, addrs []netip.Addr) error {
	h := s.host(name)
	if err := h.Create(); err != nil {
		return err
	}
	ns, err := os.Open(h.Path())
	if err != nil {
		return err
	}
	defer ns.Close()
	err = s.bridgeHost().Links(func(nl *netlink.Handle) error {
		br, err := nl.LinkByName(bridgeName)
		if err != nil {
			return fmt.Errorf("find bridge %s: %w", bridgeName, err)
		}
		return nl.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu, MasterIndex: br.Attrs().Index, Flags: unix.IFF_UP},
			PeerName:  nodeDev, PeerMTU: mtu, PeerNamespace: netlink.NsFd(ns.Fd()),
		})
	})
	if err != nil {
		return fmt.Errorf("plug %s into the underlay: %w", name, err)
	}
	return h.Links(func(nl *netlink.Handle) error { return configure(nl, addrs, s.Outside()) })
}

// configure gives eth0 its addresses and, since kubelet wants one, a default route: to nobody.
func configure(nl *netlink.Handle, addrs, gateways []netip.Addr) error {
	dev, err := nl.LinkByName(nodeDev)
	if err != nil {
		return fmt.Errorf("find %s: %w", nodeDev, err)
	}
	if err := nl.LinkSetUp(dev); err != nil {
		return fmt.Errorf("set %s up: %w", nodeDev, err)
	}
	var errs error
	for i, a := range addrs {
		p := netip.PrefixFrom(a, underlays[0].Bits())
		if a.Is6() {
			p = netip.PrefixFrom(a, underlays[1].Bits())
		}
		addr, err := netlink.ParseAddr(p.String())
		if err != nil {
			return err
		}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		errs = errors.Join(errs, nl.AddrAdd(dev, addr))
		if gw := gateways[i]; gw != a {
			errs = errors.Join(errs, nl.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Gw: gw.AsSlice()}))
		}
	}
	return errs
}

func (s Spec) removeUnderlay() error {
	var errs error
	for _, h := range s.hosts() {
		errs = errors.Join(errs, h.Delete())
	}
	return errs
}

// replug gives a node whose namespace is gone a new one. The kernel removes the old cable with the old namespace, at
// its leisure: the bridge's end is deleted here.
func (s Spec) replug(n int) error {
	name := s.NodeName(n)
	err := s.bridgeHost().Links(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return err
		}
		return nl.LinkDel(link)
	})
	if err != nil {
		return fmt.Errorf("unplug %s: %w", name, err)
	}
	return s.plug(name, s.Underlay(n))
}
