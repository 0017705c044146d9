package netstate

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Mark is the ifalias of every link that Twill made or took over, so that an agent without memory
// recognises it.
const Mark = "twill"

// IsBackendName reports whether a backend's device can have the name, Twill's or flannel's.
func IsBackendName(name string) bool { return strings.HasPrefix(name, "flannel") }

// Protocol is the rtm_protocol of every route that Twill writes ('t').
const Protocol = 116

// KernelProtocol is the rtm_protocol of routes that the kernel makes by itself (RTPROT_KERNEL).
const KernelProtocol = 2

// Sysctl is a kernel parameter, named as sysctl(8) does but with slashes: net/ipv4/ip_forward. It cannot be
// absent, so Diff never deletes it.
type Sysctl struct {
	Name, Value string
	Also        Values // which are as good, and left as they are
}

// Values are the numbers from Least to Most; the zero Values are none.
type Values struct{ Least, Most int }

// Observed returns s as it is while the parameter has that value: s itself if the value is as good as the wanted one.
func (s Sysctl) Observed(value string) Sysctl {
	n, err := strconv.Atoi(value)
	if err != nil || s.Also == (Values{}) || n < s.Also.Least || n > s.Also.Most {
		s.Value = value
	}
	return s
}

// Key implements Object.
func (s Sysctl) Key() Key { return Key{Kind: KindSysctl, Name: s.Name} }

func (s Sysctl) String() string { return words("sysctl", s.Name, "=", s.Value) }

// Addr is an address of an owned link. Slot: device and address with its prefix length. Mark: the device.
// Cascade: deleting the last IPv4 address of a device deletes its IPv4 routes and neighbours.
type Addr struct {
	Dev    string
	Prefix netip.Prefix // with host bits: 10.244.1.1/24
	Peer   netip.Prefix // the other end of a point-to-point address, never wanted
	NoDAD  bool         // IPv6 only: usable at once
	Extra  string
}

// Key implements Object.
func (a Addr) Key() Key { return Key{Kind: KindAddr, Name: a.Dev, Prefix: a.Prefix} }

func (a Addr) String() string {
	return words("addr", a.Prefix.String(), match("peer ", a.Peer), "dev", a.Dev, flag(a.NoDAD, "nodad"), a.Extra)
}

// Neigh is a permanent neighbour (ARP or NDP) entry. Slot: device and address. Mark: the device.
type Neigh struct {
	Dev   string
	IP    netip.Addr
	MAC   MAC
	Extra string
}

// Key implements Object.
func (n Neigh) Key() Key { return Key{Kind: KindNeigh, Name: n.Dev, Prefix: Host(n.IP)} }

func (n Neigh) String() string {
	return words("neigh", n.IP.String(), "lladdr", n.MAC.String(), "dev", n.Dev, "permanent", n.Extra)
}

// FDB is a permanent forwarding entry of a VXLAN device: frames to MAC go to Dst. Slot: device, MAC and Dst,
// because one MAC can have several destinations and then each gets a copy. Mark: the device.
type FDB struct {
	Dev   string
	MAC   MAC
	Dst   netip.Addr
	Extra string
}

// Key implements Object.
func (f FDB) Key() Key { return Key{Kind: KindFDB, Name: f.Dev, MAC: f.MAC, Prefix: Host(f.Dst)} }

func (f FDB) String() string {
	return words("fdb", f.MAC.String(), "dst", f.Dst.String(), "dev", f.Dev, "self permanent", f.Extra)
}

// Route is a route. Slot: table, destination, metric, TOS and Nth. Mark: its protocol.
type Route struct {
	Dst    netip.Prefix
	Via    netip.Addr // invalid: none
	Dev    string     // empty for a blackhole
	Metric int        // say it: the kernel turns an IPv6 0 into 1024
	Onlink bool
	// Outer, if valid, makes Via the destination of an IPv6 packet around each packet, and is that packet's source: Dev is
	// a Tunnel that is External. IPv6 only.
	Outer     netip.Addr
	Src       netip.Addr // of packets of this host that have not chosen one; invalid: the kernel chooses
	MTU       int        // 0: Dev's
	Blackhole bool
	Protocol  int
	TOS       int // IPv4 only, never wanted
	Table     int // 0: the main table; another is never wanted
	// Nth is 0, or from 2 on for what is appended to (or stands before) another route of the same destination and
	// metric: both kernel families allow that. It is never wanted.
	Nth   int
	Extra string
}

// Key implements Object.
func (r Route) Key() Key {
	return Key{Kind: KindRoute, Prefix: r.Dst, Metric: r.Metric, Name: words(r.table(), r.tos(), r.nth())}
}

func (r Route) table() string {
	if r.Table == 0 {
		return ""
	}
	return fmt.Sprintf("table %d", r.Table)
}

func (r Route) tos() string {
	if r.TOS == 0 {
		return ""
	}
	return fmt.Sprintf("tos %#x", r.TOS)
}

func (r Route) nth() string {
	if r.Nth == 0 {
		return ""
	}
	return fmt.Sprintf("(no. %d)", r.Nth)
}

func (r Route) String() string {
	via, dev, proto, src := "", "", "", ""
	switch {
	case r.Outer.IsValid():
		via = "encap ip6 src " + r.Outer.String() + " dst " + r.Via.String()
	case r.Via.IsValid():
		via = "via " + r.Via.String()
	}
	if r.Dev != "" {
		dev = "dev " + r.Dev
	}
	if r.Src.IsValid() {
		src = "src " + r.Src.String()
	}
	if r.Protocol != Protocol {
		proto = fmt.Sprintf("proto %d", r.Protocol)
	}
	return words("route", flag(r.Blackhole, "blackhole"), r.Dst.String(), via, dev,
		metric(r), flag(r.Onlink, "onlink"), src, proto, r.table(), r.tos(), r.nth(), r.mtu(), r.Extra)
}

func (r Route) mtu() string {
	if r.MTU == 0 {
		return ""
	}
	return fmt.Sprintf("mtu %d", r.MTU)
}

func metric(r Route) string {
	if r.Metric == DefaultMetric(r.Dst.Addr()) {
		return ""
	}
	return fmt.Sprintf("metric %d", r.Metric)
}

// DefaultMetric returns what the kernel gives to a route of a's family for which no metric was said.
func DefaultMetric(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1024
}

// ConnectedRoute returns the route that the kernel makes for an address: to its subnet, through its device. It is wanted
// where packets depend on it: the kernel does not make it again when somebody deletes or alters it.
func ConnectedRoute(dev string, prefix netip.Prefix) Route {
	r := Route{Dst: prefix.Masked(), Dev: dev, Protocol: KernelProtocol}
	if FamilyOf(prefix.Addr()) == IPv4 {
		r.Src = prefix.Addr()
	} else {
		r.Metric = 256
	}
	return r
}

func words(w ...string) string {
	var b strings.Builder
	for _, s := range w {
		if s != "" && b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(s)
	}
	return b.String()
}

// ExtraHas reports whether an object's Extra names an attribute by one of the words that iproute2 has for it.
func ExtraHas(extra string, attributes ...string) bool {
	return slices.ContainsFunc(strings.Fields(extra), func(w string) bool { return slices.Contains(attributes, w) })
}

func flag(on bool, s string) string {
	if on {
		return s
	}
	return ""
}

func updown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}
