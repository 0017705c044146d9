package unusual

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate/attributes"
	"github.com/twill-net/twill/netstate/rtnl"
)

// flag is a flag of a device, and how ip link turns it on.
type flag struct {
	bit      uint32
	name, on string
}

// ipFlags are those that somebody can set. A flag that a new device has is missed as "no …".
var ipFlags = []flag{{unix.IFF_NOARP, "NOARP", "arp off"}, {unix.IFF_PROMISC, "PROMISC", "promisc on"},
	{unix.IFF_ALLMULTI, "ALLMULTI", "allmulticast on"}, {unix.IFF_MULTICAST, "MULTICAST", "multicast on"},
	{unix.IFF_NOTRAILERS, "NOTRAILERS", "trailers off"}, {unix.IFF_DYNAMIC, "DYNAMIC", "dynamic on"}}

// off returns how ip link turns the flag the other way.
func (f flag) off() string {
	word, value, _ := strings.Cut(f.on, " ")
	return word + " " + map[string]string{"on": "off", "off": "on"}[value]
}

// compared are the attributes of any device that must be those of a new one. Hardware has its own queues and sizes.
var compared = []struct {
	id   uint16
	word string
	soft bool   // of virtual devices only
	with uint16 // the attribute that sets this one, too
}{
	{unix.IFLA_TXQLEN, "txqueuelen", false, 0},
	{unix.IFLA_LINKMODE, "mode", false, 0},
	{unix.IFLA_GROUP, "group", false, 0},
	{unix.IFLA_PROTO_DOWN, "protodown", false, 0},
	{unix.IFLA_GSO_MAX_SEGS, "gso_max_segs", true, 0},
	{unix.IFLA_GSO_MAX_SIZE, "gso_max_size", true, 0},
	{unix.IFLA_GRO_MAX_SIZE, "gro_max_size", true, 0},
	{unix.IFLA_GSO_IPV4_MAX_SIZE, "gso_ipv4_max_size", true, unix.IFLA_GSO_MAX_SIZE},
	{unix.IFLA_GRO_IPV4_MAX_SIZE, "gro_ipv4_max_size", true, unix.IFLA_GRO_MAX_SIZE},
}

// unusualLinks compares each device with a new one of its kind.
func (s *space) unusualLinks() (all []locate.Object, err error) {
	f, err := reference()
	if err != nil {
		return nil, err
	}
	largest, smallest := s.largestMTU(), s.smallestPort()
	attached, err := s.attached()
	if err != nil {
		return nil, err
	}
	for _, l := range s.links {
		fresh := f.like(l.name, l.kind)
		d := linkDifferences{link: l}
		d.state(fresh.link, s.carriesNothing(l))
		d.attributes(fresh.link)
		d.options(fresh.link, s.names)
		if mtu := largest[l.index]; (l.mtu < mtu || l.name != "lo" && l.mtu < smallestMTU) && l.mtu != smallest[l.index] {
			usual := max(mtu, smallestMTU)
			d.add("mtu", strconv.Itoa(l.mtu), strconv.Itoa(usual), fmt.Sprintf("mtu %d", usual))
		}
		if l.kind == "veth" && l.flags&unix.IFF_UP != 0 && l.master == 0 && !attached[l.name] {
			d.add(locate.Unattached, "", "one of them", "master BRIDGE")
		}
		s.related(&d)
		all = append(all, d.found...)
	}
	return all, nil
}

// attached returns the devices that have an address, a route, or a device that stands on them. Link-local ones do not
// count: the kernel makes them.
func (s *space) attached() (map[string]bool, error) {
	has := map[string]bool{}
	addrs, err := s.addresses()
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		has[a.dev] = has[a.dev] || !a.local.IsLinkLocalUnicast()
	}
	for _, f := range families {
		routes, err := s.routesOf(f)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.dst.Addr().IsLinkLocalUnicast() || r.dst.Addr().IsMulticast() {
				continue
			}
			has[r.dev] = true
			for _, h := range r.hops {
				_, dev, _ := strings.Cut(h+" ", " dev ")
				has[strings.Fields(dev + " -")[0]] = true
			}
		}
	}
	for _, l := range s.links {
		if slices.Contains(above, l.kind) {
			has[s.byIndex(int(rtnl.Number(l.Attribute(unix.IFLA_LINK)))).name] = true
		}
	}
	return has, nil
}

// smallestMTU is what IPv6 needs.
const smallestMTU = 1280

// largestMTU returns by index the MTU of devices that exchange packets: a bridge and its ports, and the ends of a veth.
// What is smaller drops what the others let pass.
func (s *space) largestMTU() map[int]int {
	largest, group := map[int]int{}, map[int]int{}
	for _, l := range s.links {
		if s.byIndex(l.master).kind == "bridge" {
			group[l.master] = max(group[l.master], l.mtu)
		}
	}
	peers := s.peerMTUs()
	for _, l := range s.links {
		largest[l.index] = max(group[l.index], peers[l.index])
		if s.byIndex(l.master).kind == "bridge" {
			largest[l.index] = max(largest[l.index], group[l.master])
		}
	}
	return largest
}

