package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testns"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/netstatetest"
	"github.com/twill-net/twill/netstate/rtnl"
)

func TestIgnoreAbsent(t *testing.T) {
	for _, err := range []error{unix.ENOENT, unix.ESRCH, unix.ENODEV, unix.EADDRNOTAVAIL,
		fmt.Errorf("x: %w", errNoDevice), nil} {
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

// TestWatchSysctl runs in the process's own namespace: the parameters are read by a goroutine of their own. What
// the kernel announces gives a hint without being polled, and what it does not when it is; what nobody wants gives none.
func TestWatchSysctl(t *testing.T) {
	for _, c := range []string{"ip link add sys0 type bridge", "ip link add sys1 type bridge"} {
		if err := command(c); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _, _ = command("ip link del sys0"), command("ip link del sys1") })
	k := newKernel(t)
	for _, test := range []struct {
		name, value, other string
		poll               time.Duration
	}{
		{"net/ipv4/ip_forward", "1", "0", time.Hour},
		{"net/ipv4/conf/sys0/forwarding", "1", "0", time.Hour},
		{"net/ipv4/conf/sys0/rp_filter", "2", "1", time.Hour},
		{"net/ipv6/conf/all/forwarding", "1", "0", time.Hour},
		{"net/ipv6/conf/sys0/accept_ra", "0", "1", 100 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			old, err := readSysctl(test.name)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = writeSysctl(netstate.Sysctl{Name: test.name, Value: old}) })
			want := netstate.Sysctl{Name: test.name, Value: test.value}
			if err := k.Apply(t.Context(), netstate.Plan{{Want: want}}); err != nil {
				t.Fatal(err)
			}
			if _, err := k.Observe(t.Context(), netstate.NewState(want)); err != nil {
				t.Fatal(err)
			}
			k.interval = test.poll
			hints, err := k.Watch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := command("sysctl -q -w net/ipv4/conf/sys1/rp_filter=" + test.other); err != nil {
				t.Fatal(err)
			}
			if netstatetest.Quiet(t, hints, 100*time.Millisecond) {
				t.Error("a hint about what nobody wants")
			}
			if err := command("sysctl -q -w " + test.name + "=" + test.other); err != nil {
				t.Fatal(err)
			}
			hinted(t, hints)
		})
	}
}

// TestWatchOverflow: a burst into a buffer that is too small ends the subscription, and a new one works.
func TestWatchOverflow(t *testing.T) {
	h := fresh(t)
	for _, c := range []string{"ip link add u0 type veth peer name u0p", "ip link set u0p up", "ip link set u0 up",
		"ip addr add 192.0.2.1/24 dev u0"} {
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
	timeout := time.After(testwait.Limit)
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
	case <-time.After(testwait.Limit):
		t.Error("no hint from the new subscription")
	}
}

