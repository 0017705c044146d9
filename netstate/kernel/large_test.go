package kernel

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// large is a VTEP with n peers.
func large(n int) netstate.State {
	state := netstate.NewState(netstate.VXLAN{Name: "flannel.1", VNI: 1, Port: 8472, Dev: "u0",
		Local: netip.MustParseAddr("192.0.2.1"),
		MTU:   1450, MAC: netstate.MAC{2, 0, 0, 0, 0, 1}, Up: true, Marked: true},
		netstate.Addr{Dev: "flannel.1", Prefix: netip.MustParsePrefix("10.244.0.0/32")})
	for i := 1; i <= n; i++ {
		subnet := netip.AddrFrom4([4]byte{10, byte(100 + i>>8), byte(i), 0})
		mac := netstate.MAC{2, 0, 0, 1, byte(i >> 8), byte(i)}
		state.Add(
			netstate.Neigh{Dev: "flannel.1", IP: subnet, MAC: mac},
			netstate.FDB{Dev: "flannel.1", MAC: mac, Dst: netip.AddrFrom4([4]byte{192, 0, 2, 9})},
			netstate.Route{Dst: netip.PrefixFrom(subnet, 24), Via: subnet, Dev: "flannel.1", Onlink: true,
				Protocol: netstate.Protocol})
	}
	return state
}

// TestObserveUnderChurn looks at thousands of objects while another process changes what is not ours: every look is
// whole, although the kernel interrupts dumps.
func TestObserveUnderChurn(t *testing.T) {
	h := fresh(t)
	for _, c := range []string{"ip link add u0 type veth peer name u0p", "ip link set u0p up", "ip link set u0 up",
		"ip addr add 192.0.2.1/24 dev u0"} {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	want := large(2000)
	if err := h.Kernel.Apply(t.Context(), netstate.Diff(want, nil)); err != nil {
		t.Fatal(err)
	}
	batch := pods(200) + strings.Repeat("link add br9 type bridge\nlink del br9\n", 100)
	churn := exec.CommandContext(t.Context(), "ip", "-batch", "-")
	churn.Stdin = strings.NewReader(batch)
	if err := churn.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- churn.Wait() }()
	looks := 0
	for running := true; running; looks++ {
		have, err := h.Kernel.Observe(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if p := netstate.Diff(want, have); len(p) > 0 {
			t.Fatalf("look %d: %d changes, the first: %s", looks, len(p), p[0])
		}
		select {
		case err := <-done:
			if running = false; err != nil {
				t.Errorf("the churn ended with %v", err)
			}
		default:
		}
	}
	if looks < 3 {
		t.Errorf("%d looks during the churn: it was over too soon to prove anything", looks)
	}
}

// pods are enough links for a list of several parts: only between two parts can the kernel notice a change.
func pods(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "link add veth%d type veth peer name peer%d\n", i, i)
	}
	return b.String()
}

func BenchmarkObserve(b *testing.B) {
	if err := command("ip link add u0 type veth peer name u0p"); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = command("ip link del u0") })
	for _, c := range []string{"ip link set u0p up", "ip link set u0 up", "ip addr add 192.0.2.1/24 dev u0"} {
		if err := command(c); err != nil {
			b.Fatal(err)
		}
	}
	k, err := New(nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(k.Close)
	want := large(5000)
	if err := k.Apply(b.Context(), netstate.Diff(want, nil)); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		have, err := k.Observe(b.Context(), want)
		if p := netstate.Diff(want, have); err != nil || len(p) > 0 {
			b.Fatalf("%v, %d changes", err, len(p))
		}
	}
}
