package walk

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
}

// Layer is one header.
type Layer struct {
	Kind string     `json:"kind"` // eth, ip, udp, vxlan, icmp
	From string     `json:"from,omitempty"`
	To   string     `json:"to,omitempty"`
	Info string     `json:"info,omitempty"` // "ttl 63", "vni 1", "echo request"
	src  netip.Addr // of ip
	dst  netip.Addr
}

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	protoICMP = 1
	protoIPIP = 4
	protoUDP  = 17
	protoV6   = 58
	vxlanPort = 8472 // and 4789, which IANA gave it later
	vxlanIANA = 4789
)

// Decode reads a frame. What it does not understand ends the list of layers; it never fails.
func Decode(data []byte) Frame {
	f := Frame{Length: len(data)}
	f.ethernet(data)
	return f
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
	if total > len(data) {
		return
	}
	src, dst := netip.AddrFrom16([16]byte(data[8:24])), netip.AddrFrom16([16]byte(data[24:40]))
	f.ip(src, dst, fmt.Sprintf("hop limit %d", data[7]))
	f.payload(data[6], data[40:total])
}

func (f *Frame) ip(src, dst netip.Addr, info string) {
	f.add(Layer{Kind: "ip", From: src.String(), To: dst.String(), Info: info, src: src, dst: dst})
}

func (f *Frame) payload(proto byte, data []byte) {
	switch proto {
	case protoUDP:
		f.udp(data)
	case protoIPIP:
		f.ipv4(data)
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

// udp goes on into VXLAN (RFC 7348: 8 bytes, of which 4 to 6 are the VNI) by its ports.
func (f *Frame) udp(data []byte) {
	if len(data) < 8 {
		return
	}
	from, to := binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:])
	f.add(Layer{Kind: "udp", From: fmt.Sprint(from), To: fmt.Sprint(to)})
	if data = data[8:]; (to == vxlanPort || to == vxlanIANA) && len(data) >= 8 && data[0]&8 != 0 {
		f.add(Layer{Kind: "vxlan", Info: fmt.Sprintf("vni %d", binary.BigEndian.Uint32(data[4:])>>8)})
		f.ethernet(data[8:])
	}
}

// last is the innermost layer of a kind.
func (f Frame) last(kind string) (Layer, bool) {
	for i := len(f.Layers) - 1; i >= 0; i-- {
		if f.Layers[i].Kind == kind {
			return f.Layers[i], true
		}
	}
	return Layer{}, false
}

// first is the outermost layer of a kind.
func (f Frame) first(kind string) (Layer, bool) {
	for _, l := range f.Layers {
		if l.Kind == kind {
			return l, true
		}
	}
	return Layer{}, false
}

// wrapped says whether the frame holds another one.
func (f Frame) wrapped() bool {
	outer, ok := f.first("ip")
	inner, _ := f.last("ip")
	return ok && outer != inner
}

// request says whether an echo request to dst is in the frame, and the frame is of that ping's size.
func (f Frame) request(dst netip.Addr) bool {
	ip, ok := f.last("ip")
	icmp, isICMP := f.last("icmp")
	return ok && isICMP && ip.dst == dst && icmp.Info == "echo request"
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
