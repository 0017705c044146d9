//go:build soak

package drift

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/attributes"
	"github.com/twill-net/twill/netstate/rtnl"
)

// dump is a list that rtnetlink gives, and how its messages become objects of a picture.
type dump struct {
	kind   string // as package attributes calls it
	get    uint16 // the message that asks for the list
	ask    []byte // its header
	header int    // bytes before the attributes
	// name returns what an object is called, also after it was made again, and "" for one that is not to be seen.
	name   func(m message) string
	fields map[uint16]int // parts of the header that belong to the object's value: where, and how long
	bits   uint16         // where in the header flags are, 0: nowhere
	drop   []string       // the paths of attributes that change by themselves, or that the name has
	devs   []uint16       // attributes that hold a device's number
	nest   []string       // the paths of attributes that hold attributes
}

// message is one object as the kernel reports it.
type message struct {
	data  []byte
	attrs map[uint16][]byte
	devs  devices
}

// devices are the names and the types of a node's devices by their numbers.
type devices map[uint32][2]string

func (m message) dev(index []byte) string {
	if len(index) < 4 {
		return ""
	}
	return m.devs[binary.NativeEndian.Uint32(index)][0]
}

// index returns the device's number in the header, 0 for objects that have none there.
func (m message) index() uint32 {
	if len(m.data) < 8 {
		return 0
	}
	return binary.NativeEndian.Uint32(m.data[4:])
}

func family(f byte, size int) []byte { return append([]byte{f}, make([]byte, size-1)...) }

// mask asks for less, or more, than a list of links has by itself (IFLA_EXT_MASK).
func mask(header []byte, v byte) []byte {
	return append(header, 8, 0, unix.IFLA_EXT_MASK, 0, v, 0, 0, 0)
}

// links and the others are what a picture has of rtnetlink's lists.
var (
	links = dump{kind: "link", get: unix.RTM_GETLINK, ask: mask(family(0, 16), 8), header: unix.SizeofIfInfomsg,
		name: linkName, bits: 8, nest: []string{"18", "18.2", "18.5", "26", "26.10", "55"},
		drop: []string{"3", "5", "7", "14", "23", "35", "37", "47", "48", "26.2",
			"26.10.1", "26.10.2", "26.10.3", "26.10.5", "26.10.6", "18.3", "18.5.15",
			"18.5.17", "18.5.18", "18.5.19", "18.5.20", "18.5.21", "18.5.22", "18.5.23", "18.5.38", "18.5.41",
			"18.2.bridge.14", "18.2.bridge.16", "18.2.bridge.17", "18.2.bridge.18",
			"18.2.bridge.19", "18.2.bridge.47", "18.2.bridge.48"},
		devs: []uint16{unix.IFLA_MASTER}}
	dumps = []dump{
		{kind: "port", get: unix.RTM_GETLINK, ask: mask(family(unix.AF_BRIDGE, 16), 2), header: unix.SizeofIfInfomsg,
			name: linkName, drop: []string{"1", "3", "4", "5", "10", "12", "16"}, nest: []string{"26"}},
		{kind: "addr", get: unix.RTM_GETADDR, ask: family(0, 8), header: unix.SizeofIfAddrmsg, name: addrName,
			fields: map[uint16]int{3: 1}, drop: []string{"6"}},
		routeDump(unix.AF_INET), routeDump(unix.AF_INET6),
		entryDump("neigh", family(0, 12), neighName),
		entryDump("proxy", []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, unix.NTF_PROXY, 0}, proxyName),
		entryDump("fdb", family(unix.AF_BRIDGE, 12), fdbName),
		{kind: "qdisc", get: unix.RTM_GETQDISC, ask: family(0, 20), header: 20, name: qdiscName,
			drop: []string{"3", "4", "7"}},
		{kind: "rule", get: unix.RTM_GETRULE, ask: family(0, 12), header: 12, name: ruleName},
	}
)

