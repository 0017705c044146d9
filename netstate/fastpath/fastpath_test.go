package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// TestRoundTrip: what is written is what is read, and all of it goes again.
func TestRoundTrip(t *testing.T) {
	for _, mode := range modes {
		for _, classic := range []bool{false, true} {
			a, b := pair(t)
			a.classic = classic
			a.open()
			for range 2 {
				a.bring(a.want(b, mode))
				if plan := a.diff(nil); len(plan) != len(a.want(b, mode)) {
					t.Errorf("%d objects to delete, want %d:\n%s", len(plan), len(a.want(b, mode)), plan)
				}
				a.bring(nil)
			}
		}
	}
}

// TestDrift: what somebody else did is in the plan, and one pass repairs it.
func TestDrift(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	want := a.want(b, netstate.Encapsulate)
	toPeer, fromPod := encodeKey(a.shortcuts(b, netstate.Encapsulate).Sorted()[0].Key().Prefix), encodeAddr(a.pod4())
	for _, d := range []struct {
		what, plan string
		do         func() error
	}{
		{"a deleted shortcut", "+ shortcut 10.1.2.0/24", func() error { return a.p.maps[shortcutsMap].Delete(toPeer) }},
		{"an altered shortcut", "~ shortcut 10.1.2.0/24", func() error {
			return a.p.maps[shortcutsMap].Put(toPeer, shortcut{Mode: 7, Dev: 77, From: 78})
		}},
		{"a shortcut too many", "- shortcut 2001:db8::/32", func() error {
			return a.p.maps[shortcutsMap].Put(shortcutKey{32, [16]byte{0x20, 1, 0x0d, 0xb8}}, shortcut{})
		}},
		{"a deleted pod", "+ podport " + a.pod4().String(), func() error { return a.p.maps[podsMap].Delete(fromPod) }},
		{"a pod's device that is gone", "~ podport " + a.pod4().String(), func() error {
			return a.p.maps[podsMap].Put(fromPod, pod{Dev: 77, MAC: a.mac(podMAC), Bridge: a.mac(bridgeMAC)})
		}},
		{"altered settings", "~ switch skipmark 0x8000 (was switch skipmark 0x1", func() error {
			return a.p.maps[settingsMap].Put(uint32(0), parameters{1, 432000, 120, 250, 32768, 60999})
		}},
		{"no settings", "+ switch", func() error { return a.p.maps[settingsMap].Put(uint32(0), parameters{}) }},
		{"another timeout", "~ switch skipmark 0x8000 (was switch skipmark 0x8000 " + udpTimeout + "=120 (the kernel has 77)",
			func() error {
				a.sysctl(udpTimeout, "77")
				return nil
			}},
		{"another port range", "~ switch skipmark 0x8000 (was switch skipmark 0x8000 " + portRange + "[0]=32768", func() error {
			a.sysctl(portRange, "20000 60999")
			return nil
		}},
	} {
		if err := d.do(); err != nil {
			t.Fatal(err)
		}
		if plan := a.diff(want).String(); strings.Count(plan, "\n") != 1 || !strings.HasPrefix(plan, d.plan) {
			t.Errorf("after %s the plan is\n%swant\n%s", d.what, plan, d.plan)
		}
		a.bring(want)
	}
}

// TestPodIsGone: that a pod goes between the look and the change is no error, and leaves no entry.
func TestPodIsGone(t *testing.T) {
	a, _ := fast(t, netstate.Encapsulate)
	for _, addr := range []netip.Addr{a.pod4(), netip.MustParseAddr("10.1.9.9")} { // with and without an entry
		port := netstate.PodPort{Addr: addr, Dev: "gone", MAC: a.mac(podMAC), Bridge: a.mac(bridgeMAC)}
		if err := a.p.Apply(netstate.Change{Want: port}); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
		var e pod
		if err := a.p.maps[podsMap].Lookup(encodeAddr(addr), &e); !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Errorf("%s has the entry %+v (%v)", addr, e, err)
		}
	}
}

