package kernel

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// batchSize is how many requests are sent in one system call.
const batchSize = 500

// answerSize is more than the kernel charges for an answer, in bytes. Answers for which there is no room in the receive
// buffer are lost without a word (seen on 6.18), so a batch has no more requests than answers find room.
const answerSize = 2048

// batch collects changes whose requests go to the kernel together. The kernel answers to those that fail and, because
// it was asked to, to the last one. What failed is done again, alone, in apply's careful way, which knows what to try
// next and has the error's words; what lost its answer too: each request can be repeated.
type batch struct {
	*socket
	echoes  *echoes
	changes []netstate.Change // in the order of the requests in out
	last    int               // where the last request begins in out
	most    int               // how many requests
}

func newBatch(s *socket, e *echoes) *batch {
	room, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		room = 0
	}
	return &batch{socket: s, echoes: e, most: min(max(room/answerSize, 1), batchSize)}
}

// takes adds c if it is one of those of which there can be thousands, and says whether it did.
func (b *batch) takes(a *applier, c netstate.Change) bool {
	object, kind, flags := c.Want, uint16(0), uint16(unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	if object == nil {
		object, kind, flags = c.Was, 1, 0 // RTM_DEL… follows RTM_NEW…
	}
	start := len(b.out)
	switch o := object.(type) {
	case netstate.Neigh:
		index, ok := a.index(o.Dev)
		if !ok {
			return false
		}
		b.neigh(kind+unix.RTM_NEWNEIGH, flags, ndmsg(family(o.IP), index, 0), o.IP.AsSlice(), o.MAC)
		if c.Want == nil {
			b.echoes.expect(echo{unix.RTM_DELNEIGH, index, netstate.MAC{}, o.IP})
		}
	case netstate.FDB:
		index, ok := a.index(o.Dev)
		if !ok || !o.MAC.IsUnicast() || !o.Dst.IsValid() || o.Extra != "" {
			return false
		}
		b.neigh(kind+unix.RTM_NEWNEIGH, flags, ndmsg(unix.AF_BRIDGE, index, unix.NTF_SELF), o.Dst.AsSlice(), o.MAC)
		b.echoes.expect(echo{kind + unix.RTM_NEWNEIGH, index, o.MAC, o.Dst})
		b.echoes.expect(echo{kind + unix.RTM_NEWNEIGH, index, o.MAC, netip.Addr{}}) // 6.1 says it twice
	case netstate.Route:
		index, ok := a.index(o.Dev)
		if !ok && o.Dev != "" || o.Dev == "" && !o.Blackhole {
			return false
		}
		b.route(kind+unix.RTM_NEWROUTE, flags, o, index)
	default:
		return false
	}
	b.changes, b.last = append(b.changes, c), start
	return true
}

func (a *applier) index(dev string) (int, bool) {
	l, ok := a.links[dev]
	if !ok {
		return 0, false
	}
	return l.Attrs().Index, true
}

// ndmsg is struct ndmsg of a permanent entry.
func ndmsg(family, index int, flags byte) (m [sizeofNdMsg]byte) {
	m[0] = byte(family)
	binary.NativeEndian.PutUint32(m[4:], uint32(index))
	binary.NativeEndian.PutUint16(m[8:], unix.NUD_PERMANENT)
	m[10] = flags
	return m
}

func (b *batch) neigh(kind, flags uint16, m [sizeofNdMsg]byte, dst []byte, mac netstate.MAC) {
	start := len(b.out)
	b.begin(kind, flags, m[:])
	b.attribute(start, unix.NDA_DST, dst)
	b.attribute(start, unix.NDA_LLADDR, mac[:])
}

// route adds a request with struct rtmsg. To delete, "no type" and "scope nowhere" stand for any; see deleteRoute.
func (b *batch) route(kind, flags uint16, r netstate.Route, index int) {
	m := [unix.SizeofRtMsg]byte{byte(family(r.Dst.Addr())), byte(r.Dst.Bits()), 0, byte(r.TOS), unix.RT_TABLE_MAIN, byte(r.Protocol)}
	switch {
	case kind == unix.RTM_DELROUTE:
		m[6] = unix.RT_SCOPE_NOWHERE
	case r.Blackhole:
		m[7] = unix.RTN_BLACKHOLE
	default:
		m[7] = unix.RTN_UNICAST
		if !r.Via.IsValid() {
			m[6] = unix.RT_SCOPE_LINK
		}
		if r.Onlink {
			binary.NativeEndian.PutUint32(m[8:], unix.RTNH_F_ONLINK)
		}
	}
	start := len(b.out)
	b.begin(kind, flags, m[:])
	b.attribute(start, unix.RTA_DST, r.Dst.Addr().AsSlice())
	switch {
	case r.Outer.IsValid() && kind == unix.RTM_DELROUTE: // the kernel does not compare it
	case r.Outer.IsValid():
		b.encap(start, r)
	case r.Via.IsValid():
		b.attribute(start, unix.RTA_GATEWAY, r.Via.AsSlice())
	}
	if r.Src.IsValid() {
		b.attribute(start, unix.RTA_PREFSRC, r.Src.AsSlice())
	}
	if r.Metric > 0 {
		b.attribute(start, unix.RTA_PRIORITY, binary.NativeEndian.AppendUint32(nil, uint32(r.Metric)))
	}
	if index > 0 && !r.Blackhole {
		b.attribute(start, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))
	}
}

// full says whether it is time to flush.
func (b *batch) full() bool { return len(b.changes) >= b.most }

// drop forgets what was taken and not sent.
func (b *batch) drop() { b.out, b.changes = b.out[:0], nil }

// flush sends what was taken, and returns the changes that have to be done again.
func (b *batch) flush() []netstate.Change {
	if len(b.changes) == 0 {
		return nil
	}
	changes, first, last := b.changes, b.sent, b.seq
	b.changes = b.changes[:0]
	flags := binary.NativeEndian.Uint16(b.out[b.last+6:])
	binary.NativeEndian.PutUint16(b.out[b.last+6:], flags|unix.NLM_F_ACK)
	if err := b.send(); err != nil {
		return changes
	}
	failed := changes[:0:0]
	for over := false; !over; {
		err := b.receive(func(h header, data []byte) error {
			if h.kind != unix.NLMSG_ERROR || h.seq-first > last-first {
				return nil // of an earlier batch
			}
			c := changes[h.seq-first]
			if err := errno(data); err != nil && (c.Want != nil || ignoreAbsent(err) != nil) {
				failed = append(failed, c)
			}
			over = h.seq == last
			return nil
		})
		if err != nil && !errors.Is(err, unix.EINTR) {
			return changes
		}
	}
	return failed
}
