package packet

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxFrame is how many bytes of a frame are captured.
const MaxFrame = 1 << 16

// Captured is one frame as a packet socket delivers it.
type Captured struct {
	Index    int       // of the device
	Dev      string    // its name
	Hardware uint16    // the kind of the device: unix.ARPHRD_ETHER
	Type     uint8     // whom it is for, or that it leaves: unix.PACKET_OUTGOING
	Time     time.Time // when the kernel saw it; zero unless the Tap stamps
	Length   int       // the frame's, which may exceed Data's
	Data     []byte    // valid until the next one is read
}

// HasEthernet reports whether frames of a kind of device begin with an Ethernet header. Those of tunnels (ipip,
// wireguard, tun) begin with an IP header.
func HasEthernet(hardware uint16) bool {
	return hardware == unix.ARPHRD_ETHER || hardware == unix.ARPHRD_LOOPBACK
}

// Decode decodes the frame.
func (c Captured) Decode() Frame { return decodeOn(c.Hardware, c.Data) }

// Sighting decodes the frame, which was seen on a host.
func (c Captured) Sighting(host string) Sighting {
	return Sighting{Point{host, c.Dev, c.Type == unix.PACKET_OUTGOING}, c.Type == unix.PACKET_OTHERHOST, c.Decode()}
}

// Stamp lets the kernel note when it saw each frame.
func (t *Tap) Stamp() error {
	if err := unix.SetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return fmt.Errorf("ask for the times of packets: %w", err)
	}
	return nil
}

// Lost returns how many frames found the tap's buffer full since the last call.
func (t *Tap) Lost() (uint32, error) {
	stats, err := unix.GetsockoptTpacketStats(t.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0, fmt.Errorf("ask for the number of lost packets: %w", err)
	}
	return stats.Drops, nil
}

// maxRead is how many frames one Each takes: where packets go round in a loop they come faster than they are read.
const maxRead = 1 << 15

// Each calls a function with each frame that waits, at most maxRead, in the order of their capture, until it returns an
// error. It does not block.
func (t *Tap) Each(do func(Captured) error) error {
	for range maxRead {
		n, oob, _, from, err := unix.Recvmsg(t.fd, t.buf, t.oob, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN): // of one device
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return fmt.Errorf("read packets: %w", err)
		}
		at, ok := from.(*unix.SockaddrLinklayer)
		if !ok {
			continue
		}
		c := Captured{Index: at.Ifindex, Dev: t.name(at.Ifindex), Hardware: at.Hatype, Type: at.Pkttype, Time: stampOf(t.oob[:oob]),
			Length: n, Data: t.buf[:min(n, len(t.buf))]}
		if err := do(c); err != nil {
			return err
		}
	}
	return nil
}

// stampOf finds the time among a message's ancillary data.
func stampOf(oob []byte) time.Time {
	for len(oob) > 0 {
		header, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		if header.Level == unix.SOL_SOCKET && header.Type == unix.SCM_TIMESTAMPNS &&
			len(data) >= int(unsafe.Sizeof(unix.Timespec{})) {
			return time.Unix((*unix.Timespec)(unsafe.Pointer(&data[0])).Unix())
		}
		oob = rest
	}
	return time.Time{}
}
