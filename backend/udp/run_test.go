package udp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/backendtest"
	"github.com/twill-net/twill/backend/tun"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

func TestMain(m *testing.M) { os.Exit(backendtest.Main(m)) }

func command(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		words := strings.Fields(line)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
}

// peer is a socket in another network namespace, behind the veth u0: what flannel's node 2 has.
func peer(t *testing.T) *net.UDPConn {
	t.Helper()
	opened, tid, moved, done := make(chan *net.UDPConn), make(chan int), make(chan bool), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine, and the namespace with the socket
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		tid <- unix.Gettid()
		<-moved
		for _, line := range []string{"ip link set lo up", "ip addr add 192.0.2.2/24 dev u0p", "ip addr add 2001:db8::2/64 dev u0p nodad", "ip link set u0p up"} {
			words := strings.Fields(line)
			if err := exec.Command(words[0], words[1:]...).Run(); err != nil {
				done <- fmt.Errorf("%s: %w", line, err)
				return
			}
		}
		c, err := net.ListenUDP("udp", &net.UDPAddr{Port: 8285})
		if err != nil {
			done <- err
			return
		}
		opened <- c
	}()
	select {
	case err := <-done:
		t.Fatal(err)
	case id := <-tid:
		command(t, fmt.Sprintf("ip link set u0p netns %d", id))
		moved <- true
	}
	select {
	case err := <-done:
		t.Fatal(err)
	case c := <-opened:
		t.Cleanup(func() { c.Close() })
		return c
	}
	return nil
}

// node makes the device as the reconciler does, and runs the backend on it.
func node(t *testing.T) (far *net.UDPConn, views chan backend.Input) {
	t.Helper()
	command(t, "ip link set lo up", "ip link add u0 type veth peer name u0p")
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "u0").Run() }) // unless it went with the peer's namespace
	far = peer(t)
	command(t, "ip addr add 192.0.2.1/24 dev u0", "ip addr add 2001:db8::1/64 dev u0 nodad", "ip link set u0 up")
	device(t)
	t.Cleanup(func() { command(t, "ip link del flannel0") })
	views = make(chan backend.Input, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended, first := make(chan error, 1), make(chan string, 1)
	say := func(line string) { // nobody reads more than the first, and a slow machine has many
		select {
		case first <- line:
		default:
		}
	}
	env := backend.Env{Log: backendtest.Log(say)}
	b := newBackend(t, `{}`)
	go func() {
		err := b.Run(ctx, env, views)
		for err != nil && ctx.Err() == nil {
			say(err.Error())
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
			select {
			case views <- backend.Input{Snapshot: snap}:
			default:
			}
			err = b.Run(ctx, env, views)
		}
		ended <- err
	}()
	views <- backend.Input{Snapshot: snap}
	if said := <-first; !strings.Contains(said, "moving packets") {
		t.Fatal(said)
	}
	testwait.Until(t, "the kernel has seen that somebody reads packets", func() bool { // it drops them before
		i, err := net.InterfaceByName(Device)
		return err == nil && i.Flags&net.FlagRunning != 0
	})
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return far, views
}

// device makes the device, also where the backend is just about to open the one of before, which makes it busy.
func device(t *testing.T) {
	t.Helper()
	testwait.Nil(t, "there is a new device", func() error {
		_ = exec.Command("ip", "link", "del", "flannel0").Run()
		return exec.Command("ip", "tuntap", "add", "flannel0", "mode", "tun").Run()
	})
	command(t, "ip link set flannel0 mtu 1452 up", "ip addr add 10.244.1.0/32 dev flannel0",
		"ip addr add fc00:0:0:1::/128 dev flannel0 nodad", "ip route add 10.244.0.0/16 dev flannel0", "ip route add fc00::/48 dev flannel0")
}

// TestWire: a datagram is an IP packet and nothing else, in both directions and both families.
func TestWire(t *testing.T) {
	far, _ := node(t)
	for _, c := range []struct{ pod, node, underlay string }{
		{"10.244.2.9", "10.244.1.0", "192.0.2.1"}, {"fc00:0:0:2::9", "fc00:0:0:1::", "2001:db8::1"}} {
		local, err := net.ListenPacket("udp", net.JoinHostPort(c.node, "7000"))
		if err != nil {
			t.Fatal(err)
		}
		defer local.Close()
		text := "to " + c.pod // the first one may have been sent more than once
		packet := read(t, far, text, func() {
			if _, err := local.WriteTo([]byte(text), &net.UDPAddr{IP: net.ParseIP(c.pod), Port: 9}); err != nil {
				t.Fatal(err)
			}
		})
		src, dst, ok := addresses(packet)
		if !ok || src.String() != c.node || dst.String() != c.pod || len(packet) != header(src)+8+len(text) {
			t.Fatalf("the peer got % x", packet)
		}
		back := answer(packet, strings.ToUpper(text))
		buf := make([]byte, 99)
		var n int
		var from net.Addr
		testwait.Nil(t, "the answer comes", func() (err error) { // a new IPv6 address is reached a moment later
			if _, err := far.WriteToUDPAddrPort(back, netip.AddrPortFrom(netip.MustParseAddr(c.underlay), 8285)); err != nil {
				t.Fatal(err)
			}
			_ = local.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
			n, from, err = local.ReadFrom(buf)
			return err
		})
		if string(buf[:n]) != strings.ToUpper(text) || from.String() != net.JoinHostPort(c.pod, "9") {
			t.Errorf("got %q from %v", buf[:n], from)
		}
		once(t, far, local, answer(packet, "once"+text[4:]), netip.AddrPortFrom(netip.MustParseAddr(c.underlay), 8285))
	}
}

