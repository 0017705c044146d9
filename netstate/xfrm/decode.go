package xfrm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// parse reads struct xfrm_userpolicy_info (linux/xfrm.h) and its attributes. It reports false for a
// socket's own policy, which is not about addresses.
func parse(m []byte) (o netstate.Policy, ok bool, err error) {
	if len(m) < nl.SizeofXfrmUserpolicyInfo {
		return o, false, fmt.Errorf("an IPsec policy of %d bytes: want at least %d", len(m), nl.SizeofXfrmUserpolicyInfo)
	}
	p := nl.DeserializeXfrmUserpolicyInfo(m)
	dir := slices.Index(directions[:], netlink.Dir(p.Dir))
	if dir < 0 || p.Sel.Family != unix.AF_INET && p.Sel.Family != unix.AF_INET6 {
		return o, false, nil
	}
	o = netstate.Policy{
		Dir: netstate.Direction(dir), Priority: int(p.Priority), Block: p.Action == uint8(netlink.XFRM_POLICY_BLOCK),
		Src: netip.PrefixFrom(addrOf(p.Sel.Saddr, p.Sel.Family), int(p.Sel.PrefixlenS)),
		Dst: netip.PrefixFrom(addrOf(p.Sel.Daddr, p.Sel.Family), int(p.Sel.PrefixlenD)),
	}
	var e extra
	e.selector(p.Sel)
	attrs, err := nl.ParseRouteAttr(m[nl.SizeofXfrmUserpolicyInfo:])
	for _, a := range attrs {
		switch a.Attr.Type {
		case nl.XFRMA_TMPL:
			e.templates(&o, a.Value)
		case nl.XFRMA_MARK:
			e.add(true, "mark %x", a.Value)
		case nl.XFRMA_IF_ID:
			e.add(true, "if_id %x", a.Value)
		}
	}
	o.Extra = strings.Join(e, " ")
	return o, true, err
}

// extra collects what no wanted policy has.
type extra []string

func (e *extra) add(on bool, format string, args ...any) {
	if on {
		*e = append(*e, fmt.Sprintf(format, args...))
	}
}

func (e *extra) selector(s nl.XfrmSelector) {
	e.add(s.Proto != 0, "proto %d", s.Proto)
	e.add(s.Sport != 0, "sport %d", nl.Swap16(s.Sport))
	e.add(s.Dport != 0, "dport %d", nl.Swap16(s.Dport))
	e.add(s.Ifindex != 0, "dev %d", s.Ifindex)
}

// templates reads what happens to packets: a list of struct xfrm_user_tmpl, of which we want one ESP tunnel.
func (e *extra) templates(o *netstate.Policy, data []byte) {
	for i := 0; len(data) >= nl.SizeofXfrmUserTmpl; i, data = i+1, data[nl.SizeofXfrmUserTmpl:] {
		t := nl.DeserializeXfrmUserTmpl(data[:nl.SizeofXfrmUserTmpl])
		from, to := addrOf(t.Saddr, t.Family), addrOf(t.XfrmId.Daddr, t.Family)
		if i == 0 && netlink.Proto(t.XfrmId.Proto) == netlink.XFRM_PROTO_ESP &&
			netlink.Mode(t.Mode) == netlink.XFRM_MODE_TUNNEL {
			o.From, o.To, o.ReqID, o.Optional = from, to, int(t.Reqid), t.Optional != 0
			e.add(t.XfrmId.Spi != 0, "spi %#x", nl.Swap32(t.XfrmId.Spi))
			continue
		}
		e.add(true, "%s %s to %s %s reqid %d", netlink.Proto(t.XfrmId.Proto), from, to, netlink.Mode(t.Mode), t.Reqid)
	}
}

// addrOf reads a union of both families' addresses.
func addrOf(a nl.XfrmAddress, family uint16) netip.Addr {
	if family == unix.AF_INET6 {
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte(a[:4]))
}
