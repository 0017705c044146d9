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
func ensureBridge(ctx context.Context, host *rtnl, n *network) (*netlink.Bridge, error) {
	if b, err := findBridge(host, n.bridge); b != nil || err != nil {
		return b, err
	}
	// One makes it and the others wait, so that nobody wires a pod to half a bridge.
	s, err := lockStore(ctx, n.storeDir())
	if err != nil {
		return nil, err
	}
	defer s.close()
	if b, err := findBridge(host, n.bridge); b != nil || err != nil {
		return b, err
	}
	b, err := makeBridge(host, n)
	if errors.Is(err, unix.EEXIST) { // the agent was faster
		return findBridge(host, n.bridge)
	}
	return b, err
}

func findBridge(host *rtnl, name string) (*netlink.Bridge, error) {
	link, err := host.link(name)
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
func makeBridge(host *rtnl, n *network) (*netlink.Bridge, error) {
	b := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: n.bridge, MTU: n.mtu, TxQLen: -1}}
	gateways := n.gateways()
	if len(gateways) > 0 {
		mac := netstate.BridgeMAC(gateways[0].Addr())
		b.HardwareAddr = net.HardwareAddr(mac[:])
	}
	if err := netlink.LinkAdd(b); err != nil {
		return nil, fmt.Errorf("make bridge %s: %w", n.bridge, err)
	}
	if err := setUpBridge(host, b, n); err != nil {
		return nil, errors.Join(fmt.Errorf("set up bridge %s: %w", n.bridge, err), netlink.LinkDel(b))
	}
	return b, nil
}

func setUpBridge(host *rtnl, b *netlink.Bridge, n *network) error {
	if err := netlink.LinkSetAlias(b, netstate.Mark); err != nil {
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
		if _, err := host.do(addrRequest(b.Index, g)); err != nil {
			return fmt.Errorf("add address %s: %w", g, err)
		}
	}
	return netlink.LinkSetUp(b)
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