// TestWatchCarriers: a pod's veth is of no interest, and one that had an address when the underlay was chosen is.
func TestWatchCarriers(t *testing.T) {
	h := fresh(t)
	for _, c := range []string{"ip link add u0 type veth peer name u0p", "ip link add pod0 type veth peer name pod0p",
		"ip addr add 192.0.2.1/24 dev u0"} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Machine.Interfaces(t.Context()); err != nil {
		t.Fatal(err)
	}
	k := h.Kernel.(*Kernel)
	for name, want := range map[string]bool{"u0": true, "pod0": false} {
		r := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
		r.AddData(&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: int32(index(name))}})
		err := k.bulk.List(r, func(m []byte) error {
			if got := k.concerns(unix.RTM_NEWLINK, m); got != want {
				t.Errorf("a message about %s is news: %t, want %t", name, got, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestConcernsRoute: of the main table's routes ours are news, those into the networks, and default routes.
func TestConcernsRoute(t *testing.T) {
	k := &Kernel{left: netstatetest.Left()}
	k.filter.Store(&filter{links: map[int]string{7: "vxlan"}})
	foreign := set(head(unix.AF_INET, 24), 5, unix.RTPROT_BOOT)
	dst := func(s string) []byte { return slices.Concat(foreign, attr(unix.RTA_DST, ip(s)...)) }
	for name, test := range map[string]struct {
		message []byte
		want    bool
	}{
		"ours":                   {head(unix.AF_INET, 24), true},
		"ours, of another table": {set(head(unix.AF_INET, 24), 4, 100), true},
		"of another table":       {set(head(unix.AF_INET, 0), 4, 100, unix.RTPROT_BOOT), false},
		"cut short":              {head(unix.AF_INET, 24)[:11], false},
		"a default route":        {set(foreign, 1, 0), true},
		"through our device":     {slices.Concat(dst("198.51.100.0"), attr(unix.RTA_OIF, number(7)...)), true},
		"through another":        {slices.Concat(dst("198.51.100.0"), attr(unix.RTA_OIF, number(8)...)), false},
		"into a network":         {dst("10.244.9.0"), true},
		"beside it":              {dst("10.245.9.0"), false},
		"around it":              {set(dst("10.244.0.0"), 1, 15), false},
	} {
		if got := k.concerns(unix.RTM_NEWROUTE, test.message); got != test.want {
			t.Errorf("%s: news %t, want %t", name, got, test.want)
		}
	}
}

// TestConcernsEntry: an entry of a device of ours is news if it is not as wanted or written. Device 4 is flannel.1, 5 another.
func TestConcernsEntry(t *testing.T) {
	mac := netstate.MAC{2, 0, 0, 0, 4, 2}
	wanted := netstate.FDB{Dev: "flannel.1", MAC: mac, Dst: netip.MustParseAddr("192.0.2.2")}
	written := netstate.FDB{Dev: "flannel.1", MAC: mac, Dst: netip.MustParseAddr("192.0.2.3")}
	neigh := netstate.Neigh{Dev: "flannel.1", IP: netip.MustParseAddr("10.244.2.0"), MAC: mac}
	k := &Kernel{}
	f := newFilter(netstate.NewState(wanted, neigh))
	f.links = map[int]string{4: "vxlan", 6: "bridge", 7: "tun"}
	f.names = map[int]string{4: "flannel.1", 5: "eth0", 6: "cni0", 7: "flannel0"}
	k.filter.Store(f)
	message := func(family, device, state byte, dst string) []byte {
		m := slices.Concat([]byte{family, 0, 0, 0, device, 0, 0, 0, state, 0, 2, 0}, attr(unix.NDA_LLADDR, mac[:]...))
		if dst != "" {
			m = append(m, attr(unix.NDA_DST, ip(dst)...)...)
		}
		return m
	}
	const bridge, permanent, stale = unix.AF_BRIDGE, unix.NUD_PERMANENT, unix.NUD_STALE
	check := func(name string, kind uint16, message []byte, want bool) {
		t.Helper()
		if got := k.concerns(kind, message); got != want {
			t.Errorf("%s: news %t, want %t", name, got, want)
		}
	}
	check("as wanted", unix.RTM_NEWNEIGH, message(bridge, 4, permanent, "192.0.2.2"), false)
	check("as wanted, deleted", unix.RTM_DELNEIGH, message(bridge, 4, permanent, "192.0.2.2"), true)
	check("as wanted, and stale", unix.RTM_NEWNEIGH, message(bridge, 4, permanent|stale, "192.0.2.2"), true)
	check("a neighbour as wanted, and stale", unix.RTM_NEWNEIGH, message(unix.AF_INET, 4, permanent|stale, "10.244.2.0"), true)
	check("unwanted", unix.RTM_NEWNEIGH, message(bridge, 4, permanent, "192.0.2.3"), true)
	check("unwanted, deleted", unix.RTM_DELNEIGH, message(bridge, 4, permanent, "192.0.2.3"), false)
	check("without a destination", unix.RTM_NEWNEIGH, message(bridge, 4, permanent, ""), false)
	check("of another device", unix.RTM_NEWNEIGH, message(bridge, 5, permanent, "192.0.2.3"), false)
	check("of the bridge", unix.RTM_NEWNEIGH, message(unix.AF_INET, 6, permanent, "10.244.1.2"), false)
	check("cut short", unix.RTM_NEWNEIGH, message(bridge, 4, permanent, "192.0.2.3")[:11], false)
	check("a neighbour as wanted", unix.RTM_NEWNEIGH, message(unix.AF_INET, 4, permanent, "10.244.2.0"), false)
	check("a neighbour that expires", unix.RTM_NEWNEIGH, message(unix.AF_INET, 4, stale, "10.244.2.0"), true)
	check("a learned neighbour", unix.RTM_NEWNEIGH, message(unix.AF_INET, 4, stale, "10.244.3.0"), false)
	check("the kernel's of a device without addresses", unix.RTM_NEWNEIGH, message(unix.AF_INET, 7, unix.NUD_NOARP, "0.0.0.0"), false)
	check("another of it", unix.RTM_NEWNEIGH, message(unix.AF_INET, 7, unix.NUD_FAILED, "0.0.0.0"), true)
	f.expect(netstate.Plan{{Want: written}, {Was: wanted}})
	check("as written", unix.RTM_NEWNEIGH, message(bridge, 4, permanent, "192.0.2.3"), false)
	check("as deleted", unix.RTM_DELNEIGH, message(bridge, 4, permanent, "192.0.2.2"), false)
	check("written, deleted", unix.RTM_DELNEIGH, message(bridge, 4, permanent, "192.0.2.3"), true)
	f.expect(netstate.Plan{{Was: written}, {Want: wanted}})
	check("as deleted again", unix.RTM_DELNEIGH, message(bridge, 4, permanent, "192.0.2.3"), false)
	check("as written again", unix.RTM_NEWNEIGH, message(bridge, 4, permanent, "192.0.2.2"), false)
}

// TestMissingModules: what refuses a device because the kernel has no such devices says which module has them.
func TestMissingModules(t *testing.T) {
	h := fresh(t)
	if err := h.Command("ip link add u0 type bridge"); err != nil {
		t.Fatal(err)
	}
	for module, o := range map[string]netstate.Object{
		"wireguard":  netstate.WireGuard{Name: "wg0", MTU: 1420, Marked: true},
		"ipip":       netstate.Tunnel{Name: "tun4", MTU: 1480, Local: netip.MustParseAddr("192.0.2.1"), Marked: true},
		"ip6_tunnel": netstate.Tunnel{Name: "tun6", MTU: 1460, External: true, Marked: true},
	} {
		err := h.Kernel.Apply(t.Context(), netstate.Plan{{Want: o}})
		if err != nil && !strings.Contains(err.Error(), "load the module "+module) {
			t.Errorf("%s: %v", o, err)
		}
	}
}

// TestUnlikely: addresses come in the order in which flannel would choose them.
func TestUnlikely(t *testing.T) {
	best := []uint32{unix.IFA_F_PERMANENT, unix.IFA_F_PERMANENT | unix.IFA_F_TEMPORARY, 0, unix.IFA_F_TEMPORARY,
		unix.IFA_F_PERMANENT | unix.IFA_F_DEPRECATED, unix.IFA_F_DEPRECATED}
	for i, flags := range best[1:] {
		if unlikely(address{rtnl.Address{Flags: best[i]}}) >= unlikely(address{rtnl.Address{Flags: flags}}) {
			t.Errorf("an address with flags %#x comes after one with %#x", best[i], flags)
		}
	}
}

// TestPause: readings that take long become rarer, but go on.
func TestPause(t *testing.T) {
	k := &Kernel{interval: pollInterval}
	for took, want := range map[time.Duration]time.Duration{70 * time.Millisecond: 7 * time.Second, time.Second: 15 * time.Second, time.Hour: 15 * time.Second} {
		if got := k.pause(took); got != want {
			t.Errorf("%s after a reading of %s, want %s", got, took, want)
		}
	}
	if got := k.pause(0); got > pollInterval {
		t.Errorf("%s after a quick reading, want at most %s", got, pollInterval)
	}
}

// TestClose: every file that was opened is closed, also where New fails half-way.
func TestClose(t *testing.T) {
	open := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	h, before := fresh(t), 0
	tun := netstate.Tun{Name: "tun0", MTU: 1400, Marked: true}
	for range 5 {
		k, err := New(nil)
		if err != nil {
			t.Fatal(err)
		}
		k.Close()
		for _, p := range []netstate.Plan{{{Want: tun}}, {{Was: tun}}} {
			if err := h.Kernel.Apply(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		one, err := unix.Dup(0) // the lowest number that is free
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(one)
		err = withFiles(t, one+1, func() error { _, err := New(nil); return err })
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("New with room for one socket: %v", err)
		}
		if before == 0 {
			before = open() // the runtime's poller has files too
		}
	}
	if after := open(); after > before {
		t.Errorf("%d files are open after five times, %d after one", after, before)
	}
}

// TestForeignKinds: the firewall's chains are another package's.
func TestForeignKinds(t *testing.T) {
	h := fresh(t)
	c := netstate.Chain{Role: netstate.Forward}
	for _, p := range []netstate.Plan{{{Want: c}}, {{Was: c}}} {
		if err := h.Kernel.Apply(t.Context(), p); err == nil || !strings.Contains(err.Error(),
			"a chain is not an object that this kernel package") {
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

// TestReadOnlySysctls: a container whose /proc/sys is read-only writes to the host's, if that is mounted there.
func TestReadOnlySysctls(t *testing.T) {
	runtime.LockOSThread() // the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(procSys, procSys, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", procSys, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	s := netstate.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"}
	real := hostProcSys
	t.Cleanup(func() { hostProcSys = real })
	hostProcSys = t.TempDir()
	if err := writeSysctl(s); !errors.Is(err, unix.EROFS) {
		t.Errorf("without the host's: %v", err)
	}
	if err := os.MkdirAll(hostProcSys+"/net/ipv4", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hostProcSys+"/"+s.Name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeSysctl(s); err != nil {
		t.Errorf("with the host's: %v", err)
	}
	if value, err := os.ReadFile(hostProcSys + "/" + s.Name); err != nil || string(value) != "1" {
		t.Errorf("the host's is %q, %v", value, err)
	}
}

func TestCancelled(t *testing.T) {
	testns.Enter(t)
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
		k.filter.Store(&filter{links: map[int]string{4: "vxlan"}})
		k.concerns(kind, data)
	})
}

// TestDefaultOnLink: a default route without a gateway does not make the whole world a neighbour.
func TestDefaultOnLink(t *testing.T) {
	h := fresh(t)
	for _, c := range []string{"ip link add u0 type bridge", "ip link set u0 up", "ip addr add 192.0.2.1/24 dev u0",
		"ip route add default dev u0"} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	all, err := h.Machine.Interfaces(t.Context())
	for _, i := range all {
		if i.Name == "u0" && fmt.Sprint(i.OnLink) == "[192.0.2.0/24]" && slices.Equal(i.Default, []netstate.Family{netstate.IPv4}) {
			return
		}
	}
	t.Errorf("u0 is not as expected: %+v, %v", all, err)
}
