//go:build soak

package guest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// kinds are the networks that guests have, one after the other.
var kinds = []struct{ backend, mode string }{
	{"vxlan", "nftables"}, {"host-gw", "nftables"}, {"wireguard", "nftables"}, {"vxlan", "iptables"},
}

// leastWorking is the share of hosts, in percent, on which pods must work. About one host in five is drawn so that no overlay
// could: a network of its own has addresses of a peer's pods, or another VXLAN has the VNI and the port.
const leastWorking = 65

// TestGuest draws hosts for GUEST_TIME (10m). GUEST_SEED repeats a run, GUEST_HOST one of its hosts.
func TestGuest(t *testing.T) {
	seed, only, limit := number(t, "GUEST_SEED", uint64(time.Now().Unix())), number(t, "GUEST_HOST", 0), 10*time.Minute
	if s := os.Getenv("GUEST_TIME"); s != "" {
		var err error
		if limit, err = time.ParseDuration(s); err != nil {
			t.Fatalf("GUEST_TIME is %q: want a duration, like 10m", s)
		}
	}
	t.Logf("GUEST_SEED=%d", seed)
	began, ends := time.Now(), map[string]int{}
	hosts := 0
	for n := uint64(1); time.Since(began) < limit || n == 1; n++ {
		if only != 0 {
			n = only
		}
		kind := kinds[int(n)%len(kinds)]
		name := fmt.Sprintf("%d %s %s", n, kind.backend, kind.mode)
		t.Run(name, func(t *testing.T) {
			h := &guest{T: t, rand: rand.New(rand.NewPCG(seed, n)), backend: kind.backend, mode: kind.mode}
			ends[h.live()]++
		})
		if hosts++; only != 0 || t.Context().Err() != nil {
			break
		}
	}
	var table strings.Builder
	for end, count := range ends {
		fmt.Fprintf(&table, "\n%3d %% %s", 100*count/hosts, end)
	}
	t.Logf("%d hosts in %s:%s", hosts, time.Since(began).Round(time.Second), table.String())
	if share := 100 * ends[works] / hosts; hosts >= 20 && share < leastWorking {
		t.Errorf("pods work on %d %% of the hosts, want at least %d %%", share, leastWorking)
	}
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s is %q: want a number", name, s)
	}
	return n
}
