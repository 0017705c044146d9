package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/netstate"
)

// ensureBridge is the bridge's index and hardware address. The bridge is the agent's: it is made here only when
// it is missing, and what is wrong with an existing one is never a reason to refuse a pod.
func ensureBridge(ctx context.Context, nl *netlink.Handle, n *network) (*netlink.Bridge, error) {
	if b, err := findBridge(nl, n.bridge); b != nil || err != nil {
		return b, err
	}
	// One makes it and the others wait, so that nobody wires a pod to half a bridge.
	s, err := lockStore(ctx, n.storeDir())
	if err != nil {
		return nil, err
	}
	defer s.close()
	if b, err := findBridge(nl, n.bridge); b != nil || err != nil {
		return b, err
	}
	b, err := makeBridge(nl, n)
	if errors.Is(err, unix.EEXIST) { // the agent was faster
		return findBridge(nl, n.bridge)
	}
	return b, err
}

func findBridge(nl *netlink.Handle, name string) (*netlink.Bridge, error) {
	link, err := findLink(nl, name)
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", name, err)
	}
	if link == nil {
		return nil, nil
	}
	b, ok := link.(*netlink.Bridge)
	if !ok {
		return nil, failure(types.ErrInvalidNetworkConfig, "%s is a %s device: want a bridge, or no device of that name, "+
			"so that it can be made", name, link.Type())
	}
	return b, nil
}

// makeBridge makes the bridge as the agent does, whole or not at all. Its hardware address is said at creation:
// otherwise udev alters it later, and the bridge itself does with every port that comes or goes.
func makeBridge(nl *netlink.Handle, n *network) (*netlink.Bridge, error) {
	b := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: n.bridge, MTU: n.mtu, TxQLen: -1}}
	gateways := n.gateways()
	if len(gateways) > 0 {
		mac := netstate.BridgeMAC(gateways[0].Addr())
		b.HardwareAddr = net.HardwareAddr(mac[:])
	}
	if err := nl.LinkAdd(b); err != nil {
		return nil, fmt.Errorf("make bridge %s: %w", n.bridge, err)
	}
	if err := setUpBridge(nl, b, n); err != nil {
		return nil, errors.Join(fmt.Errorf("set up bridge %s: %w", n.bridge, err), nl.LinkDel(b))
	}
	return b, nil
}

func setUpBridge(nl *netlink.Handle, b *netlink.Bridge, n *network) error {
	if err := nl.LinkSetAlias(b, netstate.Mark); err != nil {
		return err
	}
	sysctls := []netstate.Sysctl{{Name: "net/ipv6/conf/" + n.bridge + "/accept_ra", Value: "0"}}
	for _, g := range n.gateways() {
		sysctls = append(sysctls, forwarding(g.Addr().Is4(), n.bridge)...)
	}
	if err := writeSysctls(sysctls); err != nil {
		return err
	}
	for _, g := range n.gateways() {
		if err := addAddr(nl, b.Index, g); err != nil {
			return err
		}
	}
	return nl.LinkSetUp(b)
}

func forwarding(is4 bool, bridge string) []netstate.Sysctl {
	if is4 {
		return []netstate.Sysctl{{Name: "net/ipv4/ip_forward", Value: "1"}}
	}
	return []netstate.Sysctl{
		{Name: "net/ipv6/conf/" + bridge + "/disable_ipv6", Value: "0"},
		{Name: "net/ipv6/conf/all/forwarding", Value: "1"},
	}
}
