package connect

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/netstate/rtnl"
)

// tracking is what nodes' connection tracking has: by node, what it translates.
type tracking struct {
	client string // the client's node
	flows  map[string][]flow
}

// flow is an entry of connection tracking.
type flow struct {
	src, dst           netip.AddrPort // of the first packet
	replySrc, replyDst netip.AddrPort // of the expected answer
}

// tracked reads connection tracking on the client's node, and on the one whose rules choose.
func (p Places) tracked(t service.Target, o *service.Observations) tracking {
	k := tracking{p.Client.Node, map[string][]flow{}}
	if t.Way == service.Headless {
		return k
	}
	for _, name := range []string{p.Client.Node, t.Node} {
		n := p.Nodes[name]
		if n.Do == nil || k.flows[name] != nil {
			continue
		}
		err := n.Do(func() (err error) {
			k.flows[name], err = flowsTo(t.To, t.Port.Proto)
			return err
		})
		if err != nil {
			o.Unread = append(o.Unread, unread(name, "connection tracking", err))
		}
	}
	return k
}

// flowsTo lists the entries for an address, in the calling thread's namespace.
func flowsTo(to netip.AddrPort, proto string) (all []flow, err error) {
	family := netlink.InetFamily(unix.AF_INET6)
	if to.Addr().Is4() {
		family = unix.AF_INET
	}
	entries, err := rtnl.Retry("connection tracking", func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, family)
	})
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		f := flow{tuple(e.Forward.SrcIP, e.Forward.SrcPort), tuple(e.Forward.DstIP, e.Forward.DstPort),
			tuple(e.Reverse.SrcIP, e.Reverse.SrcPort), tuple(e.Reverse.DstIP, e.Reverse.DstPort)}
		if f.dst == to && e.Forward.Protocol == protocols[proto] {
			all = append(all, f)
		}
	}
	return all, nil
}

var protocols = map[string]uint8{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP}

func tuple(ip net.IP, port uint16) netip.AddrPort { return netip.AddrPortFrom(rtnl.Addr(ip), port) }

// find notes the endpoint that connection tracking has for a connection. On its way to another node it may have got
// that node's address.
func (k tracking) find(t *service.Try, target service.Target) {
	src := t.From
	if target.Node != k.client {
		if i := slices.IndexFunc(k.flows[k.client], func(f flow) bool { return f.src == src }); i >= 0 {
			src = k.flows[k.client][i].replyDst
		}
	}
	i := slices.IndexFunc(k.flows[target.Node], func(f flow) bool { return f.src == src })
	if i >= 0 && k.flows[target.Node][i].replySrc != t.To {
		t.Tracked = k.flows[target.Node][i].replySrc
	}
}

// listen is the state of a TCP socket that takes connections, and unconnected that of a UDP socket which takes
// datagrams from anywhere (TCP_LISTEN and TCP_CLOSE of the kernel's tcp_states.h).
const listen, unconnected = 10, 7

// sockets notes what listens in the pod where a connection ends.
func (p Places) sockets(o *service.Observations, t service.Try, proto string) {
	e := t.Tracked
	if !e.IsValid() {
		e = t.Wire
	}
	pod := p.Pods[e.Addr()]
	if _, done := o.Sockets[e]; done || !e.IsValid() || pod.Do == nil {
		return
	}
	var s service.Socket
	err := pod.Do(func() (err error) {
		s.Bound, s.Full, err = listeners(proto)
		return err
	})
	if err != nil {
		o.Unread = append(o.Unread, unread(pod.Host, "sockets", err))
		return
	}
	s.Known = true
	o.Sockets[e] = s
}

// listeners lists what listens in the calling thread's namespace, and of that what is full: of a socket that listens, the
// kernel gives the connections that wait to be accepted as its receive queue, and its backlog as its send queue.
func listeners(proto string) (bound, full []netip.AddrPort, err error) {
	var roomy []netip.AddrPort
	list, state := netlink.SocketDiagTCP, uint8(listen)
	if proto == "UDP" {
		list, state = netlink.SocketDiagUDP, unconnected
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := rtnl.Retry("sockets", func() ([]*netlink.Socket, error) { return list(family) })
		if err != nil {
			return nil, nil, err
		}
		for _, s := range sockets {
			b := tuple(s.ID.Source, s.ID.SourcePort)
			if s.State != state || !b.Addr().IsValid() {
				continue
			}
			if !slices.Contains(bound, b) {
				bound = append(bound, b)
			}
			if state == unconnected || s.RQueue <= s.WQueue {
				roomy = append(roomy, b) // one of several sockets of an address is enough (SO_REUSEPORT)
			}
		}
	}
	full = slices.DeleteFunc(slices.Clone(bound), func(b netip.AddrPort) bool { return slices.Contains(roomy, b) })
	return bound, full, nil
}
