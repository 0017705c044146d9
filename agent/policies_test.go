package agent

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// policies are enforced unless they are an error.
type policies struct{ error }

func (p policies) Protect([]netip.Prefix) error      { return p.error }
func (p policies) Tunnels(map[netip.Addr]netip.Addr) {}
func (p policies) Enforced() error                   { return p.error }
func (p policies) Judged() error                     { return p.error }

// TestTunnelsAreTold: policies learn of each change of the nodes where their packets come from.
func TestTunnelsAreTold(t *testing.T) {
	n := newNode(t)
	told := make(tunnels, 100)
	n.tune = func(c *Config) { c.Policies = told }
	n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
	n.start()
	addr := netip.MustParseAddr
	two := map[netip.Addr]netip.Addr{addr("192.168.33.102"): addr("10.244.2.0")}
	testwait.Until(t, "the tunnel of the first peer is told", func() bool { return told.last(two) })
	three := maps.Clone(two)
	three[addr("192.168.33.103")] = addr("10.244.3.0")
	n.addPeer("node3", "10.244.3.0/24", "192.168.33.103", "0e:00:00:00:00:03")
	testwait.Until(t, "the tunnel of a peer that came is told", func() bool { return told.last(three) })
	n.setPeers(slices.DeleteFunc(n.peers(), func(l subnet.Lease) bool { return l.Node == "node3" }))
	testwait.Until(t, "that a peer has left is told", func() bool { return told.last(two) })
}

// tunnels are what policies are told, last the newest.
type tunnels chan map[netip.Addr]netip.Addr

func (tunnels) Protect([]netip.Prefix) error { return nil }
func (tunnels) Enforced() error              { return nil }
func (tunnels) Judged() error                { return nil }

func (c tunnels) Tunnels(sources map[netip.Addr]netip.Addr) { c <- sources }

// last forgets what was told, and reports whether it ends with some tunnels.
func (c tunnels) last(want map[netip.Addr]netip.Addr) bool {
	for is := false; ; {
		select {
		case got := <-c:
			is = maps.Equal(got, want)
		default:
			return is
		}
	}
}

// TestPolicyStatus: /status says whether network policies are enforced, and nothing if that is not this agent's work.
func TestPolicyStatus(t *testing.T) {
	for want, p := range map[string]Policies{
		`{"node":"","backend":"","notReady":"no lease, or not in sync with the store yet"}`: nil,
		`{"node":"","backend":"","notReady":"no lease, or not in sync with the store yet",` +
			`"policies":{"enforced":true}}`: policies{},
		`{"node":"","backend":"","notReady":"no lease, or not in sync with the store yet",` +
			`"policies":{"enforced":false,"error":"no buffer space"}}`: policies{errors.New("no buffer space")},
	} {
		a := New(Config{Policies: p})
		if got, err := json.Marshal(a.report()); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}