func routeDump(f byte) dump {
	return dump{kind: "route", get: unix.RTM_GETROUTE, ask: family(f, 12), header: unix.SizeofRtMsg, name: routeName,
		bits: 8, fields: map[uint16]int{2: 1, 5: 1, 6: 1}, drop: []string{"12"}, nest: []string{"8"},
		devs: []uint16{unix.RTA_OIF, unix.RTA_IIF}}
}

func entryDump(kind string, ask []byte, name func(message) string) dump {
	return dump{kind: kind, get: unix.RTM_GETNEIGH, ask: ask, header: unix.SizeofNdMsg, name: name,
		fields: map[uint16]int{8: 2, 10: 1, 11: 1}, drop: []string{"3", "4"},
		devs: []uint16{unix.NDA_IFINDEX, unix.NDA_MASTER}}
}

// list returns the messages of a list.
func (c *camera) list(d dump, devs devices) ([]message, error) {
	answers, err := c.route.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(d.get), Flags: netlink.Request | netlink.Dump}, Data: d.ask})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", d.kind, err)
	}
	var all []message
	for _, a := range answers {
		if len(a.Data) < d.header {
			continue
		}
		m := message{a.Data, map[uint16][]byte{}, devs}
		for kind, value := range rtnl.Attributes(a.Data[d.header:]) {
			m.attrs[kind] = value
		}
		all = append(all, m)
	}
	return all, nil
}

// devices returns the node's devices, and what is reported of them.
func (c *camera) links() (devices, []message, error) {
	devs := devices{}
	all, err := c.list(links, devs)
	for _, m := range all {
		kind := rtnl.Attribute(m.attrs[unix.IFLA_LINKINFO], 0, unix.IFLA_INFO_KIND)
		devs[m.index()] = [2]string{text(m.attrs[unix.IFLA_IFNAME]), text(kind)}
	}
	return devs, all, err
}

func text(data []byte) string { return strings.Trim(string(data), "\x00") }

// add adds an object.
func (p picture) add(d dump, m message) {
	name := d.name(m)
	if name == "" || strings.HasPrefix(m.devs[m.index()][0], litter) || strings.Contains(name, "dev "+litter) {
		return
	}
	at := attribute{object: d.kind + " " + name, of: m.devs[m.index()][1]}
	if d.kind == "route" {
		at.of = ""
	}
	p[at.text("present")] = "yes"
	for id, size := range d.fields {
		p[at.in(attributes.Header, "", id)] = hex.EncodeToString(m.data[id:][:size])
	}
	if d.kind == "fdb" { // NOARP comes with a permanent entry, at times
		state := binary.NativeEndian.Uint16(m.data[8:]) &^ unix.NUD_NOARP
		p[at.in(attributes.Header, "", 8)] = fmt.Sprintf("%04x", state)
	}
	if d.bits > 0 {
		p.addBits(at, binary.NativeEndian.Uint32(m.data[d.bits:]))
	}
	if d.kind == "addr" && len(m.attrs[unix.IFA_FLAGS]) == 4 {
		p.addBits(at, binary.NativeEndian.Uint32(m.attrs[unix.IFA_FLAGS]))
		delete(m.attrs, unix.IFA_FLAGS)
	}
	for id, value := range m.attrs {
		if d.kind == "addr" && id == unix.IFA_RT_PRIORITY && binary.NativeEndian.Uint32(value) == 256 {
			continue // what an IPv6 address without one has
		}
		if d.kind == "link" && id == unix.IFLA_OPERSTATE && value[0] == 6 {
			value = []byte{0} // a device that was never down is in state UNKNOWN, and one that was in state UP
		}
		if slices.Contains(d.devs, id) {
			p[at.in(attributes.Attributes, "", id)] = m.dev(value)
			continue
		}
		p.addAttribute(d, at, "", id, value)
	}
}

func (p picture) addBits(at attribute, flags uint32) {
	for bit := range uint16(32) {
		if flags&(1<<bit) != 0 {
			p[at.in(attributes.Bits, "", bit)] = "1"
		}
	}
}

