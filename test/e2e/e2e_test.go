package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

const underlayMTU = 1500

func TestCluster(t *testing.T) {
	for _, p := range append(paths, kernelPaths...) {
		for _, family := range p.families() {
			for _, store := range p.stores() {
				t.Run(fmt.Sprintf("%s/%s/%s", p.name, family, store), func(t *testing.T) {
					t.Parallel()
					spec := p.spec
					spec.Family, spec.Store, spec.Pods = family, store, 1
					spec.Name = "e2e" + p.name + family + store
					cluster{t, labtest.Start(t, spec)}.run()
				})
			}
		}
	}
}

type cluster struct {
	*testing.T
	lab *lab.Lab
}

// run is one life of a cluster: later steps find what earlier ones made.
func (c cluster) run() {
	for _, step := range []struct {
		name string
		do   func(cluster)
	}{
		{"every pod reaches every pod", cluster.matrix},
		{"the packets take the path that was asked for", cluster.route},
		{"TCP keeps the pod's address", cluster.transfer},
		{"outside sees the node's address", cluster.masquerade},
		{"the MTU is exact", cluster.mtu},
		{"restarting agents loses nothing", cluster.restart},
		{"killing agents loses nothing", cluster.kill},
		{"a node joins and leaves", cluster.joinAndLeave},
		{"a node returns with another MAC", cluster.comeBack},
	} {
		if !c.Run(step.name, func(t *testing.T) { step.do(cluster{t, c.lab}) }) {
			return // the cluster is not what the next step expects
		}
	}
}

func (c cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c cluster) matrix() {
	c.Helper()
	pings, err := c.lab.Converge(c.Context(), testwait.Limit)
	c.must(err)
	pods, perPair := len(c.lab.Pods()), len(c.lab.Pods()[0].Addrs)
	if want := pods * (pods - 1) * perPair; len(pings) != want || perPair != len(c.lab.Spec().Families()) {
		c.Errorf("%d pings, want %d", len(pings), want)
	}
	for _, p := range pings {
		if !p.OK() {
			c.Errorf("%s → %s (%s): %s", p.From, p.To, p.Addr, p.Error)
		}
	}
}

func (c cluster) pod(node int) *lab.Pod { return c.lab.Nodes()[node-1].Pods()[0] }

func (c cluster) transfer() {
	from := c.pod(1)
	for _, to := range c.lab.Pods()[1:] {
		for _, addr := range to.Addrs {
			got, err := from.Send(c.Context(), to.Host, addr, 1<<20)
			c.must(err)
			if want := from.Addr(netstate.FamilyOf(addr)); got.Peer != want {
				c.Errorf("%s at %s comes from %s, want %s", from.ID(), to.ID(), got.Peer, want)
			}
		}
	}
}

func (c cluster) masquerade() {
	outside, addrs := c.lab.Outside()
	for _, p := range c.lab.Pods() {
		for _, addr := range addrs {
			got, err := p.Send(c.Context(), outside, addr, 1<<16)
			c.must(err)
			if want := family(p.Node.Underlay(), netstate.FamilyOf(addr)); got.Peer != want {
				c.Errorf("%s outside comes from %s, want %s", p.ID(), got.Peer, want)
			}
		}
	}
}

