package kernel

import (
	"net/netip"
	"strings"

	links "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// concerns says whether a message is about something of ours or about an interface that may be an underlay.
// Pods come and go on veth devices: those messages are dropped here.
func (k *Kernel) concerns(kind uint16, data []byte) bool {
	f := k.filter.Load()
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return k.concernsLink(f, kind, data)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR: // every veth gets a link-local address
		addr, ok := netip.AddrFromSlice(attribute(data, unix.SizeofIfAddrmsg, unix.IFA_ADDRESS))
		return ok && !linkLocal(addr)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return f.links[int(field32(data, 4))] && !k.echoes.heard(kind, data)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return k.concernsRoute(data, f.links)
	}
	return false
}

// concernsLink is false for two kinds of messages that every new pod causes: about its veth device, unless that has an
// address or a wanted name, and about the bridge, which is as it was.
func (k *Kernel) concernsLink(f *filter, kind uint16, data []byte) bool {
	if len(data) < unix.SizeofIfInfomsg || data[0] != unix.AF_UNSPEC { // another family's are about bridge ports
		return false
	}
	known, ours := f.objects[int(field32(data, 4))]
	if ours {
		l, err := links.LinkDeserialize(nil, data)
		return err != nil || kind == unix.RTM_DELLINK || decodeLink(l, f.names) != known
	}
	l, err := parseLink(data)
	switch {
	case err != nil, f.wanted[l.name], l.alias == netstate.Mark, l.kind != "veth":
		return true
	}
	if carriers := k.carriers.Load(); carriers != nil {
		return (*carriers)[int(field32(data, 4))]
	}
	return !strings.HasPrefix(l.name, "veth") // nobody has looked for underlays yet
}

// foreign is what has to be known of a link that was not ours at the last look.
type foreign struct{ name, alias, kind string }

// parseLink reads no more than that: links.LinkDeserialize makes a hundred objects of each message about a pod.
func parseLink(data []byte) (l foreign, err error) {
	err = attributes(data[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.name = unix.ByteSliceToString(value)
		case unix.IFLA_IFALIAS:
			l.alias = unix.ByteSliceToString(value)
		case unix.IFLA_LINKINFO:
			_ = attributes(value, func(kind uint16, value []byte) {
				if kind == unix.IFLA_INFO_KIND {
					l.kind = unix.ByteSliceToString(value)
				}
			})
		}
	})
	return l, err
}
