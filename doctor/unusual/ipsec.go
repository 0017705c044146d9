package unusual

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// policy is an IPsec policy.
type policy struct {
	nl.XfrmUserpolicyInfo
	src, dst  netip.Prefix
	mark      nl.XfrmMark
	ifID      uint64
	kind      byte // XFRM_POLICY_TYPE_…
	templates []template
}

// template is what a policy wants done with a packet.
type template struct {
	nl.XfrmUserTmpl
	from, to netip.Addr
}

// Of linux/xfrm.h.
const (
	policyGetDefault      = 0x28
	policyTypeAttr        = 16
	ifIDAttr              = 31
	blockAction           = 1
	directionCount        = 3
	defaultBlock     byte = 1
)

var directionNames = [directionCount]string{"in", "out", "fwd"}

// request sends one to the kernel's IPsec. A kernel without it has nothing of it.
func request(what string, kind, flags int, body []byte, answer uint16) ([][]byte, error) {
	all, err := rtnl.Retry(what, func() ([][]byte, error) {
		r := nl.NewNetlinkRequest(kind, flags)
		r.AddRawData(body)
		return r.Execute(unix.NETLINK_XFRM, answer)
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	return all, err
}

// policies returns all of addresses in the order in which they are tried. A socket's own are left out.
func policies() (all []policy, err error) {
	messages, err := request("IPsec policies", nl.XFRM_MSG_GETPOLICY, unix.NLM_F_DUMP,
		make([]byte, nl.SizeofXfrmUserpolicyId), nl.XFRM_MSG_NEWPOLICY)
	for _, m := range messages {
		if len(m) < nl.SizeofXfrmUserpolicyInfo {
			return nil, fmt.Errorf("an IPsec policy of %d bytes: want at least %d", len(m), nl.SizeofXfrmUserpolicyInfo)
		}
		p := policy{XfrmUserpolicyInfo: *nl.DeserializeXfrmUserpolicyInfo(m)}
		if p.Dir >= directionCount {
			continue
		}
		if p.Sel.Family != unix.AF_INET && p.Sel.Family != unix.AF_INET6 {
			continue
		}
		p.src = netip.PrefixFrom(unionAddr(p.Sel.Saddr, p.Sel.Family), int(p.Sel.PrefixlenS))
		p.dst = netip.PrefixFrom(unionAddr(p.Sel.Daddr, p.Sel.Family), int(p.Sel.PrefixlenD))
		for kind, value := range rtnl.Attributes(m[nl.SizeofXfrmUserpolicyInfo:]) {
			p.attribute(kind, value)
		}
		all = append(all, p)
	}
	slices.SortStableFunc(all, func(a, b policy) int { return cmp.Compare(a.Priority, b.Priority) })
	return all, err
}

func (p *policy) attribute(kind uint16, value []byte) {
	switch {
	case kind == nl.XFRMA_TMPL:
		for ; len(value) >= nl.SizeofXfrmUserTmpl; value = value[nl.SizeofXfrmUserTmpl:] {
			t := template{XfrmUserTmpl: *nl.DeserializeXfrmUserTmpl(value[:nl.SizeofXfrmUserTmpl])}
			t.from, t.to = unionAddr(t.Saddr, t.Family), unionAddr(t.XfrmId.Daddr, t.Family)
			p.templates = append(p.templates, t)
		}
	case kind == nl.XFRMA_MARK && len(value) >= nl.SizeofXfrmMark:
		p.mark = *nl.DeserializeXfrmMark(value)
	case kind == nl.XFRMA_IF_ID:
		p.ifID = rtnl.Number(value)
	case kind == nl.XFRMA_POLICY_TYPE && len(value) > 0:
		p.kind = value[0]
	}
}

// unionAddr reads a union of both families' addresses.
func unionAddr(a nl.XfrmAddress, family uint16) netip.Addr {
	if family == unix.AF_INET6 {
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte(a[:4]))
}

func (s *space) unusualPolicies() (all []locate.Object, err error) {
	list, err := policies()
	for _, p := range list {
		all = append(all, p.object(s.names))
	}
	defaults, defaultErr := blockedDirections()
	for _, direction := range defaults {
		all = append(all, defaultPolicy(direction))
	}
	return all, errors.Join(err, defaultErr)
}

// blockedDirections returns the directions in which what no policy is about does not pass.
func blockedDirections() (all []string, err error) {
	messages, err := request("the default IPsec policy", policyGetDefault, 0, make([]byte, directionCount), 0)
	if errors.Is(err, unix.EINVAL) {
		return nil, nil // of a kernel that has none
	}
	for _, m := range messages {
		for i, at := range []int{0, 2, 1} { // in, fwd, out
			if len(m) >= directionCount && m[i] == defaultBlock {
				all = append(all, directionNames[at])
			}
		}
	}
	return all, err
}

func defaultPolicy(direction string) locate.Object {
	return locate.Object{Kind: locate.IPsec, Part: "default " + direction, Text: fmt.Sprintf("default policy %s: block", direction), Usual: "accept",
		Fix: fmt.Sprintf("ip xfrm policy setdefault %s accept", direction)}
}

func (p policy) object(names map[int]string) locate.Object {
	selector := p.selector(names)
	var w words
	w.add(true, "%s", selector)
	w.add(true, "dir %s", directionNames[p.Dir])
	w.add(p.Action == blockAction, "action block")
	w.add(true, "priority %d", p.Priority)
	w.add(p.mark.Mask != 0, "mark %#x/%#x", p.mark.Value, p.mark.Mask)
	w.add(p.ifID != 0, "if_id %#x", p.ifID)
	for _, t := range p.templates {
		w.add(true, "tmpl src %s dst %s proto %s", t.from, t.to, ipsecProto(t.XfrmId.Proto))
		w.add(t.XfrmId.Spi != 0, "spi %#08x", nl.Swap32(t.XfrmId.Spi))
		w.add(true, "reqid %d mode %s", t.Reqid, ipsecMode(t.Mode))
		w.add(t.Optional != 0, "level use")
	}
	var fix words
	fix.add(true, "ip xfrm policy delete %s dir %s", selector, directionNames[p.Dir])
	fix.add(p.kind != 0, "ptype sub")
	fix.add(p.mark.Mask != 0, "mark %#x mask %#x", p.mark.Value, p.mark.Mask)
	fix.add(p.ifID != 0, "if_id %#x", p.ifID)
	key := netstate.Policy{Dir: netstate.Direction(p.Dir), Src: p.src, Dst: p.dst}.Key()
	return locate.Object{Kind: locate.IPsec, Dev: names[int(p.Sel.Ifindex)], Part: directionNames[p.Dir],
		Value: strconv.FormatUint(uint64(p.Priority), 10), Key: key, Text: w.String(), Usual: "no such policy",
		Fix: fix.String(), About: p.dst}
}

func (p policy) selector(names map[int]string) string {
	var w words
	w.add(true, "src %s dst %s", p.src, p.dst)
	w.add(p.Sel.Proto != 0, "proto %s", protoText(p.Sel.Proto))
	icmp := p.Sel.Proto == unix.IPPROTO_ICMP || p.Sel.Proto == unix.IPPROTO_ICMPV6
	w.add(p.Sel.SportMask != 0 && !icmp, "sport %d", nl.Swap16(p.Sel.Sport))
	w.add(p.Sel.DportMask != 0 && !icmp, "dport %d", nl.Swap16(p.Sel.Dport))
	w.add(p.Sel.SportMask != 0 && icmp, "type %d", nl.Swap16(p.Sel.Sport))
	w.add(p.Sel.DportMask != 0 && icmp, "code %d", nl.Swap16(p.Sel.Dport))
	w.add(p.Sel.Ifindex != 0, "dev %s", names[int(p.Sel.Ifindex)])
	return w.String()
}

func ipsecProto(proto byte) string {
	names := map[byte]string{unix.IPPROTO_ESP: "esp", unix.IPPROTO_AH: "ah", unix.IPPROTO_COMP: "comp"}
	if name, ok := names[proto]; ok {
		return name
	}
	return fmt.Sprint(proto)
}

func ipsecMode(mode byte) string {
	names := [...]string{"transport", "tunnel", "ro", "in_trigger", "beet"}
	if int(mode) < len(names) {
		return names[mode]
	}
	return fmt.Sprint(mode)
}
