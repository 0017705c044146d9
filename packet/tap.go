package packet

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Point is where a packet is seen: a device of a host, in one direction.
type Point struct {
	Host string `json:"host"` // node1, node1/pod1, underlay
	Dev  string `json:"dev"`
	Out  bool   `json:"out"` // it leaves the host, or its stack, through the device
}

func (p Point) String() string {
	if p.Out {
		return p.Host + ", leaving through " + p.Dev
	}
	return p.Host + ", coming in through " + p.Dev
}

// Sighting is one frame, and where it was seen.
type Sighting struct {
	Point
	Stray bool  `json:"-"` // it comes in for another MAC than the device's
	Frame Frame `json:"frame"`
}

// Tap is a packet socket on all devices of a network namespace.
type Tap struct {
	fd    int
	names map[int32]string
	buf   []byte
	oob   []byte
}

// queue is the size of the receive buffer in bytes: a burst on a busy node fits.
const queue = 8 << 20

// OpenTap opens a Tap in the namespace of the calling thread. It sees incoming and outgoing frames.
func OpenTap() (*Tap, error) {
	flags := unix.SOCK_RAW | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	fd, err := unix.Socket(unix.AF_PACKET, flags, int(bigEndian(unix.ETH_P_ALL)))
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	t := &Tap{fd: fd, names: map[int32]string{}, buf: make([]byte, MaxFrame), oob: make([]byte, 64)}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queue); err != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, queue) // what the limit allows
	}
	devices, err := net.Interfaces()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("list devices: %w", err), t.Close())
	}
	for _, d := range devices {
		t.names[int32(d.Index)] = d.Name
	}
	return t, nil
}

// bigEndian is the protocol number as packet sockets want it, whatever the machine's byte order is.
func bigEndian(v uint16) uint16 { return v<<8 | v>>8 }

// Close stops listening.
func (t *Tap) Close() error { return unix.Close(t.fd) }

// Wait returns when one of the taps has something to read, or after the timeout.
func Wait(taps []*Tap, timeout time.Duration) error {
	var fds []unix.PollFd
	for _, t := range taps {
		fds = append(fds, unix.PollFd{Fd: int32(t.fd), Events: unix.POLLIN})
	}
	if _, err := unix.Poll(fds, int(timeout.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for packets: %w", err)
	}
	return nil
}

// decodeOn decodes a frame of a kind of device: tunnels (ipip, wireguard, tun) have no Ethernet header.
func decodeOn(kind uint16, data []byte) Frame {
	if HasEthernet(kind) {
		return Decode(data)
	}
	return decodeIP(data)
}

func (t *Tap) name(index int) string {
	name := t.names[int32(index)]
	if name == "" {
		name = fmt.Sprintf("device %d, which is new", index)
		t.names[int32(index)] = name
	}
	return name
}
