package walk

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/packet"
)

// Entry is what decided: one line of one of the kernel's tables.
type Entry struct {
	Table string `json:"table"` // route, neighbour, fdb, bridge, vxlan
	Text  string `json:"text"`
}

// tables asks one namespace what it would do with a frame.
type tables struct {
	nl      *netlink.Handle
	entries []Entry
}

// decide lists the entries that decide what the host does with what was seen on a device.
func decide(p watch.Place, s packet.Sighting) (entries []Entry, err error) {
	err = p.Do(func() error {
		nl, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer nl.Close()
		t := &tables{nl: nl}
		defer func() { entries = t.entries }()
		dev, err := nl.LinkByName(s.Dev)
		if err != nil {
			return err
		}
		t.follow(dev, s)
		return nil
	})
	return entries, err
}

func (t *tables) say(table, format string, args ...any) {
	t.entries = append(t.entries, Entry{table, fmt.Sprintf(format, args...)})
}

func (t *tables) follow(dev netlink.Link, s packet.Sighting) {
	eth, _ := s.Frame.First("eth")
	ip, _ := s.Frame.First("ip")
	_, isVXLAN := dev.(*netlink.Vxlan)
	_, isBridge := dev.(*netlink.Bridge)
	switch {
	case s.Out && isVXLAN:
		t.fdb(dev, eth.To)
	case s.Out && isBridge:
		t.bridge(dev, eth.To)
	case s.Out && dev.Attrs().MasterIndex == 0 && dev.Attrs().Name == "eth0":
		t.route(ip.Dst, netip.Addr{}, "")
	case s.Out:
	case dev.Attrs().MasterIndex != 0:
		if master, err := t.nl.LinkByIndex(dev.Attrs().MasterIndex); err == nil {
			t.bridge(master, eth.To)
		}
	case s.Frame.Wrapped() && t.mine(ip.Dst):
		t.tunnel(s.Frame)
	default:
		t.route(ip.Dst, ip.Src, dev.Attrs().Name)
	}
}

// route is the FIB entry towards dst, and the neighbour that it leads to.
func (t *tables) route(dst, src netip.Addr, in string) {
	options := &netlink.RouteGetOptions{Iif: in, FIBMatch: true}
	if src.IsValid() && in != "" {
		options.SrcAddr = src.AsSlice()
	}
	routes, err := t.nl.RouteGetWithOptions(dst.AsSlice(), options)
	if err != nil || len(routes) == 0 {
		t.say("route", "none for %s: %v", dst, err)
		return
	}
	r := routes[0]
	out, err := t.nl.LinkByIndex(r.LinkIndex)
	if err != nil {
		t.say("route", "%s", r)
		return
	}
	t.say("route", "%s", routeText(r, out.Attrs().Name, dst))
	if r.Type == unix.RTN_LOCAL || out.Attrs().Flags&net.FlagLoopback != 0 {
		return
	}
	next := dst
	if via := rtnl.Addr(r.Gw); via.IsValid() {
		next = via
	}
	t.neighbour(next, out)
}

func routeText(r netlink.Route, dev string, dst netip.Addr) string {
	text := "default"
	if r.Dst != nil && rtnl.Prefix(r.Dst).Bits() > 0 {
		text = r.Dst.String()
	}
	if r.Type == unix.RTN_LOCAL {
		text = "local " + dst.String()
	}
	if len(r.Gw) > 0 {
		text += " via " + r.Gw.String()
	}
	text += " dev " + dev
	if r.Flags&int(netlink.FLAG_ONLINK) != 0 {
		text += " onlink"
	}
	return text
}

func (t *tables) neighbour(ip netip.Addr, dev netlink.Link) {
	family := unix.AF_INET6
	if ip.Is4() {
		family = unix.AF_INET
	}
	list, _ := t.nl.NeighList(dev.Attrs().Index, family)
	for _, n := range list {
		if rtnl.Addr(n.IP) == ip && len(n.HardwareAddr) > 0 {
			text := fmt.Sprintf("%s lladdr %s dev %s", ip, n.HardwareAddr, dev.Attrs().Name)
			if n.State&unix.NUD_PERMANENT != 0 {
				text += " permanent"
			}
			t.say("neighbour", "%s", text)
			return
		}
	}
	t.say("neighbour", "none for %s on %s: the kernel has to ask", ip, dev.Attrs().Name)
}

// fdb is the VXLAN device's entry for a MAC, and the way to the machine that it names.
func (t *tables) fdb(dev netlink.Link, mac string) {
	for _, n := range t.forwarding(dev) {
		remote := rtnl.Addr(n.IP)
		if n.LinkIndex == dev.Attrs().Index && n.HardwareAddr.String() == mac && remote.IsValid() {
			t.say("fdb", "%s dev %s dst %s", mac, dev.Attrs().Name, remote)
			t.route(remote, netip.Addr{}, "")
			return
		}
	}
	t.say("fdb", "none for %s on %s: nobody is behind that MAC", mac, dev.Attrs().Name)
}

// bridge is the port behind which a bridge knows a MAC, or the bridge itself.
func (t *tables) bridge(br netlink.Link, mac string) {
	if br.Attrs().HardwareAddr.String() == mac {
		t.say("bridge", "%s is %s itself: the packet goes up to the host", mac, br.Attrs().Name)
		return
	}
	for _, n := range t.forwarding(br) {
		if n.HardwareAddr.String() != mac {
			continue
		}
		if port, err := t.nl.LinkByIndex(n.LinkIndex); err == nil && port.Attrs().MasterIndex == br.Attrs().Index {
			t.say("bridge", "%s dev %s master %s", mac, port.Attrs().Name, br.Attrs().Name)
			return
		}
	}
	t.say("bridge", "none for %s on %s: it goes out of every port", mac, br.Attrs().Name)
}

func (t *tables) forwarding(dev netlink.Link) []netlink.Neigh {
	index := dev.Attrs().Index
	if dev.Type() == "bridge" {
		index = 0 // its ports' entries are under the ports' own numbers
	}
	list, err := t.nl.NeighList(index, unix.AF_BRIDGE)
	if err != nil {
		t.say("fdb", "cannot be read: %v", err)
	}
	return list
}

// mine reports whether an address is the host's own.
func (t *tables) mine(a netip.Addr) bool {
	addrs, err := t.nl.AddrList(nil, netlink.FAMILY_ALL)
	return err == nil && slices.ContainsFunc(addrs, func(own netlink.Addr) bool { return rtnl.Addr(own.IP) == a })
}

// tunnel is the device that takes the wrapped frame: the one of its VNI and port.
func (t *tables) tunnel(f packet.Frame) {
	vxlan, _ := f.First("vxlan")
	udp, _ := f.First("udp")
	inner, _ := f.Last("eth")
	links, err := t.nl.LinkList()
	if err != nil {
		return
	}
	for _, l := range links {
		dev, ok := l.(*netlink.Vxlan)
		if !ok || fmt.Sprintf("vni %d", dev.VxlanId) != vxlan.Info || fmt.Sprint(dev.Port) != udp.To {
			continue
		}
		whose := "its own MAC"
		if mac := dev.Attrs().HardwareAddr.String(); mac != inner.To {
			whose = "not its MAC, which is " + mac + ": it throws the packet away"
		}
		t.say(
			"vxlan",
			"%s has vni %d and UDP port %d; %s is %s",
			dev.Attrs().Name,
			dev.VxlanId,
			dev.Port,
			inner.To,
			whose,
		)
		return
	}
	t.say("vxlan", "no device has %s and UDP port %s", strings.TrimSpace(vxlan.Info), udp.To)
}
