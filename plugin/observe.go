package plugin

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// podEnd is the pod's interface, as a netstate object.
type podEnd struct {
	Name string
	MAC  string
	MTU  int
	Up   bool
}

// Key implements netstate.Object.
func (l podEnd) Key() netstate.Key { return netstate.Key{Kind: netstate.KindLink, Name: l.Name} }

func (l podEnd) String() string {
	return fmt.Sprintf("link %s address %s mtu %d%s", l.Name, l.MAC, l.MTU, state(l.Up, " up", " down"))
}

// hostEnd is the host's end of the pair, as a netstate object.
type hostEnd struct {
	Name    string
	Master  string
	MTU     int
	Hairpin bool
	Alone   bool // isolated: it talks to the bridge, not to other isolated ports
	Locked  bool // it takes frames from the pod's hardware address only; looked at where it should
	Up      bool
}

// Key implements netstate.Object.
func (l hostEnd) Key() netstate.Key { return netstate.Key{Kind: netstate.KindLink, Name: l.Name} }

func (l hostEnd) String() string {
	return fmt.Sprintf("link %s master %s mtu %d%s%s%s%s", l.Name, state(l.Master != "", l.Master, "none"), l.MTU,
		state(l.Hairpin, " hairpin on", " hairpin off"), state(l.Alone, " isolated on", ""), state(l.Locked, " locked on", ""), state(l.Up, " up", " down"))
}

// reservation is an address's file in the store, as a netstate object.
type reservation struct{ File, Owner string }

// Key implements netstate.Object; the kind only says that nothing depends on it.
func (r reservation) Key() netstate.Key { return netstate.Key{Kind: netstate.KindChain, Name: r.File} }

func (r reservation) String() string { return "reservation " + r.File + " of " + r.Owner }

func state(on bool, yes, no string) string {
	if on {
		return yes
	}
	return no
}

// observe is as much of the kernel's and the store's state as want is about.
func observe(p *pod, o owner, want netstate.State) (netstate.State, error) {
	host, err := dialRTNL()
	if err != nil {
		return nil, err
	}
	defer host.close()
	all, err := p.observe(o.dev)
	if err != nil {
		return nil, err
	}
	have := netstate.State{}
	for key, w := range want {
		h := all[key]
		switch w := w.(type) {
		case podEnd:
			h = likewise(h, w)
		case hostEnd:
			h, err = observeHostEnd(host, w)
		case reservation:
			h, err = w.observe(o)
		}
		if err != nil {
			return nil, err
		}
		if h != nil {
			have.Add(h)
		}
	}
	return have, nil
}

// likewise is the pod's interface without what want does not know.
func likewise(have netstate.Object, want podEnd) netstate.Object {
	l, ok := have.(podEnd)
	if !ok {
		return have
	}
	if want.MAC == "" {
		l.MAC = ""
	}
	if want.MTU == 0 {
		l.MTU = 0
	}
	return l
}

// observe is the same address's reservation as it stands there, nil if there is none.
func (r reservation) observe(o owner) (netstate.Object, error) {
	content, err := os.ReadFile(r.File)
	if err != nil {
		return nil, absent(err)
	}
	if o.owns(content) {
		return r, nil
	}
	return reservation{r.File, parseOwner(content).container}, nil
}

func observeHostEnd(host *rtnl, want hostEnd) (netstate.Object, error) {
	link, err := host.link(want.Name)
	if link == nil || err != nil {
		return nil, err
	}
	a := link.Attrs()
	h := hostEnd{Name: a.Name, MTU: a.MTU, Up: a.Flags&unix.IFF_UP != 0}
	if want.MTU == 0 {
		h.MTU = 0
	}
	if a.MasterIndex == 0 {
		return h, nil
	}
	master, err := netlink.LinkByIndex(a.MasterIndex)
	if err != nil {
		return nil, err
	}
	protinfo, err := dump(func() (netlink.Protinfo, error) { return netlink.LinkGetProtinfo(link) })
	h.Master, h.Hairpin, h.Alone = master.Attrs().Name, protinfo.Hairpin, protinfo.Isolated
	if want.Locked && err == nil {
		h.Locked, err = port{host: want.Name}.locked(host)
	}
	return h, err
}

// observe is the interface, its addresses and its routes in the pod.
func (p *pod) observe(dev string) (netstate.State, error) {
	s := netstate.State{}
	link, err := p.nl.link(dev)
	if link == nil || err != nil {
		return s, err
	}
	nl, err := netlink.NewHandleAt(p.ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("enter %s: %w", p.path, err)
	}
	defer nl.Close()
	a := link.Attrs()
	s.Add(podEnd{a.Name, a.HardwareAddr.String(), a.MTU, a.Flags&unix.IFF_UP != 0})
	addrs, err := dump(func() ([]netlink.Addr, error) { return nl.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		s.Add(netstate.Addr{Dev: dev, Prefix: prefixOf(addr.IPNet), Extra: state(addr.Flags&unix.IFA_F_DADFAILED != 0, "dadfailed", "")})
	}
	routes, err := dump(func() ([]netlink.Route, error) { return nl.RouteList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		s.Add(podRoute(r, dev))
	}
	return s, nil
}

// podRoute leaves out who wrote the route: flannel's chain did in older pods.
func podRoute(r netlink.Route, dev string) netstate.Route {
	dst := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if r.Dst != nil {
		dst = prefixOf(r.Dst)
	} else if r.Family == unix.AF_INET6 {
		dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netstate.Route{Dst: dst, Via: addrOf(r.Gw), Dev: dev, Metric: r.Priority, Protocol: netstate.Protocol,
		Onlink: r.Flags&int(netlink.FLAG_ONLINK) != 0, Blackhole: r.Type == unix.RTN_BLACKHOLE}
}

// dump repeats a listing that a change of the kernel's tables interrupted.
func dump[T any](list func() (T, error)) (result T, err error) {
	for range 10 {
		if result, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return result, err
		}
	}
	return result, err
}
