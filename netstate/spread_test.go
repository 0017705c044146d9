package netstate

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestSpreadMetric: neighbouring subnets have different metrics, all within bounds and the same each time.
func TestSpreadMetric(t *testing.T) {
	for bits := 16; bits <= 32; bits++ {
		subnets := min(10_000, 1<<(bits-8)) // of 10.0.0.0/8
		seen, most := map[int]int{}, 0
		for n := range uint32(subnets) {
			a := 10<<24 | n<<(32-bits)
			m := SpreadMetric(netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)}), bits))
			if m < 1 || m > 4095 {
				t.Fatalf("the metric of number %d of /%d is %d", n, bits, m)
			}
			seen[m]++
			most = max(most, seen[m])
		}
		if len(seen) != min(4095, subnets) || most > subnets/4095+1 {
			t.Errorf("%d routes to /%d have %d metrics, and %d have the same one", subnets, bits, len(seen), most)
		}
	}
	for dst, want := range map[string]int{"0.0.0.0/0": 1, "10.244.2.0/24": 1202, "fd00:244:0:2::/64": 1024} {
		if got := SpreadMetric(netip.MustParsePrefix(dst)); got != want {
			t.Errorf("%s: metric %d, want %d", dst, got, want)
		}
	}
}

// TestPeerRoute prefers the route that the kernel prefers.
func TestPeerRoute(t *testing.T) {
	dst := netip.MustParsePrefix("10.244.2.0/24")
	plain, spread, other := Route{Dst: dst, Dev: "a"}, Route{Dst: dst, Metric: SpreadMetric(dst), Dev: "b"}, Route{Dst: dst, Metric: 7}
	for _, test := range []struct {
		state State
		want  Route
	}{
		{NewState(plain, other), plain}, {NewState(spread, other), spread}, {NewState(plain, spread), plain}, {NewState(other), Route{}},
	} {
		if got, ok := test.state.PeerRoute(dst); got != test.want || ok != (test.want != Route{}) {
			t.Errorf("%s: got %s, %t", fmt.Sprint(test.state), got, ok)
		}
	}
}