// once sends an answer when no other is on the way: it comes once and alone.
func once(t *testing.T, far *net.UDPConn, local net.PacketConn, packet []byte, to netip.AddrPort) {
	t.Helper()
	const silence = 300 * time.Millisecond
	hear := func(within time.Duration) string {
		buf := make([]byte, 99)
		_ = local.SetReadDeadline(time.Now().Add(within))
		n, _, err := local.ReadFrom(buf)
		if err != nil {
			return ""
		}
		return string(buf[:n])
	}
	for hear(silence) != "" {
	}
	if _, err := far.WriteToUDPAddrPort(packet, to); err != nil {
		t.Fatal(err)
	}
	if first, second := hear(testwait.Limit), hear(silence); !strings.HasPrefix(first, "once") || second != "" {
		t.Errorf("got %q and %q, want the new packet alone", first, second)
	}
}

func header(a netip.Addr) int {
	if a.Is4() {
		return header4
	}
	return header6
}

// read is the next packet that ends in text: the kernel sends its own in between. Until it comes, send is
// called again and again, because links take a moment to come up.
func read(t *testing.T, c *net.UDPConn, text string, send func()) []byte {
	t.Helper()
	buf := make([]byte, 2000)
	for end := time.Now().Add(testwait.Limit); time.Now().Before(end); {
		send()
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		for {
			n, err := c.Read(buf)
			if err != nil {
				break
			}
			if bytes.HasSuffix(buf[:n], []byte(text)) {
				return buf[:n]
			}
		}
	}
	t.Fatalf("no packet with %q", text)
	return nil
}

// answer is a UDP packet turned around, with as many other bytes; the checksum is computed anew.
func answer(p []byte, text string) []byte {
	a := bytes.Clone(p)
	src, dst, _ := addresses(p)
	at, h := 12, header(src)
	if !src.Is4() {
		at = 8
	}
	size := src.BitLen() / 8
	copy(a[at:], dst.AsSlice())
	copy(a[at+size:], src.AsSlice())
	copy(a[h:], p[h+2:h+4])
	copy(a[h+2:], p[h:h+2])
	copy(a[h+8:], text)
	a[h+6], a[h+7] = 0, 0
	sum := checksum(a[h:], uint32(17+len(a)-h)+uint32(^checksum(a[at:at+2*size], 0)))
	a[h+6], a[h+7] = byte(sum>>8), byte(sum)
	return a
}

// TestTake: only IP packets that their sender may send get to the device.
func TestTake(t *testing.T) {
	var table atomic.Pointer[table]
	b := newBackend(t, `{}`)
	table.Store(b.newTable(backend.Input{Snapshot: snap}))
	four := append([]byte{0x45, 0, 0, 21}, make([]byte, 17)...)
	six := append([]byte{0x60, 0, 0, 0, 0, 1}, make([]byte, 35)...)
	for _, c := range []struct {
		name, from, src string
		packet          []byte
		want            bool
	}{
		{"a pod of the peer", "192.0.2.2", "10.244.2.9", four, true},
		{"the peer", "192.0.2.2", "192.0.2.2", four, true},
		{"a pod of the peer, IPv6", "2001:db8::2", "fc00:0:0:2::9", six, true},
		{"a pod of the peer, as a socket of both families has it", "::ffff:192.0.2.2", "10.244.2.9", four, true},
		{"a stranger", "192.0.2.66", "10.244.2.9", four, false},
		{"this node", "192.0.2.1", "10.244.1.9", four, false},
		{"a pod of this node, from the peer", "192.0.2.2", "10.244.1.9", four, false},
		{"a pod of another node", "192.0.2.2", "10.244.3.9", four, false},
		{"an address outside", "192.0.2.2", "198.51.100.1", four, false},
		{"IPv6, from the peer's IPv4 address", "192.0.2.2", "fc00:0:0:2::9", six, false},
		{"no IP packet", "192.0.2.2", "10.244.2.9", append([]byte{0x55}, four[1:]...), false},
		{"an IP packet that is cut short", "192.0.2.2", "10.244.2.9", four[:20], false},
	} {
		packet, src := bytes.Clone(c.packet), netip.MustParseAddr(c.src)
		copy(packet[map[bool]int{true: 12, false: 8}[src.Is4()]:], src.AsSlice())
		w := writer{table: &table, bufs: buffers(1)}
		w.add(packet, netip.AddrPortFrom(netip.MustParseAddr(c.from), 8285), netip.Addr{})
		if got := len(w.batch) == 1; got != c.want {
			t.Errorf("%s: taken %t, want %t", c.name, got, c.want)
		}
		if w.add(packet, netip.AddrPortFrom(netip.MustParseAddr(c.from), 8285), netip.Addr{}); len(w.batch) > len(w.bufs) {
			t.Errorf("%s: %d packets in %d buffers", c.name, len(w.batch), len(w.bufs))
		}
	}
}

