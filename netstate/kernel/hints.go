package kernel

import (
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	links "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// concerns says whether a message is about something of ours or about an interface that may be an underlay.
// Pods come and go on veth devices: those messages are dropped here.
func (k *Kernel) concerns(m netlink.Message) bool {
	f := k.filter.Load()
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return k.concernsLink(f, m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR: // every veth gets a link-local address
		addr, ok := netip.AddrFromSlice(attribute(m.Data, unix.SizeofIfAddrmsg, unix.IFA_ADDRESS))
		return ok && !linkLocal(addr)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return f.links[int(field32(m.Data, 4))] && !k.echoes.heard(m)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return k.concernsRoute(m.Data, f.links)
	}
	return false
}

// concernsLink is false for two kinds of messages that every new pod causes: about its veth device, unless that has an
// address or a wanted name, and about the bridge, which is as it was.
func (k *Kernel) concernsLink(f *filter, m netlink.Message) bool {
	if len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_UNSPEC { // another family's are about bridge ports
		return false
	}
	l, err := links.LinkDeserialize(nil, m.Data)
	if err != nil {
		return true
	}
	a := l.Attrs()
	known, ours := f.objects[a.Index]
	switch {
	case ours:
		return m.Header.Type == unix.RTM_DELLINK || decodeLink(l, f.names) != known
	case f.wanted[a.Name], a.Alias == netstate.Mark, l.Type() != "veth":
		return true
	}
	if carriers := k.carriers.Load(); carriers != nil {
		return (*carriers)[a.Index]
	}
	return !strings.HasPrefix(a.Name, "veth") // nobody has looked for underlays yet
}
