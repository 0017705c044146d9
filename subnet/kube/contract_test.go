package kube

import (
	"testing"

	"github.com/twill-net/twill/lab/controlplane"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/storetest"
)

// TestContract holds the contract of subnet.Store against a real API server.
func TestContract(t *testing.T) {
	s := startServer(t, controlplane.APIServerConfig{})
	storetest.Run(t, func(t *testing.T, pools []subnet.Pool) storetest.Harness {
		s.clear(t)
		return &harness{server: s, pools: pools}
	})
}

// harness is a cluster for storetest; it hands out podCIDRs as kube-controller-manager does.
type harness struct {
	server *server
	pools  []subnet.Pool
	next   uint64
}

var _ storetest.Outager = (*harness)(nil)

func (h *harness) Store(t *testing.T, want subnet.Lease) subnet.Store {
	t.Helper()
	if !h.server.hasNode(t, want.Node) {
		var cidrs []string
		for _, p := range h.pools {
			if _, ok := want.Stack(p.Family()); ok {
				cidrs = append(cidrs, p.Subnet(h.next).String())
			}
		}
		h.next++
		h.server.createNode(t, testNode(want.Node, cidrs...))
	}
	s, err := New(t.Context(), Options{
		Kubeconfig: h.server.kubeconfig(t, agentUser), Node: want.Node, Pools: h.pools, SetNetworkUnavailable: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (h *harness) Leave(t *testing.T, l subnet.Lease) { h.server.deleteNode(t, l.Node) }

func (h *harness) Delete(t *testing.T, l subnet.Lease) {
	t.Helper()
	h.server.annotate(t, l.Node, map[string]any{
		"kube-subnet-manager": nil, "backend-type": nil, "backend-data": nil, "backend-v6-data": nil,
		"public-ip": nil, "public-ipv6": nil,
	})
}

func (h *harness) Alter(t *testing.T, l subnet.Lease) {
	t.Helper()
	h.set(t, l, map[string]any{"public-ip": "203.0.113.9", "backend-data": `{"VNI":7}`},
		map[string]any{"public-ipv6": "2001:db8:ffff::9", "backend-v6-data": `{"VNI":7}`})
}

func (h *harness) Damage(t *testing.T, l subnet.Lease) string {
	t.Helper()
	h.set(t, l, map[string]any{"backend-data": "{"}, map[string]any{"backend-v6-data": "{"})
	return l.Node
}

func (h *harness) set(t *testing.T, l subnet.Lease, v4, v6 map[string]any) {
	t.Helper()
	if _, ok := l.Stack(netstate.IPv4); ok {
		h.server.annotate(t, l.Node, v4)
	}
	if _, ok := l.Stack(netstate.IPv6); ok {
		h.server.annotate(t, l.Node, v6)
	}
}

func (h *harness) Outage(_ *testing.T, during func()) {
	h.server.wire.Cut()
	defer h.server.wire.Mend()
	during()
}
