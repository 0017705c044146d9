package plugin

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// veth is the pair that joins a pod to the bridge.
type veth struct {
	host, pod       string // interface names
	hostMAC, podMAC netstate.MAC
	mtu             int
}

// newVeth names the pair of o. The host's end is named after the pod, so that DEL finds it without the pod's
// namespace and so that two ADDs for one pod cannot both succeed; its hardware address is said, because udev
// alters one that is not. The pod's hardware address follows from its first address: what neighbours remember
// of an address stays right when another pod gets it.
func newVeth(o owner, grants []grant, mtu int) veth {
	v := veth{host: hostName(o), pod: o.dev, mtu: mtu}
	h := ownerHash(o)
	v.hostMAC = netstate.MAC{0x02, byte(h >> 32), byte(h >> 24), byte(h >> 16), byte(h >> 8), byte(h)}
	if len(grants) > 0 {
		v.podMAC = netstate.BridgeMAC(grants[0].prefix.Addr())
	}
	return v
}

func ownerHash(o owner) uint64 {
	h := fnv.New64a()
	h.Write([]byte(o.String()))
	return h.Sum64()
}

// hostName is the name of the host's end of o's pair: 15 characters, the most that the kernel takes.
func hostName(o owner) string { return fmt.Sprintf("veth%011x", ownerHash(o)&(1<<44-1)) }

// create makes the pair with one message: the host's end up and on the bridge, the pod's end in its namespace
// from the start (moving one there costs ten times as much). The pod's end cannot be created up: the kernel
// says ENOTCONN.
func (v veth) create(master int, ns int) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	req.AddData(msg)
	for _, a := range v.attrs(v.host, v.hostMAC) {
		req.AddData(a)
	}
	req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master))))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	for _, a := range v.attrs(v.pod, v.podMAC) {
		peer.AddChild(a)
	}
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns)))
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return fmt.Errorf("make veth pair %s and %s of mtu %d: %w", v.host, v.pod, v.mtu, err)
	}
	return nil
}

func (v veth) attrs(name string, mac netstate.MAC) []*nl.RtAttr {
	return []*nl.RtAttr{
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)),
		nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(v.mtu))),
		nl.NewRtAttr(unix.IFLA_ADDRESS, mac[:]),
	}
}

// deleteVeth deletes a device by its name, which takes one message. That there is none is success.
func deleteVeth(name string) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil && !gone(err) {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

func gone(err error) bool { return errors.Is(err, unix.ENODEV) }

// configure gives the pod's end its addresses and routes.
func (p *pod) configure(dev string, grants []grant, routes []route) error {
	link, err := p.nl.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("find %s in the pod: %w", dev, err)
	}
	if err := p.sysctls(podSysctls(dev, grants)...); err != nil {
		return err
	}
	if err := p.nl.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up in the pod: %w", dev, err)
	}
	index := link.Attrs().Index
	for _, g := range grants {
		if err := addAddr(p.nl, index, g.prefix); err != nil {
			return err
		}
	}
	for _, r := range routes {
		if err := addRoute(p.nl, index, r); err != nil {
			return err
		}
	}
	return nil
}

// podSysctls lets a pod have IPv6 addresses where the runtime turned IPv6 off in new namespaces (Docker did), and
// keeps it from believing the router advertisements that any other pod on the bridge could send.
func podSysctls(dev string, grants []grant) []netstate.Sysctl {
	all := []netstate.Sysctl{{Name: "net/ipv6/conf/" + dev + "/accept_ra", Value: "0"}}
	for _, g := range grants {
		if !g.prefix.Addr().Is4() {
			return append(all,
				netstate.Sysctl{Name: "net/ipv6/conf/lo/disable_ipv6", Value: "0"},
				netstate.Sysctl{Name: "net/ipv6/conf/" + dev + "/disable_ipv6", Value: "0"},
				netstate.Sysctl{Name: "net/ipv6/conf/" + dev + "/keep_addr_on_down", Value: "1"})
		}
	}
	return all
}

// addAddr adds an address. IPv6 ones are usable at once: addresses here come from one allocator, so nothing is
// found by waiting two seconds for duplicates.
func addAddr(nl *netlink.Handle, index int, p netip.Prefix) error {
	addr := &netlink.Addr{IPNet: ipNet(p)}
	if !p.Addr().Is4() {
		addr.Flags = unix.IFA_F_NODAD
	}
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	if err := nl.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("add address %s: %w", p, err)
	}
	return nil
}

func addRoute(nl *netlink.Handle, index int, r route) error {
	err := nl.RouteAdd(&netlink.Route{
		LinkIndex: index, Dst: ipNet(r.dst), Gw: net.IP(r.via.AsSlice()), Protocol: netstate.Protocol,
		Priority: netstate.DefaultMetric(r.dst.Addr()), Table: unix.RT_TABLE_MAIN, Scope: netlink.SCOPE_UNIVERSE,
	})
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return fmt.Errorf("add route %s via %s: want a gateway inside the pod's own subnet: %w", r.dst, r.via, err)
	}
	if err != nil {
		return fmt.Errorf("add route %s via %s: %w", r.dst, r.via, err)
	}
	return nil
}
