package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A question is repeated, because one may get lost, and its answers are waited for: machines of a segment give them within
// milliseconds, or what they run on is busy.
const (
	questions   = 3
	answerAfter = 200 * time.Millisecond
)

// maxHolders is how many machines are told apart.
const maxHolders = 8

// Holders asks on an Ethernet device, in the namespace of the calling thread, who has an IPv4 address, and returns the MACs
// of those that answer: a machine that has it itself does not hear its own question. It is the question of RFC 5227, which
// names no sender's address, and so alters nobody's table. It takes 0.6 s.
func Holders(dev string, addr netip.Addr) ([]net.HardwareAddr, error) {
	if !addr.Is4() {
		return nil, fmt.Errorf("ask for %s: want an IPv4 address", addr)
	}
	s, err := openARP(dev)
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", addr, err)
	}
	defer unix.Close(s.fd)
	var holders []net.HardwareAddr
	for range questions {
		if err := s.send(ARP{Operation: ARPRequest, Sender: netip.IPv4Unspecified(), Target: addr}); err != nil {
			return nil, fmt.Errorf("ask for %s: %w", addr, err)
		}
		if holders, err = answers(s.fd, addr, holders); err != nil {
			return nil, fmt.Errorf("read ARP on %s: %w", dev, err)
		}
	}
	return holders, nil
}

// answers adds to holders who says within answerAfter that it has the address.
func answers(fd int, addr netip.Addr, holders []net.HardwareAddr) ([]net.HardwareAddr, error) {
	buf := make([]byte, 128)
	for end := time.Now().Add(answerAfter); ; {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		switch left := time.Until(end); {
		case err == nil:
			at, ok := from.(*unix.SockaddrLinklayer)
			if mac := holder(buf[:n], addr); ok && at.Pkttype != unix.PACKET_OUTGOING && mac != nil &&
				len(holders) < maxHolders && !slices.ContainsFunc(holders, func(h net.HardwareAddr) bool { return bytes.Equal(h, mac) }) {
				holders = append(holders, mac)
			}
			if left <= 0 { // who sends more than is read does not keep it from ending
				return holders, nil
			}
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EAGAIN):
			return nil, err
		case left <= 0:
			return holders, nil
		default:
			ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if _, err := unix.Poll(ready, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
				return nil, err
			}
		}
	}
}

// holder returns the MAC of who sends an ARP packet as the one that has the address, nil if it does not.
func holder(frame []byte, addr netip.Addr) net.HardwareAddr {
	if len(frame) < arpAt+arpLength || binary.BigEndian.Uint16(frame[12:]) != etherARP ||
		!bytes.Equal(frame[arpAt:arpAt+6], []byte{0, 1, 0x08, 0, 6, 4}) ||
		!bytes.Equal(frame[arpSenderAt+6:arpSenderAt+10], addr.AsSlice()) {
		return nil
	}
	return slices.Clone(net.HardwareAddr(frame[arpSenderAt : arpSenderAt+6]))
}
