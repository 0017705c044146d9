package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/netstatetest"
)

// TestWatchPods: pods that come and go are news where the fast path is wanted; where it is not they are none.
func TestWatchPods(t *testing.T) {
	for _, fast := range []bool{false, true} {
		t.Run(fmt.Sprint("fast path ", fast), func(t *testing.T) {
			h := fresh(t)
			k := h.Kernel.(*Kernel)
			want, _ := portsWanted(t, h, nil)
			if fast {
				want.Add(netstate.Switch{})
			}
			observe := func() {
				if _, err := k.Observe(t.Context(), want); err != nil {
					t.Fatal(err)
				}
			}
			observe()
			hints, pods := received(t, k)
			quiet := func(notices <-chan struct{}) bool {
				t.Helper()
				return !netstatetest.Quiet(t, notices, 5*gather)
			}
			if !quiet(hints) || !quiet(pods) {
				t.Fatal("a hint, and nothing happens")
			}
			var came []netstate.Port
			for i := range 3 {
				came = append(came, podPort(t, h, fmt.Sprint("veth1", i), func(p *netstate.Port) {
					withAddrs(p)
					p.Hairpin = false // as it is, so that nothing is to be put back
				}))
				if quiet(pods) == fast || !quiet(hints) {
					t.Errorf("pod %d comes: want news %t, and no hint before others come", i, fast)
				}
			}
			for _, p := range came {
				want.Add(p)
			}
			observe()
			run(t, h, "ip link set veth10 mtu 1450", "ip link set veth10 promisc on", "ip link set veth10 promisc off")
			if !quiet(pods) || !quiet(hints) {
				t.Error("a hint of a pod that is known")
			}
			for _, name := range []string{"veth10", "veth11"} { // a device that goes slowly may be a hint by itself
				if run(t, h, "ip link del "+name); quiet(pods) == fast {
					t.Errorf("%s goes: want news %t", name, fast)
				}
			}
			if !fast {
				return
			}
			all, err := k.Watch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			podPort(t, h, "veth19", withAddrs)
			hinted(t, all)
		})
	}
}