// smallestPort returns by index the smallest MTU of a bridge's ports, which the bridge takes over.
func (s *space) smallestPort() map[int]int {
	smallest := map[int]int{}
	for _, l := range s.links {
		if s.byIndex(l.master).kind == "bridge" && (smallest[l.master] == 0 || l.mtu < smallest[l.master]) {
			smallest[l.master] = l.mtu
		}
	}
	return smallest
}

// peerMTUs returns by index the MTU of the other ends of veths, which may be in other namespaces. An end in a namespace
// that the process has no right to see is left out.
func (s *space) peerMTUs() map[int]int {
	found := map[int]int{}
	for _, l := range s.links {
		peer, elsewhere := int(rtnl.Number(l.Attribute(unix.IFLA_LINK))), l.Attribute(unix.IFLA_LINK_NETNSID)
		switch {
		case l.kind != "veth" || peer == 0:
		case elsewhere == nil:
			found[l.index] = s.byIndex(peer).mtu
		default:
			r := oneLink(peer)
			r.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, elsewhere))
			_ = s.conn.List(r, func(m []byte) error {
				other, err := parseLink(m)
				found[l.index] = other.mtu
				return err
			})
		}
	}
	return found
}

// carriesNothing reports whether a device need not have a carrier: a bridge without a port that has one.
func (s *space) carriesNothing(l link) bool {
	return l.kind == "bridge" && !slices.ContainsFunc(s.links, func(p link) bool {
		return p.master == l.index && p.flags&unix.IFF_LOWER_UP != 0
	})
}

// linkDifferences collects what is unusual about a device.
type linkDifferences struct {
	link  link
	found []locate.Object
}

// add notes one difference: a part with its value, if it has one. fix is what ip link is told about the device.
func (d *linkDifferences) add(part, value, usual, fix string) {
	d.found = append(d.found, locate.Object{Kind: locate.Link, Dev: d.link.name, Part: part, Value: value,
		Text:  strings.TrimSpace(d.link.name + ": " + part + " " + value),
		Usual: usual, Fix: fmt.Sprintf("ip link set dev %s %s", d.link.name, fix)})
}

// idleKinds are the kinds of devices that may be down for good: hardware, and the dummies that only hold addresses, as
// kube-proxy's in the mode ipvs.
var idleKinds = []string{"", "dummy"}

// state compares flags, and what the device says about its state.
func (d *linkDifferences) state(fresh link, idle bool) {
	l := d.link
	up := l.flags&unix.IFF_UP != 0
	switch {
	case !up && (l.name == "lo" || l.name != fresh.name && !slices.Contains(idleKinds, l.kind) || l.master != 0):
		d.add(locate.Down, "", "up", "up")
	case up && l.flags&unix.IFF_LOWER_UP == 0 && !idle:
		d.add(locate.NoCarrier, "", "LOWER_UP", "up") // the other end has to be up, too
	}
	for _, f := range ipFlags {
		if l.kind != "" && l.kind != fresh.kind {
			break // each kind has its own
		}
		switch has, usual := l.flags&f.bit != 0, fresh.flags&f.bit != 0; {
		case has && !usual:
			d.add(f.name, "", "no "+f.name, f.off())
		case !has && usual:
			d.add("no "+f.name, "", f.name, f.on)
		}
	}
	states := []string{"unknown", "not present", "down", "lower layer down", "testing", "dormant", "up"}
	if n := rtnl.Number(l.Attribute(unix.IFLA_OPERSTATE)); up && (n == 1 || n == 4 || n == 5) {
		d.add("state", states[n], "up", "state up mode default")
	}
}

// attributes compares what any device has.
func (d *linkDifferences) attributes(fresh link) {
	for _, c := range compared {
		is, usual := rtnl.Number(d.link.Attribute(c.id)), rtnl.Number(fresh.Attribute(c.id))
		if c.id == unix.IFLA_TXQLEN && unix.ByteSliceToString(d.link.Attribute(unix.IFLA_QDISC)) == "noqueue" {
			continue // nothing is queued
		}
		if is == usual || c.soft && (d.link.kind == "" || d.link.kind == "bridge" && is < usual) ||
			c.with != 0 && is == rtnl.Number(d.link.Attribute(c.with)) {
			continue // a bridge takes over its ports' limits, and one limit that of the other
		}
		d.add(c.word, strconv.FormatUint(is, 10), strconv.FormatUint(usual, 10), linkWord(c.id, c.word, usual))
	}
	broadcast, usual := d.link.Attribute(unix.IFLA_BROADCAST), fresh.Attribute(unix.IFLA_BROADCAST)
	if len(broadcast) == len(usual) && len(usual) == len(broadcastMAC) && !slices.Equal(broadcast, usual) {
		d.add("brd", hardware(broadcast), hardware(usual), "broadcast "+hardware(usual))
	}
	const attached, id = 2, 4 // IFLA_XDP_ATTACHED, IFLA_XDP_PROG_ID
	if mode := rtnl.Number(d.link.Attribute(unix.IFLA_XDP, attached)); mode != 0 {
		what := map[uint64]string{1: "xdp", 2: "xdpgeneric", 3: "xdpoffload"}[mode]
		if what == "" {
			what = "xdp"
		}
		program := strconv.FormatUint(rtnl.Number(d.link.Attribute(unix.IFLA_XDP, id)), 10)
		d.add(what+" program", program, "no program", what+" off")
	}
}

