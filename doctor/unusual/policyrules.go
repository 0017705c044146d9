package unusual

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// rule is a policy routing rule.
type rule struct {
	family         byte
	priority       uint32
	not            bool
	src, dst       netip.Prefix // of length 0: all
	tos            byte
	mark, mask     uint32
	iif, oif       string
	l3mdev         bool
	uids           *[2]uint32
	proto          byte
	sport, dport   *[2]uint16
	dscp           *byte
	action         byte
	table, target  uint32
	suppressLength int // -1: none
	suppressGroup  int // -1: none
	tunnel         uint64
	protocol       byte // who made it
	unknown        []uint16
}

// Of linux/fib_rules.h: actions, a flag, and attributes that are newer than the libraries.
const (
	actTable, actGoto, actNop = 1, 2, 3
	ruleInvert                = 2
	fraDSCP                   = 31
)

func parseRule(m []byte) (rule, error) {
	if len(m) < unix.SizeofRtMsg {
		return rule{}, fmt.Errorf("a rule of %d bytes: want at least %d", len(m), unix.SizeofRtMsg)
	}
	none := netip.IPv4Unspecified()
	if m[0] == unix.AF_INET6 {
		none = netip.IPv6Unspecified()
	}
	r := rule{family: m[0], tos: m[3], table: uint32(m[4]), action: m[7], suppressLength: -1, suppressGroup: -1,
		not: binary.NativeEndian.Uint32(m[8:])&ruleInvert != 0,
		dst: netip.PrefixFrom(none, int(m[1])), src: netip.PrefixFrom(none, int(m[2]))}
	for kind, value := range rtnl.Attributes(m[unix.SizeofRtMsg:]) {
		r.attribute(kind, value)
	}
	return r, nil
}

func (r *rule) attribute(kind uint16, value []byte) {
	n := uint32(rtnl.Number(value))
	switch kind {
	case nl.FRA_DST:
		r.dst = netip.PrefixFrom(rtnl.Addr(value), r.dst.Bits())
	case nl.FRA_SRC:
		r.src = netip.PrefixFrom(rtnl.Addr(value), r.src.Bits())
	case nl.FRA_IIFNAME:
		r.iif = unix.ByteSliceToString(value)
	case nl.FRA_OIFNAME:
		r.oif = unix.ByteSliceToString(value)
	case nl.FRA_GOTO:
		r.target = n
	case nl.FRA_PRIORITY:
		r.priority = n
	case nl.FRA_FWMARK:
		r.mark = n
	case nl.FRA_FWMASK:
		r.mask = n
	case nl.FRA_TABLE:
		r.table = n
	case nl.FRA_SUPPRESS_PREFIXLEN:
		r.suppressLength = int(int32(n))
	case nl.FRA_SUPPRESS_IFGROUP:
		r.suppressGroup = int(int32(n))
	case nl.FRA_L3MDEV:
		r.l3mdev = n != 0
	case nl.FRA_UID_RANGE:
		if len(value) >= 8 {
			r.uids = &[2]uint32{n, uint32(rtnl.Number(value[4:8]))}
		}
	case nl.FRA_PROTOCOL:
		r.protocol = byte(n)
	case nl.FRA_IP_PROTO:
		r.proto = byte(n)
	case nl.FRA_SPORT_RANGE:
		r.sport = portRange(value)
	case nl.FRA_DPORT_RANGE:
		r.dport = portRange(value)
	case nl.FRA_TUN_ID:
		if len(value) == 8 {
			r.tunnel = binary.BigEndian.Uint64(value)
		}
	case fraDSCP:
		d := byte(n)
		r.dscp = &d
	case nl.FRA_FLOW, nl.FRA_PAD:
	default:
		r.unknown = append(r.unknown, kind)
	}
}

func portRange(value []byte) *[2]uint16 {
	if len(value) < 4 {
		return nil
	}
	return &[2]uint16{binary.NativeEndian.Uint16(value), binary.NativeEndian.Uint16(value[2:])}
}

