// Package capture sees packets on the devices of a network namespace, and reads their headers from the outside in.
package capture

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Frame is a packet as it was on a device: its headers from the outside in, as far as they are understood.
type Frame struct {
	Layers []Layer `json:"layers"`
	Length int     `json:"length"` // bytes, with the Ethernet header and without its checksum
	cut    bool    // only the beginning is there
}

// Layer is one header.
type Layer struct {
	Kind string     `json:"kind"` // eth, ip, udp, tcp, vxlan, wireguard, icmp
	From string     `json:"from,omitempty"`
	To   string     `json:"to,omitempty"`
	Info string     `json:"info,omitempty"` // "ttl 63", "vni 1", "echo request"
	Src  netip.Addr `json:"-"`              // of ip
	Dst  netip.Addr `json:"-"`
}

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	protoICMP = 1
	protoIPIP = 4
	protoTCP  = 6
	protoUDP  = 17
	protoIPv6 = 41
	protoV6   = 58
	vxlanPort = 8472 // and 4789, which IANA gave it later
	vxlanIANA = 4789
	udpPort   = 8285 // flannel's udp backend: a bare packet in UDP
	wgPort    = 51820
)

// Decode reads a frame. What it does not understand ends the list of layers; it never fails.
func Decode(data []byte) Frame {
	f := Frame{Length: len(data)}
	f.ethernet(data)
	return f
}

// DecodeIP is Decode for a packet that begins with its IP header.
func DecodeIP(data []byte) Frame {
	f := Frame{Length: len(data)}
	f.bare(data)
	return f
}

// DecodeStart is DecodeIP for the beginning of a packet, whose lengths need not be right yet.
func DecodeStart(data []byte) Frame {
	f := Frame{Length: len(data), cut: true}
	f.bare(data)
	return f
}

func (f *Frame) bare(data []byte) {
	f.ipv4(data)
	f.ipv6(data)
}

func (f *Frame) add(l Layer) { f.Layers = append(f.Layers, l) }

func (f *Frame) ethernet(data []byte) {
	if len(data) < 14 {
		return
	}
	f.add(Layer{Kind: "eth", From: net.HardwareAddr(data[6:12]).String(), To: net.HardwareAddr(data[:6]).String()})
	switch binary.BigEndian.Uint16(data[12:]) {
	case etherIPv4:
		f.ipv4(data[14:])
	case etherIPv6:
		f.ipv6(data[14:])
	}
}

// ipv4 is RFC 791's header. The length field counts: short Ethernet frames are padded.
func (f *Frame) ipv4(data []byte) {
	if len(data) < 20 || data[0]>>4 != 4 {
		return
	}
	size, total := int(data[0]&15)*4, int(binary.BigEndian.Uint16(data[2:]))
	if f.cut {
		total = len(data)
	}
	if size < 20 || total < size || total > len(data) {
		return
	}
	src, dst := netip.AddrFrom4([4]byte(data[12:16])), netip.AddrFrom4([4]byte(data[16:20]))
	f.ip(src, dst, fmt.Sprintf("ttl %d", data[8]))
	f.payload(data[9], data[size:total])
}

// ipv6 is RFC 8200's header; none of the labs' packets has extension headers.
func (f *Frame) ipv6(data []byte) {
	if len(data) < 40 || data[0]>>4 != 6 {
		return
	}
	total := 40 + int(binary.BigEndian.Uint16(data[4:]))
	if f.cut {
		total = len(data)
	}
	if total > len(data) {
		return
	}
	src, dst := netip.AddrFrom16([16]byte(data[8:24])), netip.AddrFrom16([16]byte(data[24:40]))
	f.ip(src, dst, fmt.Sprintf("hop limit %d", data[7]))
	f.payload(data[6], data[40:total])
}

func (f *Frame) ip(src, dst netip.Addr, info string) {
	f.add(Layer{Kind: "ip", From: src.String(), To: dst.String(), Info: info, Src: src, Dst: dst})
}