// linkWord returns what sets an attribute back.
func linkWord(id uint16, word string, value uint64) string {
	switch id {
	case unix.IFLA_LINKMODE:
		return "mode default"
	case unix.IFLA_PROTO_DOWN:
		return "protodown " + onOff(value)
	}
	return fmt.Sprintf("%s %d", word, value)
}

func onOff(value uint64) string {
	if value == 0 {
		return "off"
	}
	return "on"
}

func hardware(mac []byte) string {
	var parts []string
	for _, b := range mac {
		parts = append(parts, fmt.Sprintf("%02x", b))
	}
	return strings.Join(parts, ":")
}

// options compares what devices of one kind have. A bridge's are of another kind of object.
func (d *linkDifferences) options(fresh link, names map[int]string) {
	if d.link.kind != fresh.kind || d.link.name == fresh.name {
		return
	}
	kind := locate.Link
	if d.link.kind == "bridge" {
		kind = locate.BridgePort
	}
	path := []uint16{unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA}
	for _, table := range attributes.Of("link", d.link.kind) {
		if table.Of != d.link.kind || table.Place != attributes.Attributes || !slices.Equal(table.Path, path) {
			continue
		}
		for _, row := range table.Rows {
			if row.Fate == attributes.Derived || row.Field != "" || row.Word == "" {
				continue // an object of netstate has those with a field, and its owner decides
			}
			is, usual := d.link.Attribute(append(path, row.ID)...), fresh.Attribute(append(path, row.ID)...)
			for _, o := range option(row, is, usual) {
				text := fmt.Sprintf("%s: %s %s", d.link.name, o.word, o.is)
				d.found = append(d.found, locate.Object{Kind: kind, Dev: d.link.name, Part: o.word, Value: o.is, Text: text, Usual: o.usual,
					Fix: fmt.Sprintf("ip link set dev %s type %s %s %s", d.link.name, d.link.kind, o.word, o.usual)})
			}
		}
	}
}

// difference is one option that is not as usual.
type difference struct{ word, is, usual string }

// option compares one attribute. Options that share one are told apart.
func option(row attributes.Attribute, is, usual []byte) (all []difference) {
	if slices.Equal(is, usual) || is == nil {
		return nil
	}
	switch row.Form {
	case attributes.Options:
		names := []string{"no_linklocal_learn", "mcast_vlan_snooping", "mst_enabled", "mdb_offload_fail_notification"}
		for differ := uint32(rtnl.Number(is)) ^ uint32(rtnl.Number(usual)); differ != 0; differ &= differ - 1 {
			i := bits.TrailingZeros32(differ)
			name := fmt.Sprintf("boolopt%d", i)
			if i < len(names) {
				name = names[i]
			}
			on := rtnl.Number(is) >> i & 1
			all = append(all, difference{name, strconv.FormatUint(on, 10), strconv.FormatUint(1-on, 10)})
		}
		return all
	case attributes.Network:
		if len(is) == len(broadcastMAC) {
			return []difference{{row.Word, hardware(is), hardware(usual)}}
		}
		return []difference{{row.Word, protocolText(is), protocolText(usual)}}
	}
	return []difference{{row.Word, strconv.FormatUint(rtnl.Number(is), 10), strconv.FormatUint(rtnl.Number(usual), 10)}}
}

// protocolText returns the number of a VLAN's protocol as ip prints it.
func protocolText(value []byte) string {
	switch text := fmt.Sprintf("%#x", value); text {
	case "0x8100":
		return "802.1Q"
	case "0x88a8":
		return "802.1ad"
	default:
		return text
	}
}

// above are the kinds of devices that take frames from the device that they stand on.
var above = []string{"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"}

// related notes devices that take a device's packets, or give it theirs.
func (s *space) related(d *linkDifferences) {
	l := d.link
	if master := s.byIndex(l.master); master.index != 0 && master.kind != "bridge" {
		d.add("master", master.name, "no master", "nomaster")
	}
	below := s.byIndex(int(rtnl.Number(l.Attribute(unix.IFLA_LINK))))
	if slices.Contains(above, l.kind) {
		text := l.name
		if below.index != 0 && l.Attribute(unix.IFLA_LINK_NETNSID) == nil {
			text += "@" + below.name
		}
		d.found = append(d.found, locate.Object{Kind: locate.Link, Dev: l.name, Part: l.kind, Text: text + ": " + l.kind,
			Usual: "no such device", Fix: "ip link del " + l.name})
	}
}
