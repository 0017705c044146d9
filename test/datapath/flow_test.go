package main

import (
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
)

// loopback is a namespace whose loopback device is up.
func loopback(t *testing.T, addr string) end {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	h := host.Host{Name: "datapathtest"}
	if err := h.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Delete(); err != nil {
			t.Error(err)
		}
	})
	if err := h.Links(func(nl *netlink.Handle) error {
		lo, err := nl.LinkByName("lo")
		if err != nil {
			return err
		}
		return nl.LinkSetUp(lo)
	}); err != nil {
		t.Fatal(err)
	}
	return end{h, netip.MustParseAddr(addr)}
}

func TestFlows(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			at := loopback(t, addr)
			p := placement{pinned: addr == "::1"}
			for _, network := range []string{"tcp", "udp"} {
				f, err := p.openFlow(network, at, at)
				if err != nil {
					t.Fatal(err)
				}
				got, err := f.measure(50 * time.Millisecond)
				if err != nil || got.rate < 100 || got.p50 <= 0 || got.p99 < got.p50 || got.lost > 0 {
					t.Errorf("%s: %+v, %v", network, got, err)
				}
				f.close()
			}
			if rate, err := p.connections(at, at, 50*time.Millisecond); err != nil || rate < 20 {
				t.Errorf("%v connections a second, %v", rate, err)
			}
		})
	}
}

// TestLost: a datagram without an answer is counted; a closed connection is an error.
func TestLost(t *testing.T) {
	at := loopback(t, "127.0.0.1")
	udp, err := placement{}.openFlow("udp", at, at)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.close()
	if err := read(udp.client); !udp.forgives(err) {
		t.Errorf("a missing datagram is %v", err)
	}
	tcp, err := placement{}.openFlow("tcp", at, at)
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.close()
	if err := unix.Shutdown(tcp.server, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	if _, err := tcp.measure(time.Millisecond); err == nil {
		t.Error("no error from a closed connection")
	}
	if rate, err := (placement{}).connections(at, end{at.Host, netip.MustParseAddr("192.0.2.1")}, time.Millisecond); err == nil {
		t.Errorf("%v connections a second to an address that nobody has", rate)
	}
}

func TestHold(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, during, after unix.CPUSet
	affinity := func(set *unix.CPUSet) {
		if err := unix.SchedGetaffinity(0, set); err != nil {
			t.Fatal(err)
		}
	}
	affinity(&before)
	release, err := placement{pinned: true}.hold()
	if err != nil {
		t.Fatal(err)
	}
	affinity(&during)
	release()
	if affinity(&after); during.Count() != 1 || after != before {
		t.Errorf("the thread may run on %d processors, and then on %d of %d", during.Count(), after.Count(), before.Count())
	}
}