// TestDriftOfFilters: a filter that is ours by its name and not as it should be is replaced, and leaves nothing.
func TestDriftOfFilters(t *testing.T) {
	a, b := fastBy(t, netstate.Encapsulate, true)
	want := a.want(b, netstate.Encapsulate)
	for _, command := range []string{"filter del dev flannel.1 ingress", "qdisc del dev flannel.1 clsact"} {
		a.command("tc", strings.Fields(command)...)
		if plan := a.diff(want).String(); plan != "+ program to_pod dev flannel.1 ingress\n" {
			t.Errorf("after %s the plan is\n%s", command, plan)
		}
		a.bring(want)
	}
	index, err := a.p.names.index("flannel.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []struct {
		extra string
		alter func(f *netlink.BpfFilter)
	}{
		{"another version", func(f *netlink.BpfFilter) { f.Fd = a.p.programs[string(netstate.FromPod)].FD() }},
		{"without direct-action", func(f *netlink.BpfFilter) { f.DirectAction = false }},
		{"pref 7 handle 0x2 and 1 more", func(f *netlink.BpfFilter) { f.Priority, f.Handle = 7, 2 }},
		{"and 1 more", func(f *netlink.BpfFilter) { f.Priority = 777 }},
	} {
		f := filter(index, netstate.ToPod)
		f.Fd = a.p.programs[string(netstate.ToPod)].FD()
		d.alter(f)
		if err := a.p.nl.FilterReplace(f); err != nil {
			t.Fatal(err)
		}
		if plan := a.diff(want).String(); !strings.Contains(plan, "(was program to_pod dev flannel.1 ingress "+d.extra) {
			t.Errorf("the plan is\n%swant %s", plan, d.extra)
		}
		a.bring(want)
		if n := strings.Count(a.command("tc", "filter", "show", "dev", "flannel.1", "ingress"), "twill-to_pod"); n != 1 {
			t.Errorf("after %q there are %d filters", d.extra, n)
		}
	}
}

// TestBeside: a filter that somebody else puts beside ours makes a difference, and it is not ours to take away.
func TestBeside(t *testing.T) {
	for _, classic := range []bool{false, true} {
		a, b := fastBy(t, netstate.Encapsulate, classic)
		want := a.want(b, netstate.Encapsulate)
		_, _ = a.try("tc", "qdisc", "add", "dev", "flannel.1", "clsact") // there already for cls_bpf
		a.command("tc", "filter", "add", "dev", "flannel.1", "ingress", "pref", "200", "bpf", "bytecode", "1,6 0 0 0")
		plan := a.diff(want)
		if !strings.Contains(plan.String(), "ingress beside ingress bpf pref 200") || len(plan) != 1 {
			t.Fatalf("the plan is\n%s", plan)
		}
		if err := a.apply(plan[0]); err == nil || !strings.Contains(err.Error(), "filters of somebody else") {
			t.Errorf("beside it: %v", err)
		}
	}
}

// TestForeign: the error names what somebody else has on a device, and that stays as it is.
func TestForeign(t *testing.T) {
	for _, classic := range []bool{false, true} {
		t.Run(fmt.Sprintf("cls_bpf: %t", classic), func(t *testing.T) { foreign(t, classic) })
	}
}

func foreign(t *testing.T, classic bool) {
	a, _ := pair(t)
	a.classic = classic
	a.open()
	for _, f := range []struct{ dev, setup, want string }{
		{"cni0", "qdisc add dev cni0 ingress", "device cni0 has a queueing discipline ingress of somebody else"},
		{"flannel.1", "qdisc add dev flannel.1 clsact; filter add dev flannel.1 egress pref 9 bpf bytecode 1,6_0_0_0",
			"device flannel.1 has filters of somebody else, which the fast path would pass by: egress bpf pref 9"},
	} {
		for command := range strings.SplitSeq(f.setup, "; ") {
			args := strings.Fields(command)
			args[len(args)-1] = strings.ReplaceAll(args[len(args)-1], "_", " ")
			a.command("tc", args...)
		}
		err := a.apply(netstate.Change{Want: netstate.Program{Dev: f.dev, Name: netstate.ToPod}})
		if err == nil || !strings.Contains(err.Error(), f.want) {
			t.Errorf("the error is %v, want %s", err, f.want)
		}
		if err := a.apply(netstate.Change{Was: netstate.Program{Dev: f.dev, Name: netstate.ToPod}}); err != nil {
			t.Error(err)
		}
	}
	if text := a.command("tc", "filter", "show", "dev", "flannel.1", "egress"); !strings.Contains(text, "pref 9") {
		t.Error("the foreign filter is gone")
	}
	if err := a.apply(netstate.Change{Want: netstate.Program{Dev: "nosuch", Name: netstate.ToPod}}); err == nil ||
		!strings.Contains(err.Error(), "nosuch") {
		t.Errorf("of a device that is not there: %v", err)
	}
}

