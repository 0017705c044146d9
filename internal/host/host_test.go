package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
)

const mtu = 1500

// pair is two hosts with a cable between them.
func pair(t *testing.T) (a, b host.Host) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("network namespaces need root")
		}
		t.Skip("network namespaces need root")
	}
	a, b = host.Host{Name: fmt.Sprintf("twlh-%d-a", os.Getpid())}, host.Host{Name: fmt.Sprintf("twlh-%d-b", os.Getpid())}
	for _, h := range []host.Host{a, b} {
		if err := h.Create(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := h.Delete(); err != nil {
				t.Error(err)
			}
		})
	}
	must(t, a.Do(func() error { return plug(b) }))
	must(t, a.Links(func(nl *netlink.Handle) error { return up(nl, "10.99.0.1/24", "fd99::1/64") }))
	must(t, b.Links(func(nl *netlink.Handle) error { return up(nl, "10.99.0.2/24", "fd99::2/64") }))
	// The kernel opens a device's queue some time after its carrier came, drops what is sent before, and only then
	// takes the IPv6 address for usable. Who asks for a neighbour too early asks again after a second.
	testwait.Until(t, "the links are up", func() bool { return operUp(a) && operUp(b) })
	testwait.Until(t, "pings are answered", func() bool {
		echoes, err := a.PingAll(t.Context(), far, 50*time.Millisecond)
		return err == nil && echoes[0].Err == nil && echoes[1].Err == nil
	})
	return a, b
}

func operUp(h host.Host) (yes bool) {
	err := h.Links(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName("eth0")
		yes = err == nil && link.Attrs().OperState == netlink.OperUp
		return err
	})
	return err == nil && yes
}

// plug makes a cable from this thread's namespace to b's.
func plug(b host.Host) error {
	f, err := os.Open(b.Path())
	if err != nil {
		return err
	}
	defer f.Close()
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", MTU: mtu}, PeerName: "eth0",
		PeerNamespace: netlink.NsFd(f.Fd())})
}

func up(nl *netlink.Handle, addrs ...string) error {
	link, err := nl.LinkByName("eth0")
	if err != nil {
		return err
	}
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := nl.AddrAdd(link, addr); err != nil {
			return err
		}
	}
	return nl.LinkSetUp(link)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var far = []netip.Addr{netip.MustParseAddr("10.99.0.2"), netip.MustParseAddr("fd99::2")}

func TestPing(t *testing.T) {
	a, _ := pair(t)
	nobody := netip.MustParseAddr("10.99.0.77")
	echoes, err := a.PingAll(t.Context(), append(far, nobody), 3*time.Second)
	must(t, err)
	for i, e := range echoes[:2] {
		if e.Err != nil || e.RTT <= 0 || e.To != far[i] {
			t.Errorf("ping %s: %+v", far[i], e)
		}
	}
	if !errors.Is(echoes[2].Err, host.ErrNoReply) {
		t.Errorf("ping %s: %+v, want no reply", nobody, echoes[2])
	}
}

func TestPingOfAnExactSize(t *testing.T) {
	a, _ := pair(t)
	for _, to := range far {
		for size, want := range map[int]error{mtu: nil, mtu + 1: host.ErrTooLong} {
			_, err := a.Ping(t.Context(), host.Ping{To: to, Size: size, DontFragment: true})
			if !errors.Is(err, want) {
				t.Errorf("ping %s with %d bytes: %v, want %v", to, size, err, want)
			}
		}
		if _, err := a.Ping(t.Context(), host.Ping{To: to, Size: mtu + 1}); err != nil {
			t.Errorf("ping %s with fragments: %v", to, err)
		}
	}
}

func TestStreamCountsWhatIsLost(t *testing.T) {
	a, b := pair(t)
	s, err := a.Stream(far[0], 5*time.Millisecond)
	must(t, err)
	defer s.Close()
	sends := func(from host.Mark) host.Mark {
		t.Helper()
		testwait.Until(t, "twenty pings are sent", func() bool { return s.Mark() >= from+20 })
		return s.Mark()
	}
	good := s.Mark()
	cut := sends(good)
	must(t, b.Links(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName("eth0")
		if err != nil {
			return err
		}
		return nl.LinkSetDown(link)
	}))
	out := s.Mark()
	end := sends(out)
	if loss, err := s.Between(t.Context(), good, cut-1); err != nil || loss.Lost != 0 || loss.Sent < 19 {
		t.Errorf("with the cable in: %v, %v", loss, err)
	}
	if loss, _ := s.Between(t.Context(), out, end); loss.Lost < loss.Sent || loss.Sent < 20 {
		t.Errorf("with the cable out: %v", loss)
	}
}

