package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

func TestDumpTriesAgain(t *testing.T) {
	for _, test := range []struct {
		name   string
		fails  int
		err    error
		tries  int
		failed bool
	}{
		{"whole at once", 0, nil, 1, false},
		{"interrupted", 1, netlink.ErrDumpInterrupted, 2, false},
		{"interrupted, wrapped", 1, fmt.Errorf("x: %w", netlink.ErrDumpInterrupted), 2, false},
		{"interrupted by a signal", dumpTries - 1, unix.EINTR, dumpTries, false},
		{"interrupted for ever", 1000, netlink.ErrDumpInterrupted, dumpTries, true},
		{"refused", 1, unix.ENOBUFS, 1, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			tries := 0
			items, err := dump("things", func() ([]int, error) {
				if tries++; tries <= test.fails {
					return []int{666}, test.err // an interrupted dump gives what it has: it must not be used
				}
				return []int{1, 2}, nil
			})
			if tries != test.tries || (err != nil) != test.failed || err == nil && len(items) != 2 || err != nil && items != nil {
				t.Errorf("%d tries, %v, %v; want %d tries, failed: %t", tries, items, err, test.tries, test.failed)
			}
			if err != nil && (!errors.Is(err, test.err) || !strings.HasPrefix(err.Error(), "list things: ")) {
				t.Errorf("got the error %v", err)
			}
		})
	}
}

func TestIgnoreAbsent(t *testing.T) {
	for _, err := range []error{unix.ENOENT, unix.ESRCH, unix.ENODEV, unix.EADDRNOTAVAIL, fmt.Errorf("x: %w", errNoDevice), nil} {
		if got := ignoreAbsent(err); got != nil {
			t.Errorf("%v on delete is %v", err, got)
		}
	}
	for _, err := range []error{unix.EPERM, unix.EBUSY, unix.EINTR, unix.ENOBUFS} {
		if got := ignoreAbsent(err); got != err {
			t.Errorf("%v on delete is %v", err, got)
		}
	}
}

// TestWatchSysctl runs in the process's own namespace: the parameters are polled by a goroutine of their own.
func TestWatchSysctl(t *testing.T) {
	const name = "net/ipv4/ip_forward"
	value, err := readSysctl(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = writeSysctl(netstate.Sysctl{Name: name, Value: value}) })
	k, want := newKernel(t), netstate.Sysctl{Name: name, Value: "1"}
	if err := k.Apply(t.Context(), netstate.Plan{{Want: want}}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Observe(t.Context(), netstate.NewState(want)); err != nil {
		t.Fatal(err)
	}
	hints, err := k.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, wait := range []time.Duration{2 * pollEvery, 300 * time.Millisecond} {
		select {
		case <-hints:
			if wait != 300*time.Millisecond {
				t.Error("a hint before anything happened")
			}
			return
		case <-time.After(wait):
		}
		if err := command("sysctl -q -w net/ipv4/ip_forward=0"); err != nil {
			t.Fatal(err)
		}
	}
	t.Error("no hint within 300 ms")
}

// TestWatchOverflow: a burst into a buffer that is too small ends the subscription, and a new one works.
func TestWatchOverflow(t *testing.T) {
	h := fresh(t)
	for _, c := range []string{"ip link add u0 type veth peer name u0p", "ip link set u0p up", "ip link set u0 up", "ip addr add 192.0.2.1/24 dev u0"} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	k := h.Kernel.(*Kernel)
	want := netstate.State{}
	for i := range 2000 {
		want.Add(netstate.Route{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 5), byte(i << 3)}), 29),
			Via: netip.MustParseAddr("192.0.2.9"), Dev: "u0", Protocol: netstate.Protocol})
	}
	if err := k.Apply(t.Context(), netstate.Diff(want, nil)); err != nil {
		t.Fatal(err)
	}
	hints, err := k.watch(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Command("ip link del u0"); err != nil { // 2,000 routes go in one message, each with a notice
		t.Fatal(err)
	}
	timeout := time.After(5 * time.Second)
	for ok := true; ok; {
		select {
		case _, ok = <-hints:
		case <-timeout:
			t.Fatal("the subscription still stands")
		}
	}
	again, err := k.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Command("ip link add u0 type bridge"); err != nil {
		t.Fatal(err)
	}
	select {
	case _, ok := <-again:
		if !ok {
			t.Error("the new subscription was closed")
		}
	case <-time.After(time.Second):
		t.Error("no hint from the new subscription")
	}
}

// TestForeignKinds: the firewall's chains are another package's.
func TestForeignKinds(t *testing.T) {
	h := fresh(t)
	c := netstate.Chain{Role: netstate.Forward}
	for _, p := range []netstate.Plan{{{Want: c}}, {{Was: c}}} {
		if err := h.Kernel.Apply(t.Context(), p); err == nil || !strings.Contains(err.Error(), "a chain is not an object that this kernel package") {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func TestSysctlErrors(t *testing.T) {
	h := fresh(t)
	missing := netstate.Sysctl{Name: "net/ipv4/conf/nodev/rp_filter", Value: "2"}
	state, err := h.Kernel.Observe(t.Context(), netstate.NewState(missing))
	if err != nil || len(state) != 0 {
		t.Errorf("observe: %v, %v", state, err)
	}
	err = h.Kernel.Apply(t.Context(), netstate.Plan{{Want: missing}})
	if !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "set sysctl net/ipv4/conf/nodev/rp_filter to 2") {
		t.Errorf("apply: %v", err)
	}
	err = h.Kernel.Apply(t.Context(), netstate.Plan{{Want: netstate.Sysctl{Name: "net/ipv4/ip_forward", Value: "many"}}})
	if !errors.Is(err, syscall.EINVAL) {
		t.Errorf("apply: %v", err)
	}
}

func TestCancelled(t *testing.T) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	k, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.Observe(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("observe with a cancelled context: %v", err)
	}
	k.Close()
}

// TestParseEntry reads a message as Linux 6.18 sends it: 02:…:04:02 dst 192.0.2.2 port 4789 on device 4.
func TestParseEntry(t *testing.T) {
	m := []byte{7, 0, 0, 0, 4, 0, 0, 0, 0x80, 0, 2, 0, // ndmsg: AF_BRIDGE, ifindex, NUD_PERMANENT, NTF_SELF
		10, 0, 2, 0, 2, 0, 0, 0, 4, 2, 0, 0, // NDA_LLADDR
		8, 0, 1, 0, 192, 0, 2, 2, // NDA_DST
		6, 0, 6, 0, 0x12, 0xb5, 0, 0} // NDA_PORT
	e, err := parseEntry(m)
	if err != nil {
		t.Fatal(err)
	}
	o, ok := decodeFDB("flannel.1", e, nil)
	if want := "fdb 02:00:00:00:04:02 dst 192.0.2.2 dev flannel.1 self permanent port 4789"; !ok || o.String() != want {
		t.Errorf("got %s, %t, want %s", o, ok, want)
	}
	if _, err := parseEntry(m[:7]); err == nil {
		t.Error("a message of 7 bytes was read")
	}
}

func FuzzConcerns(f *testing.F) {
	f.Add(uint16(unix.RTM_NEWROUTE), make([]byte, 64))
	f.Fuzz(func(t *testing.T, kind uint16, data []byte) {
		k := &Kernel{left: []netstate.Left{{Network: netip.MustParsePrefix("10.244.0.0/16")}}}
		k.filter.Store(&filter{links: map[int]bool{4: true}})
		k.concerns(kind, data)
	})
}
