package fastpath

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// TestAltered: what somebody else writes into a map is a reason to be without the fast path, which is told until all of it
// has been made anew. Meanwhile packets go the kernel's way.
func TestAltered(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	want := a.want(b, netstate.Encapsulate)
	toPeer, fromPod := encodeKey(a.shortcuts(b, netstate.Encapsulate).Sorted()[0].Key().Prefix), encodeAddr(a.pod4())
	e := newEcho(t, a.pod, b.pod, b.pod4())
	e.once(100, testwait.Limit)
	testwait.Pause(t, 3*time.Second, "conntrack knows UDP for two seconds before it is fast")
	e.once(100, testwait.Limit)
	if e.once(100, testwait.Limit); a.count(netstate.FromPod, string(netstate.Encapsulate)) == 0 {
		t.Fatalf("no packet took the fast path: %s", a.counted())
	}
	for _, d := range []struct {
		what, why string
		do        func() error
	}{
		{"another outer address", "10.1.2.0/24", func() error {
			var s shortcut
			if err := a.p.maps[shortcutsMap].Lookup(toPeer, &s); err != nil {
				return err
			}
			s.Outer = encodeAddr(a.addr("192.0.2.%d9"))
			return a.p.maps[shortcutsMap].Put(toPeer, s)
		}},
		{"a deleted shortcut", "10.1.2.0/24", func() error { return a.p.maps[shortcutsMap].Delete(toPeer) }},
		{"a shortcut too many", "2001:db8::/32", func() error {
			return a.p.maps[shortcutsMap].Put(shortcutKey{32, [16]byte{0x20, 1, 0x0d, 0xb8}}, shortcut{})
		}},
		{"a pod's device that is gone", a.pod4().String(), func() error {
			return a.p.maps[podsMap].Put(fromPod, pod{Dev: 77, MAC: a.mac(podMAC), Bridge: a.mac(bridgeMAC)})
		}},
		{"a deleted pod", a.pod4().String(), func() error { return a.p.maps[podsMap].Delete(fromPod) }},
		{"other settings", "settings", func() error {
			return a.p.maps[settingsMap].Put(uint32(0), parameters{1, 432000, 120, 250, 32768, 60999})
		}},
	} {
		if why := a.p.Blocked(); why != "" {
			t.Fatalf("before %s: %s", d.what, why)
		}
		if err := d.do(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if why := a.p.Blocked(); !strings.Contains(why, d.why) || !strings.Contains(why, "somebody") {
				t.Errorf("after %s: %q, want somebody and %q", d.what, why, d.why)
			}
		}
		a.bring(nil)
		if why := a.p.Blocked(); why != "" {
			t.Errorf("%s, and all of it is taken away: %s", d.what, why)
		}
		if !e.once(100, testwait.Limit) {
			t.Errorf("%s: without the fast path no packet comes back", d.what)
		}
		a.bring(want)
		if !e.once(100, testwait.Limit) {
			t.Errorf("%s: with all made anew no packet comes back", d.what)
		}
	}
}

// TestAlteredWhileNobodyLooked: what an earlier agent left is taken as it is, and brought to what is wanted.
func TestAlteredWhileNobodyLooked(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	if err := a.p.maps[podsMap].Delete(encodeAddr(a.pod4())); err != nil {
		t.Fatal(err)
	}
	a.open()
	for range 2 {
		if why := a.p.Blocked(); why != "" {
			t.Error(why)
		}
		a.bring(a.want(b, netstate.Encapsulate))
	}
}

// TestLostPins: pins that somebody removed come back in one pass, so that other processes find the maps.
func TestLostPins(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	want := a.want(b, netstate.Encapsulate)
	for range 2 { // of what was loaded, and of what is adopted
		for _, lose := range []func() error{
			func() error { return os.Remove(a.p.folder + "/" + a.p.files[settingsMap]) },
			func() error { return os.RemoveAll(a.p.folder) },
		} {
			var err error
			if a.do(func() { err = lose() }); err != nil {
				t.Fatal(err)
			}
			if plan := a.diff(want).String(); !strings.Contains(plan, "~ switch skipmark 0x8000 (was switch skipmark 0x8000 without the pin ") {
				t.Errorf("the plan is\n%s", plan)
			}
			a.bring(want)
			a.do(func() {
				var reader *Provider
				if reader, err = OpenPinned(a.dir); err == nil {
					_, err = reader.Counts()
					reader.Close()
				}
			})
			if err != nil {
				t.Error(err)
			}
		}
		a.open()
	}
}

// TestRestartWithoutAPin: an agent that finds a part of what was pinned works with it.
func TestRestartWithoutAPin(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	want := a.want(b, netstate.Encapsulate)
	for _, name := range []string{settingsMap, shortcutsMap, string(netstate.FromPod)} {
		var err error
		if a.do(func() { err = os.Remove(a.p.folder + "/" + a.p.files[name]) }); err != nil {
			t.Fatal(err)
		}
		a.open()
		a.bring(want)
		if why := a.p.Blocked(); why != "" {
			t.Errorf("without the pin of %s: %s", name, why)
		}
	}
}
