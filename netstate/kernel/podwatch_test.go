package kernel

import (
	"fmt"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate"
)

// TestWatchPods: pods that come and go are news where the fast path is wanted, those of a second together; where it is
// not they are none.
func TestWatchPods(t *testing.T) {
	for _, fast := range []bool{false, true} {
		t.Run(fmt.Sprint("fast path ", fast), func(t *testing.T) {
			h := fresh(t)
			want, _ := portsWanted(t, h, nil)
			if fast {
				want.Add(netstate.Switch{})
			}
			observe := func() {
				if _, err := h.Kernel.Observe(t.Context(), want); err != nil {
					t.Fatal(err)
				}
			}
			observe()
			hints, err := h.Kernel.Watch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			count := func(during time.Duration) (n int) {
				for end := time.After(during); ; {
					select {
					case <-hints:
						n++
					case <-end:
						return n
					}
				}
			}
			if n := count(podDelay + podDelay/2); n > 0 {
				t.Fatalf("%d hints, and nothing happens", n)
			}
			expect := map[bool]int{true: 1}[fast]
			for i := range 3 {
				want.Add(podPort(t, h, fmt.Sprint("veth1", i), func(p *netstate.Port) {
					withAddrs(p)
					p.Hairpin = false // as it is, so that nothing is to be put back
				}))
			}
			if n := count(podDelay + podDelay/2); n != expect {
				t.Errorf("%d hints of three new pods, want %d", n, expect)
			}
			observe()
			run(t, h, "ip link set veth10 mtu 1450", "ip link set veth10 promisc on", "ip link set veth10 promisc off")
			if n := count(podDelay + podDelay/2); n > 0 {
				t.Errorf("%d hints of a pod that is known", n)
			}
			run(t, h, "ip link del veth10", "ip link del veth11")
			count(podDelay / 2) // a busy machine may take devices away slowly, which is news by itself
			if n := count(podDelay); n != expect {
				t.Errorf("%d hints of two pods that went, want %d", n, expect)
			}
		})
	}
}
