package plugin

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Attached is the pods that are attached to this network namespace by a veth pair, whoever made it. As long as a
// pod's namespace exists its pair does, with or without a runtime or a process; when the namespace goes, the kernel
// removes both ends.
type Attached struct {
	Ends  map[string]bool       // names of the ends here
	Addrs map[netip.Addr]string // addresses in the namespaces at the other ends, and the end here that leads there
}

// AttachedPods asks the kernel. The addresses in the other namespaces are asked for by the id that the kernel has
// for each (IFA_TARGET_NETNSID, Linux 4.20), so no path to them and no view of other processes is needed.
func AttachedPods() (Attached, error) {
	all := Attached{map[string]bool{}, map[netip.Addr]string{}}
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return all, fmt.Errorf("open a netlink socket: %w", err)
	}
	defer socket.Close()
	// Without it the kernel passes over the id and lists this namespace's addresses.
	if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		return all, fmt.Errorf("look into other network namespaces, which needs Linux 4.20: %w", err)
	}
	links, err := dump(netlink.LinkList)
	if err != nil {
		return all, fmt.Errorf("list links: %w", err)
	}
	seen := map[int]bool{}
	for _, l := range links {
		a := l.Attrs()
		if l.Type() != "veth" || a.NetNsID < 0 { // the other end is here too
			continue
		}
		all.Ends[a.Name] = true
		if seen[a.NetNsID] {
			continue
		}
		seen[a.NetNsID] = true
		addrs, err := dump(func() ([]netip.Addr, error) { return addrsIn(socket, a.NetNsID) })
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) { // it went meanwhile
			continue
		}
		if err != nil {
			return all, fmt.Errorf("list the addresses behind %s: %w", a.Name, err)
		}
		for _, addr := range addrs {
			all.Addrs[addr] = a.Name
		}
	}
	return all, nil
}

// addrsIn is the addresses of the namespace with that id, without loopback's and link-local ones.
func addrsIn(socket *nl.NetlinkSocket, id int) ([]netip.Addr, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	req.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFA_TARGET_NETNSID, nl.Uint32Attr(uint32(id))))
	replies, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	if err != nil {
		return nil, err
	}
	var all []netip.Addr
	for _, m := range replies {
		if a := decodeAddr(m); a.IsValid() && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			all = append(all, a)
		}
	}
	return all, nil
}

// decodeAddr is the address in an RTM_NEWADDR message: IFA_LOCAL, or IFA_ADDRESS where there is none (IPv6).
func decodeAddr(message []byte) netip.Addr {
	if len(message) < unix.SizeofIfAddrmsg {
		return netip.Addr{}
	}
	for _, kind := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		value, err := attribute(message[unix.SizeofIfAddrmsg:], kind)
		if a, ok := netip.AddrFromSlice(value); ok && err == nil {
			return a
		}
	}
	return netip.Addr{}
}
