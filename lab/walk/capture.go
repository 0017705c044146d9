package walk

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/lab/host"
)

// sighting is one frame on one device.
type sighting struct {
	dev   string
	out   bool // leaving through the device
	frame Frame
}

// tap is a packet socket that sees every device of a namespace.
type tap struct {
	host  host.Host
	fd    int
	names map[int32]string
}

// openTap begins to listen. ETH_P_ALL also sees what the host itself sends.
func openTap(h host.Host) (*tap, error) {
	t := &tap{host: h, fd: -1, names: map[int32]string{}}
	err := h.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(bigEndian(unix.ETH_P_ALL)))
		if err != nil {
			return err
		}
		t.fd = fd
		devices, err := net.Interfaces()
		for _, d := range devices {
			t.names[int32(d.Index)] = d.Name
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen in %s: %w", h.Name, err), t.close())
	}
	return t, nil
}

// bigEndian is the protocol number as packet sockets want it, whatever the machine's byte order is.
func bigEndian(v uint16) uint16 { return v<<8 | v>>8 }

func (t *tap) close() error {
	if t.fd < 0 {
		return nil
	}
	return unix.Close(t.fd)
}

// read returns the echo requests to dst that were seen, in their order; it waits for the first one.
func (t *tap) read(dst netip.Addr, wait time.Duration) ([]sighting, error) {
	var seen []sighting
	buf := make([]byte, 65536)
	for end := time.Now().Add(wait); ; {
		n, from, err := unix.Recvfrom(t.fd, buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			left := time.Until(end)
			if len(seen) > 0 || left <= 0 {
				return seen, nil
			}
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
				return seen, fmt.Errorf("wait for packets in %s: %w", t.host.Name, err)
			}
			continue
		case err != nil:
			return seen, fmt.Errorf("read packets in %s: %w", t.host.Name, err)
		}
		at, ok := from.(*unix.SockaddrLinklayer)
		if frame := Decode(buf[:n]); ok && frame.request(dst) {
			seen = append(seen, sighting{t.names[int32(at.Ifindex)], at.Pkttype == unix.PACKET_OUTGOING, frame})
		}
	}
}