func (f *Frame) payload(proto byte, data []byte) {
	switch proto {
	case protoUDP:
		f.udp(data)
	case protoTCP:
		f.tcp(data)
	case protoIPIP:
		f.ipv4(data)
	case protoIPv6:
		f.ipv6(data)
	case protoICMP, protoV6:
		if len(data) >= 8 {
			f.add(Layer{Kind: "icmp", Info: icmpName(data[0])})
		}
	}
}

func icmpName(kind byte) string {
	switch kind {
	case 8, 128:
		return "echo request"
	case 0, 129:
		return "echo reply"
	}
	return fmt.Sprintf("type %d", kind)
}

func (f *Frame) tcp(data []byte) {
	if len(data) < 20 {
		return
	}
	var flags []string
	for bit, name := range []string{"fin", "syn", "rst", "psh", "ack"} {
		if data[13]&(1<<bit) != 0 {
			flags = append(flags, name)
		}
	}
	f.add(Layer{Kind: "tcp", From: fmt.Sprint(binary.BigEndian.Uint16(data)), To: fmt.Sprint(binary.BigEndian.Uint16(data[2:])), Info: strings.Join(flags, " ")})
}

// udp goes on into VXLAN (RFC 7348: 8 bytes, of which 4 to 6 are the VNI) and flannel's udp by its ports. What is in
// WireGuard nobody can read.
func (f *Frame) udp(data []byte) {
	if len(data) < 8 {
		return
	}
	from, to := binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:])
	f.add(Layer{Kind: "udp", From: fmt.Sprint(from), To: fmt.Sprint(to)})
	data = data[8:]
	switch {
	case (to == vxlanPort || to == vxlanIANA) && len(data) >= 8 && data[0]&8 != 0:
		f.add(Layer{Kind: "vxlan", Info: fmt.Sprintf("vni %d", binary.BigEndian.Uint32(data[4:])>>8)})
		f.ethernet(data[8:])
	case to == udpPort:
		f.bare(data)
	case to == wgPort || from == wgPort:
		f.add(Layer{Kind: "wireguard", Info: "encrypted"})
	}
}

// Last is the innermost layer of a kind.
func (f Frame) Last(kind string) (Layer, bool) {
	for i := len(f.Layers) - 1; i >= 0; i-- {
		if f.Layers[i].Kind == kind {
			return f.Layers[i], true
		}
	}
	return Layer{}, false
}

// First is the outermost layer of a kind.
func (f Frame) First(kind string) (Layer, bool) {
	for _, l := range f.Layers {
		if l.Kind == kind {
			return l, true
		}
	}
	return Layer{}, false
}

// Wrapped says whether the frame holds another one.
func (f Frame) Wrapped() bool {
	outer, ok := f.First("ip")
	inner, _ := f.Last("ip")
	return ok && outer != inner
}

// Between says whether the innermost packet is on its way from src to dst.
func (f Frame) Between(src, dst netip.Addr) bool {
	ip, ok := f.Last("ip")
	return ok && ip.Src == src && ip.Dst == dst
}

// Request says whether an echo request to dst is in the frame, and the frame is of that ping's size.
func (f Frame) Request(dst netip.Addr) bool {
	ip, ok := f.Last("ip")
	icmp, isICMP := f.Last("icmp")
	return ok && isICMP && ip.Dst == dst && icmp.Info == "echo request"
}

// Reply says whether an echo reply is in the frame.
func (f Frame) Reply() bool {
	icmp, ok := f.Last("icmp")
	return ok && icmp.Info == "echo reply"
}

// Brief is the frame without what changes at every hop: MACs and TTLs.
func (f Frame) Brief() string {
	var texts []string
	for _, l := range f.Layers {
		if l.Kind == "ip" {
			l.Info = ""
		}
		if l.Kind != "eth" {
			texts = append(texts, l.String())
		}
	}
	return strings.Join(texts, " | ")
}

func (l Layer) String() string {
	text := l.Kind
	if l.From != "" {
		text += " " + l.From + " → " + l.To
	}
	if l.Info != "" {
		text += " " + l.Info
	}
	return text
}

func (f Frame) String() string {
	var texts []string
	for _, l := range f.Layers {
		texts = append(texts, l.String())
	}
	return strings.Join(texts, " | ")
}