func (s *space) rules(family byte) ([]rule, error) {
	messages, err := s.list("rules", unix.RTM_GETRULE, &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
	if err != nil {
		return nil, err
	}
	var all []rule
	for _, m := range messages {
		if m[0] != family {
			continue // a family that the kernel does not know gives those of all
		}
		r, err := parseRule(m)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// policyRules returns rules that a new namespace does not have, and those of it that are gone.
func (s *space) policyRules() (all []locate.Object, err error) {
	for _, family := range families {
		rules, listErr := s.rules(family)
		err = errors.Join(err, listErr)
		usual := kernelRules(family)
		if listErr != nil {
			continue
		}
		var have []string
		for _, r := range rules {
			if have = append(have, r.text()); !slices.Contains(usual, r.text()) {
				all = append(all, r.object())
			}
		}
		for _, text := range usual {
			if !slices.Contains(have, text) {
				all = append(all, missingRule(family, text))
			}
		}
	}
	return all, err
}

// kernelRules returns those that a namespace begins with, which are none on a kernel without policy routing.
func kernelRules(family byte) (all []string) {
	if fresh, err := reference(); err == nil {
		return fresh.rules[family]
	}
	all = []string{"0: from all lookup local", "32766: from all lookup main"}
	if family == unix.AF_INET {
		all = append(all, "32767: from all lookup default")
	}
	return all
}

func missingRule(family byte, text string) locate.Object {
	priority, selector, _ := strings.Cut(text, ": ")
	table := selector[strings.LastIndex(selector, " ")+1:]
	return locate.Object{Kind: locate.PolicyRule, Part: "missing", Text: fmt.Sprintf("rule %s (%s) is missing", priority, table),
		Usual: text, Fix: fmt.Sprintf("%s rule add pref %s %s", tool(family), priority, selector)}
}

func (r rule) object() locate.Object {
	o := locate.Object{Kind: locate.PolicyRule, Dev: r.iif, Text: r.text(), Usual: "no such rule",
		Fix: fmt.Sprintf("%s rule del pref %d %s", tool(r.family), r.priority,
			strings.Replace(r.selector(), "lookup [l3mdev-table]", "l3mdev", 1))}
	switch {
	case r.not:
	case r.src.Bits() > 0:
		o.About = r.src
	case r.dst.Bits() > 0:
		o.About = r.dst
	}
	return o
}

// text returns the rule as ip rule prints it.
func (r rule) text() string { return fmt.Sprintf("%d: %s", r.priority, r.selector()) }

func (r rule) selector() string {
	var t words
	t.add(r.not, "not")
	t.add(true, "from %s", prefixText(r.src))
	t.add(r.dst.Bits() > 0, "to %s", prefixText(r.dst))
	t.add(r.tos != 0, "tos %#02x", r.tos)
	t.add(r.mark != 0 || r.mask != 0, "fwmark %s", markText(r.mark, r.mask))
	t.add(r.iif != "", "iif %s", r.iif)
	t.add(r.oif != "", "oif %s", r.oif)
	t.add(r.l3mdev, "lookup [l3mdev-table]")
	if r.uids != nil {
		t.add(true, "uidrange %d-%d", r.uids[0], r.uids[1])
	}
	t.add(r.proto != 0, "ipproto %s", protoText(r.proto))
	t.ports("sport", r.sport)
	t.ports("dport", r.dport)
	t.add(r.tunnel != 0, "tun_id %d", r.tunnel)
	if r.dscp != nil {
		t.add(true, "dscp %d", *r.dscp)
	}
	switch {
	case r.l3mdev:
	case r.action == actTable:
		t.add(true, "lookup %s", tableName(int(r.table)))
	case r.action == actGoto:
		t.add(true, "goto %d", r.target)
	case r.action == actNop:
		t.add(true, "nop")
	default:
		t.add(true, "%s", routeType(r.action))
	}
	t.add(r.suppressLength >= 0, "suppress_prefixlength %d", r.suppressLength)
	t.add(r.suppressGroup >= 0, "suppress_ifgroup %d", r.suppressGroup)
	return t.String()
}

// words collects what a tool prints.
type words []string

func (w *words) add(on bool, format string, args ...any) {
	if on {
		*w = append(*w, fmt.Sprintf(format, args...))
	}
}

func (w *words) ports(name string, ports *[2]uint16) {
	switch {
	case ports == nil:
	case ports[0] == ports[1]:
		w.add(true, "%s %d", name, ports[0])
	default:
		w.add(true, "%s %d-%d", name, ports[0], ports[1])
	}
}

func (w words) String() string { return strings.Join(w, " ") }

func markText(mark, mask uint32) string {
	if mask == 0xffffffff {
		return fmt.Sprintf("%#x", mark)
	}
	return fmt.Sprintf("%#x/%#x", mark, mask)
}

// prefixText returns a prefix as iproute2 prints it.
func prefixText(p netip.Prefix) string {
	switch {
	case p.Bits() == 0:
		return "all"
	case p.IsSingleIP():
		return p.Addr().String()
	}
	return p.String()
}

// protoText returns how /etc/protocols calls a protocol.
func protoText(proto byte) string {
	names := map[byte]string{unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp",
		unix.IPPROTO_ICMPV6: "ipv6-icmp", unix.IPPROTO_SCTP: "sctp", unix.IPPROTO_GRE: "gre", unix.IPPROTO_ESP: "esp",
		unix.IPPROTO_AH: "ah", unix.IPPROTO_IPIP: "ipencap", unix.IPPROTO_IPV6: "ipv6"}
	if name, ok := names[proto]; ok {
		return name
	}
	return strconv.Itoa(int(proto))
}

func tableName(table int) string {
	names := map[int]string{unix.RT_TABLE_LOCAL: "local", unix.RT_TABLE_MAIN: "main", unix.RT_TABLE_DEFAULT: "default"}
	if name, ok := names[table]; ok {
		return name
	}
	return strconv.Itoa(table)
}
