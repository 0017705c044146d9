package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
)

// Site says how a node is plugged in, and what its agent is told about it. The zero value is one interface, eth1,
// on the underlay.
type Site struct {
	// MTU of the node's cable; 0: 1500.
	MTU int `json:"mtu,omitempty"`
	// NAT puts a router in front of eth1: the underlay sees the router's address, which it translates to the
	// node's, as a cloud does with a public address. The agent advertises it with --public-ip. IPv4 only.
	NAT bool `json:"nat,omitempty"`
	// Vagrant gives the node a first interface, eth0, with the default route and the address 10.0.2.15, behind a
	// translating router of its own. Every such node has that same address.
	Vagrant bool `json:"vagrant,omitempty"`
	// Split takes IPv6 off eth1 and gives it an interface of its own, eth2, on another bridge: on the same one the
	// kernel would answer ARP for eth1's address through eth2 too. All nodes or none.
	Split bool `json:"split,omitempty"`
	// Subnets are kept for the node: its agent is to lease these.
	Subnets []netip.Prefix `json:"subnets,omitempty"`
	// Flags are added to the agent's. One that begins with --iface takes the place of the lab's own.
	Flags []string `json:"flags,omitempty"`
}

// IsZero reports whether the site is like any other.
func (s Site) IsZero() bool {
	return s.MTU == 0 && !s.NAT && !s.Vagrant && !s.Split && len(s.Subnets) == 0 && len(s.Flags) == 0
}

// The hosts that stand between a node and the underlay, by the last part of their names.
const (
	natName     = "nat"
	vagrantName = "vagrant"
)

// An interface name has 15 characters, and the underlay's end of a cable is named after its node.
const vagrantBridge = "brv"

var (
	natLink     = segmentLink(0, "172.%d.0.", 31, "%d", 2, 24)
	vagrantLink = link{netip.MustParsePrefix("10.0.2.2/24"), netip.MustParsePrefix("10.0.2.15/24")}
)

func vagrantUplink(n int) link { return segmentLink(0, "198.51.%d.", 100, "%d", 100+n, 24) }

// site is what the spec says of a node, or of all nodes.
func (s Spec) site(node string) Site {
	if site, ok := s.Sites[node]; ok {
		return site
	}
	return s.Sites[""]
}

// site is the spec's, with the flags that all agents have got since.
func (n *Node) site() Site {
	site := n.lab.spec.site(n.Name)
	n.lab.view(func(s *state) {
		site.Flags, site.Subnets = slices.Concat(site.Flags, s.Flags), slices.Concat(site.Subnets, n.state.Subnets)
	})
	return site
}

// split reports whether the two families have bridges of their own.
func (s Spec) split() bool { return s.site(s.nodeName(1)).Split }

func (s Spec) checkSites() error {
	var errs []error
	for _, name := range s.NodeNames() {
		if s.site(name).Split != s.split() {
			errs = append(errs, fmt.Errorf("site of %q: want two interfaces on all nodes or on none", name))
		}
	}
	for node, site := range s.Sites {
		if node != "" && !slices.Contains(s.NodeNames(), node) {
			errs = append(errs, fmt.Errorf("site of %q: want one of %v", node, s.NodeNames()))
		}
		if site.NAT && s.Family != IPv4 {
			errs = append(errs, fmt.Errorf("site of %q: NAT is for IPv4 only, and the family is %s", node, s.Family))
		}
		if site.Split && s.Family != Dual {
			errs = append(errs, fmt.Errorf("site of %q: two interfaces want the family dual, not %s", node, s.Family))
		}
		if site.MTU != 0 && (site.MTU < 1280 || site.MTU > 9000) {
			errs = append(errs, fmt.Errorf("site of %q: MTU %d: want 1280 to 9000", node, site.MTU))
		}
	}
	return errors.Join(errs...)
}

// flags are what the site adds to the agent's command line.
func (s Site) flags(public netip.Addr) []string {
	var flags []string
	if !slices.ContainsFunc(s.Flags, func(f string) bool { return strings.HasPrefix(f, "--iface") }) {
		flags = append(flags, "--iface="+NodeDevice)
		if s.Split {
			flags = append(flags, "--iface="+secondDev)
		}
	}
	if s.NAT {
		flags = append(flags, "--public-ip="+public.String())
	}
	return append(flags, s.Flags...)
}

// wire is a cable between two hosts.
type wire struct {
	from   host.Host
	port   string // its end there
	bridge string // that the port is plugged into; empty: none
	to     host.Host
	dev    string // its other end
	mtu    int    // 0: 1500
}

