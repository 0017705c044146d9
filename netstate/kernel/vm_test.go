//go:build vm

package kernel

import (
	"testing"

	"github.com/twill-net/twill/netstate/netstatetest"
	"github.com/twill-net/twill/netstate/wireguard"
)

// TestTunnels needs a kernel with ipip and ip6_tunnel: "make test-vm" boots one.
func TestTunnels(t *testing.T) { netstatetest.RunTunnels(t, fresh) }

// TestWireGuard needs a kernel with wireguard, and the program wg.
func TestWireGuard(t *testing.T) {
	netstatetest.RunWireGuard(t, func(t *testing.T) netstatetest.Harness {
		return freshWith(t, func() []Provider {
			w, err := wireguard.Open(netstatetest.Secrets{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = w.Close() })
			return []Provider{w}
		})
	})
}
