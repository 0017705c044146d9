package kernel

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// filter is what Watch needs of the last Observe to tell our messages from the others.
type filter struct {
	links   map[int]string          // the types of our links, by index
	objects map[int]netstate.Object // what they were
	names   map[int]string          // of all links
	wanted  map[string]bool         // names of links
	sysctls []netstate.Sysctl
	devs    map[string][]string // names of our links by type

	marks map[int]netstate.Port          // how the plugin made the wanted ports, by index
	pods  map[netstate.MAC]netstate.Port // the same by the pods' addresses

	// foreign are the slots of routes in which another device's connected route stands, and whether one is the first there.
	foreign map[netstate.Key]bool

	want    netstate.State
	mu      sync.Mutex
	applied netstate.State // entries that Apply has changed since, nil: deleted
}

// expect notes what entries a plan makes, beyond what Observe was told. The kernel does not say in its messages about
// forwarding entries and deleted neighbours who requested the change (seen on 6.1 and 6.18), so exceptFrom passes them.
func (f *filter) expect(p netstate.Plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range p {
		key := c.Key()
		_, again := f.applied[key]
		if (key.Kind == netstate.KindFDB || key.Kind == netstate.KindNeigh) && (again || f.want[key] != c.Want) {
			f.applied[key] = c.Want
		}
	}
}

// expected returns what stands in an entry's slot if nobody else has changed it.
func (f *filter) expected(key netstate.Key) netstate.Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o, ok := f.applied[key]; ok {
		return o
	}
	return f.want[key]
}

// concerns reports whether a message is about something of ours that is not as it should be, or about an interface
// that may be an underlay. Pods come and go on veth devices: those messages are dropped here.
func (k *Kernel) concerns(kind uint16, data []byte) bool {
	f := k.filter.Load()
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return k.concernsLink(f, kind, data)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return f.concernsAddr(kind, data)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return f.concernsEntry(kind, data)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return k.concernsRoute(data, f.links)
	}
	return false
}

// concernsAddr reports whether an address is news: on a link of ours if it is not as wanted, elsewhere always, because
// an underlay is chosen by them. Link-local ones, which every veth gets, are news only where they are wanted.
func (f *filter) concernsAddr(kind uint16, data []byte) bool {
	parsed, err := rtnl.ParseAddress(data)
	a := address{parsed}
	if err != nil || !a.Prefix.IsValid() {
		return false
	}
	local := linkLocal(a.Prefix.Addr())
	if _, ours := f.links[a.Index]; !ours {
		return !local
	}
	is := a.decode(f.names[a.Index])
	want, wanted := f.want[is.Key()]
	if kind == unix.RTM_DELADDR || wanted {
		return wanted && (kind == unix.RTM_DELADDR || is != want)
	}
	return !local
}

// keepsEntries reports whether a link is one whose neighbours are ours. Those of the bridge are the kernel's.
func (f *filter) keepsEntries(index int) bool {
	kind, ours := f.links[index]
	return ours && kind != "bridge"
}

// concernsEntry reports whether an entry is not as expected. It ignores a forwarding entry without a destination:
// 6.1 sends that message beside the proper one.
func (f *filter) concernsEntry(kind uint16, data []byte) bool {
	e, err := parseEntry(data)
	if is, ok := f.decodeBridgeFDB(e); err == nil && data[0] == unix.AF_BRIDGE && ok {
		should := f.expected(is.Key())
		if kind == unix.RTM_DELNEIGH {
			return should != nil
		}
		return is != should
	}
	if err != nil || !f.keepsEntries(e.Index) || !e.Dst.IsValid() && e.NextHop == 0 {
		return false
	}
	var is netstate.Object
	var ours bool
	if data[0] == unix.AF_BRIDGE {
		is, ours = decodeFDB(f.names[e.Index], e, f.names)
	} else {
		is, ours = f.decodeNeigh(e)
	}
	should := f.expected(is.Key())
	if kind == unix.RTM_DELNEIGH || !ours {
		return should != nil
	}
	return is != should
}

// concernsLink ignores two kinds of messages that every new pod causes: about its veth device, unless that has an
// address or a wanted name, and about the bridge, which is as it was.
func (k *Kernel) concernsLink(f *filter, kind uint16, data []byte) bool {
	d, err := parseDevice(data)
	if err != nil || data[0] != unix.AF_UNSPEC { // another family's are about bridge ports
		return false
	}
	if known, ours := f.objects[d.Index()]; ours {
		return kind == unix.RTM_DELLINK || d.decode(f.names) != known
	}
	name := d.Name()
	if f.wanted[name] || d.marked() || d.Kind() != "veth" {
		return true
	}
	if carriers := k.carriers.Load(); carriers != nil {
		return (*carriers)[d.Index()]
	}
	return !strings.HasPrefix(name, "veth") // nobody has looked for underlays yet
}

func (k *Kernel) concernsRoute(rtmsg []byte, owned map[int]string) bool {
	if len(rtmsg) < unix.SizeofRtMsg {
		return false
	}
	switch main := rtmsg[4] == unix.RT_TABLE_MAIN; {
	case rtmsg[5] == netstate.Protocol: // ours, in whatever table
		return true
	case !main:
		return false
	case rtmsg[1] == 0: // a default route
		return true
	}
	dst, ok := netip.AddrFromSlice(rtnl.Attribute(rtmsg, unix.SizeofRtMsg, unix.RTA_DST))
	if ok && linkLocal(dst) {
		return false
	}
	if _, ours := owned[rtnl.Int(rtnl.Attribute(rtmsg, unix.SizeofRtMsg, unix.RTA_OIF))]; ours {
		return true
	}
	return ok && k.inNetworks(netip.PrefixFrom(dst, int(rtmsg[1])))
}

// concernsNetconf reports whether a message says that a sysctl that Observe was asked for may have changed: of all
// interfaces, of new ones (their indices are negative), or of one that is named. Each pod's device has a message, too.
func (k *Kernel) concernsNetconf(data []byte) bool {
	f := k.filter.Load()
	index := int32(rtnl.Int(rtnl.Attribute(data, sizeofNetconf, netconfaIfindex)))
	part := "/" + f.names[int(index)] + "/"
	return index <= 0 || slices.ContainsFunc(f.sysctls, func(s netstate.Sysctl) bool { return strings.Contains(s.Name, part) })
}

// Of linux/netconf.h: the size of struct netconfmsg, aligned, and an attribute.
const sizeofNetconf, netconfaIfindex = 4, 1
