package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/plugin/internal/cnierr"
	"github.com/twill-net/twill/plugin/ipam"
)

// Bridge is the node's bridge as it should be.
type Bridge struct {
	Name     string
	MTU      int
	Gateways []netip.Prefix
}

// Ensure returns the bridge as it is. It is the agent's: it is made here only when it is missing, and what is
// wrong with an existing one is never a reason to refuse a pod.
func (b Bridge) Ensure(ctx context.Context, n *Node, store ipam.Store) (*netlink.Bridge, error) {
	if link, err := b.find(n); link != nil || err != nil {
		return link, err
	}
	// One process makes it and the others wait, so that nobody wires a pod to half a bridge.
	lock, err := store.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if link, err := b.find(n); link != nil || err != nil {
		return link, err
	}
	link, err := b.create()
	if errors.Is(err, unix.EEXIST) { // the agent was faster
		return b.find(n)
	}
	return link, err
}

func (b Bridge) find(n *Node) (*netlink.Bridge, error) {
	link, _, err := getLink(n.conn, b.Name)
	if link == nil || err != nil {
		return nil, err
	}
	bridge, ok := link.(*netlink.Bridge)
	if !ok {
		return nil, cnierr.New(types.ErrInvalidNetworkConfig, "%s is a %s device: want a bridge, or no device of that name, "+
			"so that it can be made", b.Name, link.Type())
	}
	return bridge, nil
}

// create makes the bridge as the agent does, whole or not at all. Its hardware address is set at creation:
// otherwise udev alters it later, and the bridge itself does with every port that comes or goes.
func (b Bridge) create() (*netlink.Bridge, error) {
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: b.Name, MTU: b.MTU, TxQLen: -1}}
	if len(b.Gateways) > 0 {
		mac := netstate.BridgeMAC(b.Gateways[0].Addr())
		link.HardwareAddr = net.HardwareAddr(mac[:])
	}
	if err := netlink.LinkAdd(link); err != nil {
		return nil, fmt.Errorf("make bridge %s: %w", b.Name, err)
	}
	if err := b.setUp(link); err != nil {
		return nil, errors.Join(fmt.Errorf("set up bridge %s: %w", b.Name, err), netlink.LinkDel(link))
	}
	return link, nil
}

func (b Bridge) setUp(link *netlink.Bridge) error {
	if err := netlink.LinkSetAlias(link, netstate.Mark); err != nil {
		return err
	}
	sysctls := []netstate.Sysctl{{Name: "net/ipv6/conf/" + b.Name + "/accept_ra", Value: "0"}}
	for _, g := range b.Gateways {
		if netstate.FamilyOf(g.Addr()) == netstate.IPv4 {
			sysctls = append(sysctls, netstate.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"})
			continue
		}
		sysctls = append(sysctls, netstate.Sysctl{Name: "net/ipv6/conf/" + b.Name + "/disable_ipv6", Value: "0"},
			netstate.Sysctl{Name: "net/ipv6/conf/all/forwarding", Value: "1"})
	}
	if err := writeSysctls(sysctls); err != nil {
		return err
	}
	for _, g := range b.Gateways {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: rtnl.IPNet(g), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add address %s: %w", g, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// CutOff returns why the pods on the bridge have no network now, "" if they have. A bridge that does not
// exist is no reason: there are no pods on it, and ADD makes it.
func (b Bridge) CutOff() string {
	link, err := netlink.LinkByName(b.Name)
	if err != nil {
		return ""
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return b.Name + " is down"
	}
	addrs, err := rtnl.Retry("addresses",
		func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return ""
	}
	for _, g := range b.Gateways {
		if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return rtnl.Prefix(a.IPNet) == g }) {
			return b.Name + " does not have the pods' gateway address " + g.String()
		}
	}
	return ""
}
