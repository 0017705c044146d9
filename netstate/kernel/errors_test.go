package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// TestSocketErrors takes one of the sockets away, and files so that no other can be opened: nothing that asks the
// kernel has an answer then, and everything says so.
func TestSocketErrors(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	route := netstate.Route{Dst: netstate.Host(addr), Dev: "lo", Protocol: netstate.Protocol}
	calls := map[string]func(*Kernel) error{
		"Observe":    func(k *Kernel) error { _, err := k.Observe(t.Context(), nil); return err },
		"Apply":      func(k *Kernel) error { return k.Apply(t.Context(), netstate.Plan{{Want: route}}) },
		"Interfaces": func(k *Kernel) error { _, err := k.Interfaces(t.Context()); return err },
		"Ports":      func(k *Kernel) error { _, err := k.Ports(); return err },
		"Rules":      func(k *Kernel) error { _, err := k.Rules(); return err },
		"Neighbours": func(k *Kernel) error { _, err := k.Neighbours(); return err },
		"Routes":     func(k *Kernel) error { _, err := k.Routes(); return err },
		"RouteTo":    func(k *Kernel) error { _, _, err := k.RouteTo(addr); return err },
		"Lookup":     func(k *Kernel) error { _, err := k.Lookup(addr); return err },
		"New": func(*Kernel) error {
			k, err := New(nil)
			if err == nil {
				k.Close()
			}
			return err
		},
		"Watch": func(k *Kernel) error { _, err := k.Watch(t.Context()); return err },
	}
	links := []string{"Observe", "Interfaces", "Apply", "Ports", "Routes", "Neighbours"} // what needs their names
	alone := []string{"Observe", "Interfaces", "Apply", "Ports"}                         // what needs the second socket only
	for name, call := range calls {
		h := fresh(t)
		k := h.Kernel.(*Kernel)
		k.nl.Close()
		err := withFiles(t, 0, func() error { return call(k) })
		if !slices.Contains(alone, name) && !errors.Is(err, unix.EMFILE) {
			t.Errorf("%s without the first socket: %v", name, err)
		}
		if !slices.Contains(links, name) {
			continue
		}
		k = newKernel(t)
		k.bulk.Close()
		err = withFiles(t, 0, func() error { return call(k) })
		if !errors.Is(err, unix.EBADF) || !strings.Contains(err.Error(), "list links") {
			t.Errorf("%s without the second socket: %v", name, err)
		}
	}
}

// withFiles calls f while this process can open only files with numbers below n.
func withFiles(t *testing.T, n int, f func() error) error {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(n), Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	}()
	return f()
}

// provider is a Provider of one peer, or of errors.
type provider struct {
	err              error
	keepalive, polls *atomic.Int64
}

func newProvider() provider {
	return provider{keepalive: new(atomic.Int64), polls: new(atomic.Int64)}
}

// awaitPolls waits until the provider was read so many times.
func (p provider) awaitPolls(t *testing.T, n int64) {
	t.Helper()
	testwait.Until(t, fmt.Sprintf("the provider is read %d times", n), func() bool { return p.polls.Load() >= n })
}

func (p provider) Writes(k netstate.Kind) bool { return k == netstate.KindPeer }

func (p provider) Observe(map[string][]string, netstate.State) (netstate.State, error) {
	if p.err != nil {
		return nil, p.err
	}
	peer := netstate.Peer{Dev: "wg", Keepalive: int(p.keepalive.Load())}
	p.polls.Add(1)
	return netstate.NewState(peer), nil
}

func (p provider) Apply(netstate.Change) error { return p.err }

// TestProviderPolled: a hint comes when something of a provider's changes.
func TestProviderPolled(t *testing.T) {
	p := newProvider()
	h := freshWith(t, func() []Provider { return []Provider{p} })
	h.Kernel.(*Kernel).interval = 100 * time.Millisecond
	hints, err := h.Kernel.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.awaitPolls(t, 4) // the third was compared by then
	if len(hints) > 0 {
		t.Error("a hint before anything changed")
	}
	p.keepalive.Store(25)
	hinted(t, hints)
}

func TestProviderErrors(t *testing.T) {
	broken := errors.New("broken")
	h := freshWith(t, func() []Provider { return []Provider{provider{err: broken}} })
	if _, err := h.Kernel.Observe(t.Context(), nil); !errors.Is(err, broken) {
		t.Errorf("observe: %v", err)
	}
	if err := h.Kernel.Apply(context.Background(), netstate.Plan{{Want: netstate.Peer{Dev: "wg"}}}); !errors.Is(err,
		broken) {
		t.Errorf("apply: %v", err)
	}
}

// TestBroadcastGateway: a gateway that is no host's address is refused with another error than one behind a router.
func TestBroadcastGateway(t *testing.T) {
	h := fresh(t)
	for _, c := range []string{"ip link add u0 type bridge", "ip link set u0 up", "ip addr add 192.0.2.1/24 dev u0"} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	r := netstate.Route{Dst: netip.MustParsePrefix("10.244.2.0/24"), Via: netip.MustParseAddr("192.0.2.255"),
		Dev: "u0", Protocol: netstate.Protocol}
	err := h.Kernel.Apply(t.Context(), netstate.Plan{{Want: r}})
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "not on the same L2 segment as u0") {
		t.Errorf("got %v", err)
	}
}

// TestNameTemplate: for a name with %d the kernel makes a device of another name, which is no device of ours.
func TestNameTemplate(t *testing.T) {
	h := fresh(t)
	bridge := netstate.Bridge{Name: "br%d", MTU: 1450, MAC: netstate.MAC{2, 0, 0, 0, 0, 1}, Marked: true}
	err := h.Kernel.Apply(t.Context(), netstate.Plan{{Want: bridge}})
	if err == nil || !strings.Contains(err.Error(), "br%d") {
		t.Errorf("got %v, want an error about br%%d", err)
	}
}
