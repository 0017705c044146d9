package fake_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fake"
)

// errnos are what the kernel answers when it could not, this time.
var errnos = []syscall.Errno{syscall.EINTR, syscall.EBUSY, syscall.ENODEV, syscall.ENOBUFS}

// host is a kernel with an underlay.
func host(t *testing.T) *fake.Kernel {
	t.Helper()
	k := fake.New()
	for _, c := range []string{"ip link add u0 type veth peer name u0p", "ip link set u0 up",
		"ip addr add 192.0.2.1/24 dev u0"} {
		if err := k.Run(c); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// node is one object of every kind.
func node() netstate.State {
	gw := netip.MustParseAddr("10.244.2.0")
	mac := netstate.MAC{2, 0, 0, 0, 0, 2}
	return netstate.NewState(
		netstate.Bridge{Name: "cni0", MTU: 1450, MAC: mac, Up: true, Marked: true},
		netstate.VXLAN{Name: "flannel.1", VNI: 1, Port: 8472, Dev: "u0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 1450,
			MAC: mac, Up: true, Marked: true},
		netstate.Tun{Name: "flannel0", MTU: 1452, Up: true, Marked: true},
		netstate.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"},
		netstate.Addr{Dev: "flannel.1", Prefix: netip.MustParsePrefix("10.244.1.0/32")},
		netstate.Neigh{Dev: "flannel.1", IP: gw, MAC: mac},
		netstate.FDB{Dev: "flannel.1", MAC: mac, Dst: netip.MustParseAddr("192.0.2.2")},
		netstate.Route{Dst: netip.MustParsePrefix("10.244.2.0/24"), Via: gw, Dev: "flannel.1", Onlink: true,
			Protocol: netstate.Protocol},
		netstate.Chain{Role: netstate.Forward, Rules: [netstate.MaxRules]netstate.Rule{{Verdict: netstate.Accept}}},
	)
}

func plan(t *testing.T, k *fake.Kernel, want netstate.State) netstate.Plan {
	t.Helper()
	have, err := k.Observe(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	return netstate.Diff(want, have)
}

// altered is o with something else in its slot; what cannot be altered in place is o.
func altered(o netstate.Object) netstate.Object {
	switch o := o.(type) {
	case netstate.VXLAN:
		o.MTU--
		return o
	case netstate.Bridge:
		o.MTU--
		return o
	case netstate.Tun:
		o.MTU--
		return o
	case netstate.Sysctl:
		o.Value = "0"
		return o
	case netstate.Neigh:
		o.MAC[5]++
		return o
	case netstate.Route:
		o.MTU = 900
		return o
	case netstate.Chain:
		o.Place = netstate.Misplaced
		return o
	}
	return o
}

// TestFaults lets every verb on every kind fail once with every errno: the error names the change and holds the
// errno, nothing else is left undone that does not depend on it, and two more passes make it whole.
func TestFaults(t *testing.T) {
	for _, verb := range []string{"+", "~", "-"} {
		for _, victim := range node().Sorted() {
			if !possible(verb, victim) {
				continue
			}
			for _, errno := range errnos {
				t.Run(fmt.Sprintf("%s %s %s", verb, victim.Key().Kind, errno), func(t *testing.T) { fault(t, verb, victim, errno) })
			}
		}
	}
}

// possible: a sysctl is always there, and an address or FDB entry is its slot, so there is nothing to replace.
func possible(verb string, o netstate.Object) bool {
	if o.Key().Kind == netstate.KindSysctl {
		return verb == "~"
	}
	return verb != "~" || altered(o) != o
}

func fault(t *testing.T, verb string, victim netstate.Object, errno syscall.Errno) {
	k, want := host(t), node()
	if verb != "+" {
		if err := k.Apply(t.Context(), plan(t, k, want)); err != nil {
			t.Fatal(err)
		}
	}
	switch verb {
	case "~":
		if err := k.Put(altered(victim)); err != nil {
			t.Fatal(err)
		}
	case "-":
		want = netstate.State{}
	}
	fired := 0
	k.SetFaults(fake.Faults{Change: func(c netstate.Change) error {
		if c.Key() == victim.Key() && strings.HasPrefix(c.String(), verb) && fired == 0 {
			fired++
			return errno
		}
		return nil
	}})
	err := k.Apply(t.Context(), plan(t, k, want))
	if fired != 1 || !errors.Is(err, errno) || !strings.Contains(err.Error(), victim.String()) {
		t.Fatalf("the fault fired %d times, the error is %v", fired, err)
	}
	if victim.Key().Kind != netstate.KindLink && strings.Count(err.Error(), "\n") > 0 {
		t.Errorf("one fault, several errors:\n%v", err)
	}
	for range 2 {
		if err := k.Apply(t.Context(), plan(t, k, want)); err != nil {
			t.Fatal(err)
		}
	}
	if p := plan(t, k, want); len(p) > 0 {
		t.Errorf("left after the fault was over:\n%s", p)
	}
}

func TestObserveAndWatchFaults(t *testing.T) {
	k := host(t)
	for _, errno := range errnos {
		k.SetFaults(fake.Faults{Observe: func() error { return errno }, Watch: func() error { return errno }})
		if _, err := k.Observe(t.Context(), nil); !errors.Is(err, errno) {
			t.Errorf("observe: %v, want %v", err, errno)
		}
		if _, err := k.Watch(t.Context()); !errors.Is(err, errno) {
			t.Errorf("watch: %v, want %v", err, errno)
		}
	}
}

func TestOverflow(t *testing.T) {
	k := host(t)
	ctx, cancel := context.WithCancel(t.Context())
	hints, err := k.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	k.Overflow()
	if _, ok := <-hints; ok {
		t.Error("a hint, want a closed channel")
	}
	cancel() // must not close it again
	k.Overflow()
}

// TestChains: they are all observed, wanted or not, and flushed like any other object.
func TestChains(t *testing.T) {
	k, want := host(t), node()
	if err := k.Apply(t.Context(), plan(t, k, want)); err != nil {
		t.Fatal(err)
	}
	chain := netstate.Chain{Role: netstate.Forward, Rules: [netstate.MaxRules]netstate.Rule{{Verdict: netstate.Accept}}}
	k.Remove(chain)
	if got := plan(t, k, want).String(); got != "+ chain nftables ip forward; accept\n" {
		t.Errorf("after a flush: %s", got)
	}
	if err := k.Put(netstate.Chain{Mode: netstate.IPTables}); err != nil {
		t.Fatal(err)
	}
	if got := plan(t, k, want); len(got) != 2 {
		t.Errorf("a chain of the other mode: %s", got)
	}
}

func TestRunRefusesWhatItDoesNotKnow(t *testing.T) {
	k := host(t)
	for _, c := range []string{"", "ip", "ip rule add", "ip link add x type dummy", "ip link set u0 arp off",
		"ip link set nodev up",
		"ip route add 10.0.0.0/33 dev u0", "ip route get 10.0.0.1", "ip addr add x dev u0",
		"ip addr del 10.0.0.1/8 dev u0", "ip route del 10.0.0.0/8"} {
		if err := k.Run(c); err == nil {
			t.Errorf("%q: no error", c)
		}
	}
}
