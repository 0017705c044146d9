package ruletrace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// layer is a part of a packet that nf_tables' payload expressions count offsets from (NFT_PAYLOAD_).
type layer uint32

// The layers. The mark is none of nf_tables'.
const (
	linkLayer      layer = unix.NFT_PAYLOAD_LL_HEADER
	networkLayer   layer = unix.NFT_PAYLOAD_NETWORK_HEADER
	transportLayer layer = unix.NFT_PAYLOAD_TRANSPORT_HEADER
	markLayer      layer = 100
)

// field is a field of a header.
type field struct {
	name           string
	offset, length int
}

var (
	etherFields = []field{{"ether daddr", 0, 6}, {"ether saddr", 6, 6}, {"ether type", 12, 2}}
	ip4Fields   = []field{
		{"version", 0, 1}, {"tos", 1, 1}, {"length", 2, 2}, {"id", 4, 2}, {"frag-off", 6, 2}, {"ttl", 8, 1},
		{"protocol", 9, 1}, {checksum, 10, 2}, {"saddr", 12, 4}, {"daddr", 16, 4},
	}
	ip6Fields = []field{
		{"flow", 0, 4}, {"length", 4, 2}, {"nexthdr", 6, 1}, {"hoplimit", 7, 1}, {"saddr", 8, 16}, {"daddr", 24, 16},
	}
	arpFields = []field{
		{"htype", 0, 2}, {"ptype", 2, 2}, {"hlen", 4, 1}, {"plen", 5, 1}, {"operation", 6, 2}, {"saddr ether", 8, 6},
		{"saddr ip", 14, 4}, {"daddr ether", 18, 6}, {"daddr ip", 24, 4},
	}
	tcpFields = []field{
		{"sport", 0, 2}, {"dport", 2, 2}, {"sequence", 4, 4}, {"ackseq", 8, 4}, {"flags", 12, 2}, {"window", 14, 2},
		{checksum, 16, 2}, {"urgptr", 18, 2},
	}
	udpFields  = []field{{"sport", 0, 2}, {"dport", 2, 2}, {"length", 4, 2}, {checksum, 6, 2}}
	icmpFields = []field{{"type", 0, 1}, {"code", 1, 1}, {checksum, 2, 2}, {"id", 4, 2}, {"sequence", 6, 2}}
)

// checksum is a field that the kernel alters with others.
const checksum = "checksum"

// ARP has no version in its first bits: its header begins with the type of hardware, 1 for Ethernet.
const arpVersion = 0

func (p packet) version() int {
	if p.empty() {
		return -1
	}
	return int(p.network[0] >> 4)
}

// networkFields returns the fields of a packet's network header.
func (p packet) networkFields() []field {
	return map[int][]field{4: ip4Fields, 6: ip6Fields, arpVersion: arpFields}[p.version()]
}

func (p packet) transportFields() []field {
	switch p.protocol() {
	case unix.IPPROTO_TCP:
		return tcpFields
	case unix.IPPROTO_UDP:
		return udpFields
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return icmpFields
	}
	return nil
}

// protocol returns the number of what follows the network header; of IPv6, of its first extension.
func (p packet) protocol() byte {
	switch {
	case p.version() == 4 && len(p.network) > 9:
		return p.network[9]
	case p.version() == 6 && len(p.network) > 6:
		return p.network[6]
	}
	return 0
}

// addresses returns source and destination. Those of ARP are the sender's and the target's.
func (p packet) addresses() (src, dst netip.Addr) {
	source, destination := map[int]string{arpVersion: "saddr ip"}[p.version()], "daddr ip"
	if source == "" {
		source, destination = "saddr", "daddr"
	}
	get := func(name string) netip.Addr {
		fields := p.networkFields()
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 {
			return netip.Addr{}
		}
		a, _ := netip.AddrFromSlice(fields[i].of(p.network))
		return a
	}
	return get(source), get(destination)
}

// of returns the field's bytes; nil if the header is too short.
func (f field) of(header []byte) []byte {
	if len(header) < f.offset+f.length {
		return nil
	}
	return header[f.offset:][:f.length]
}

// text prints a field's value.
func (f field) text(value []byte) string {
	switch len(value) {
	case 6:
		return net.HardwareAddr(value).String()
	case 4, 16:
		if f.name != "sequence" && f.name != "ackseq" && f.name != "flow" {
			a, _ := netip.AddrFromSlice(value)
			return a.String()
		}
	}
	n := append(make([]byte, 8-len(value)), value...)
	return fmt.Sprint(binary.BigEndian.Uint64(n))
}

// change is a field that has another value than before.
type change struct {
	layer layer
	field field
	text  string // "ttl 64 to 1"
	is    []byte // the new value
}

// changes returns what differs between two looks at one packet.
func changes(before, after packet) []change {
	if before.empty() || before.version() != after.version() {
		return nil
	}
	list := compare(linkLayer, etherFields, before.link, after.link)
	list = append(list, compare(networkLayer, before.networkFields(), before.network, after.network)...)
	return append(list, compare(transportLayer, before.transportFields(), before.transport, after.transport)...)
}

func compare(l layer, fields []field, before, after []byte) []change {
	var list []change
	for _, f := range fields {
		was, is := f.of(before), f.of(after)
		if was != nil && is != nil && !bytes.Equal(was, is) {
			list = append(list, change{l, f, fmt.Sprintf("%s %s to %s", f.name, f.text(was), f.text(is)), is})
		}
	}
	return list
}

// markChange returns the change of a packet's mark.
func markChange(before, after uint32) change {
	return change{markLayer, field{"mark", 0, 4}, fmt.Sprintf("mark %#x to %#x", before, after),
		binary.BigEndian.AppendUint32(nil, after)}
}
