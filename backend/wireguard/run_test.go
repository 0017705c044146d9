package wireguard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

// inside is set in the copy of the test binary that has a network namespace of its own.
const inside = "TWILL_WIREGUARD_TEST_INSIDE"

// TestMain runs the tests in a copy of this program in a fresh network namespace.
func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "these tests need root:", err)
		os.Exit(1)
	}
}

// machine is a node in a network namespace of its own.
type machine struct {
	*testing.T
	n     int
	ns    string // a path
	b     *Backend
	views chan backend.View
	stop  func()
}

func (m *machine) command(lines ...string) {
	m.Helper()
	for _, line := range lines {
		if out, err := m.try(line); err != nil {
			m.Fatalf("node %d: %s: %v: %s", m.n, line, err, out)
		}
	}
}

func (m *machine) try(line string) ([]byte, error) {
	return exec.Command("nsenter", append([]string{"--net=" + m.ns}, strings.Fields(line)...)...).CombinedOutput()
}

// newMachine makes the namespace: a thread that stays in it until the test ends.
func newMachine(t *testing.T, n int, psk string) *machine {
	t.Helper()
	return newMachineWith(t, n, `{"PSK":"`+psk+`"}`)
}

func newMachineWith(t *testing.T, n int, options string) *machine {
	t.Helper()
	ready, end := make(chan string), make(chan bool)
	go func() {
		runtime.LockOSThread()
		if unix.Unshare(unix.CLONE_NEWNET) != nil {
			close(ready)
			return
		}
		ready <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		<-end
	}()
	m := &machine{T: t, n: n, ns: <-ready, b: newBackend(t, options), views: make(chan backend.View, 1)}
	t.Cleanup(func() { close(end) })
	if err := m.b.Prepare(t.Context(), backend.Site{Dir: t.TempDir(), Say: func(string, error, ...any) {}}); err != nil {
		t.Fatal(err)
	}
	return m
}

// device does what the reconciler does.
func (m *machine) device() {
	m.Helper()
	for _, l := range []struct{ dev, addr, network string }{{device4, "10.244.%d.0/32", "10.244.0.0/16"}, {device6, "fc00:0:0:%d::/128", "fc00::/48"}} {
		m.command("ip tuntap add "+l.dev+" mode tun", "ip link set "+l.dev+" mtu 1420 up")
		m.command("ip addr add "+fmt.Sprintf(l.addr, m.n)+" dev "+l.dev, "ip route add "+l.network+" dev "+l.dev)
	}
}

// start runs the backend on a thread in the namespace, which is where it opens its sockets and devices.
func (m *machine) start() {
	ctx, cancel := context.WithCancel(m.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- errors.Join(lockedEnter(m.ns), m.b.Run(ctx, backend.Site{Say: func(string, error, ...any) {}}, m.views))
	}()
	m.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			m.Error(err)
		}
	}
}

// lockedEnter moves this goroutine's thread, which is never unlocked and so ends with it.
func lockedEnter(path string) error {
	runtime.LockOSThread()
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
}

func (m *machine) lease() subnet.Lease {
	l := lease(m.n, "")
	for i, s := range l.Stacks {
		d, err := m.b.Publish(backend.Node{}, s.Is4())
		if err != nil {
			m.Fatal(err)
		}
		l.Stacks[i].Data = d
	}
	return l
}

func (m *machine) show(peers ...subnet.Lease) {
	m.views <- backend.View{Node: bothFamilies(m.n), Snapshot: subnet.Snapshot{Local: m.lease(), Peers: peers}, Synced: true}
}

// pings says whether an address answers within some seconds: WireGuard tries a handshake that got lost again
// after five.
func (m *machine) pings(to string) bool {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if _, err := m.try("ping -c 1 -W 1 " + to); err == nil {
			return true
		}
	}
	return false
}

// pair is two nodes on one segment.
func pair(t *testing.T, psk1, psk2 string) (a, b *machine) {
	t.Helper()
	a, b = newMachine(t, 1, psk1), newMachine(t, 2, psk2)
	connect(t, a, b)
	for _, m := range []*machine{a, b} {
		m.device()
		m.start()
	}
	a.show(b.lease())
	b.show(a.lease())
	return a, b
}

// connect puts two machines on one segment.
func connect(t *testing.T, a, b *machine) {
	t.Helper()
	cable(t, a, b, "u0")
	for _, m := range []*machine{a, b} {
		m.command(fmt.Sprintf("ip addr add 192.0.2.%d/24 dev u0", m.n), fmt.Sprintf("ip addr add 2001:db8::%d/64 dev u0 nodad", m.n))
	}
}

// cable is a veth between two machines, of one name on both.
func cable(t *testing.T, a, b *machine, dev string) {
	t.Helper()
	a.command("ip link add " + dev + " type veth peer name " + dev + "p")
	if out, err := exec.Command("nsenter", "--net="+a.ns, "ip", "link", "set", dev+"p", "netns", strings.Split(b.ns, "/")[4]).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b.command("ip link set " + dev + "p name " + dev)
	for _, m := range []*machine{a, b} {
		m.command("ip link set lo up", "ip link set "+dev+" up")
	}
}

// TestPackets: both families, the exact MTU, a restart in which the other side sends first, and a peer that left.
func TestPackets(t *testing.T) {
	a, b := pair(t, key(9), key(9))
	for _, to := range []string{"10.244.2.0", "fc00:0:0:2::"} {
		if !a.pings(to) {
			t.Fatalf("no answer from %s", to)
		}
	}
	a.command("ping -c 1 -W 2 -M do -s 1392 10.244.2.0")
	if out, err := a.try("ping -c 1 -W 2 -M do -s 1393 10.244.2.0"); err == nil || !bytes.Contains(out, []byte("mtu=1420")) {
		t.Errorf("a packet of 1421 bytes: %s", out)
	}

	a.stop()
	a.start()
	a.show(b.lease())
	began := time.Now()
	if !b.pings("10.244.1.0") {
		t.Error("no answer after a restart")
	}
	t.Logf("answered %s after the restart", time.Since(began).Round(time.Millisecond))

	a.show()
	a.show() // taken, so the one before has been worked on
	if out, err := b.try("ping -c 2 -W 1 10.244.1.0"); err == nil {
		t.Errorf("a peer that left still gets answers: %s", out)
	}
	a.stop()
	b.stop()
}

// TestOtherPSK: nodes without the same key do not understand each other.
func TestOtherPSK(t *testing.T) {
	a, b := pair(t, key(8), key(9))
	if out, err := a.try("ping -c 2 -W 1 10.244.2.0"); err == nil {
		t.Errorf("answered: %s", out)
	}
	a.stop()
	b.stop()
}

// TestNewKey: a peer that comes back with another key is reached with that.
func TestNewKey(t *testing.T) {
	a, b := pair(t, key(9), key(9))
	if !a.pings("10.244.2.0") {
		t.Fatal("no answer")
	}
	b.stop()
	if err := b.b.Prepare(t.Context(), backend.Site{Dir: filepath.Clean(t.TempDir()), Say: func(string, error, ...any) {}}); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.show(a.lease())
	a.show(b.lease())
	if !a.pings("10.244.2.0") {
		t.Error("no answer with the new key")
	}
	var d data
	if err := json.Unmarshal(b.lease().Stacks[0].Data, &d); err != nil || d.Port != 51820 {
		t.Errorf("%v %v", d, err)
	}
	a.stop()
	b.stop()
}
