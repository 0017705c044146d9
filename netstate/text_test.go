package netstate

import (
	"net/netip"
	"testing"
)

// TestNeighStates: a state has the name of its highest bit.
func TestNeighStates(t *testing.T) {
	for state, want := range map[NeighState]string{0: "none", 1: "incomplete", 2: "reachable", 4: "stale", 0x10: "probe",
		NeighFailed: "failed", NeighPermanent: "permanent", NeighPermanent | 1: "permanent"} {
		if got := state.String(); got != want {
			t.Errorf("%#x is %q, want %q", uint8(state), got, want)
		}
	}
}

// TestParseMACDigits: all hexadecimal digits in both cases are read, and none of their neighbours is.
func TestParseMACDigits(t *testing.T) {
	want := MAC{0x01, 0x23, 0x45, 0x89, 0xaf, 0xfa}
	for _, s := range []string{"01:23:45:89:af:fa", "01:23:45:89:AF:FA"} {
		if got, err := ParseMAC(s); err != nil || got != want {
			t.Errorf("%s is %s, %v", s, got, err)
		}
	}
	for _, c := range "/:@G`g" {
		for _, s := range []string{string(c) + "0:00:00:00:00:00", "00:00:00:00:00:0" + string(c)} {
			if m, err := ParseMAC(s); err == nil {
				t.Errorf("%s is %s", s, m)
			}
		}
	}
}

// TestStateStrings: states and plans have one object a line.
func TestStateStrings(t *testing.T) {
	state := NewState(Sysctl{Name: "a", Value: "1"}, Sysctl{Name: "b", Value: "2"})
	if got, want := state.String(), "sysctl a = 1\nsysctl b = 2\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := words("", "a", "", "b"); got != "a b" {
		t.Errorf("got %q", got)
	}
	if got, want := Diff(state, nil).String(), "+ sysctl a = 1\n+ sysctl b = 2\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestHost: the prefix of no address is no prefix, which can be compared.
func TestHost(t *testing.T) {
	if got := Host(netip.Addr{}); got != (netip.Prefix{}) {
		t.Errorf("got %#v", got)
	}
	if got := Host(netip.MustParseAddr("fc00::1")); got != netip.MustParsePrefix("fc00::1/128") {
		t.Errorf("got %s", got)
	}
}

// TestSlotsOfDevices: each device has entries and addresses of its own.
func TestSlotsOfDevices(t *testing.T) {
	for _, pair := range [][2]Object{{Neigh{Dev: "a"}, Neigh{Dev: "b"}}, {FDB{Dev: "a"}, FDB{Dev: "b"}},
		{FDB{Dev: "a", MAC: MAC{1}}, FDB{Dev: "a", MAC: MAC{2}}},
		{Addr{Dev: "a"}, Addr{Dev: "b"}}} {
		if pair[0].Key() == pair[1].Key() {
			t.Errorf("%s and %s have one slot", pair[0], pair[1])
		}
	}
}

// TestKinds: the slot of an object is one of its kind.
func TestKinds(t *testing.T) {
	for want, o := range map[Kind]Object{KindAddr: Addr{}, KindNeigh: Neigh{}, KindFDB: FDB{}, KindRoute: Route{},
		KindSysctl: Sysctl{}, KindListener: Listener{}, KindPeer: Peer{}, KindPolicy: Policy{}, KindChain: Chain{},
		KindLink: VXLAN{}, KindOffload: Offload{}} {
		if got := o.Key().Kind; got != want {
			t.Errorf("%T is of kind %s, want %s", o, got, want)
		}
	}
}

// TestMerge: what is added stands beside what was there, and in place of what had its slot.
func TestMerge(t *testing.T) {
	a, b, other := Sysctl{Name: "a", Value: "1"}, Sysctl{Name: "b", Value: "2"}, Sysctl{Name: "a", Value: "3"}
	state := NewState(a)
	state.Merge(NewState(b, other))
	if len(state) != 2 || state[a.Key()] != other || state[b.Key()] != b {
		t.Errorf("got %s", state)
	}
}
