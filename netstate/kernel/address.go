package kernel

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// address is an address as the kernel sends it.
type address struct{ rtnl.Address }

// defaultMetric6 is what IPv6 takes for no metric.
const defaultMetric6 = 256

// addresses returns the addresses of the machine.
func (k *Kernel) addresses() ([]address, error) {
	return rtnl.Retry("addresses", func() (all []address, err error) {
		r := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		r.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
		err = k.bulk.List(r, func(m []byte) error {
			a, err := rtnl.ParseAddress(m)
			all = append(all, address{a})
			return err
		})
		return all, err
	})
}

// decode returns the object.
func (a address) decode(dev string) netstate.Addr {
	o := netstate.Addr{Dev: dev, Prefix: a.Prefix, Peer: a.Peer, NoDAD: a.Flags&unix.IFA_F_NODAD != 0}
	scope := byte(unix.RT_SCOPE_UNIVERSE)
	if a.Prefix.Addr().IsLinkLocalUnicast() {
		scope = unix.RT_SCOPE_LINK
	}
	var e extra
	e.add(a.Scope != scope, "scope %d", a.Scope)
	e.add(a.Broadcast.IsValid() && a.Broadcast != broadcastOf(a.Prefix), "broadcast %s", a.Broadcast)
	for _, f := range addressFlags {
		e.add(a.Flags&f.flag != 0, "%s", f.word)
	}
	e.add(a.Metric != 0 && (a.Prefix.Addr().Is4() || a.Metric != defaultMetric6), "metric %d", a.Metric)
	e.add(a.Valid != rtnl.Forever, "valid_lft %d", a.Valid)
	e.add(a.Preferred != a.Valid, "preferred_lft %d", a.Preferred)
	o.Extra = e.String()
	return o
}

// addressFlags are those that an address of ours never has.
var addressFlags = []struct {
	flag uint32
	word string
}{
	{unix.IFA_F_HOMEADDRESS, "home"}, {unix.IFA_F_DEPRECATED, "deprecated"}, {unix.IFA_F_MANAGETEMPADDR, "mngtmpaddr"},
	{unix.IFA_F_NOPREFIXROUTE, "noprefixroute"}, {unix.IFA_F_MCAUTOJOIN, "autojoin"},
	{unix.IFA_F_STABLE_PRIVACY, "stable-privacy"},
}

// broadcastOf returns the last address of an IPv4 subnet, which is its broadcast address, and the zero Addr if there
// is none (RFC 3021).
func broadcastOf(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() || p.Bits() > 30 {
		return netip.Addr{}
	}
	a := p.Addr().As4()
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil,
		binary.BigEndian.Uint32(a[:])|math.MaxUint32>>p.Bits())))
}

// putAddr adds or changes an address. One that the kernel does not change in place goes first.
func (a *applier) putAddr(want netstate.Addr, was netstate.Object) error {
	l, err := a.link(want.Dev)
	if err != nil {
		return err
	}
	var deleted error
	old, _ := was.(netstate.Addr)
	if old.Peer.IsValid() || !inPlace(old) {
		deleted = ignoreAbsent(a.deleteAddr(old))
	}
	m := nl.NewIfAddrmsg(int(domainOf(want.Prefix.Addr())))
	m.Index, m.Prefixlen = uint32(l.Attrs().Index), uint8(want.Prefix.Bits())
	if want.Prefix.Addr().IsLinkLocalUnicast() {
		m.Scope = unix.RT_SCOPE_LINK
	}
	flags := uint32(0)
	if want.NoDAD {
		flags = unix.IFA_F_NODAD
	}
	r := nl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	r.AddData(m)
	r.AddData(nl.NewRtAttr(unix.IFA_LOCAL, want.Prefix.Addr().AsSlice()))
	r.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, want.Prefix.Addr().AsSlice()))
	r.AddData(nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(flags)))
	lifetimes := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Prefered: rtnl.Forever, Valid: rtnl.Forever}}
	r.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, lifetimes.Serialize()))
	if broadcast := broadcastOf(want.Prefix); broadcast.IsValid() {
		r.AddData(nl.NewRtAttr(unix.IFA_BROADCAST, broadcast.AsSlice()))
	}
	if netstate.ExtraHas(old.Extra, "metric") && want.Prefix.Addr().Is6() { // IPv6 keeps a metric if none is said
		r.AddData(nl.NewRtAttr(rtnl.AddrMetric, nl.Uint32Attr(defaultMetric6)))
	}
	return errors.Join(append(a.bulk.Do(r), deleted)...)
}

// inPlace reports whether the kernel changes what an address has beyond the wanted one without deleting it: of IPv4
// lifetimes and metrics (seen on 6.18), of IPv6 all.
func inPlace(was netstate.Addr) bool {
	return was.Prefix.Addr().Is6() || !netstate.ExtraHas(was.Extra, "scope", "broadcast", "noprefixroute", "autojoin")
}

func (a *applier) deleteAddr(o netstate.Addr) error {
	l, err := a.link(o.Dev)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: rtnl.IPNet(o.Prefix)}
	if o.Peer.IsValid() {
		addr.Peer = rtnl.IPNet(o.Peer)
	}
	return a.nl.AddrDel(l, addr)
}