func TestTalkSaysWhyItEnded(t *testing.T) {
	a, b := pair(t)
	at := netip.AddrPortFrom(far[0], 7007)
	server, err := b.Listen(t.Context(), at)
	must(t, err)
	talk, err := a.Talk(t.Context(), at, 1000, 5*time.Millisecond)
	must(t, err)
	defer talk.Close()
	conn, err := server.Accept()
	must(t, err)
	_, err = io.CopyN(conn, conn, 20_000)
	must(t, err)
	if silence, err := talk.Silence(); err != nil || silence > testwait.Limit {
		t.Errorf("while messages come back: silent for %v, %v", silence, err)
	}
	conn.Close()
	testwait.Nil(t, "the connection is known to have ended", func() error {
		if _, err := talk.Silence(); err == nil || !strings.Contains(err.Error(), "to 10.99.0.2:7007") {
			return fmt.Errorf("after its end: %w", err)
		}
		return nil
	})
}

func TestSend(t *testing.T) {
	a, b := pair(t)
	for i, want := range []string{"10.99.0.1", "fd99::1"} {
		got, err := a.Send(t.Context(), b, far[i], 1<<20)
		if err != nil || got.Bytes != 1<<20 || got.Peer != netip.MustParseAddr(want) {
			t.Errorf("send to %s: %+v, %v", far[i], got, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	must(t, b.Links(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName("eth0")
		return errors.Join(err, nl.LinkSetMTU(link, 1500), nl.LinkSetDown(link))
	}))
	if got, err := a.Send(ctx, b, far[0], 10); err == nil {
		t.Errorf("send over a cut cable: %+v, want an error", got)
	}
}

func TestProcessIsKnownByItsStart(t *testing.T) {
	a, _ := pair(t)
	log := filepath.Join(t.TempDir(), "log")
	p, err := a.Start(host.Command{Path: "/bin/sh", Args: []string{"-c", "echo $COLOUR; exec sleep 60"},
		Env: []string{"COLOUR=blue"}, Log: log})
	must(t, err)
	defer p.Kill()
	if !p.Running() {
		t.Error("started process is not running")
	}
	testwait.Until(t, "the process writes", func() bool { data, _ := os.ReadFile(log); return len(data) > 0 })
	recycled := p
	recycled.Started--
	if recycled.Running() {
		t.Error("a process with another start time is taken for ours")
	}
	if err := recycled.Kill(); err != nil || !p.Running() {
		t.Errorf("killing a recycled pid: %v, running %v", err, p.Running())
	}
	must(t, p.Stop(t.Context(), testwait.Limit))
	if p.Running() {
		t.Error("stopped process is running")
	}
	must(t, p.Kill()) // gone: nothing to do
	if data, err := os.ReadFile(log); err != nil || !bytes.HasPrefix(data, []byte("blue\n")) {
		t.Errorf("log: %q, %v", data, err)
	}
}

// A process that is just being reaped is in neither of the states that one usually sees.
func TestKilledProcessIsNotRunning(t *testing.T) {
	a, _ := pair(t)
	log := filepath.Join(t.TempDir(), "log")
	for range 200 {
		p, err := a.Start(host.Command{Path: "/bin/sleep", Args: []string{"60"}, Log: log})
		must(t, err)
		must(t, p.Kill())
		if p.Running() {
			t.Fatal("running after it was killed")
		}
	}
}

func TestStopKillsWhatDoesNotEnd(t *testing.T) {
	a, _ := pair(t)
	log := filepath.Join(t.TempDir(), "log")
	p, err := a.Start(host.Command{Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; echo ready; sleep 60 & wait; sleep 60"}, Log: log})
	must(t, err)
	defer p.Kill()
	testwait.Until(t, "the process writes", func() bool { data, _ := os.ReadFile(log); return len(data) > 0 })
	if err := p.Stop(t.Context(), 200*time.Millisecond); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("got %v, want a sentence that it was killed", err)
	}
	if p.Running() {
		t.Error("still running")
	}
}

func TestExecRunsInside(t *testing.T) {
	a, b := pair(t)
	outA, err := a.Exec(t.Context(), "readlink", "/proc/self/ns/net")
	must(t, err)
	outB, err := b.Exec(t.Context(), "readlink", "/proc/self/ns/net")
	must(t, err)
	own, err := os.Readlink("/proc/thread-self/ns/net")
	must(t, err)
	if outA == outB || strings.TrimSpace(outA) == own || !strings.HasPrefix(outA, "net:[") {
		t.Errorf("namespaces %q, %q, own %q", outA, outB, own)
	}
	if _, err := a.Exec(t.Context(), "sh", "-c", "echo why >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("failing command: %v", err)
	}
}

func TestDeleteIsRepeatable(t *testing.T) {
	a, _ := pair(t)
	if !a.Exists() {
		t.Error("created namespace does not exist")
	}
	must(t, a.Delete())
	if a.Exists() {
		t.Error("deleted namespace exists")
	}
	must(t, a.Delete())
	must(t, os.WriteFile(a.Path(), nil, 0o444)) // what a crash between the file and the mount leaves
	if a.Exists() {
		t.Error("a plain file passes for a namespace")
	}
	must(t, a.Delete())
}
