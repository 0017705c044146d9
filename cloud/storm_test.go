package cloud_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/subnet"
)

// storm is a cluster to which anything may happen, in virtual time.
type storm struct {
	*testing.T
	*rand.Rand
	network *fake.Network
	nodes   map[string]*stormNode // by NIC
	joined  int
	foreign []cloud.Route
}

// stormNode is a node with its agent.
type stormNode struct {
	nic   string
	addr  netip.Addr
	lease netip.Prefix
	agent *kept
	stop  context.CancelFunc
}

// TestStorm: nodes come, go and get other leases, agents start again, the API fails, lags and is away, and somebody edits the
// tables. When all that is over, the tables have one route to each node, none to those that are gone, and all of the others';
// every node is seen to be reached, and nobody writes any more.
func TestStorm(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &storm{T: t, Rand: rand.New(rand.NewPCG(seed, 7)), network: &fake.Network{ID: "vpc-1"}, nodes: map[string]*stormNode{}}
				s.foreign = []cloud.Route{route("0.0.0.0/0", "igw-1"), route("10.244.0.0/16", "eni-1"), route("10.244.200.0/24", "igw-1")}
				s.network.Set(s.foreign...)
				for range 6 {
					s.join()
				}
				for range 120 {
					s.happen()
					time.Sleep(time.Duration(s.IntN(240)) * time.Second)
				}
				s.network.Break(fake.Faults{})
				time.Sleep(2 * time.Hour)
				_, before := s.network.Calls()
				time.Sleep(time.Hour)
				if _, after := s.network.Calls(); after != before {
					t.Errorf("%d writes although nothing happens", after-before)
				}
				s.check()
			})
		})
	}
}

// join adds a node with a subnet that nobody has: sometimes that of a node that is gone.
func (s *storm) join() {
	s.joined++
	n := &stormNode{nic: fmt.Sprintf("eni-%d", 100+s.joined), addr: netip.AddrFrom4([4]byte{192, 0, byte(s.joined / 250), byte(s.joined%250 + 1)}), lease: s.free()}
	s.network.AddNIC(fake.NIC{ID: n.nic, Addrs: []netip.Addr{n.addr}, Forwards: true})
	s.nodes[n.nic] = n
	s.start(n, cloud.Record{})
	s.publish()
}

// free returns a subnet without a lease, of few.
func (s *storm) free() netip.Prefix {
	for {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(s.IntN(16)), 0}), 24)
		taken := false
		for _, n := range s.nodes {
			taken = taken || n.lease == p
		}
		if !taken {
			return p
		}
	}
}

func (s *storm) start(n *stormNode, r cloud.Record) {
	ctx, stop := context.WithCancel(s.Context())
	n.agent, n.stop = resume(ctx, s.network.Node(n.nic), r), stop
}

// publish tells all agents of the leases.
func (s *storm) publish() {
	for _, n := range s.nodes {
		v := cloud.View{Local: []netip.Addr{n.addr}, Synced: true, Snapshot: subnet.Snapshot{Local: n.record()}}
		for _, o := range s.nodes {
			if o != n {
				v.Snapshot.Peers = append(v.Snapshot.Peers, o.record())
			}
		}
		go func(to chan<- cloud.View, ctx context.Context) {
			select {
			case to <- v:
			case <-ctx.Done():
			}
		}(n.agent.views, s.Context())
	}
	synctest.Wait()
}

func (n *stormNode) record() subnet.Lease {
	return subnet.Lease{Node: n.nic, Stacks: []subnet.Stack{{Subnet: n.lease, Underlay: n.addr}}}
}

// any returns a node.
func (s *storm) any() *stormNode {
	var names []string
	for name := range s.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	return s.nodes[names[s.IntN(len(names))]]
}

// happen does one thing to the cluster.
func (s *storm) happen() {
	routes := s.network.Routes()
	i := s.IntN(len(routes))
	isForeign := slices.Contains(s.foreign, routes[i])
	switch s.IntN(9) {
	case 0:
		if len(s.nodes) < 12 {
			s.join()
		}
	case 1: // a machine is gone, and its lease
		if n := s.any(); len(s.nodes) > 3 {
			n.stop()
			s.network.RemoveNIC(n.nic)
			delete(s.nodes, n.nic)
			s.publish()
		}
	case 2:
		s.any().lease = s.free()
		s.publish()
	case 3: // an agent starts again
		n := s.any()
		n.stop()
		synctest.Wait()
		s.start(n, n.agent.record)
		s.publish()
	case 4:
		if !isForeign {
			s.network.Set(slices.Delete(routes, i, i+1)...)
		}
	case 5:
		if !isForeign {
			routes[i].Target = s.any().nic
			s.network.Set(routes...)
		}
	case 6:
		s.network.Break(fake.Faults{Lag: time.Duration(s.IntN(25)) * time.Second})
	case 7:
		s.network.Break(fake.Faults{Fail: func(string) error {
			return []error{nil, nil, cloud.ErrThrottled, cloud.ErrBusy, cloud.ErrExists, cloud.ErrDenied}[rand.IntN(6)]
		}})
	case 8:
		s.network.Break(fake.Faults{})
	}
}

// check holds the tables against the leases.
func (s *storm) check() {
	s.Helper()
	want := slices.Clone(s.foreign)
	for _, n := range s.nodes {
		want = append(want, cloud.Route{Dst: n.lease, Target: n.nic})
		if h := n.agent.Health(); !h.Seen || !h.Wrong.IsZero() || h.Err != nil || len(h.Troubles) > 0 {
			s.Errorf("%s: %+v", n.nic, h)
		}
	}
	got := s.network.Routes()
	order := func(a, b cloud.Route) int { return a.Dst.Compare(b.Dst) }
	slices.SortFunc(want, order)
	slices.SortFunc(got, order)
	if !slices.Equal(got, want) {
		s.Errorf("the table has\n%v, want\n%v", got, want)
	}
}
