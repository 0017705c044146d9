package fake_test

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fake"
	"github.com/twill-net/twill/netstate/netstatetest"
)

func TestConformance(t *testing.T) { netstatetest.Run(t, fresh) }

func fresh(*testing.T) netstatetest.Harness {
	k := fake.New(netstatetest.Left()...)
	run := func(commands ...string) error {
		for _, c := range commands {
			if err := k.Run(c); err != nil {
				return err
			}
		}
		return nil
	}
	return netstatetest.Harness{Kernel: k, Machine: k, Command: run, Index: k.Index}
}

// TestFastPath: a program needs its device, and goes with it; what it looks things up in stays.
func TestFastPath(t *testing.T) {
	k := fake.New()
	program := netstate.Program{Dev: "cni0", Name: netstate.FromPod}
	if err := k.Put(program); err == nil {
		t.Error("a program is attached to no device")
	}
	bridge := netstate.Bridge{Name: "cni0", MTU: 1450, MAC: netstate.MAC{2}, Up: true, Marked: true}
	maps := netstate.NewState(netstate.Switch{SkipMark: 1}, netstate.Shortcut{Dst: netip.MustParsePrefix("10.244.2.0/24")},
		netstate.PodPort{Addr: netip.MustParseAddr("10.244.1.2")})
	want := netstate.NewState(append(maps.Sorted(), bridge, program)...)
	if err := k.Apply(t.Context(), netstate.Diff(want, nil)); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name  string
		alter func()
		left  netstate.State
	}{
		{"all of it", func() {}, want},
		{"without the device", func() { k.Remove(bridge) }, maps},
		{"nothing", func() { k.Remove(maps.Sorted()...) }, netstate.State{}},
	} {
		step.alter()
		have, err := k.Observe(t.Context(), want)
		if plan := netstate.Diff(step.left, have); err != nil || len(plan) > 0 || len(have) != len(step.left) {
			t.Errorf("%s: %v\n%s", step.name, err, plan)
		}
	}
}