func family(addrs []netip.Addr, f netstate.Family) netip.Addr {
	for _, a := range addrs {
		if netstate.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

func (c cluster) mtu() {
	want := underlayMTU
	for _, f := range c.lab.Spec().Families() {
		want = min(want, underlayMTU-c.carrier().overhead[f])
	}
	before := fragments(c.T, c.lab)
	for _, to := range c.lab.Pods()[1:] {
		for _, addr := range to.Addrs {
			c.exact(c.pod(1), addr, want)
		}
	}
	if after := fragments(c.T, c.lab); after != before {
		c.Errorf("nodes made %d fragments: the MTU %d is too large for the underlay", after-before, want)
	}
}

func (c cluster) exact(from *lab.Pod, to netip.Addr, want int) {
	c.Helper()
	mtu, err := from.MTU()
	c.must(err)
	if mtu != want {
		c.Errorf("the MTU of %s is %d, want %d", from.ID(), mtu, want)
	}
	for size, wantErr := range map[int]error{mtu: nil, mtu + 1: host.ErrTooLong} {
		_, err := from.Ping(c.Context(), host.Ping{To: to, Size: size, DontFragment: true})
		if !errors.Is(err, wantErr) {
			c.Errorf("ping %s with %d bytes and MTU %d: %v, want %v", to, size, mtu, err, wantErr)
		}
	}
}

func (c cluster) restart() {
	c.unharmed(func() {
		for _, n := range c.lab.Nodes()[:2] {
			c.must(n.RestartAgent(c.Context()))
		}
	})
}

func (c cluster) kill() {
	c.unharmed(func() {
		for _, n := range c.lab.Nodes()[:2] {
			c.must(n.KillAgent())
			c.must(n.StartAgent(c.Context()))
		}
	})
}

// unharmed pings between pods of two nodes, while do runs and some time after it.
func (c cluster) unharmed(do func()) {
	c.Helper()
	var streams []*host.Stream
	for _, addr := range c.pod(2).Addrs {
		s, err := c.pod(1).Stream(addr, pingInterval)
		c.must(err)
		defer s.Close()
		streams = append(streams, s)
	}
	do()
	for _, s := range streams {
		c.goesOn(s, 30)
	}
	for _, s := range streams {
		c.judge(s)
	}
}

// goesOn returns when a stream has sent so many more pings.
func (c cluster) goesOn(s *host.Stream, pings host.Mark) {
	c.Helper()
	end := s.Mark() + pings
	testwait.Until(c, fmt.Sprintf("%d pings more", pings), func() bool { return s.Mark() >= end })
}

// judge wants all answers. Where the agent moves the packets itself, some are lost while it is away, and
// with ipsec while two nodes agree on new keys: the one has them, and uses them, a moment before the other.
// None are lost after that.
func (c cluster) judge(s *host.Stream) {
	c.Helper()
	loss, err := s.Between(c.Context(), 0, s.Mark())
	c.must(err)
	if !c.inAgent() && c.lab.Spec().Backend != "ipsec" {
		if loss.Lost > 0 {
			c.Errorf("%v", loss)
		}
		return
	}
	testwait.Nil(c, "a hundred pings of which none is lost", func() error {
		from := s.Mark()
		c.goesOn(s, 100)
		loss, err := s.Between(c.Context(), from, s.Mark())
		c.must(err)
		if loss.Lost > 0 {
			return errors.New(loss.String())
		}
		return nil
	})
	all, err := s.Between(c.Context(), 0, s.Mark())
	c.Logf("%v, one every %s, while the agents were away or began: %v", all, pingInterval, err)
}

func (c cluster) joinAndLeave() {
	n, err := c.lab.Join(c.Context())
	c.must(err)
	c.matrix()
	c.route()
	what := append(underlays(n), subnets(n)...)
	if len(c.traces(what)) == 0 {
		c.Fatalf("no node knows %v", what)
	}
	c.must(n.Leave(c.Context()))
	c.gone(what)
	c.matrix()
}

// comeBack is a node that lost its devices, its checkpoint and its record; then one that lost the last two and
// whose devices are another installation's, with MACs that nobody knows.
func (c cluster) comeBack() {
	n := c.lab.Nodes()[1]
	for _, alter := range []func(*netlink.Handle, netlink.Link) error{
		func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkDel(l) },
		func(nl *netlink.Handle, l netlink.Link) error {
			if mac := otherMACs[l.Attrs().Name]; mac != nil {
				return nl.LinkSetHardwareAddr(l, mac)
			}
			return nl.LinkSetMTU(l, 1300)
		},
	} {
		c.must(n.KillAgent())
		old := vteps(c.T, n, alter)
		c.must(n.Forget(c.Context()))
		c.must(n.StartAgent(c.Context()))
		c.matrix()
		if c.lab.Spec().Backend == "vxlan" && len(old) != len(c.lab.Spec().Families()) {
			c.Errorf("%s had the devices %v", n.Name, old)
		}
		for dev, mac := range vteps(c.T, n, keep) {
			if mac != old[dev] {
				c.gone([]string{old[dev]})
				c.Logf("%s of %s is %s after %s", dev, n.Name, mac, old[dev])
			}
		}
	}
	for dev, mac := range vteps(c.T, n, keep) {
		if want := otherMACs[dev].String(); mac != want {
			c.Errorf("%s of %s is %s, want the device's own %s", dev, n.Name, mac, want)
		}
	}
}

var otherMACs = map[string]net.HardwareAddr{
	"flannel.1":    {0x02, 0x33, 0x44, 0x55, 0x66, 0x04},
	"flannel-v6.1": {0x02, 0x33, 0x44, 0x55, 0x66, 0x06},
}

// gone fails if any node keeps an entry that names one of these.
func (c cluster) gone(what []string) {
	c.Helper()
	testwait.Nil(c, "no node has an entry about it", func() error {
		if left := c.traces(what); len(left) > 0 {
			return fmt.Errorf("still there:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
}
