//go:build e2e

package e2e

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/test/cluster"
)

// TestNodeSource is why what a node sends into the overlay has the overlay's address, and not the node's own, which
// Kubernetes' test of ExternalTrafficPolicy wants to see: the answer to that comes back beside the overlay, and a host
// that checks reverse paths strictly drops it.
func TestNodeSource(t *testing.T) {
	pods := probes(t)
	from, to := spec.Underlay(1)[0], pods[2].Addrs[0]
	strict := func(value string) { must(t, spec.Host("node1").SetSysctl("net/ipv4/conf/eth0/rp_filter", value)) }
	t.Cleanup(func() {
		strict("0")
		if err := spec.Install(context.Background(), func(string) {}); err != nil {
			t.Error(err)
		}
	})
	strict("1")
	seen, err := askFrom(spec.Host("node1").Do, from, to)
	if a, bad := netip.ParseAddr(seen); err != nil || bad != nil || !cluster.PodNetworks[0].Contains(a) {
		t.Errorf("%s asks a pod: it sees %q (%v), want the overlay's address", from, seen, err)
	}
	must(t, spec.AgentFlag(t.Context(), "--keep-node-source=always"))
	if seen, err := askFrom(spec.Host("node1").Do, from, to); err == nil {
		t.Errorf("with its address kept and strict reverse paths the node is answered, as %s", seen)
	}
	strict("2")
	if seen, err := askFrom(spec.Host("node1").Do, from, to); err != nil || seen != from.String() {
		t.Errorf("with its address kept and loose reverse paths the pod sees %q (%v), want %s", seen, err, from)
	}
}

// askFrom asks a pod from an address of the network that inside runs functions in, and returns who asked in its eyes.
func askFrom(inside func(func() error) error, from, to netip.Addr) (seen string, err error) {
	err = inside(func() error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}, Timeout: 3 * time.Second}
		c, err := d.Dial("tcp", netip.AddrPortFrom(to, 8080).String())
		if err != nil {
			return err
		}
		defer c.Close()
		answer, err := io.ReadAll(c)
		seen = client(cluster.Reply{Answer: strings.TrimSpace(string(answer))})
		return err
	})
	return seen, err
}
