package agent

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// policies are enforced unless they are an error.
type policies struct{ error }

func (p policies) Protect([]netip.Prefix) error   { return p.error }
func (p policies) Leases([]subnet.Lease)          {}
func (p policies) Enforced() error                { return p.error }
func (p policies) DeniedChanged() <-chan struct{} { return nil }
func (p policies) Ready() error                   { return p.error }

func (p policies) Audited() (bool, []netstate.Denied) { return false, nil }

// audits are policies that are only audited.
type audits struct{ policies }

func (audits) Audited() (bool, []netstate.Denied) {
	return true, []netstate.Denied{{Family: "IPv4", Direction: "ingress", Policies: "shop/db", Packets: 7}}
}

func (p policies) LeftOut() (policies, refused []string) {
	if p.error == nil {
		return nil, nil
	}
	return []string{"shop/big"}, []string{"guard"}
}

func (p policies) Denied() (map[netip.Addr]bool, error) { return nil, p.error }

func (p policies) Unmarked() map[string]string { return nil }

func (p policies) Claimed() ([]string, int) {
	if p.error == nil {
		return nil, 0
	}
	return []string{"pod other/fake"}, 7
}

// TestLeasesAreTold: policies learn of each change of the nodes.
func TestLeasesAreTold(t *testing.T) {
	n := newNode(t)
	told := make(leasesTold, 100)
	n.tune = func(c *Config) { c.Policies = told }
	n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
	n.start()
	testwait.Until(t, "the lease of the first peer is told", func() bool { return told.last("node1", "node2 10.244.2.0/24") })
	n.addPeer("node3", "10.244.3.0/24", "192.168.33.103", "0e:00:00:00:00:03")
	testwait.Until(t, "that of a peer that came is told", func() bool {
		return told.last("node1", "node2 10.244.2.0/24", "node3 10.244.3.0/24")
	})
	n.setPeers(slices.DeleteFunc(n.peers(), func(l subnet.Lease) bool { return l.Node == "node3" }))
	testwait.Until(t, "that a peer has left is told", func() bool { return told.last("node1", "node2 10.244.2.0/24") })
}

// leasesTold are what policies are told, last the newest.
type leasesTold chan []subnet.Lease

func (leasesTold) Protect([]netip.Prefix) error   { return nil }
func (leasesTold) Enforced() error                { return nil }
func (leasesTold) DeniedChanged() <-chan struct{} { return nil }
func (leasesTold) Ready() error                   { return nil }
func (leasesTold) LeftOut() (_, _ []string)       { return nil, nil }
func (leasesTold) Claimed() ([]string, int)       { return nil, 0 }
func (leasesTold) Unmarked() map[string]string    { return nil }

func (leasesTold) Audited() (bool, []netstate.Denied) { return false, nil }

func (leasesTold) Denied() (map[netip.Addr]bool, error) { return nil, nil }

func (c leasesTold) Leases(all []subnet.Lease) { c <- all }

// last forgets what was told, and reports whether it ends with the lease of a node, and then those of some peers.
func (c leasesTold) last(own string, peers ...string) bool {
	for is := false; ; {
		select {
		case got := <-c:
			var all []string
			for _, l := range got[1:] {
				for _, s := range l.Stacks {
					all = append(all, l.Node+" "+s.Subnet.String())
				}
			}
			is = got[0].Node == own && slices.Equal(all, peers)
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
			`"policies":{"enforced":false,"error":"no buffer space","claims":["pod other/fake"],"claimed":7,"leftOut":["shop/big"],"refused":["guard"]}}`: policies{errors.New("no buffer space")},
		`{"node":"","backend":"","notReady":"no lease, or not in sync with the store yet",` +
			`"policies":{"enforced":false,"audit":true,"audited":[{"family":"IPv4","direction":"ingress","policies":"shop/db","packets":7}]}}`: audits{},
	} {
		a := New(Config{Policies: p})
		if got, err := json.Marshal(a.report()); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

// TestReadyWithPolicies: a node is not ready while network policies have not been enforced for long.
func TestReadyWithPolicies(t *testing.T) {
	p := &policies{}
	a := New(Config{Policies: p})
	a.status.update(true, false, nil)
	if err := a.Ready(); err != nil {
		t.Fatal(err)
	}
	p.error = errors.New("network policies fail")
	if err := a.Ready(); err == nil || err.Error() != "network policies fail" {
		t.Errorf("while policies fail: %v", err)
	}
}
