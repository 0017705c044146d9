// Package packet captures frames on the devices of a network namespace and decodes their headers.
package packet

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Frame is a packet as it was on a device: the headers that are understood, the outermost first.
type Frame struct {
	Layers []Layer `json:"layers"`
	Length int     `json:"length"` // bytes, with the Ethernet header and without its checksum
	cut    bool    // truncated: lengths in its headers exceed what was captured
}

// Layer is one header.
type Layer struct {
	Kind string `json:"kind"` // eth, ip, udp, tcp, sctp, vxlan, wireguard, icmp
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	Info string `json:"info,omitempty"` // "ttl 63", "vni 1", "echo request"
	// Src, Dst and Proto are those of ip, Src and Dst also of arp.
	Src   netip.Addr `json:"-"`
	Dst   netip.Addr `json:"-"`
	Proto byte       `json:"-"`
	Size  int        `json:"-"` // of ip: bytes with all that it holds
	Echo  string     `json:"-"` // of an echo and its reply: how the data begins, which no router rewrites
}

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
	protoICMP = 1
	protoIPIP = 4
	protoTCP  = 6
	protoUDP  = 17
	protoIPv6 = 41
	protoV6   = 58
	protoSCTP = 132
	vxlanPort = 8472 // and 4789, which IANA gave it later
	vxlanIANA = 4789
	udpPort   = 8285 // flannel's udp backend: a bare packet in UDP
	wgPort    = 51820
)

// Decode decodes an Ethernet frame. It never fails: the first header that it does not understand ends the layers.
func Decode(data []byte) Frame {
	f := Frame{Length: len(data)}
	f.ethernet(data)
	return f
}

// decodeIP decodes a packet that begins with its IP header.
func decodeIP(data []byte) Frame {
	f := Frame{Length: len(data)}
	f.bare(data)
	return f
}

// DecodeStart decodes the beginning of a packet that begins with its IP header. The lengths in its headers may be
// wrong or exceed data.
func DecodeStart(data []byte) Frame {
	f := Frame{Length: len(data), cut: true}
	f.bare(data)
	return f
}

func (f *Frame) bare(data []byte) {
	f.ipv4(data)
	f.ipv6(data)
	f.arp(data)
}

// arpHeader is how ARP for IPv4 over Ethernet begins (RFC 826).
var arpHeader = []byte{0, 1, 8, 0, 6, 4, 0}

// arp is RFC 826's packet; Src is who sends it, Dst whom it asks for or tells.
func (f *Frame) arp(data []byte) {
	if len(data) < 28 || !bytes.HasPrefix(data, arpHeader) {
		return
	}
	l := Layer{Kind: "arp", Src: netip.AddrFrom4([4]byte(data[14:18])), Dst: netip.AddrFrom4([4]byte(data[24:28])),
		Info: "request"}
	if data[7] == 2 {
		l.Info = "reply"
	}
	l.From, l.To = l.Src.String(), l.Dst.String()
	f.add(l)
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
	case etherARP:
		f.arp(data[14:])
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
	content := data[size:total]
	if binary.BigEndian.Uint16(data[6:])&fragmentOffset != 0 {
		content = nil // the first fragment has the next header
	}
	f.ip(Layer{Src: src, Dst: dst, Info: fmt.Sprintf("ttl %d", data[8]), Proto: data[9], Size: total}, content)
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
	f.ip(Layer{Src: src, Dst: dst, Info: fmt.Sprintf("hop limit %d", data[7]), Proto: data[6],
		Size: total}, data[40:total])
}

func (f *Frame) ip(l Layer, data []byte) {
	l.Kind, l.From, l.To = "ip", l.Src.String(), l.Dst.String()
	f.add(l)
	switch l.Proto {
	case protoUDP:
		f.udp(data)
	case protoTCP:
		f.tcp(data)
	case protoSCTP:
		if len(data) >= 12 {
			f.ports("sctp", data, "")
		}
	case protoIPIP:
		f.ipv4(data)
	case protoIPv6:
		f.ipv6(data)
	case protoICMP, protoV6:
		if len(data) < 8 {
			return
		}
		l := Layer{Kind: "icmp", Info: cmp.Or(icmpNames[data[0]], fmt.Sprintf("type %d", data[0]))}
		if (data[0] == ndSolicitation || data[0] == ndAdvertisement) && len(data) >= 24 {
			l.Dst = netip.AddrFrom16([16]byte(data[8:24]))
		}
		if l.Info == echoRequest || l.Info == echoReply {
			l.Echo = string(data[8:min(len(data), 8+EchoSize)])
		}
		f.add(l)
	}
}

// The types of ICMP and ICMPv6 messages that are told apart.
var icmpNames = map[byte]string{8: echoRequest, 128: echoRequest, 0: echoReply, 129: echoReply,
	ndSolicitation: "neighbour solicitation", ndAdvertisement: "neighbour advertisement"}