// addAttribute adds an attribute, or those that are nested in it. One that comes more than once is numbered.
func (p picture) addAttribute(d dump, at attribute, path string, id uint16, value []byte) {
	here := strings.TrimPrefix(fmt.Sprintf("%s.%d", path, id), ".")
	if slices.Contains(d.drop, here) || slices.Contains(d.drop, fmt.Sprintf("%s.%s.%d", path, at.of, id)) {
		return
	}
	if slices.Contains(d.nest, here) {
		for id, value := range rtnl.Attributes(value) {
			p.addAttribute(d, at, here, id, value)
		}
		return
	}
	a := at.in(attributes.Attributes, path, id)
	for n := 2; p[a] != ""; n++ {
		a.name = fmt.Sprintf("#%d", n)
	}
	p[a] = " " + hex.EncodeToString(value)
}

func linkName(m message) string { return m.dev(m.data[4:8]) }

func addrName(m message) string {
	a, _ := netip.AddrFromSlice(m.attrs[unix.IFA_ADDRESS])
	if m.data[0] == unix.AF_INET {
		a, _ = netip.AddrFromSlice(m.attrs[unix.IFA_LOCAL])
	}
	if a.IsLinkLocalUnicast() {
		return ""
	}
	return fmt.Sprintf("%s/%d of %s", a, m.data[1], m.dev(m.data[4:8]))
}

// routeName: what the kernel makes by itself for each device, for link-local and multicast addresses, is not seen.
func routeName(m message) string {
	dst, _ := netip.AddrFromSlice(m.attrs[unix.RTA_DST])
	if dst.IsLinkLocalUnicast() || dst.IsMulticast() || m.data[7] == unix.RTN_ANYCAST || m.data[7] == unix.RTN_MULTICAST {
		return ""
	}
	table, metric := uint32(m.data[4]), uint32(0)
	if t := m.attrs[unix.RTA_TABLE]; len(t) == 4 {
		table = binary.NativeEndian.Uint32(t)
	}
	if t := m.attrs[unix.RTA_PRIORITY]; len(t) == 4 {
		metric = binary.NativeEndian.Uint32(t)
	}
	return fmt.Sprintf("%s/%d type %d tos %d table %d metric %d dev %s", dst, m.data[1], m.data[7],
		m.data[3], table, metric, m.dev(m.attrs[unix.RTA_OIF]))
}

// neighName: what was learned is not seen, only what somebody wrote.
func neighName(m message) string {
	a, _ := netip.AddrFromSlice(m.attrs[unix.NDA_DST])
	if binary.NativeEndian.Uint16(m.data[8:])&(unix.NUD_PERMANENT|unix.NUD_NOARP) == 0 || a.IsMulticast() {
		return ""
	}
	return fmt.Sprintf("%s of %s", a, m.dev(m.data[4:8]))
}

func fdbName(m message) string {
	mac := m.attrs[unix.NDA_LLADDR]
	if binary.NativeEndian.Uint16(m.data[8:])&(unix.NUD_PERMANENT|unix.NUD_NOARP) == 0 || len(mac) == 6 && mac[0]&1 != 0 {
		return ""
	}
	a, _ := netip.AddrFromSlice(m.attrs[unix.NDA_DST])
	return fmt.Sprintf("%x %v of %s vlan %x", mac, a, m.dev(m.data[4:8]), m.attrs[unix.NDA_VLAN])
}

func proxyName(m message) string {
	a, _ := netip.AddrFromSlice(m.attrs[unix.NDA_DST])
	return fmt.Sprintf("%s of %s", a, m.dev(m.data[4:8]))
}

func qdiscName(m message) string { return fmt.Sprintf("%x of %s", m.data[12:16], m.dev(m.data[4:8])) } // by its parent

func ruleName(m message) string {
	return fmt.Sprintf("%d table %d %x", m.data[0], m.data[4], m.attrs[6])
}
