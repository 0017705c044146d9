package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/netstatetest"
)

// TestPortOfAnotherKind: a device whose underlay is in another namespace is no pod's port.
func TestPortOfAnotherKind(t *testing.T) {
	pod := exec.CommandContext(t.Context(), "sleep", "60")
	pod.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := pod.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = pod.Process.Kill(), pod.Wait() })
	h := fresh(t)
	inPod := fmt.Sprintf("nsenter -n -t %d ip link ", pod.Process.Pid)
	for _, c := range []string{inPod + "add u0 type bridge", inPod + "add vx0 type vxlan id 9 dev u0 dstport 4789",
		fmt.Sprintf("%s set vx0 netns %d", inPod, unix.Gettid())} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	ports, err := h.Kernel.(*Kernel).Ports()
	if err != nil || !slices.Contains(ports, Port{Name: "vx0", MTU: 1450, NoCarrier: true}) {
		t.Errorf("ports %+v, %v, want vx0, which is none of a pod", ports, err)
	}
}

// TestGroupEntries: packets for no MAC address in particular go to several places, and to a route's own source.
func TestGroupEntries(t *testing.T) {
	h := fresh(t)
	for _, c := range []string{"ip link add u0 type bridge", "ip link set u0 up", "ip addr add 192.0.2.1/24 dev u0",
		"ip link add vx0 type vxlan id 9 dev u0 dstport 4789", "ip link set vx0 up"} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	want := netstate.NewState(netstate.FDB{Dev: "vx0", Dst: netip.MustParseAddr("192.0.2.2")},
		netstate.FDB{Dev: "vx0", Dst: netip.MustParseAddr("192.0.2.3")},
		netstate.Route{Dst: netip.MustParsePrefix("10.244.2.0/24"), Via: netip.MustParseAddr("192.0.2.2"), Dev: "u0",
			Src: netip.MustParseAddr("192.0.2.1"), Protocol: netstate.Protocol})
	if err := h.Kernel.Apply(t.Context(), netstate.Diff(want, nil)); err != nil {
		t.Fatal(err)
	}
	link := netstate.VXLAN{Name: "vx0"} // its name makes the device ours
	have, err := h.Kernel.Observe(t.Context(), netstate.NewState(link))
	for key, o := range want {
		if err != nil || have[key] != o {
			t.Errorf("%v, %v, want %s", have[key], err, o)
		}
	}
}

// TestDeviceGone: a device that goes while a plan is carried out is an error for what is wanted on it, and none for
// what is deleted.
func TestDeviceGone(t *testing.T) {
	h := fresh(t)
	if err := h.Command("ip link add vx0 type vxlan id 9 dstport 4789"); err != nil {
		t.Fatal(err)
	}
	a, err := h.Kernel.(*Kernel).newApplier()
	if err == nil {
		err = h.Command("ip link del vx0")
	}
	if err != nil {
		t.Fatal(err)
	}
	entry := netstate.FDB{Dev: "vx0", MAC: netstate.MAC{2}, Dst: netip.MustParseAddr("192.0.2.2")}
	absent := netstate.FDB{Dev: "vx1", MAC: netstate.MAC{2}, Dst: netip.MustParseAddr("192.0.2.2")}
	failed := map[netstate.Change]error{}
	a.batch(netstate.Plan{{Want: entry}, {Was: entry}, {Want: absent}, {Was: absent}},
		func(c netstate.Change, err error) { failed[c] = err })
	if len(failed) != 2 || !errors.Is(failed[netstate.Change{Want: entry}], unix.ENODEV) ||
		!errors.Is(failed[netstate.Change{Want: absent}], errNoDevice) {
		t.Errorf("got %v", failed)
	}
	err = h.Kernel.Apply(t.Context(), netstate.Plan{{Want: netstate.Bridge{Name: "lo"}}})
	if !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("a bridge in the place of lo, which cannot be deleted: %v", err)
	}
}

// TestConnected: on link is what routes lead to without a gateway, and the default route is the preferred one.
func TestConnected(t *testing.T) {
	h := fresh(t)
	for _, c := range []string{"ip link add u0 type bridge", "ip link add u1 type bridge", "ip link set u0 up",
		"ip link set u1 up", "ip addr add 192.0.2.7/24 dev u0 valid_lft 100 preferred_lft 0",
		"ip addr add 192.0.2.1/24 dev u0",
		"ip addr add 198.51.100.1/24 dev u1", "ip route add 10.1.0.0/16 via 192.0.2.9", "ip route add 128.0.0.0/1 dev u0",
		"ip route add 10.2.0.0/16 nexthop dev u0 nexthop dev u1", "ip route add 224.0.0.0/4 dev u0",
		"ip route add blackhole 10.3.0.0/16",
		"ip route add default dev u0", "ip route add default dev u1 metric 10", "ip route add blackhole default metric 5",
	} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	all, err := h.Machine.Interfaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		onLink := map[string][]netip.Prefix{
			"u0": {netip.MustParsePrefix("128.0.0.0/1"), netip.MustParsePrefix("192.0.2.0/24")},
			"u1": {netip.MustParsePrefix("198.51.100.0/24")},
		}[i.Name]
		if !slices.Equal(i.OnLink, onLink) {
			t.Errorf("on the link of %s are %v, want %v", i.Name, i.OnLink, onLink)
		}
		if slices.Contains(i.Default, netstate.IPv4) != (i.Name == "u0") {
			t.Errorf("%s has the default routes of %v", i.Name, i.Default)
		}
		if i.Name == "u0" && (len(i.Addrs) != 2 || i.Addrs[0].String() != "192.0.2.1/24") {
			t.Errorf("the addresses are %v, want the one that lasts first", i.Addrs)
		}
	}
}

// TestPolledAgain: a provider is polled for as long as Watch runs.
func TestPolledAgain(t *testing.T) {
	p := newProvider()
	h := freshWith(t, func() []Provider { return []Provider{p} })
	h.Kernel.(*Kernel).interval = 100 * time.Millisecond
	hints, err := h.Kernel.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.awaitPolls(t, 1) // Watch compares with what it read first
	for i := range int64(2) {
		p.keepalive.Store(i + 1)
		hinted(t, hints)
	}
}

// TestRefused: what the kernel refuses to New and Watch is returned, and no file stays open.
func TestRefused(t *testing.T) {
	k := newKernel(t)
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Error(err)
		}
		return len(list)
	}
	netstatetest.Refuse(t, unix.EDQUOT, func() {
		before := files()
		if _, err := New(nil); !errors.Is(err, unix.EDQUOT) {
			t.Errorf("New: %v", err)
		}
		if _, err := k.Watch(t.Context()); !errors.Is(err, unix.EDQUOT) {
			t.Errorf("Watch: %v", err)
		}
		if after := files(); after > before { // fewer: what an earlier test left was closed meanwhile
			t.Errorf("%d files are open, want %d", after, before)
		}
	}, unix.SYS_SETSOCKOPT)
}
