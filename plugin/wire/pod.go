package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/plugin/internal/cnierr"
	"github.com/twill-net/twill/plugin/ipam"
)

// Pod is a pod's network namespace.
type Pod struct {
	ns   ns.NetNS
	conn *rtnl.Conn // in ns
}

// OpenPod opens the namespace at path. Its error has the code types.ErrUnknownContainer where there is none.
// The node's own namespace is refused: ADD would wire the node to itself and DEL would remove the node's
// uplink.
func OpenPod(path string) (*Pod, error) {
	none := cnierr.New(types.ErrUnknownContainer,
		"CNI_NETNS %s is not there or not a network namespace: want a pod's", path)
	there, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, none
	}
	if own, ownErr := os.Stat("/proc/thread-self/ns/net"); ownErr == nil && err == nil && os.SameFile(there, own) {
		return nil, cnierr.New(types.ErrInvalidNetNS, "CNI_NETNS %s is the node's own network namespace: want a pod's", path)
	}
	p := &Pod{}
	p.ns, err = ns.GetNS(path)
	if errors.As(err, &ns.NSPathNotNSErr{}) { // a plain file is what an unmounted namespace leaves
		return nil, none
	}
	if err == nil {
		err = p.within(func() (err error) {
			p.conn, err = rtnl.Dial()
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return p, nil
}

// Close closes what OpenPod opened.
func (p *Pod) Close() {
	p.conn.Close()
	_ = p.ns.Close()
}

// within runs f in the pod's namespace, on this thread: ns.Do starts another one for it, which costs ADD a
// tenth. A thread that cannot go back stays locked, and is not used for anything else.
func (p *Pod) within(f func() error) error {
	own, err := ns.GetCurrentNS()
	if err != nil {
		return err
	}
	defer own.Close()
	runtime.LockOSThread()
	if err := p.ns.Set(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = f()
	if back := own.Set(); back != nil {
		return errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	return err
}

// Path returns the path that the pod was opened at.
func (p *Pod) Path() string { return p.ns.Path() }

// Has reports whether the pod has the interface.
func (p *Pod) Has(dev string) (bool, error) {
	link, _, err := getLink(p.conn, dev)
	return link != nil, err
}

// DeleteLink deletes the interface from inside the pod. That there is none is success.
func (p *Pod) DeleteLink(dev string) error {
	return deleteLink(p.conn, dev)
}

// Attachment is what an interface in a pod tells of whose it is.
type Attachment struct {
	Peer  int // index of the host's end, 0 for what has none
	Addrs []netip.Addr
}

// Attachment returns that of an interface in the pod, and reports whether there is one.
func (p *Pod) Attachment(dev string) (a Attachment, there bool, err error) {
	link, _, err := getLink(p.conn, dev)
	if link == nil || err != nil {
		return a, false, err
	}
	a.Peer = link.Attrs().ParentIndex
	msg := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	err = p.conn.List(request(unix.RTM_GETADDR, unix.NLM_F_DUMP, msg), func(m []byte) error {
		if index := binary.NativeEndian.Uint32(m[4:]); int(index) == link.Attrs().Index { // ifa_index
			a.Addrs = append(a.Addrs, rtnl.Addr(rtnl.Attribute(m, unix.SizeofIfAddrmsg, unix.IFA_ADDRESS)))
		}
		return nil
	})
	if err != nil {
		return a, true, fmt.Errorf("look for the addresses of %s: %w", dev, err)
	}
	return a, true, nil
}

// Route is a route of a pod. Via is invalid for the gateway of its family.
type Route struct {
	Dst netip.Prefix
	Via netip.Addr
}

// Configure gives the pod's end its addresses and routes, in one write after the sysctls: what a link may
// learn by itself has to be settled before it is up.
func (p *Pod) Configure(dev string, grants []ipam.Grant, routes []Route) error {
	link, _, err := getLink(p.conn, dev)
	if err == nil && link == nil {
		err = unix.ENODEV
	}
	if err != nil {
		return fmt.Errorf("find %s in the pod: %w", dev, err)
	}
	// /proc/sys/net is that of the thread which opens the file.
	if err := p.within(func() error { return writeSysctls(podSysctls(dev, grants)) }); err != nil {
		return err
	}
	index := link.Attrs().Index
	requests := []*nl.NetlinkRequest{request(unix.RTM_NEWLINK, 0, up(index))}
	what := []string{"set " + dev + " up in the pod"}
	for _, g := range grants {
		requests = append(requests, addrRequest(index, g.Prefix))
		what = append(what, "add address "+g.Prefix.String())
	}
	for _, r := range routes {
		requests = append(requests, routeRequest(index, r))
		what = append(what, fmt.Sprintf("add route %s via %s", r.Dst, r.Via))
	}
	failed, err := do(p.conn, requests...)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return fmt.Errorf("%s: want a gateway inside the pod's own subnet: %w", what[failed], err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what[failed], err)
	}
	return nil
}

// podSysctls lets a pod have IPv6 addresses where the runtime turned IPv6 off in new namespaces (Docker did),
// and keeps it from believing the router advertisements that any other pod on the bridge could send.
func podSysctls(dev string, grants []ipam.Grant) []netstate.Sysctl {
	all := []netstate.Sysctl{{Name: "net/ipv6/conf/" + dev + "/accept_ra", Value: "0"}}
	for _, g := range grants {
		if netstate.FamilyOf(g.Prefix.Addr()) == netstate.IPv6 {
			return append(all,
				netstate.Sysctl{Name: "net/ipv6/conf/lo/disable_ipv6", Value: "0"},
				netstate.Sysctl{Name: "net/ipv6/conf/" + dev + "/disable_ipv6", Value: "0"},
				netstate.Sysctl{Name: "net/ipv6/conf/" + dev + "/keep_addr_on_down", Value: "1"})
		}
	}
	return all
}

// addrRequest adds an address. IPv6 ones are usable at once: addresses here come from one allocator, so
// nothing is found by waiting two seconds for duplicates.
func addrRequest(index int, p netip.Prefix) *nl.NetlinkRequest {
	msg := nl.NewIfAddrmsg(family(p.Addr()))
	msg.Index, msg.Prefixlen = uint32(index), uint8(p.Bits())
	attrs := []*nl.RtAttr{nl.NewRtAttr(unix.IFA_LOCAL, p.Addr().AsSlice())}
	if netstate.FamilyOf(p.Addr()) == netstate.IPv6 {
		msg.Flags = unix.IFA_F_NODAD
	} else if p.Bits() < 31 { // RFC 3021: shorter subnets have no broadcast address
		last := binary.BigEndian.Uint32(p.Addr().AsSlice()) | (1<<(32-p.Bits()) - 1)
		attrs = append(attrs, nl.NewRtAttr(unix.IFA_BROADCAST, binary.BigEndian.AppendUint32(nil, last)))
	}
	return request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, msg, attrs...)
}

func routeRequest(index int, r Route) *nl.NetlinkRequest {
	msg := nl.NewRtMsg()
	msg.Family, msg.Dst_len, msg.Protocol = uint8(family(r.Dst.Addr())), uint8(r.Dst.Bits()), netstate.Protocol
	attrs := []*nl.RtAttr{nl.NewRtAttr(unix.RTA_GATEWAY, r.Via.AsSlice()),
		nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))),
		nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(uint32(netstate.DefaultMetric(r.Dst.Addr()))))}
	if r.Dst.Bits() > 0 {
		attrs = append(attrs, nl.NewRtAttr(unix.RTA_DST, r.Dst.Addr().AsSlice()))
	}
	return request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, msg, attrs...)
}

func family(a netip.Addr) int {
	if netstate.FamilyOf(a) == netstate.IPv4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