// TestWatchPortMTU: a port that comes with a smaller MTU than the bridge's is a hint, and so is the last one's end for whose
// sake the bridge's is small. No other port is.
func TestWatchPortMTU(t *testing.T) {
	h := fresh(t)
	k := h.Kernel.(*Kernel)
	want, _ := portsWanted(t, h, nil)
	observe := func() {
		if _, err := k.Observe(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	observe()
	hints, pods := received(t, k)
	came := func(notices <-chan struct{}) bool {
		t.Helper()
		return netstatetest.Quiet(t, notices, 5*gather)
	}
	small := func(p *netstate.Port) { p.MTU, p.Hairpin = 1400, false }
	for _, name := range []string{"veth10", "veth11"} {
		want.Add(podPort(t, h, name, small))
		came(hints) // of a port that is not as its mark says
		if run(t, h, "ip link set "+name+" mtu 1400"); !came(hints) {
			t.Errorf("no hint of %s, which carries less than the bridge", name)
		}
	}
	bridge := want[netstate.Key{Kind: netstate.KindLink, Name: "cni0"}].(netstate.Bridge)
	bridge.MTU = 1400
	want.Add(bridge)
	settlePorts(t, h, want)
	observe()
	came(hints)
	came(pods)
	for _, step := range []struct {
		name string
		news bool
	}{{"veth03", false}, {"veth10", false}, {"veth11", true}} {
		if run(t, h, "ip link del "+step.name); came(pods) != step.news {
			t.Errorf("%s goes: want news %t", step.name, step.news)
		}
		delete(want, netstate.Port{Name: step.name}.Key())
	}
}

// received returns what the kernel's messages are: hints, and news of pods.
func received(t *testing.T, k *Kernel) (hints, pods <-chan struct{}) {
	t.Helper()
	conn, err := k.subscribe(watchBuffer)
	if err != nil {
		t.Fatal(err)
	}
	h, p := make(chan struct{}, 1), make(chan struct{}, 1)
	done := make(chan error)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		done <- k.receive(ctx, conn, portWatch{map[int]netstate.Port{}, map[int]bool{}, map[int]bool{}, p}, h, make(chan struct{}, 1))
	}()
	t.Cleanup(func() {
		cancel()
		conn.Close()
		<-done
	})
	return h, p
}

// TestPodsBetween: a pod that goes or comes after the facts were read, and before the kernel is, is news when its last message
// is read: what the facts made wanted is wrong.
func TestPodsBetween(t *testing.T) {
	for what, do := range map[string]func(netstatetest.Harness){
		"goes":  func(h netstatetest.Harness) { run(t, h, "ip link del veth02") },
		"comes": func(h netstatetest.Harness) { podPort(t, h, "veth10", withAddrs) },
	} {
		h := fresh(t)
		k := h.Kernel.(*Kernel)
		want, _ := portsWanted(t, h, nil)
		want.Add(netstate.Switch{})
		kind, last := lastOfPort(t, k, func() { do(h) })
		if _, err := k.Observe(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		news := make(chan struct{}, 1)
		portWatch{map[int]netstate.Port{}, map[int]bool{}, map[int]bool{}, news}.note(k.filter.Load(), kind, last)
		if len(news) == 0 {
			t.Errorf("a pod %s: no news", what)
		}
	}
}

// TestSmallestBetween: the same of the last pod for whose sake the bridge has a small MTU.
func TestSmallestBetween(t *testing.T) {
	for mtu, want := range map[int]bool{1400: true, 1450: false} {
		h := fresh(t)
		k := h.Kernel.(*Kernel)
		facts, _ := portsWanted(t, h, nil)
		facts.Add(podPort(t, h, "veth10", func(p *netstate.Port) { p.MTU, p.Hairpin = mtu, false }))
		bridge := facts[netstate.Key{Kind: netstate.KindLink, Name: "cni0"}].(netstate.Bridge)
		bridge.MTU = mtu
		facts.Add(bridge)
		kind, last := lastOfPort(t, k, func() { run(t, h, "ip link del veth10") })
		if _, err := k.Observe(t.Context(), facts); err != nil {
			t.Fatal(err)
		}
		news := make(chan struct{}, 1)
		portWatch{map[int]netstate.Port{}, map[int]bool{}, map[int]bool{}, news}.note(k.filter.Load(), kind, last)
		if got := len(news) > 0; got != want {
			t.Errorf("a pod of MTU %d goes: news %t, want %t", mtu, got, want)
		}
	}
}

// lastOfPort returns the last message about a pod's port that do causes.
func lastOfPort(t *testing.T, k *Kernel, do func()) (kind uint16, last []byte) {
	t.Helper()
	conn, err := k.subscribe(watchBuffer)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	do()
	for {
		if err := conn.SetReadDeadline(time.Now().Add(5 * gather)); err != nil {
			t.Fatal(err)
		}
		messages, err := conn.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return kind, last
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			d, err := parseDevice(m.Data)
			if err != nil || d.Link[0] != unix.AF_UNSPEC {
				continue
			}
			if _, isPort := d.port(); isPort {
				kind, last = uint16(m.Header.Type), m.Data
			}
		}
	}
}

// TestGatherPods: pods that come and go within a second are one hint, and later ones another.
func TestGatherPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		pods, hints := make(chan struct{}, 1), make(chan struct{}, 1)
		done := make(chan error)
		go func() { done <- gatherPods(ctx, pods, hints) }()
		for round := range 2 {
			for range 3 {
				loop.Notify(pods)
				time.Sleep(podDelay / 4)
			}
			if synctest.Wait(); len(hints) > 0 {
				t.Errorf("round %d: a hint before the second is over", round)
			}
			time.Sleep(podDelay / 4)
			if synctest.Wait(); len(hints) != 1 {
				t.Fatalf("round %d: %d hints of three pods, want one", round, len(hints))
			}
			<-hints
			time.Sleep(2 * podDelay)
			if synctest.Wait(); len(hints) > 0 {
				t.Errorf("round %d: a second hint", round)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
