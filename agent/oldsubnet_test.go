package agent

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestOldSubnet holds that a bridge with the gateway address of an earlier lease keeps it exactly as long as pods
// of that lease live, and that the log tells of them.
func TestOldSubnet(t *testing.T) {
	n := newNode(t)
	var pods atomic.Int32
	pods.Store(2)
	n.live = func(p netip.Prefix) (int, error) {
		if p.Masked() == netip.MustParsePrefix("10.244.77.0/24") {
			return int(pods.Load()), nil
		}
		return 0, nil
	}
	stop := n.start()
	defer stop()
	n.eventually("the agent is ready", n.ready)
	n.must(n.kernel.Run("ip addr add 10.244.77.1/24 dev cni0"))
	n.must(n.kernel.Run("ip addr add 10.244.78.1/24 dev cni0"))
	n.eventually("the log tells of the pods", func() bool { return strings.Contains(n.log.String(), "2 pods have addresses of 10.244.77.0/24") })
	n.eventually("the address without pods is gone", func() bool { return !strings.Contains(n.state(), "10.244.78.1/24") })
	if !strings.Contains(n.state(), "10.244.77.1/24 dev cni0") {
		t.Fatalf("the pods lost their gateway:\n%s", n.state())
	}
	pods.Store(0)
	n.eventually("the address without pods is gone", func() bool {
		n.agent.kick() // as the kernel's word of a deleted veth does
		time.Sleep(20 * time.Millisecond)
		return !strings.Contains(n.state(), "10.244.77.1/24")
	})
}
