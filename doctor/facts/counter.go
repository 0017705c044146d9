package facts

import (
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/packet"
)

// counter counts packets on one device: what leaves after the firewall's OUTPUT and POSTROUTING, and what comes in
// before PREROUTING and INPUT. So it tells a filter on this node from one on the path.
type counter struct {
	dev   string
	proto string             // of what is encapsulated: udp, ipip or ipv6; empty: nothing is
	port  int                // UDP
	peers map[netip.Addr]int // index of the probe, by the peer's addresses
}

// count adds packets to the probes.
func (c *counter) count(seen []packet.Sighting, probes []doctor.Probe) {
	for i := range probes {
		probes[i].Sent, probes[i].Seen = 0, 0
	}
	for _, s := range seen {
		ip, _ := s.Frame.First("ip")
		if i, ok := c.peers[ip.Dst]; ok && s.Out && s.Dev == c.dev {
			probes[i].Sent++
		}
		if i, ok := c.peers[ip.Src]; ok && !s.Out && s.Dev == c.dev {
			probes[i].Seen++
		}
	}
}

// counts reports whether a frame is of a probe, or what the probe becomes on the underlay. Pods and agents have packets of
// their own on the way: what can be read must be a request to a peer, or its reply.
func (c *counter) counts(f packet.Frame) bool {
	if !c.wraps(f) {
		return false
	}
	if c.proto != "" && !f.Wrapped() {
		return true // encrypted, or on a port of which is not known what it carries
	}
	inner, _ := f.Last("ip")
	_, to := c.peers[inner.Dst]
	_, from := c.peers[inner.Src]
	return to && f.IsRequest(inner.Dst) || from && f.IsReply()
}

// wraps reports whether a frame has the form in which the backend puts packets on the underlay.
func (c *counter) wraps(f packet.Frame) bool {
	ip, _ := f.First("ip")
	udp, _ := f.First("udp")
	switch c.proto {
	case "":
		return ip.Proto == unix.IPPROTO_ICMP || ip.Proto == unix.IPPROTO_ICMPV6
	case "ipip":
		return ip.Proto == unix.IPPROTO_IPIP
	case "ipv6":
		return ip.Proto == unix.IPPROTO_IPV6
	}
	return ip.Proto == unix.IPPROTO_UDP && udp.To == strconv.Itoa(c.port)
}
