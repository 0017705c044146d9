package wire

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/plugin/ipam"
)

// Veth is the pair that joins a pod to the bridge.
type Veth struct {
	Host, Pod       string // interface names
	HostMAC, PodMAC netstate.MAC
	Addrs           []netip.Addr // of the pod
	MTU             int
}

// NewVeth names the pair of o. The host's end is named after the pod, so that DEL finds it without the pod's
// namespace and so that two ADDs for one pod cannot both succeed; its hardware address is set, because udev
// alters one that is not. The pod's hardware address follows from its first address: what neighbours remember
// of an address stays right when another pod gets it.
func NewVeth(o ipam.Owner, grants []ipam.Grant, mtu int) Veth {
	h := o.Hash()
	v := Veth{Host: HostEnd(o), Pod: o.Dev, MTU: mtu}
	v.HostMAC = netstate.MAC{0x02, byte(h >> 32), byte(h >> 24), byte(h >> 16), byte(h >> 8), byte(h)}
	if len(grants) > 0 {
		v.PodMAC = netstate.BridgeMAC(grants[0].Prefix.Addr())
	}
	for _, g := range grants {
		v.Addrs = append(v.Addrs, g.Prefix.Addr())
	}
	return v
}

// HostEnd returns the name of the host's end of o's pair: 15 characters, the most that the kernel takes.
// While it exists, so does the pod's network namespace.
func HostEnd(o ipam.Owner) string {
	return fmt.Sprintf("%s%0*x", endPrefix, ipam.EndDigits, o.Hash()&(1<<(4*ipam.EndDigits)-1))
}

const endPrefix = "veth"

// Port is how the bridge treats a pod's port.
type Port struct {
	Hairpin  bool // a pod that calls a service and is chosen itself gets its packets back
	Isolated bool // it does not talk to other isolated ports
	CheckMAC bool // frames with another source address than the pod's are dropped
}

// Attach makes the pair and sets up its port of the bridge, in one write.
func (n *Node) Attach(v Veth, pod *Pod, bridge *netlink.Bridge, port Port) error {
	mark := v.mark(bridge.Attrs().Name, port)
	failed, err := do(n.conn, v.request(bridge.Index, int(pod.ns.Fd()), mark.Group()), v.portRequest(mark))
	switch {
	case err == nil:
		return nil
	case failed == 0:
		return fmt.Errorf("make veth pair %s and %s of mtu %d: %w", v.Host, v.Pod, v.MTU, err)
	}
	return errors.Join(fmt.Errorf("set up the bridge's port %s: %w", v.Host, err), n.DeleteLink(v.Host))
}

// mark returns the port as the agent keeps it.
func (v Veth) mark(bridge string, p Port) netstate.Port {
	return netstate.Port{Bridge: bridge, MTU: v.MTU, MAC: v.HostMAC, Pod: v.PodMAC, Hairpin: p.Hairpin, Isolated: p.Isolated,
		Locked: p.CheckMAC}.WithAddrs(v.Addrs)
}

// request makes the pair with one message: the host's end up, on the bridge and in its group, so that it is never there
// without; the pod's end in its namespace from the start (moving one there costs ten times as much). The pod's end
// cannot be created up: the kernel returns ENOTCONN.
func (v Veth) request(master, ns, group int) *nl.NetlinkRequest {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	for _, a := range v.attrs(v.Pod, v.PodMAC) {
		peer.AddChild(a)
	}
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns)))
	attrs := append(v.attrs(v.Host, v.HostMAC), nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master))),
		nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(uint32(group))), info)
	return request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, up(0), attrs...)
}

func (v Veth) attrs(name string, mac netstate.MAC) []*nl.RtAttr {
	return []*nl.RtAttr{nameAttr(name), nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(v.MTU))),
		nl.NewRtAttr(unix.IFLA_ADDRESS, mac[:])}
}

// portRequest sets up the port, and then marks it as one that the agent keeps so. The kernel takes both from one message,
// so the agent never sees the mark of a port that is not finished.
func (v Veth) portRequest(p netstate.Port) *nl.NetlinkRequest {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil)
	if p.Hairpin {
		data.AddRtAttr(nl.IFLA_BRPORT_MODE, []byte{1})
	}
	if p.Isolated {
		data.AddRtAttr(nl.IFLA_BRPORT_ISOLATED, []byte{1})
	}
	if p.Locked {
		data.AddRtAttr(nl.IFLA_BRPORT_LEARNING, []byte{0})
		data.AddRtAttr(nl.IFLA_BRPORT_LOCKED, []byte{1})
	}
	return request(unix.RTM_NEWLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC), nameAttr(v.Host), info,
		nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(p.Alias())))
}

// LockPort ends what Attach began for a port that checks source addresses. That is a locked port (Linux
// 5.18): it takes frames only from hardware addresses that the bridge has on it, and it learns none, so that
// the pod's own, written here, stays the only one. No firewall is involved.
func (n *Node) LockPort(v Veth) error {
	link, message, err := getLink(n.conn, v.Host)
	if err == nil && link == nil {
		err = unix.ENODEV
	}
	if err == nil {
		err = netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE,
			State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER, HardwareAddr: v.PodMAC[:]})
	}
	if err != nil {
		return fmt.Errorf("tell the bridge that %s is at %s: %w", v.PodMAC, v.Host, err)
	}
	if !portIn(message).CheckMAC { // an older kernel ignores what it does not know
		return fmt.Errorf("macspoofchk: this kernel has no locked ports, want Linux 5.18 or the setting off")
	}
	return nil
}
