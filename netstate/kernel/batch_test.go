package kernel

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/netstatetest"
	"github.com/twill-net/twill/netstate/rtnl"
)

// TestBatchErrors applies thousands of routes of which each third has a gateway that nobody reaches: exactly those
// fail, each with its words, and the others stand.
func TestBatchErrors(t *testing.T) {
	h := fresh(t)
	for _, c := range []string{"ip link add u0 type veth peer name u0p", "ip link set u0p up", "ip link set u0 up",
		"ip addr add 192.0.2.1/24 dev u0"} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	all, good := netstate.State{}, netstate.State{}
	for i := range 3000 {
		r := netstate.Route{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24),
			Via: netip.MustParseAddr("192.0.2.9"), Dev: "u0", Protocol: netstate.Protocol}
		if i%3 == 0 {
			r.Via = netip.MustParseAddr("198.51.100.9")
		} else {
			good.Add(r)
		}
		all.Add(r)
	}
	err := h.Kernel.Apply(t.Context(), netstate.Diff(all, nil))
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) || len(joined.Unwrap()) != 1000 ||
		!strings.Contains(joined.Unwrap()[0].Error(), "use the vxlan backend") {
		t.Errorf("got %.300v", err)
	}
	have, err := h.Kernel.Observe(t.Context(), good)
	if p := netstate.Diff(good, have); err != nil || len(p) > 0 {
		t.Fatalf("%v, %d changes", err, len(p))
	}
	if err := h.Kernel.Apply(t.Context(), append(netstate.Diff(nil, good), netstate.Diff(nil, all)...)); err != nil {
		t.Errorf("deleting what is there, and what is not: %.300v", err)
	}
	if have, err := h.Kernel.Observe(t.Context(), nil); err != nil || len(have) > 0 {
		t.Errorf("%v, %d objects left", err, len(have))
	}
}

func FuzzParse(f *testing.F) {
	f.Add(make([]byte, 64))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = parseEntry(data)
		if a, err := rtnl.ParseAddress(data); err == nil {
			_ = address{a}.decode("").String()
		}
		if r, err := parseRoute(data); err == nil {
			_ = decodeRoute(r, nil).String()
		}
	})
}

// TestWatchOwnChanges: what Apply writes of peers' entries is no hint, and the same from someone else is one.
func TestWatchOwnChanges(t *testing.T) {
	h := fresh(t)
	for _, c := range []string{"ip link add u0 type veth peer name u0p", "ip link set u0p up", "ip link set u0 up",
		"ip addr add 192.0.2.1/24 dev u0"} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	want := large(1)
	if err := h.Kernel.Apply(t.Context(), netstate.Diff(want, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Kernel.Observe(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	hints, err := h.Kernel.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	netstatetest.Quiet(t, hints, 200*time.Millisecond)
	more := large(50)
	for k := range large(1) {
		delete(more, k)
	}
	for _, plan := range []netstate.Plan{netstate.Diff(more, nil), netstate.Diff(large(30), large(50))} {
		if err := h.Kernel.Apply(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
		if netstatetest.Quiet(t, hints, 200*time.Millisecond) {
			t.Errorf("a hint about what was applied, from %s on", plan[0])
		}
	}
	for _, c := range []string{"ip route del 10.100.7.0/24", "ip neigh del 10.100.8.0 dev flannel.1",
		"bridge fdb del 02:00:00:01:00:09 dev flannel.1",
		"bridge fdb replace 02:00:00:01:00:0a dst 192.0.2.8 dev flannel.1 self permanent",
		"bridge fdb add 02:00:00:01:00:28 dst 192.0.2.9 dev flannel.1 self permanent",
		"ip neigh replace 10.100.40.0 lladdr 02:00:00:01:00:28 nud permanent dev flannel.1",
		"ip neigh replace 10.100.11.0 lladdr 02:00:00:01:00:0b nud stale dev flannel.1"} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hints:
		case <-time.After(testwait.Limit):
			t.Errorf("no hint after %q", c)
		}
	}
}
