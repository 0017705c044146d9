package plugin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"

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

// request makes the pair with one message: the host's end up and on the bridge, the pod's end in its namespace
// from the start (moving one there costs ten times as much). The pod's end cannot be created up: the kernel
// says ENOTCONN.
func (v veth) request(master int, ns int) *nl.NetlinkRequest {
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
	return req
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
	host, err := dialRTNL()
	if err != nil {
		return err
	}
	defer host.close()
	if _, err := host.do(deleteRequest(name)); err != nil && !gone(err) {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

func deleteRequest(name string) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return req
}

func gone(err error) bool { return errors.Is(err, unix.ENODEV) }

// configure gives the pod's end its addresses and routes, in one write after the sysctls: what a link may learn by
// itself must be said before it is up.
func (p *pod) configure(dev string, grants []grant, routes []route) error {
	link, err := p.nl.link(dev)
	if err == nil && link == nil {
		err = unix.ENODEV
	}
	if err != nil {
		return fmt.Errorf("find %s in the pod: %w", dev, err)
	}
	if err := p.sysctls(podSysctls(dev, grants)...); err != nil {
		return err
	}
	index := link.Attrs().Index
	requests, what := []*nl.NetlinkRequest{upRequest(index)}, []string{"set " + dev + " up in the pod"}
	for _, g := range grants {
		requests, what = append(requests, addrRequest(index, g.prefix)), append(what, "add address "+g.prefix.String())
	}
	for _, r := range routes {
		requests, what = append(requests, routeRequest(index, r)), append(what, fmt.Sprintf("add route %s via %s", r.dst, r.via))
	}
	failed, err := p.nl.do(requests...)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return fmt.Errorf("%s: want a gateway inside the pod's own subnet: %w", what[failed], err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what[failed], err)
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

func upRequest(index int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index, msg.Flags, msg.Change = int32(index), unix.IFF_UP, unix.IFF_UP
	req.AddData(msg)
	return req
}

// addrRequest adds an address. IPv6 ones are usable at once: addresses here come from one allocator, so nothing is
// found by waiting two seconds for duplicates.
func addrRequest(index int, p netip.Prefix) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	msg := nl.NewIfAddrmsg(family(p.Addr()))
	msg.Index, msg.Prefixlen = uint32(index), uint8(p.Bits())
	if !p.Addr().Is4() {
		msg.Flags = unix.IFA_F_NODAD
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, p.Addr().AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, p.Addr().AsSlice()))
	if p.Addr().Is4() && p.Bits() < 31 { // RFC 3021: shorter subnets have no broadcast address
		req.AddData(nl.NewRtAttr(unix.IFA_BROADCAST, broadcast(p).AsSlice()))
	}
	return req
}

// broadcast is the last address of an IPv4 subnet.
func broadcast(p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	host := binary.BigEndian.Uint32(a[:]) | (1<<(32-p.Bits()) - 1)
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, host)))
}

func routeRequest(index int, r route) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	msg := nl.NewRtMsg()
	msg.Family, msg.Dst_len, msg.Protocol = uint8(family(r.dst.Addr())), uint8(r.dst.Bits()), netstate.Protocol
	msg.Table, msg.Scope, msg.Type = unix.RT_TABLE_MAIN, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST
	req.AddData(msg)
	if r.dst.Bits() > 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_DST, r.dst.Addr().AsSlice()))
	}
	req.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, r.via.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	req.AddData(nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(uint32(netstate.DefaultMetric(r.dst.Addr())))))
	return req
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
