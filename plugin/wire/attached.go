package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/plugin/ipam"
)

// Attached lists the pods that are attached to this network namespace by a veth pair, whoever made it. As long
// as a pod's namespace exists its pair does, with or without a runtime or a process; when the namespace goes,
// the kernel removes both ends.
type Attached struct {
	Ends  map[string]bool       // names of the ends here
	Addrs map[netip.Addr]string // addresses in the namespaces at the other ends, and the end here that leads there

	spaces []space
}

// space is a network namespace at the other end of veth pairs.
type space struct {
	ends  []string // their ends here
	ports []string // the bridges that those are on
	addrs []netip.Addr
}

// AttachedPods asks the kernel. The addresses in the other namespaces are asked for by the id that the kernel
// has for each (IFA_TARGET_NETNSID, Linux 4.20), so no path to them and no view of other processes is needed.
func AttachedPods() (Attached, error) {
	all := Attached{Ends: map[string]bool{}, Addrs: map[netip.Addr]string{}}
	socket, err := subscribe()
	if err != nil {
		return all, err
	}
	defer socket.Close()
	links, err := rtnl.Retry("links", netlink.LinkList)
	if err != nil {
		return all, err
	}
	spaces := spacesOf(links)
	for _, id := range slices.Sorted(maps.Keys(spaces)) { // the same order each time, for Unknown
		s := spaces[id]
		for _, end := range s.ends {
			all.Ends[end] = true
		}
		s.addrs, err = rtnl.Retry("addresses behind "+s.ends[0], func() ([]netip.Addr, error) { return addrsIn(socket, id) })
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) { // it is gone already
			continue
		}
		if err != nil {
			return all, err
		}
		for _, addr := range s.addrs {
			all.Addrs[addr] = s.ends[0]
		}
		all.spaces = append(all.spaces, *s)
	}
	return all, nil
}

// subscribe opens a socket that can ask for what is in other namespaces.
func subscribe() (*nl.NetlinkSocket, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	// Without it the kernel ignores the id and lists this namespace's addresses.
	if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		socket.Close()
		return nil, fmt.Errorf("look into other network namespaces, which needs Linux 4.20: %w", err)
	}
	return socket, nil
}

// spacesOf returns the namespaces at the other ends of links by the kernel's id for each.
func spacesOf(links []netlink.Link) map[int]*space {
	bridges := map[int]string{}
	for _, l := range links {
		if l.Type() == "bridge" {
			bridges[l.Attrs().Index] = l.Attrs().Name
		}
	}
	all := map[int]*space{}
	for _, l := range links {
		a := l.Attrs()
		if l.Type() != "veth" || a.NetNsID < 0 { // the other end is here too
			continue
		}
		s := all[a.NetNsID]
		if s == nil {
			s = &space{}
			all[a.NetNsID] = s
		}
		s.ends = append(s.ends, a.Name)
		if bridge := bridges[a.MasterIndex]; bridge != "" {
			s.ports = append(s.ports, bridge)
		}
	}
	return all
}

// Has reports whether a pod has any of an allocation for certain.
func (a Attached) Has(h ipam.Allocation) bool {
	there := func(addr netip.Addr) bool { return a.Addrs[addr] != "" }
	return a.Ends[HostEnd(h.Owner)] || slices.ContainsFunc(h.Addrs, there)
}

// MayHave reports whether an allocation can be of a pod at one of the ends that Unknown returned. What this
// plugin reserved is not: its pods have an end of their own name.
func (a Attached) MayHave(h ipam.Allocation, unknown []string) bool {
	return len(unknown) > 0 && !h.Named
}

// Unknown returns the ends here that lead to pods of which nobody knows what they have: ports of the bridge
// whose namespace has no reserved address (or one that another namespace has too), and ports of any bridge
// whose namespace has no address at all. gVisor takes the address off the interface, and a pod with NET_ADMIN
// can do as it likes.
func (a Attached) Unknown(bridge string, allocations []ipam.Allocation) []string {
	ends, holders := map[string]bool{}, map[netip.Addr]string{}
	for _, h := range allocations {
		ends[HostEnd(h.Owner)] = true
		for _, addr := range h.Addrs {
			holders[addr] = HostEnd(h.Owner)
		}
	}
	var unknown []string
	claimed := map[string]bool{} // holders of which a namespace was found
	for _, s := range a.spaces {
		known := slices.ContainsFunc(s.ends, func(end string) bool { return ends[end] })
		var claims []string
		for _, addr := range s.addrs {
			if h := holders[addr]; h != "" && !claimed[h] {
				claims = append(claims, h)
			}
		}
		for _, h := range claims {
			claimed[h] = true
		}
		pod := slices.Contains(s.ports, bridge) || len(s.ports) > 0 && len(s.addrs) == 0
		if pod && !known && len(claims) == 0 {
			unknown = append(unknown, s.ends...)
		}
	}
	slices.Sort(unknown)
	return unknown
}

// addrsIn returns the addresses of the namespace with that id, without loopback's and link-local ones.
func addrsIn(socket *nl.NetlinkSocket, id int) ([]netip.Addr, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	req.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFA_TARGET_NETNSID, nl.Uint32Attr(uint32(id))))
	replies, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	var all []netip.Addr
	for _, m := range replies {
		parsed, _ := rtnl.ParseAddress(m) // the zero Address if it is cut short
		if a := parsed.Prefix.Addr(); a.IsValid() && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			all = append(all, a)
		}
	}
	return all, err
}

// Lonely returns how many network namespaces had an interface whose other end was here, and now have neither that nor
// an address. The kernel keeps its id for such a namespace until that ends.
func Lonely() (int, error) {
	socket, err := subscribe()
	if err != nil {
		return 0, err
	}
	defer socket.Close()
	ids, err := rtnl.Retry("network namespaces", func() ([]int, error) { return namespaces(socket) })
	if err != nil {
		return 0, err
	}
	links, err := rtnl.Retry("links", netlink.LinkList)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, id := range ids {
		if slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().NetNsID == id }) {
			continue
		}
		addrs, err := rtnl.Retry("addresses elsewhere", func() ([]netip.Addr, error) { return addrsIn(socket, id) })
		switch {
		case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV): // it is gone already
		case err != nil:
			return 0, err
		case len(addrs) == 0:
			count++
		}
	}
	return count, nil
}

// namespaces returns the ids that the kernel has for other namespaces.
func namespaces(socket *nl.NetlinkSocket) ([]int, error) {
	const header, id = 4, 1 // struct rtgenmsg with its padding, and NETNSA_NSID (linux/net_namespace.h)
	req := nl.NewNetlinkRequest(unix.RTM_GETNSID, unix.NLM_F_DUMP)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	req.AddRawData(make([]byte, header))
	replies, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNSID)
	var all []int
	for _, m := range replies {
		if value := rtnl.Attribute(m, header, id); len(value) == 4 {
			all = append(all, int(int32(binary.NativeEndian.Uint32(value))))
		}
	}
	return all, err
}
