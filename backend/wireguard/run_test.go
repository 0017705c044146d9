package wireguard

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/backendtest"
	"github.com/twill-net/twill/backend/tun"
	"github.com/twill-net/twill/subnet"
)

func TestMain(m *testing.M) { os.Exit(backendtest.Main(m)) }

// machine is a node in a network namespace of its own.
type machine struct {
	*backendtest.Machine
	b     *Backend
	views chan backend.Input
	stop  func()
}

func newMachine(t *testing.T, n int, psk string) *machine {
	t.Helper()
	return newMachineWith(t, n, `{"PSK":"`+psk+`"}`)
}

func newMachineWith(t *testing.T, n int, options string) *machine {
	t.Helper()
	m := &machine{Machine: backendtest.New(t, n), b: newBackend(t, options), views: make(chan backend.Input, 1)}
	if err := m.b.Prepare(t.Context(), backend.Env{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	return m
}

// device does what the reconciler does.
func (m *machine) device() {
	m.Helper()
	for _, l := range []struct{ dev, addr, network string }{{device4, "10.244.%d.0/32", "10.244.0.0/16"}, {device6, "fc00:0:0:%d::/128", "fc00::/48"}} {
		m.Command("ip tuntap add "+l.dev+" mode tun", "ip link set "+l.dev+" mtu 1420 up")
		m.Command("ip addr add "+fmt.Sprintf(l.addr, m.N)+" dev "+l.dev, "ip route add "+l.network+" dev "+l.dev)
	}
}

// start runs the backend on a thread in the namespace, which is where it opens its sockets and devices.
func (m *machine) start() {
	ctx, cancel := context.WithCancel(m.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- m.Do(func() error { return m.b.Run(ctx, backend.Env{Log: slog.New(slog.DiscardHandler)}, m.views) })
	}()
	m.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			m.Error(err)
		}
	}
}

func (m *machine) lease() subnet.Lease {
	l := lease(m.N, "")
	for i, s := range l.Stacks {
		d, err := m.b.Publish(backend.Node{}, subnet.Lease{}, s.Family())
		if err != nil {
			m.Fatal(err)
		}
		l.Stacks[i].Data = d
	}
	return l
}

func (m *machine) show(peers ...subnet.Lease) {
	m.views <- backend.Input{Node: bothFamilies(m.N), Snapshot: subnet.Snapshot{Local: m.lease(), Peers: peers}, Synced: true}
}

// pair is two nodes on one segment.
func pair(t *testing.T, psk1, psk2 string) (a, b *machine) {
	t.Helper()
	a, b = newMachine(t, 1, psk1), newMachine(t, 2, psk2)
	backendtest.Connect(a.Machine, b.Machine)
	for _, m := range []*machine{a, b} {
		m.device()
		m.start()
	}
	a.show(b.lease())
	b.show(a.lease())
	return a, b
}

// TestPackets: both families, the exact MTU, a restart in which the other side sends first, and a peer that left.
func TestPackets(t *testing.T) {
	a, b := pair(t, key(9), key(9))
	for _, to := range []string{"10.244.2.0", "fc00:0:0:2::"} {
		if !a.Pings(to) {
			t.Fatalf("no answer from %s", to)
		}
	}
	a.Command("ping -c 1 -W 2 -M do -s 1392 10.244.2.0")
	if out, err := a.Try("ping -c 1 -W 2 -M do -s 1393 10.244.2.0"); err == nil || !strings.Contains(out, "mtu=1420") {
		t.Errorf("a packet of 1421 bytes: %s", out)
	}

	a.stop()
	a.start()
	a.show(b.lease())
	began := time.Now()
	if !b.Pings("10.244.1.0") {
		t.Error("no answer after a restart")
	}
	t.Logf("answered %s after the restart", time.Since(began).Round(time.Millisecond))

	a.show()
	a.show()
	a.show() // the first one was worked on before the second was taken
	if out, err := b.Try("ping -c 2 -W 1 10.244.1.0"); err == nil {
		t.Errorf("a peer that left still gets answers: %s", out)
	}
	a.stop()
	b.stop()
}

var starts = flag.Int("starts", 16, "how often TestStartTogether starts both nodes")

// TestStartTogether: two nodes that learn of each other at the same moment reach each other. Handshakes that cross are lost,
// and repeated after five seconds; it logs how often.
func TestStartTogether(t *testing.T) {
	a, b := pair(t, key(9), key(9))
	crossed := 0
	for range *starts {
		a.stop()
		b.stop()
		a.start()
		b.start()
		began := time.Now()
		a.show(b.lease())
		b.show(a.lease())
		if !a.Pings("10.244.2.0") {
			t.Fatal("no answer")
		}
		if time.Since(began) > 4*time.Second {
			crossed++
		}
	}
	t.Logf("handshakes crossed in %d of %d starts", crossed, *starts)
}

