package unusual

import (
	"bytes"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
)

// space is the network namespace of the thread that opened it.
type space struct {
	conn   *rtnl.Conn
	links  []link
	names  map[int]string // of links, by index
	routes map[byte][]route
	addrs  []address
}

func open() (*space, error) {
	conn, err := rtnl.Dial()
	if err != nil {
		return nil, err
	}
	s := &space{conn: conn, routes: map[byte][]route{}}
	if err := s.readLinks(); err != nil {
		conn.Close()
		return nil, err
	}
	return s, nil
}

// list returns a copy of each message of a kind. A kernel without the kind has none.
func (s *space) list(what string, kind int, header nl.NetlinkRequestData, more ...nl.NetlinkRequestData) ([][]byte, error) {
	all, err := rtnl.Retry(what, func() (all [][]byte, err error) {
		r := nl.NewNetlinkRequest(kind, unix.NLM_F_DUMP)
		r.AddData(header)
		for _, m := range more {
			r.AddData(m)
		}
		return all, s.conn.List(r, func(m []byte) error {
			all = append(all, bytes.Clone(m))
			return nil
		})
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	return all, err
}

var families = []byte{unix.AF_INET, unix.AF_INET6}

// tool returns how iproute2's ip is called for a family.
func tool(family byte) string {
	if family == unix.AF_INET6 {
		return "ip -6"
	}
	return "ip"
}

// link is a device, with what is asked for often.
type link struct {
	rtnl.Link
	index  int
	flags  uint32
	name   string
	kind   string // veth, bridge, …; empty: hardware, or lo
	master int
	mtu    int
}

// skipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h.
const skipStats = 1 << 3

func (s *space) readLinks() error {
	messages, err := s.list("links", unix.RTM_GETLINK, nl.NewIfInfomsg(unix.AF_UNSPEC),
		nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	if err != nil {
		return err
	}
	s.links, s.names = nil, map[int]string{}
	for _, m := range messages {
		l, err := parseLink(m)
		if err != nil {
			return err
		}
		s.links, s.names[l.index] = append(s.links, l), l.name
	}
	return nil
}

// oneLink returns the request for one device.
func oneLink(index int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	r.AddData(header)
	r.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	return r
}

func parseLink(m []byte) (link, error) {
	l, err := rtnl.ParseLink(m)
	if err != nil {
		return link{}, err
	}
	return link{l, l.Index(), l.Flags(), l.Name(), l.Kind(), l.Master(), l.MTU()}, nil
}

// byName returns a device, and the zero link if there is none.
func (s *space) byName(name string) link {
	for _, l := range s.links {
		if l.name == name {
			return l
		}
	}
	return link{}
}

func (s *space) byIndex(index int) link {
	for _, l := range s.links {
		if l.index == index {
			return l
		}
	}
	return link{}
}