// TestNoRoute: who sends to a subnet that nobody has is told.
func TestNoRoute(t *testing.T) {
	node(t)
	for _, dst := range []string{"10.244.9.9:9", "[fc00:0:0:9::9]:9"} {
		c, err := net.Dial("udp", dst)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		tellErrors(t, c.(*net.UDPConn))
		testwait.Nil(t, dst+" is told that the network is unreachable", func() error {
			_, _ = c.Write([]byte("hello"))
			_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if _, err := c.Read(make([]byte, 9)); !errors.Is(err, unix.ENETUNREACH) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
	}
}

// tellErrors makes a socket tell of ICMP errors that may pass, too.
func tellErrors(t *testing.T, c *net.UDPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if c.LocalAddr().(*net.UDPAddr).IP.To4() == nil {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) })
	if err != nil {
		t.Fatal(err)
	}
}

// TestNextView: it takes effect while packets move, and ends nothing.
func TestNextView(t *testing.T) {
	far, views := node(t)
	next := snap
	next.Peers = append([]subnet.Lease{lease("n9", stack("10.244.9.0/24", "192.0.2.2"))}, snap.Peers[1:]...)
	views <- backend.Input{Snapshot: next}
	read(t, far, "next", func() {
		c, err := net.Dial("udp", "10.244.9.9:9")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte("next"))
		c.Close()
	})
}

// TestDeviceDeleted: the next view finds it out, and the run after that goes on with the new device.
func TestDeviceDeleted(t *testing.T) {
	far, views := node(t)
	device(t) // deletes the one of before
	views <- backend.Input{Snapshot: snap}
	read(t, far, "anew", func() {
		c, err := net.Dial("udp", "10.244.2.9:9")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte("anew"))
		c.Close()
	})
}

// TestPortTaken: the error names the port, and the device is free for the next try.
func TestPortTaken(t *testing.T) {
	command(t, "ip link set lo up")
	device(t)
	defer command(t, "ip link del flannel0")
	other, err := net.ListenUDP("udp", &net.UDPAddr{Port: 8285})
	if err != nil {
		t.Fatal(err)
	}
	b, views := newBackend(t, `{}`), make(chan backend.Input, 1)
	views <- backend.Input{Snapshot: snap}
	env := backend.Env{Log: slog.New(slog.DiscardHandler)}
	if err := b.Run(t.Context(), env, views); err == nil || !strings.Contains(err.Error(), "listen on UDP port 8285") {
		t.Errorf("Run: %v, want an error that names the port", err)
	}
	other.Close()
	p, err := b.open(env, backend.Input{Snapshot: snap})
	if err != nil {
		t.Fatalf("open again: %v", err)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
}

// TestLost: what could not be sent is told, but not that the end came.
func TestLost(t *testing.T) {
	var said []string
	p := proxy{env: backend.Env{Log: backendtest.Log(func(line string) { said = append(said, line) })}}
	p.lost(&net.UDPAddr{Port: 1}, fmt.Errorf("write: %w", net.ErrClosed))
	p.lost(&net.UDPAddr{Port: 2}, unix.EHOSTUNREACH)
	if want := `msg="send to a peer" via=:2 err="no route to host"`; len(said) != 1 || !strings.HasSuffix(said[0], want) {
		t.Errorf("said %q, want %q", said, want)
	}
}

// TestOpenMissing: a device that is not there is not made, and Run ends with that.
func TestOpenMissing(t *testing.T) {
	views := make(chan backend.Input, 1)
	views <- backend.Input{Snapshot: snap}
	if err := newBackend(t, `{}`).Run(t.Context(), backend.Env{}, views); !errors.Is(err, tun.ErrMissing) {
		t.Errorf("Run: %v, want that the device is missing", err)
	}
	if _, err := tun.Open("nodev0"); !errors.Is(err, tun.ErrMissing) {
		t.Errorf("got %v", err)
	}
	if _, err := net.InterfaceByName("nodev0"); err == nil {
		t.Error("the device is there now")
	}
}
