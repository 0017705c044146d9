package enforced

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

// Of linux/if_ether.h and linux/in.h.
const (
	etherIPv4, etherIPv6    = 0x0800, 0x86dd
	etherVLAN, etherService = 0x8100, 0x88a8 // tags
	protocolUDP, extension  = 17, 44         // the latter is IPv6's fragments
)

// forged is what a pod sends past its kernel.
type forged struct {
	dst, src  netstate.MAC
	tags      []uint32 // outermost first: the type in the upper half, the VLAN in the lower one
	from      netip.Addr
	to        netip.AddrPort
	port      uint16 // that it comes from
	payload   string
	fragments bool
}

// frames returns a UDP packet in one frame, or in two fragments.
func (f forged) frames() (all [][]byte) {
	udp := binary.BigEndian.AppendUint16(nil, f.port)
	udp = binary.BigEndian.AppendUint16(udp, f.to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(f.payload)))
	udp = append(append(udp, 0, 0), f.payload...)
	binary.BigEndian.PutUint16(udp[6:], checksum(f.pseudoHeader(len(udp)), udp))
	if !f.fragments {
		return [][]byte{f.frame(udp, 0, false)}
	}
	const first = 16
	return [][]byte{f.frame(udp[:first], 0, true), f.frame(udp[first:], first, true)}
}

func (f forged) frame(data []byte, offset int, isFragment bool) []byte {
	kind, packet := uint16(etherIPv4), f.ipv4(data, offset, isFragment)
	if f.from.Is6() {
		kind, packet = etherIPv6, f.ipv6(data, offset, isFragment)
	}
	b := append(f.dst[:], f.src[:]...)
	for _, tag := range f.tags {
		b = binary.BigEndian.AppendUint32(b, tag)
	}
	return append(binary.BigEndian.AppendUint16(b, kind), packet...)
}

// more reports whether a fragment is not the last one.
func more(offset int, isFragment bool) bool { return isFragment && offset == 0 }

func (f forged) ipv4(data []byte, offset int, isFragment bool) []byte {
	b := make([]byte, 20)
	b[0], b[8], b[9] = 0x45, 64, protocolUDP
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(data)))
	binary.BigEndian.PutUint16(b[4:], f.port)
	binary.BigEndian.PutUint16(b[6:], uint16(offset/8))
	if more(offset, isFragment) {
		b[6] |= 0x20
	}
	copy(b[12:], f.from.AsSlice())
	copy(b[16:], f.to.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return append(b, data...)
}

func (f forged) ipv6(data []byte, offset int, isFragment bool) []byte {
	b := make([]byte, 40)
	b[0], b[6], b[7] = 0x60, protocolUDP, 64
	if isFragment {
		b[6] = extension
		header := make([]byte, 8)
		header[0] = protocolUDP
		binary.BigEndian.PutUint16(header[2:], uint16(offset))
		if more(offset, isFragment) {
			header[3] |= 1
		}
		binary.BigEndian.PutUint32(header[4:], uint32(f.port))
		data = append(header, data...)
	}
	binary.BigEndian.PutUint16(b[4:], uint16(len(data)))
	copy(b[8:], f.from.AsSlice())
	copy(b[24:], f.to.Addr().AsSlice())
	return append(b, data...)
}

// pseudoHeader is what UDP's checksum is also about.
func (f forged) pseudoHeader(size int) []byte {
	b := append(append([]byte{}, f.from.AsSlice()...), f.to.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	return append(b, 0, 0, 0, protocolUDP)
}

// checksum is RFC 1071's.
func checksum(parts ...[]byte) uint16 {
	sum := uint32(0)
	for _, b := range parts {
		for len(b) > 1 {
			sum, b = sum+uint32(binary.BigEndian.Uint16(b)), b[2:]
		}
		if len(b) > 0 {
			sum += uint32(b[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// gateway returns the hardware address of a node's bridge.
func gateway(n *lab.Node) netstate.MAC { return netstate.BridgeMAC(n.Subnets()[0].Addr().Next()) }

// send sends frames from a pod's interface.
func send(t *testing.T, pod *lab.Pod, all ...forged) {
	t.Helper()
	if err := trySend(pod, all...); err != nil {
		t.Fatal(err)
	}
}

// trySend returns an error if the pod has no interface that is up yet.
func trySend(pod *lab.Pod, all ...forged) error {
	return pod.Do(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, f := range all {
			for _, b := range f.frames() {
				if err := unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index}); err != nil {
					return fmt.Errorf("send %d bytes from %s: %w", len(b), pod.Name, err)
				}
			}
		}
		return nil
	})
}
