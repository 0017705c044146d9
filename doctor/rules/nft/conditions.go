package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// value returns the only value of a comparison, if it has one.
func (c comparison) value() (value []byte, ok bool) {
	only := c.spans[0]
	return only.first, len(c.spans) == 1 && len(only.first) > 0 && bytes.Equal(only.first, only.last)
}

// plain returns the only value of a comparison of all bits, if it has one.
func (c comparison) plain() (value []byte, ok bool) {
	value, ok = c.value()
	return value, ok && c.mask == nil
}

// families are by their numbers in nf_tables, and in Ethernet.
var families = map[string]string{"\x02": "ip", "\x0a": "ip6", "\x08\x00": "ip", "\x86\xdd": "ip6"}

func isFamily(d *decoder, c comparison) bool {
	value, ok := c.plain()
	family := families[string(value)]
	if !ok || c.not || family == "" || d.Family != "" && d.Family != family {
		return false
	}
	d.Family = family
	return true
}

func isProtocol(d *decoder, c comparison) bool {
	value, ok := c.plain()
	if !ok || c.not || len(value) != 1 {
		return false
	}
	proto := rules.Protocol(strconv.Itoa(int(value[0])))
	first := d.Proto == "" || d.Proto == proto
	d.Proto = proto
	return first
}

// isAddress is about an address of size bytes. Of a prefix of whole bytes nft compares only these, of another one it masks the rest.
func isAddress(m *rules.Match, size int, c comparison) bool {
	first := len(m.Prefixes) == 0
	m.Not = c.not
	for _, s := range c.spans {
		from, to := nfnl.Pad(s.first, size), bytes.Repeat([]byte{0xff}, size)
		if len(s.first) != c.size || len(s.last) != c.size {
			return false
		}
		copy(to, s.last)
		for i := range c.mask {
			to[i] |= ^c.mask[i]
		}
		a, _ := netip.AddrFromSlice(from)
		b, _ := netip.AddrFromSlice(to)
		e := netstate.Range("", a, b)
		if e.Last.IsValid() { // no prefix
			return false
		}
		m.Prefixes = append(m.Prefixes, e.Prefix)
	}
	return first
}

func isPort(d *decoder, c comparison) bool {
	first := len(d.DPorts) == 0
	for _, s := range c.spans {
		if len(s.first) != 2 || len(s.last) != 2 {
			return false
		}
		d.DPorts = append(d.DPorts, [2]int{int(binary.BigEndian.Uint16(s.first)), int(binary.BigEndian.Uint16(s.last))})
	}
	return first && !c.not && c.mask == nil
}

// isDevice is about a device's name, or how it begins: then the NUL behind it is not compared.
func isDevice(m *rules.DevMatch, c comparison) bool {
	value, ok := c.plain()
	name := nfnl.CString(value)
	if len(name) == len(value) {
		name += "*"
	}
	first := m.Name == ""
	m.Name, m.Not = name, c.not
	return ok && first
}

// isIndex is about a device's index.
func (d *decoder) isIndex(m *rules.DevMatch, c comparison) bool {
	value, ok := c.plain()
	if !ok || len(value) != 4 {
		return false
	}
	first := m.Name == ""
	m.Name, m.Not = d.device(binary.NativeEndian.Uint32(value)), c.not
	return first && m.Name != ""
}

// states are conntrack's, by their bits.
var states = map[uint32]string{expr.CtStateBitINVALID: "invalid", expr.CtStateBitESTABLISHED: "established",
	expr.CtStateBitRELATED: "related", expr.CtStateBitNEW: "new", expr.CtStateBitUNTRACKED: "untracked"}

// isState is about a connection's state, which is one bit: it has one of some, or of masked ones any.
func isState(d *decoder, c comparison) bool {
	first := len(d.State.Any) == 0
	d.State = rules.StateMatch{Not: c.not}
	if c.mask != nil {
		value, ok := c.value()
		if !ok || !isZero(value) {
			return false
		}
		d.State.Not, c.spans = !c.not, nil
		for left := binary.NativeEndian.Uint32(c.mask); left != 0; left &= left - 1 {
			bit := binary.NativeEndian.AppendUint32(nil, left&-left)
			c.spans = append(c.spans, span{bit, bit})
		}
	}
	for _, s := range c.spans {
		state := states[binary.NativeEndian.Uint32(nfnl.Pad(s.first, 4))]
		if state == "" || !bytes.Equal(s.first, s.last) {
			return false
		}
		d.State.Any = append(d.State.Any, state)
	}
	return first && len(d.State.Any) > 0
}

// types are what a destination can be, by routes' numbers.
var types = map[uint32]string{unix.RTN_UNICAST: "unicast", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast",
	unix.RTN_ANYCAST: "anycast", unix.RTN_MULTICAST: "multicast", unix.RTN_BLACKHOLE: "blackhole",
	unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit"}

// isType is about what the destination is for this machine.
func isType(d *decoder, c comparison) bool {
	value, ok := c.plain()
	if !ok || len(value) != 4 {
		return false
	}
	first := d.DstType.Name == ""
	d.DstType.Name, d.DstType.Not = types[binary.NativeEndian.Uint32(value)], c.not
	return first && d.DstType.Name != ""
}

// isMark holds if a packet without a mark does, as those are that are tried.
func isMark(_ *decoder, c comparison) bool {
	value, ok := c.value()
	return ok && isZero(value) != c.not
}

// describe returns what a rule is about, as far as that is short.
func describe(r rules.Rule) string {
	text := ""
	for _, p := range r.Src.Prefixes {
		text += " saddr " + p.String()
	}
	for _, p := range r.Dst.Prefixes {
		text += " daddr " + p.String()
	}
	if len(r.DPorts) > 0 {
		text += fmt.Sprintf(" %s dport %s", r.Proto, r.DPorts)
	}
	return text + " " + string(r.Verdict)
}
