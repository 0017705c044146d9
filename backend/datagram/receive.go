package datagram

import (
	"net"
	"net/netip"

	"golang.org/x/net/ipv6"
)

// messageSize is the most that the kernel puts together into one message, in bytes.
const messageSize = 65535

// Receiver takes messages, each of up to 64 datagrams. One goroutine uses it.
type Receiver struct {
	*Socket
	messages []ipv6.Message
}

// Most is how many datagrams a Receiver of n messages gives at a time, at most.
func Most(messages int) int { return messages * maxSegments }

// NewReceiver takes up to n messages at a time.
func NewReceiver(s *Socket, n int) *Receiver {
	r := &Receiver{s, make([]ipv6.Message, n)}
	for i := range r.messages {
		r.messages[i].Buffers, r.messages[i].OOB = [][]byte{make([]byte, messageSize)}, make([]byte, controlSpace)
	}
	return r
}

// Receive waits for messages and gives each datagram to f, which must not keep it: from is who sent it, at
// the address of this host that it was sent to, which is invalid if the kernel does not say.
func (r *Receiver) Receive(f func(datagram []byte, from netip.AddrPort, at netip.Addr)) error {
	n, err := r.batch.ReadBatch(r.messages, 0)
	if err != nil {
		return err
	}
	for _, m := range r.messages[:n] {
		data := m.Buffers[0][:m.N]
		size, at := parseControl(m.OOB[:m.NN])
		if size <= 0 {
			size = max(len(data), 1)
		}
		from := m.Addr.(*net.UDPAddr).AddrPort()
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		for ; len(data) > 0; data = data[min(size, len(data)):] {
			f(data[:min(size, len(data))], from, at)
		}
	}
	return nil
}