func TestBlocked(t *testing.T) {
	a, _ := pair(t)
	a.open()
	if why := a.p.Blocked(); why != "" {
		t.Errorf("blocked: %s", why)
	}
	out, err := a.try("ip", strings.Fields("xfrm policy add src fd00:9::/64 dst fd00:8::/64 dir out priority 100")...)
	if err != nil {
		t.Skipf("a kernel without IPsec: %s", out)
	}
	if why := a.p.Blocked(); !strings.Contains(why, "1 IPsec policies") {
		t.Errorf("with a policy: %q", why)
	}
}

// TestPins: a restart adopts what is there, another process can pause it, and nothing is left after Clean.
func TestPins(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	ids := fmt.Sprint(a.p.ids)
	a.open()
	if plan := a.diff(a.want(b, netstate.Encapsulate)); len(plan) > 0 || fmt.Sprint(a.p.ids) != ids {
		t.Errorf("after a restart the programs are %v, before %s, and there is to do:\n%s", a.p.ids, ids, plan)
	}
	var reader *Provider
	var err error
	a.do(func() { reader, err = OpenPinned(a.dir) })
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	until := time.Now().Add(time.Hour)
	if err := reader.Pause(until); err != nil {
		t.Fatal(err)
	}
	if got := a.p.Paused(); got.Sub(until).Abs() > 2*time.Second {
		t.Errorf("paused until %s, want %s", got, until)
	}
	if err := reader.Pause(time.Time{}); err != nil || !a.p.Paused().IsZero() {
		t.Errorf("still paused until %s, %v", a.p.Paused(), err)
	}
	a.command("tc", "qdisc", "add", "dev", "lo", "clsact") // of somebody else
	a.do(func() { err = Clean(a.dir) })
	if err != nil {
		t.Fatal(err)
	}
	if text := a.command("tc", "qdisc", "show"); strings.Count(text, "clsact") != 1 {
		t.Errorf("there still is\n%s", text)
	}
	if text := a.command("ls", a.dir); strings.Contains(text, "twill") {
		t.Errorf("left: %s", text)
	}
	a.do(func() { reader, err = OpenPinned(a.dir) })
	if err == nil {
		t.Error("what is not pinned can be opened")
	}
}

// TestCapabilities: who finds the programs loaded needs no more than what the agent has anyway, and is told what loading
// takes.
func TestCapabilities(t *testing.T) {
	a, b := pair(t)
	a.open()
	var err error
	a.do(func() { // of this thread only
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		const some = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
		err = unix.Capset(&header, &[]unix.CapUserData{{Effective: some, Permitted: some}, {}}[0])
	})
	if err != nil {
		t.Fatal(err)
	}
	a.open()
	a.bring(a.want(b, netstate.Encapsulate))
	a.do(func() {
		_, err = a.p.Counts()
		err = errors.Join(err, a.p.Extend(), a.p.Pause(time.Time{}))
	})
	if err != nil {
		t.Error(err)
	}
	a.bring(nil)
	a.do(func() {
		if err = Clean(a.dir); err == nil {
			_, err = Open(a.dir)
		}
	})
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "PERFMON") {
		t.Errorf("loading without the capabilities: %v", err)
	}
}

func TestUnavailable(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(dir)
	if want := "the fast path is not available: no BPF file system is mounted at " + dir; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := Clean(dir); err != nil {
		t.Error(err)
	}
}