// The types of neighbour discovery (RFC 4861); Dst of the layer is the address that is asked for.
const ndSolicitation, ndAdvertisement = 135, 136

// fragmentOffset is the part of an IPv4 header's fourth 16-bit word that says where in its packet a fragment belongs.
const fragmentOffset = 0x1fff

// EchoSize is how many bytes of an echo's data a Layer keeps.
const EchoSize = 16

const echoRequest, echoReply = "echo request", "echo reply"

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
	f.ports("tcp", data, strings.Join(flags, " "))
}

// ports adds a header that begins with two ports, and returns them.
func (f *Frame) ports(kind string, data []byte, info string) (from, to uint16) {
	from, to = binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:])
	f.add(Layer{Kind: kind, From: fmt.Sprint(from), To: fmt.Sprint(to), Info: info})
	return from, to
}

// udp tells VXLAN (RFC 7348: 8 bytes, of which bytes 4 to 6 are the VNI), flannel's udp and WireGuard by their ports.
func (f *Frame) udp(data []byte) {
	if len(data) < 8 {
		return
	}
	from, to := f.ports("udp", data, "")
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

// First returns the outermost layer of a kind.
func (f Frame) First(kind string) (Layer, bool) {
	return layer(f.Layers, slices.IndexFunc(f.Layers, func(l Layer) bool { return l.Kind == kind }))
}

// Last returns the innermost layer of a kind.
func (f Frame) Last(kind string) (Layer, bool) {
	i := len(f.Layers) - 1
	for i >= 0 && f.Layers[i].Kind != kind {
		i--
	}
	return layer(f.Layers, i)
}

func layer(layers []Layer, i int) (Layer, bool) {
	if i < 0 {
		return Layer{}, false
	}
	return layers[i], true
}

// Wrapped reports whether the frame holds another packet.
func (f Frame) Wrapped() bool {
	outer, ok := f.First("ip")
	inner, _ := f.Last("ip")
	return ok && outer != inner
}

// Between reports whether the innermost packet goes from src to dst.
func (f Frame) Between(src, dst netip.Addr) bool {
	ip, ok := f.Last("ip")
	return ok && ip.Src == src && ip.Dst == dst
}

// IsRequest reports whether the innermost packet is an echo request to dst.
func (f Frame) IsRequest(dst netip.Addr) bool {
	ip, _ := f.Last("ip")
	icmp, _ := f.Last("icmp")
	return ip.Dst == dst && icmp.Info == echoRequest
}

// IsReply reports whether the innermost packet is an echo reply.
func (f Frame) IsReply() bool {
	icmp, _ := f.Last("icmp")
	return icmp.Info == echoReply
}

// protoOf are the numbers of the protocols that have ports.
var protoOf = map[string]byte{"tcp": protoTCP, "udp": protoUDP}

// Ends returns the ends of the innermost packet, if it is of TCP or UDP.
func (f Frame) Ends() (src, dst netip.AddrPort, ok bool) {
	ip, _ := f.Last("ip")
	for kind, proto := range protoOf {
		if l, has := f.Last(kind); has && proto == ip.Proto {
			from, _ := strconv.ParseUint(l.From, 10, 16) // it is our own text
			to, _ := strconv.ParseUint(l.To, 10, 16)
			return netip.AddrPortFrom(ip.Src, uint16(from)), netip.AddrPortFrom(ip.Dst, uint16(to)), true
		}
	}
	return src, dst, false
}

// IsReset reports whether the innermost packet is a TCP reset.
func (f Frame) IsReset() bool {
	tcp, _ := f.Last("tcp")
	return slices.Contains(strings.Fields(tcp.Info), "rst")
}

// takers are what takes a packet out of UDP, by the header that follows.
var takers = map[string]string{"vxlan": "VXLAN", "wireguard": "WireGuard", "ip": "agent"}

// Unheard says what a packet between nodes found nobody for, if it was dropped since no socket takes it: "no VXLAN listens on
// port 8472". It is empty for another packet.
func (f Frame) Unheard() string {
	for i := 1; i < len(f.Layers); i++ {
		if what, ok := takers[f.Layers[i].Kind]; ok && f.Layers[i-1].Kind == "udp" {
			return "no " + what + " listens on port " + f.Layers[i-1].To
		}
	}
	return ""
}

// Brief is String without what changes at every hop: MAC addresses and TTLs.
func (f Frame) Brief() string {
	var b Frame
	for _, l := range f.Layers {
		if l.Kind == "ip" {
			l.Info = ""
		}
		if l.Kind != "eth" {
			b.add(l)
		}
	}
	return b.String()
}

func (f Frame) String() string {
	texts := make([]string, 0, len(f.Layers))
	for _, l := range f.Layers {
		texts = append(texts, l.String())
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
