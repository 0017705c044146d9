package packet

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The ARP packet (RFC 826) of Ethernet and IPv4, over the Ethernet header.
const (
	arpAt       = 14
	arpLength   = 28
	arpSenderAt = arpAt + 8
)

// The operations of ARP.
const (
	ARPRequest = 1
	ARPReply   = 2
)

// ARP is a packet of RFC 826 for IPv4 over Ethernet. A MAC that is nil is zero.
type ARP struct {
	Operation uint16
	SenderMAC net.HardwareAddr
	Sender    netip.Addr
	TargetMAC net.HardwareAddr
	Target    netip.Addr
}

// broadcast is the MAC of everybody on a segment.
var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// frame returns the packet behind an Ethernet header, to everybody if it has no target's MAC.
func (a ARP) frame() []byte {
	to, target := a.TargetMAC, a.TargetMAC
	if to == nil {
		to, target = broadcast, make(net.HardwareAddr, 6)
	}
	sender, asked := a.Sender.As4(), a.Target.As4()
	header := []byte{0x08, 0x06, 0, 1, 0x08, 0, 6, 4} // ARP, of Ethernet and IPv4
	header = binary.BigEndian.AppendUint16(header, a.Operation)
	return slices.Concat(to, a.SenderMAC, header, a.SenderMAC, sender[:], target, asked[:])
}

// SendARP sends an ARP packet from an Ethernet device in the namespace of the calling thread. Without a sender's MAC it is
// the device's.
func SendARP(dev string, a ARP) error {
	s, err := openARP(dev)
	if err != nil {
		return err
	}
	defer unix.Close(s.fd)
	return s.send(a)
}

// arpSocket is a packet socket for ARP on a device.
type arpSocket struct {
	fd     int
	device *net.Interface
}

func openARP(dev string) (arpSocket, error) {
	device, err := net.InterfaceByName(dev)
	if err != nil {
		return arpSocket{}, fmt.Errorf("find the device %s: %w", dev, err)
	}
	if len(device.HardwareAddr) != 6 {
		return arpSocket{}, fmt.Errorf("speak ARP on %s: want an Ethernet device", dev)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return arpSocket{}, fmt.Errorf("open a packet socket: %w", err)
	}
	s := arpSocket{fd, device}
	if err := unix.Bind(fd, s.address()); err != nil {
		unix.Close(fd)
		return arpSocket{}, fmt.Errorf("listen for ARP on %s: %w", dev, err)
	}
	return s, nil
}

func (s arpSocket) address() *unix.SockaddrLinklayer {
	return &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ARP), Ifindex: s.device.Index, Halen: 6}
}

func (s arpSocket) send(a ARP) error {
	if a.SenderMAC == nil {
		a.SenderMAC = s.device.HardwareAddr
	}
	if err := unix.Sendto(s.fd, a.frame(), 0, s.address()); err != nil {
		return fmt.Errorf("send ARP on %s: %w", s.device.Name, err)
	}
	return nil
}

// arpFields are the fields of an ARP packet, with the number of their bytes.
var arpFields = []struct {
	name string
	size int
}{{"hardware type", 2}, {"protocol type", 2}, {"hardware size", 1}, {"protocol size", 1}, {"operation", 2},
	{"sender MAC", 6}, {"sender address", 4}, {"target MAC", 6}, {"target address", 4}}

// arpMeanings are what values of the fields of two bytes stand for.
var arpMeanings = map[string]string{"hardware type 00 01": "Ethernet", "protocol type 08 00": "IPv4", "operation 00 01": "request",
	"operation 00 02": "reply"}

// ExplainARP returns the bytes of the ARP packet in an Ethernet frame, a field a line. It is empty for another frame.
func ExplainARP(frame []byte) string {
	if l := Decode(frame).Layers; len(l) != 2 || l[1].Kind != "arp" {
		return ""
	}
	var b strings.Builder
	at := frame[arpAt:]
	for _, f := range arpFields {
		digits := fmt.Sprintf("% x", at[:f.size])
		meaning := arpMeanings[f.name+" "+digits]
		if f.size == 4 {
			meaning = netip.AddrFrom4([4]byte(at)).String()
		}
		fmt.Fprintln(&b, strings.TrimSpace(fmt.Sprintf("%-15s %-18s %s", f.name, digits, meaning)))
		at = at[f.size:]
	}
	return b.String()
}
