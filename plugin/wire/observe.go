package wire

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// End is one end of a pod's pair, as a netstate object.
type End struct {
	Name   string
	MAC    string // of the pod's end; "" is any
	Master string // of the host's end; "" for the pod's
	Port   Port   // of the host's end
	MTU    int    // 0 is any
	Up     bool
}

// Key implements netstate.Object.
func (e End) Key() netstate.Key { return netstate.Key{Kind: netstate.KindLink, Name: e.Name} }

func (e End) String() string {
	text := "link " + e.Name + choose(e.Master == "", " address "+e.MAC, " master "+e.Master)
	if e.MTU != 0 {
		text += fmt.Sprintf(" mtu %d", e.MTU)
	}
	if e.Master != "" {
		text += choose(e.Port.Hairpin, " hairpin on", " hairpin off")
	}
	return text + choose(e.Port.Isolated, " isolated on", "") + choose(e.Port.CheckMAC, " locked on", "") +
		choose(e.Up, " up", " down")
}

func choose(on bool, yes, no string) string {
	if on {
		return yes
	}
	return no
}

// Observe returns as much of the state of the pod's interface dev, and of the host's end, as want is about.
func Observe(n *Node, p *Pod, dev string, want netstate.State) (netstate.State, error) {
	all, err := p.observe(dev)
	if err != nil {
		return nil, err
	}
	have := netstate.State{}
	for key, w := range want {
		h := all[key]
		if e, ok := w.(End); ok && e.Master != "" {
			if h, err = n.observe(e); err != nil {
				return nil, err
			}
		} else if e2, there := h.(End); ok && there {
			if e.MAC == "" {
				e2.MAC = ""
			}
			h = e2.like(e)
		}
		if h != nil {
			have.Add(h)
		}
	}
	return have, nil
}

// like returns e without what want does not say.
func (e End) like(want End) End {
	if want.MTU == 0 {
		e.MTU = 0
	}
	e.Port.CheckMAC = e.Port.CheckMAC && want.Port.CheckMAC // others may lock a port too
	return e
}

// observe returns the host's end, nil if it is gone.
func (n *Node) observe(want End) (netstate.Object, error) {
	link, message, err := getLink(n.conn, want.Name)
	if link == nil || err != nil {
		return nil, err
	}
	a := link.Attrs()
	e := End{Name: a.Name, Master: "none", MTU: a.MTU, Port: portIn(message), Up: a.Flags&net.FlagUp != 0}
	if a.MasterIndex != 0 {
		master, err := netlink.LinkByIndex(a.MasterIndex)
		if err != nil {
			return nil, err
		}
		e.Master = master.Attrs().Name
	}
	return e.like(want), nil
}

// portIn returns how the bridge treats the port that a link message is about.
func portIn(message []byte) Port {
	on := func(kind uint16) bool {
		value := rtnl.Link(message).Attribute(unix.IFLA_LINKINFO, nl.IFLA_INFO_SLAVE_DATA, kind)
		return len(value) > 0 && value[0] == 1
	}
	return Port{on(nl.IFLA_BRPORT_MODE), on(nl.IFLA_BRPORT_ISOLATED), on(nl.IFLA_BRPORT_LOCKED)}
}

// observe returns the interface, its addresses and its routes in the pod.
func (p *Pod) observe(dev string) (netstate.State, error) {
	s := netstate.State{}
	link, _, err := getLink(p.conn, dev)
	if link == nil || err != nil {
		return s, err
	}
	var handle *netlink.Handle
	err = p.within(func() (err error) {
		handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("enter %s: %w", p.Path(), err)
	}
	defer handle.Close()
	a := link.Attrs()
	s.Add(End{Name: a.Name, MAC: a.HardwareAddr.String(), MTU: a.MTU, Up: a.Flags&net.FlagUp != 0})
	addrs, err := rtnl.Retry("addresses",
		func() ([]netlink.Addr, error) { return handle.AddrList(link, netlink.FAMILY_ALL) })
	for _, addr := range addrs {
		s.Add(netstate.Addr{Dev: dev, Prefix: rtnl.Prefix(addr.IPNet),
			Extra: choose(addr.Flags&unix.IFA_F_DADFAILED != 0, "dadfailed", "")})
	}
	// Of all tables: a later plugin, such as sbr, moves routes to another one.
	filter := &netlink.Route{LinkIndex: a.Index, Table: unix.RT_TABLE_UNSPEC}
	routes, err2 := rtnl.Retry("routes", func() ([]netlink.Route, error) {
		return handle.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	})
	for _, main := range []bool{false, true} { // of two to one destination the main table's counts
		for _, r := range routes {
			if (r.Table == unix.RT_TABLE_MAIN) == main && r.Table != unix.RT_TABLE_LOCAL {
				s.Add(podRoute(r, dev))
			}
		}
	}
	return s, errors.Join(err, err2)
}

// podRoute leaves out who wrote the route: flannel's chain did in older pods.
func podRoute(r netlink.Route, dev string) netstate.Route {
	return netstate.Route{Dst: rtnl.Prefix(r.Dst), Via: rtnl.Addr(r.Gw), Dev: dev, Metric: r.Priority,
		Protocol: netstate.Protocol, Onlink: r.Flags&int(netlink.FLAG_ONLINK) != 0, Blackhole: r.Type == unix.RTN_BLACKHOLE}
}
