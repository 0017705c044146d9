package facts

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor"
)

// watcher sees the packets of one device: what leaves after the firewall's OUTPUT and POSTROUTING, and what comes in
// before PREROUTING and INPUT. So it tells a filter on this node from one on the way.
type watcher struct {
	fd    int
	proto string             // of what is encapsulated: udp, ipip or ipv6; empty: nothing is
	port  int                // UDP
	peers map[netip.Addr]int // index of the probe, by the peer's addresses
}

// watch opens the socket; packets wait in it until they are counted.
func watch(dev string) (*watcher, error) {
	i, err := net.InterfaceByName(dev)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dev, err)
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dev, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch %s: %w", dev, err)
	}
	return &watcher{fd: fd, peers: map[netip.Addr]int{}}, nil
}

func (w *watcher) close() { unix.Close(w.fd) }

// count adds what was seen to the probes.
func (w *watcher) count(probes []doctor.Probe) {
	for i := range probes {
		probes[i].Sent, probes[i].Seen = 0, 0
	}
	buf := make([]byte, 256)
	for {
		n, from, err := unix.Recvfrom(w.fd, buf, unix.MSG_TRUNC)
		if err != nil {
			return // EAGAIN: that was all
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		src, dst, ok2 := w.ends(buf[:min(n, len(buf))])
		if !ok || !ok2 {
			continue
		}
		if i, ok := w.peers[dst]; ok && link.Pkttype == unix.PACKET_OUTGOING {
			probes[i].Sent++
		}
		if i, ok := w.peers[src]; ok && link.Pkttype != unix.PACKET_OUTGOING {
			probes[i].Seen++
		}
	}
}

// Offsets in IPv4 and IPv6 headers.
const (
	ip4Protocol, ip4Src, ip4Dst = 9, 12, 16
	ip6Next, ip6Src, ip6Dst     = 6, 8, 24
	ip6Header                   = 40
)

// ends are the addresses of a packet of ours: an encapsulated one, or an echo where nothing is encapsulated.
func (w *watcher) ends(b []byte) (src, dst netip.Addr, ok bool) {
	var protocol byte
	var header int
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		protocol, header = b[ip4Protocol], int(b[0]&15)*4
		src, dst = netip.AddrFrom4([4]byte(b[ip4Src:])), netip.AddrFrom4([4]byte(b[ip4Dst:]))
	case len(b) >= ip6Header && b[0]>>4 == 6:
		protocol, header = b[ip6Next], ip6Header
		src, dst = netip.AddrFrom16([16]byte(b[ip6Src:])), netip.AddrFrom16([16]byte(b[ip6Dst:]))
	default:
		return src, dst, false
	}
	switch w.proto {
	case "":
		return src, dst, protocol == unix.IPPROTO_ICMP || protocol == unix.IPPROTO_ICMPV6
	case "ipip":
		return src, dst, protocol == unix.IPPROTO_IPIP
	case "ipv6":
		return src, dst, protocol == unix.IPPROTO_IPV6
	}
	return src, dst, protocol == unix.IPPROTO_UDP && len(b) >= header+4 && int(binary.BigEndian.Uint16(b[header+2:])) == w.port
}
