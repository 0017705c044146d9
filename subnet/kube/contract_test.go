package kube

import (
	"testing"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/storetest"
)

// TestContract holds the contract of subnet.Store against a real API server, wherever leases are published, and for
// nodes that differ in that.
func TestContract(t *testing.T) {
	s := startServer(t, controlplane.APIServerConfig{})
	s.allowLeases(t)
	for name, modes := range map[string][]string{
		"nodes": {subnet.StoreNodes}, "both": {subnet.StoreBoth}, "leases": {subnet.StoreLeases},
		"mixed": {subnet.StoreNodes, subnet.StoreBoth, subnet.StoreLeases},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T, pools []subnet.Pool) storetest.Harness {
				s.clear(t)
				s.clearClaims(t)
				return &harness{server: s, pools: pools, modes: modes}
			})
		})
	}
}

// harness is a cluster for storetest; it hands out podCIDRs as kube-controller-manager does.
type harness struct {
	server *server
	pools  []subnet.Pool
	modes  []string // of the nodes, in turn
	next   uint64
	mode   map[string]string // of each node
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
		if h.mode == nil {
			h.mode = map[string]string{}
		}
		h.mode[want.Node] = h.modes[h.next%uint64(len(h.modes))]
	}
	s, err := New(t.Context(), Options{
		Kubeconfig: h.server.kubeconfig(t, agentUser), Node: want.Node, Pools: h.pools, SetNetworkUnavailable: true,
		Store: h.mode[want.Node], LeaseNamespace: claimSpace,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (h *harness) Configure(_ *testing.T, pools []subnet.Pool) { h.pools = pools }

// Leave is the garbage collector, too.
func (h *harness) Leave(t *testing.T, l subnet.Lease) {
	t.Helper()
	h.server.deleteNode(t, l.Node)
	h.server.deleteObjects(t, l)
}

func (h *harness) Delete(t *testing.T, l subnet.Lease) {
	t.Helper()
	h.server.annotate(t, l.Node, map[string]any{
		"kube-subnet-manager": nil, "backend-type": nil, "backend-data": nil, "backend-v6-data": nil,
		"public-ip": nil, "public-ipv6": nil,
	})
	h.server.deleteObjects(t, l)
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
	for _, st := range l.Stacks {
		set := v4
		if st.Family() == netstate.IPv6 {
			set = v6
		}
		h.server.annotate(t, l.Node, set)
		if h.mode[l.Node] != subnet.StoreNodes {
			h.server.annotateObject(t, claimName(st.Subnet), set)
		}
	}
}

func (h *harness) Outage(_ *testing.T, during func()) {
	h.server.wire.Cut()
	defer h.server.wire.Mend()
	during()
}