// echoes is the number of echo requests that came in.
func (m *machine) echoes() (n int) {
	m.Helper()
	if err := m.Do(func() error {
		snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
		icmp := strings.SplitN(string(snmp), "Icmp: ", 3)
		if err != nil || len(icmp) < 3 {
			return fmt.Errorf("no ICMP in %q: %w", snmp, err)
		}
		names, values := strings.Fields(icmp[1]), strings.Fields(icmp[2])
		n, err = strconv.Atoi(values[slices.Index(names, "InEchos")])
		return err
	}); err != nil {
		m.Fatal(err)
	}
	return n
}

// TestForgedSource: a node's packets are taken if they come from its own subnet, and not in the name of another's pods.
func TestForgedSource(t *testing.T) {
	a, b := pair(t, key(9), key(9))
	b.Command("ip addr add 10.244.3.9/32 dev lo", "ip addr add 10.244.2.9/32 dev lo")
	if !b.Pings("10.244.1.0") {
		t.Fatal("no answer")
	}
	before := a.echoes()
	if _, err := b.Try("ping -c 2 -i 0.2 -W 1 -I 10.244.3.9 10.244.1.0"); err == nil || a.echoes() != before {
		t.Errorf("%d packets of another node's pod came in, %v", a.echoes()-before, err)
	}
	if _, err := b.Try("ping -c 2 -i 0.2 -W 1 -I 10.244.2.9 10.244.1.0"); err != nil || a.echoes() != before+2 {
		t.Errorf("%d packets of its own pod came in, want 2; %v", a.echoes()-before, err)
	}
	a.stop()
	b.stop()
}

// TestOtherPSK: nodes without the same key do not understand each other.
func TestOtherPSK(t *testing.T) {
	a, b := pair(t, key(8), key(9))
	if out, err := a.Try("ping -c 2 -W 1 10.244.2.0"); err == nil {
		t.Errorf("answered: %s", out)
	}
	a.stop()
	b.stop()
}

// TestDeviceMissing: the error names what is not there; the agent starts Run again when it is.
func TestDeviceMissing(t *testing.T) {
	m := newMachine(t, 1, "")
	views := make(chan backend.Input, 1)
	views <- backend.Input{Node: bothFamilies(1), Snapshot: subnet.Snapshot{Local: m.lease()}}
	err := m.Do(func() error { return m.b.Run(t.Context(), backend.Env{Log: slog.New(slog.DiscardHandler)}, views) })
	if !errors.Is(err, tun.ErrMissing) || !strings.Contains(err.Error(), device4) {
		t.Errorf("Run: %v, want that %s is missing", err, device4)
	}
	b := newBackend(t, `{}`) // without Prepare
	views <- backend.Input{Node: bothFamilies(1), Snapshot: subnet.Snapshot{Local: m.lease()}}
	if err := b.Run(t.Context(), backend.Env{Log: slog.New(slog.DiscardHandler)}, views); err == nil || !strings.Contains(err.Error(), "has not been read yet") {
		t.Errorf("Run: %v, want that the private key has not been read", err)
	}
}

// TestKernelHasIt: Run leaves the packets to a kernel that has WireGuard, and says so once.
func TestKernelHasIt(t *testing.T) {
	m, said := newMachine(t, 1, ""), 0
	node := bothFamilies(1)
	node.WireGuard = true
	ctx, cancel := context.WithCancel(t.Context())
	views, ended := make(chan backend.Input), make(chan error, 1)
	go func() { ended <- m.b.Run(ctx, backend.Env{Log: backendtest.Log(func(string) { said++ })}, views) }()
	for range 3 {
		views <- backend.Input{Node: node, Snapshot: subnet.Snapshot{Local: m.lease()}}
	}
	cancel()
	if err := <-ended; err != nil || said != 1 {
		t.Errorf("Run: %v, after it said something %d times, want once", err, said)
	}
}

// TestNewKey: a peer that comes back with another key is reached with that.
func TestNewKey(t *testing.T) {
	a, b := pair(t, key(9), key(9))
	if !a.Pings("10.244.2.0") {
		t.Fatal("no answer")
	}
	b.stop()
	if err := b.b.Prepare(t.Context(), backend.Env{Dir: filepath.Clean(t.TempDir()), Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.show(a.lease())
	a.show(b.lease())
	if !a.Pings("10.244.2.0") {
		t.Error("no answer with the new key")
	}
	var d data
	if err := json.Unmarshal(b.lease().Stacks[0].Data, &d); err != nil || d.Port != 51820 {
		t.Errorf("%v %v", d, err)
	}
	a.stop()
	b.stop()
}
