// Package netstatetest is the suite that both netstate/kernel and netstate/fake pass: what a kernel does with
// plans, what it destroys with what, and what it refuses. Everything that happens behind the reconciler's back
// is an iproute2 command, so that an error of the code under test cannot cancel itself out.
package netstatetest

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// Kernel is what the suite tests.
type Kernel interface {
	Observe(ctx context.Context, want netstate.State) (netstate.State, error)
	Apply(ctx context.Context, p netstate.Plan) error
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// Machine is a kernel's facts.
type Machine interface {
	Interfaces(ctx context.Context) ([]netstate.Interface, error)
	RouteTo(dst netip.Addr) (dev string, src netip.Addr, err error)
}

// Harness is a kernel that has nothing but a loopback device, made for Left, and independent means to
// change it.
type Harness struct {
	Kernel  Kernel
	Machine Machine
	Command func(commands ...string) error  // "ip", "bridge" or "sysctl" commands, one after the other
	Index   func(device string) (index int) // the interface index, 0 if there is no such device
}

// Left returns the networks of every harness, as netstate/kernel.New takes them.
func Left() []netstate.Left {
	return []netstate.Left{{Network: netip.MustParsePrefix("10.244.0.0/16"), Bits: 24, Gateways: true},
		{Network: netip.MustParsePrefix("fc00::/48"), Bits: 64, Gateways: true}}
}

// Run is the whole suite; each case gets a harness of its own.
func Run(t *testing.T, harness func(t *testing.T) Harness) {
	for _, group := range []struct {
		name  string
		cases []testCase
	}{
		{"RoundTrip", roundTrips()}, {"Drift", drifts()}, {"Cascade", cascades()}, {"Apply", applies()},
		{"Ownership", ownerships()}, {"Tun", tunDevice.cases()}, {"Watch", watches()}, {"Machine", machines()},
	} {
		t.Run(group.name, func(t *testing.T) { runCases(t, harness, group.cases) })
	}
}

type testCase struct {
	name string
	run  func(*host)
}

// host is one case's kernel with the checks.
type host struct {
	*testing.T
	Harness
}

// underlay gives the host the interfaces of a node: u0 and u1, each with both families, up and with carrier.
func (h *host) underlay() {
	h.Helper()
	if err := h.Command(
		"ip link add u0 type veth peer name u0p", "ip link set u0p up", "ip link set u0 up",
		"ip addr add 192.0.2.1/24 dev u0", "ip addr add 2001:db8::1/64 dev u0 nodad",
		"ip link add u1 type veth peer name u1p", "ip link set u1p up", "ip link set u1 up",
		"ip addr add 198.51.100.1/24 dev u1", "ip addr add 2001:db8:1::1/64 dev u1 nodad",
	); err != nil {
		h.Fatal(err)
	}
}

func (h *host) run(commands ...string) {
	h.Helper()
	for _, c := range commands {
		if err := h.Command(c); err != nil {
			h.Fatalf("%s: %v", c, err)
		}
	}
}

func (h *host) observe(want netstate.State) netstate.State {
	h.Helper()
	have, err := h.Kernel.Observe(context.Background(), want)
	if err != nil {
		h.Fatalf("observe: %v", err)
	}
	return have
}

func (h *host) diff(want netstate.State) netstate.Plan {
	h.Helper()
	return netstate.Diff(want, h.observe(want))
}

// apply makes one round, which must be enough and without error.
func (h *host) apply(want netstate.State) {
	h.Helper()
	if err := h.Kernel.Apply(context.Background(), h.diff(want)); err != nil {
		h.Fatalf("apply: %v", err)
	}
	h.clean(want)
}

// settle makes the rounds that the agent makes: after a recreated link, what stood on it comes with the second.
func (h *host) settle(want netstate.State) {
	h.Helper()
	for range 2 {
		if err := h.Kernel.Apply(context.Background(), h.diff(want)); err != nil {
			h.Fatalf("apply: %v", err)
		}
	}
	h.clean(want)
}

func (h *host) clean(want netstate.State) {
	h.Helper()
	if p := h.diff(want); len(p) > 0 {
		h.Fatalf("the plan after applying is not empty:\n%s", p)
	}
}

// plan fails unless the next plan is exactly these lines.
func (h *host) plan(want netstate.State, lines ...string) {
	h.Helper()
	h.same(h.diff(want).String(), lines)
}

// slots is plan, with only the sign, kind and place of each change.
func (h *host) slots(want netstate.State, lines ...string) {
	h.Helper()
	var b strings.Builder
	for _, c := range h.diff(want) {
		k, place := c.Key(), c.Key().Name
		if k.Prefix.IsValid() {
			place = strings.TrimSpace(k.Prefix.String() + " " + place)
		}
		fmt.Fprintf(&b, "%.1s %s %s\n", c, k.Kind, place)
	}
	h.same(b.String(), lines)
}

func (h *host) same(got string, lines []string) {
	h.Helper()
	want := strings.Join(lines, "\n")
	if got = strings.TrimSuffix(got, "\n"); got != want {
		h.Fatalf("the next plan is\n%s\nwant\n%s", got, want)
	}
}
