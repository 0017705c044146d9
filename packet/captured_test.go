package packet

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestStamps: a datagram over the loopback, with its bytes, and the time at which the kernel saw it.
func TestStamps(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("want root")
	}
	tap, err := OpenTap()
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	if err := tap.Stamp(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	to := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}
	c, err := net.DialUDP("udp4", nil, to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("twill-stamp")); err != nil {
		t.Fatal(err)
	}
	var types []uint8
	for end := time.Now().Add(5 * time.Second); len(types) < 2 && time.Now().Before(end); {
		if err := Wait([]*Tap{tap}, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		err := tap.Each(func(c Captured) error {
			f := Decode(c.Data)
			udp, ok := f.First("udp")
			if ok && udp.To == "9" && f.Between(netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.1")) {
				types = append(types, c.Type)
				if c.Length != 14+20+8+len("twill-stamp") || len(c.Data) != c.Length || c.Hardware != unix.ARPHRD_LOOPBACK {
					t.Errorf("%d of %d bytes on a device of kind %d", len(c.Data), c.Length, c.Hardware)
				}
				if c.Time.Before(began) || c.Time.After(time.Now()) {
					t.Errorf("seen at %v: want a time since %v", c.Time, began)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(types) != 2 || types[0] != unix.PACKET_OUTGOING || types[1] != unix.PACKET_HOST {
		t.Errorf("seen as %v: want it to leave, and to come in", types)
	}
	if lost, err := tap.Lost(); lost != 0 || err != nil {
		t.Errorf("%d frames lost, %v", lost, err)
	}
}
