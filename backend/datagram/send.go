package datagram

import (
	"errors"
	"net"
	"net/netip"

	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// The most that one message to the kernel may hold: datagrams (UDP_MAX_SEGMENTS), and bytes.
const maxSegments, maxMessage = 64, 65000

// Sender collects datagrams, as few messages. One goroutine uses it at a time.
type Sender struct {
	*Socket
	messages []ipv6.Message
	size     int // of the datagrams of the last message, but for its last one; 0: it takes no more
	bytes    int // in the last message
}

// Add takes a datagram, which must not change before Flush. Those of one size and to one address, by the
// same pointer, go into one message; a shorter one ends it. from is the address of this host to send from;
// invalid: the kernel chooses.
func (s *Sender) Add(datagram []byte, to *net.UDPAddr, from netip.Addr) {
	if last := len(s.messages) - 1; last >= 0 && s.segments.Load() && s.size > 0 && len(datagram) <= s.size &&
		s.messages[last].Addr == net.Addr(
			to,
		) && s.bytes+len(datagram) <= maxMessage && len(s.messages[last].Buffers) < maxSegments {
		m := &s.messages[last]
		m.Buffers = append(m.Buffers, datagram)
		s.bytes += len(datagram)
		if len(m.Buffers) == 2 {
			m.OOB = appendSegmentSize(m.OOB, uint16(s.size))
		}
		if len(datagram) < s.size {
			s.size = 0
		}
		return
	}
	s.messages = s.next()
	m := &s.messages[len(s.messages)-1]
	m.Buffers, m.OOB, m.Addr = append(m.Buffers[:0], datagram), appendSource(m.OOB[:0], from), to
	s.size, s.bytes = len(datagram), len(datagram)
}

// next makes room for a message, with the memory of an earlier one.
func (s *Sender) next() []ipv6.Message {
	if n := len(s.messages); n < cap(s.messages) {
		return s.messages[:n+1]
	}
	return append(s.messages, ipv6.Message{})
}

// Flush sends everything. failed gets each message's error; the others go all the same.
func (s *Sender) Flush(failed func(to net.Addr, err error)) {
	for rest := s.messages; len(rest) > 0; {
		n, err := s.batch.WriteBatch(rest, 0)
		if err != nil {
			if err = s.again(rest[0], err); err != nil {
				failed(rest[0].Addr, err)
			}
			n = max(n, 1)
		}
		rest = rest[n:]
	}
	s.messages = s.messages[:0]
}

// again sends by single datagrams what the kernel refused to cut: they are longer than the path's MTU
// (EINVAL), and single ones it fragments; or the interface cannot (EIO). EINVAL is also its answer to a
// source that is no address of this host any more.
func (s *Sender) again(m ipv6.Message, err error) error {
	if errors.Is(err, unix.EIO) {
		s.segments.Store(false)
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EIO) {
		return err
	}
	for _, datagram := range m.Buffers {
		if _, err := s.conn.WriteTo(datagram, m.Addr); err != nil {
			return err
		}
	}
	return nil
}