// lay makes the cable; it carries packets when the other end is up too.
func (w wire) lay(ctx context.Context) error {
	ns, err := os.Open(w.to.Path())
	if err != nil {
		return fmt.Errorf("plug %s into %s: %w", w.to.Name, w.from.Name, err)
	}
	defer ns.Close()
	// The kernel takes a cable's end away some time after the namespace at its other end is gone.
	ctx, cancel := context.WithTimeout(ctx, slowKernel)
	defer cancel()
	err = poll(ctx, 10*time.Millisecond, func() (bool, error) {
		err := w.lead(int(ns.Fd()))
		if errors.Is(err, unix.EEXIST) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("plug %s into %s: %w", w.to.Name, w.from.Name, err)
	}
	return nil
}

// slowKernel is how long an end may stay.
const slowKernel = 5 * time.Second

// lead makes the cable to a namespace.
func (w wire) lead(ns int) error {
	return w.from.Links(func(nl *netlink.Handle) error {
		attrs := netlink.LinkAttrs{Name: w.port, Flags: net.FlagUp, MTU: w.mtu}
		if w.bridge != "" {
			br, err := nl.LinkByName(w.bridge)
			if err != nil {
				return err
			}
			attrs.MasterIndex = br.Attrs().Index
		}
		return nl.LinkAdd(
			&netlink.Veth{LinkAttrs: attrs, PeerName: w.dev, PeerNamespace: netlink.NsFd(ns), PeerMTU: uint32(w.mtu)},
		)
	})
}

// connect lays the node's cables and gives its interfaces their addresses.
func (n *Node) connect(ctx context.Context) error {
	site, all := n.site(), n.lab.spec.links(n.Number)
	bridge := bridgeName(n.Segment())
	if site.Vagrant {
		r := router{
			name:   vagrantName,
			port:   n.Name + "v",
			bridge: vagrantBridge,
			outer:  []link{vagrantUplink(n.Number)},
			inner:  vagrantLink,
			dev:    "eth0",
		}
		if err := n.putBehind(ctx, r); err != nil {
			return err
		}
	}
	if site.NAT {
		return n.putBehind(
			ctx,
			router{
				name:   natName,
				port:   n.Name,
				bridge: bridge,
				outer:  all,
				inner:  natLink,
				dev:    NodeDevice,
				inward: true,
			},
		)
	}
	if err := (wire{n.lab.underlay, n.Name, bridge, n.Host, NodeDevice, site.MTU}).lay(ctx); err != nil {
		return err
	}
	if !site.Split {
		return n.lab.address(n.Host, NodeDevice, all, !site.Vagrant)
	}
	if err := (wire{n.lab.underlay, n.Name + "b", bridge + "b", n.Host, secondDev, site.MTU}).lay(ctx); err != nil {
		return err
	}
	return errors.Join(
		n.lab.address(n.Host, NodeDevice, all[:1], !site.Vagrant),
		n.lab.address(n.Host, secondDev, all[1:], true),
	)
}

// router is a host with two interfaces that translates addresses between a node and the underlay.
type router struct {
	name         string
	port, bridge string // in the underlay
	outer        []link
	inner        link
	dev          string // of the node
	inward       bool   // what comes from outside to the router is for the node
}

// putBehind builds the router and plugs the node into it.
func (n *Node) putBehind(ctx context.Context, r router) error {
	h := n.lab.host(n.Name + "-" + r.name)
	if err := h.Create(); err != nil {
		return err
	}
	if err := h.SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	for _, w := range []wire{{n.lab.underlay, r.port, r.bridge, h, NodeDevice, n.site().MTU}, {h, "node", "", n.Host, r.dev, n.site().MTU}} {
		if err := w.lay(ctx); err != nil {
			return err
		}
	}
	err := h.Links(func(nl *netlink.Handle) error {
		dev, err := nl.LinkByName("node")
		if err != nil {
			return err
		}
		return addAddr(nl, dev, r.inner.router)
	})
	if err != nil {
		return fmt.Errorf("address the router of %s: %w", n.Name, err)
	}
	rules := fmt.Sprintf(
		"table ip nat {\n chain out { type nat hook postrouting priority 100; oifname %q masquerade; }\n",
		NodeDevice,
	)
	if r.inward {
		rules += fmt.Sprintf(
			" chain in { type nat hook prerouting priority -100; iifname %q dnat to %s; }\n",
			NodeDevice,
			r.inner.host.Addr(),
		)
	}
	return errors.Join(
		n.lab.address(h, NodeDevice, r.outer, true),
		n.lab.address(n.Host, r.dev, []link{r.inner}, true),
		h.LoadRules(ctx, rules+"}\n"),
	)
}

// Routers are the hosts that stand between the node and the underlay.
func (n *Node) Routers() []host.Host {
	var hosts []host.Host
	if n.site().NAT {
		hosts = append(hosts, n.lab.host(n.Name+"-"+natName))
	}
	if n.site().Vagrant {
		hosts = append(hosts, n.lab.host(n.Name+"-"+vagrantName))
	}
	return hosts
}
