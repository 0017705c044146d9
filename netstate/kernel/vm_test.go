//go:build vm

package kernel

import (
	"testing"

	"github.com/twill-net/twill/netstate/netstatetest"
)

// TestTunnels needs a kernel with ipip and ip6_tunnel: "make test-vm" boots one.
func TestTunnels(t *testing.T) { netstatetest.RunTunnels(t, fresh) }
