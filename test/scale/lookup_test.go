package scale

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/netstate"
)

// BenchmarkLookup connects a UDP socket to addresses of pods of random peers: the kernel looks for the route each time.
// With one peer nearly all of it is the system call.
func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("peers=%d", n), func(b *testing.B) {
			m := &Machine{Host: host.Host{Name: "twlookup"}}
			must := func(err error) {
				b.Helper()
				if err != nil {
					b.Fatal(err)
				}
			}
			must(m.Delete())
			must(m.Create())
			b.Cleanup(func() { must(m.Delete()) })
			var lines strings.Builder
			fmt.Fprintln(&lines, "link add flannel.1 type vxlan id 1 dstport 8472 nolearning\nlink set flannel.1 up\naddr add 192.0.2.1/32 dev flannel.1")
			for i := 1; i <= n; i++ {
				fmt.Fprintf(&lines, "route add %s via %s dev flannel.1 onlink metric %d\n", Subnet(i), Subnet(i).Addr(), netstate.SpreadMetric(Subnet(i)))
			}
			_, err := m.batch(b.Context(), "ip", lines.String())
			must(err)
			must(m.Do(func() error { return connectTo(b, n) }))
		})
	}
}

// connectTo connects a socket of the calling thread's namespace b.N times.
func connectTo(b *testing.B, peers int) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	b.ResetTimer()
	for range b.N {
		if err := unix.Connect(s, &unix.SockaddrInet4{Port: 9, Addr: Subnet(1 + rand.IntN(peers)).Addr().Next().As4()}); err != nil {
			return err
		}
	}
	return nil
}
