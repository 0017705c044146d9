package agent

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, t := range texts {
		list = append(list, netip.MustParseAddr(t))
	}
	return list
}

// linux is a machine as flannel's rules have it: lo, two interfaces with both families, one with
// IPv4 alone, one that is down.
func linux() []netstate.Interface {
	return []netstate.Interface{
		{Name: "lo", Up: true, Addrs: prefixes("127.0.0.1/8", "192.0.2.1/32", "::1/128")},
		{Name: "eth0", Up: true, Addrs: prefixes("10.0.2.15/24", "fd02::15/64"), Default: netstate.Families[:]},
		{Name: "eth1", Up: true, Addrs: prefixes("10.64.0.1/24", "10.64.0.2/24")},
		{Name: "eth2", Up: true, Addrs: prefixes("10.65.0.1/24", "fd65::1/64", "fd65::2/64")},
		{Name: "eth3", Addrs: prefixes("10.66.0.1/24")},
		{Name: "eth4", Up: true},
		{Name: "eth5", Up: true, Addrs: prefixes("fd05::1/64")},
		{Name: "odd,name", Up: true, Addrs: prefixes("10.67.0.1/24")},
		{Name: "cni0", Up: true, Owned: true, Addrs: prefixes("10.244.1.1/24")},
	}
}

func patterns(exprs ...string) []*regexp.Regexp {
	var list []*regexp.Regexp
	for _, e := range exprs {
		list = append(list, regexp.MustCompile(e))
	}
	return list
}

var ipv4, ipv6, dual = netstate.Families[:1], netstate.Families[1:], netstate.Families[:]

// picked is what Pick finds: "dev local" of each family, or the error.
func picked(c Choice, interfaces []netstate.Interface, families []netstate.Family, before ...backend.Underlay) string {
	us, err := c.pick(interfaces, families, backend.Node{Underlays: before}, func(a netip.Addr) (string, netip.Addr, error) {
		if a == netip.MustParseAddr("198.51.100.1") {
			return "", netip.Addr{}, errors.New("network is unreachable")
		}
		return "eth1", netip.MustParseAddr("10.64.0.2"), nil
	})
	if err != nil {
		return err.Error()
	}
	var texts []string
	for _, u := range us {
		text := u.Dev + " " + u.Local.String()
		if u.Public != u.Local {
			text += " as " + u.Public.String()
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// TestPick has flannel's order: each flag value is tried where those before it found nothing, all
// families on one interface.
func TestPick(t *testing.T) {
	for _, c := range []struct {
		name     string
		choice   Choice
		families []netstate.Family
		want     string
	}{
		{"default route", Choice{}, dual, "eth0 10.0.2.15, eth0 fd02::15"},
		{"iface by name", Choice{Names: []string{"eth9", "eth2"}}, dual, "eth2 10.65.0.1, eth2 fd65::1"},
		{"a comma is a part of the name", Choice{Names: []string{"odd,name"}}, ipv4, "odd,name 10.67.0.1"},
		{"iface without an address of the family", Choice{Names: []string{"eth4", "eth1", "eth2"}}, ipv6, "eth2 fd65::1"},
		{"iface without addresses of both families", Choice{Names: []string{"eth1", "eth2"}}, dual, "eth2 10.65.0.1, eth2 fd65::1"},
		{"iface by address", Choice{Names: []string{"10.64.0.2"}}, ipv4, "eth1 10.64.0.2"},
		{"iface by address, other family", Choice{Names: []string{"10.65.0.1"}}, dual, "eth2 10.65.0.1, eth2 fd65::1"},
		{"iface by address, with the other family's", Choice{Names: []string{"10.65.0.1"}, Public: addrs("fd65::2")}, dual, "eth2 10.65.0.1, eth2 fd65::2"},
		{"lo has an address", Choice{Names: []string{"lo"}}, ipv4, "lo 192.0.2.1"},
		{"iface by an address of loopback", Choice{Names: []string{"127.0.0.1"}}, ipv4, "lo 127.0.0.1"},
		{"an empty iface is the default route's", Choice{Names: []string{""}}, ipv4, "eth0 10.0.2.15"},
		{"families apart, if no interface has both", Choice{Names: []string{"eth1", "eth5"}}, dual, "eth1 10.64.0.1, eth5 fd05::1"},
		{"regex after iface", Choice{Names: []string{"enp0s8"}, Patterns: patterns(`10\.64\.`)}, ipv4, "eth1 10.64.0.1"},
		{"second regex", Choice{Patterns: patterns(`^172\.`, `^eth2$`)}, ipv4, "eth2 10.65.0.1"},
		{"regex matches addresses before names", Choice{Patterns: patterns(`eth1|10\.65\.`)}, ipv4, "eth2 10.65.0.1"},
		{"regex matches one of several addresses", Choice{Patterns: patterns(`0\.2$`)}, ipv4, "eth1 10.64.0.2"},
		{"regex with a comma", Choice{Patterns: patterns(`10\.6[45]\.\d{1,3}\.2`)}, ipv4, "eth1 10.64.0.2"},
		{"can reach after regex", Choice{Names: []string{"eth9"}, Patterns: patterns("^wlan"), Reach: netip.MustParseAddr("10.64.0.9")}, ipv4, "eth1 10.64.0.2"},
		{"the first of the node's addresses, though the interface has another one before", Choice{NodeIPs: addrs("10.64.0.2", "10.64.0.1")}, ipv4, "eth1 10.64.0.2"},
		{"public address of an interface", Choice{Public: addrs("10.65.0.1")}, ipv4, "eth2 10.65.0.1"},
		{"public address of no interface", Choice{Public: addrs("203.0.113.7")}, ipv4, "eth0 10.0.2.15 as 203.0.113.7"},
		{"public address beside iface", Choice{Names: []string{"eth1"}, Public: addrs("10.65.0.1", "2001:db8::7")}, ipv4, "eth1 10.64.0.1 as 10.65.0.1"},
		{"the node's address beats the default route", Choice{NodeIPs: addrs("10.64.0.2")}, ipv4, "eth1 10.64.0.2"},
		{"for its family alone", Choice{NodeIPs: addrs("10.64.0.2")}, dual, "eth1 10.64.0.2, eth0 fd02::15"},
		{"for its family alone, beside a public address of no interface",
			Choice{NodeIPs: addrs("10.65.0.1"), Public: addrs("203.0.113.7")}, dual, "eth2 10.65.0.1 as 203.0.113.7, eth0 fd02::15"},
		{"and no flag", Choice{NodeIPs: addrs("10.64.0.2"), Names: []string{"eth2"}}, ipv4, "eth2 10.65.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := picked(c.choice, linux(), c.families); got != c.want {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestPickAgain is the choice of a machine that has one already.
func TestPickAgain(t *testing.T) {
	without := func(name string, prefixes ...netip.Prefix) []netstate.Interface {
		all := linux()
		for k := range all {
			if all[k].Name == name {
				all[k].Addrs = prefixes
			}
		}
		return all
	}
	down := linux()
	down[2].Up = false
	either := Choice{Names: []string{"eth1"}, Patterns: patterns("^10\\.65")}
	for _, c := range []struct {
		name         string
		choice       Choice
		before, then []netstate.Interface
		want         string
	}{
		{"its address stays", Choice{Names: []string{"10.64.0.2"}}, linux(), linux(), "eth1 10.64.0.2"},
		{"another address of the interface", Choice{Names: []string{"eth1"}}, linux(), without("eth1", prefixes("10.64.0.9/24")...), "eth1 10.64.0.9"},
		{"a second address", Choice{Names: []string{"eth1"}}, linux(), without("eth1", prefixes("10.64.0.9/24", "10.64.0.1/24")...), "eth1 10.64.0.1"},
		{"by name, as before", Choice{Patterns: patterns("^eth1$")}, linux(), linux(), "eth1 10.64.0.1"},
		{"no later rule", either, linux(), without("eth1"), "matches --iface eth1 any more, eth1 with 10.64.0.1 stays; there are: lo"},
		{"an earlier rule", either, without("eth1"), linux(), "eth1 10.64.0.1"},
		{"down", either, linux(), down, "the interface eth1, which matches --iface eth1, is down"},
		{"an earlier rule's is down", either, without("eth1"), down, "eth2 10.65.0.1"},
		{"the node's address is gone", Choice{NodeIPs: addrs("10.64.0.1"), Settled: true}, linux(), without("eth1"), "matches the node's InternalIP any more"},
		{"the default route is elsewhere", Choice{}, linux(), []netstate.Interface{{Name: "eth1", Up: true, Addrs: prefixes("10.64.0.1/24"), Default: []netstate.Family{netstate.IPv4}}}, "eth1 10.64.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, err := c.choice.pick(c.before, ipv4, backend.Node{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := picked(c.choice, c.then, ipv4, before...); !strings.Contains(got, c.want) {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestPickReturns: an address that is away for a moment is chosen again, also if the interface got another one
// meanwhile, and no address takes its place that the interface may not have for good.
func TestPickReturns(t *testing.T) {
	const none = "no interface"
	eth1 := func(passing []netip.Addr, own ...string) []netstate.Interface {
		return []netstate.Interface{{Name: "eth1", Up: true, Addrs: prefixes(own...), Passing: passing, Default: netstate.Families[:]}}
	}
	type step struct {
		interfaces []netstate.Interface
		want       string
	}
	for _, c := range []struct {
		name   string
		choice Choice
		family []netstate.Family
		steps  []step
	}{
		{"another one meanwhile", Choice{Names: []string{"eth1"}}, ipv4, []step{
			{eth1(nil, "10.64.0.1/24"), "10.64.0.1"}, {eth1(nil, "10.64.0.9/24"), "10.64.0.9"},
			{eth1(addrs("10.64.0.1"), "10.64.0.9/24", "10.64.0.1/24"), "10.64.0.1"}}},
		{"a virtual address alone", Choice{}, ipv4, []step{
			{eth1(nil, "10.64.0.1/24", "10.64.0.200/32"), "10.64.0.1"}, {eth1(nil, "10.64.0.200/32"), none},
			{eth1(nil, "10.64.0.200/32", "10.64.0.1/24"), "10.64.0.1"}}},
		{"a deprecated address alone", Choice{}, ipv6, []step{
			{eth1(addrs("fd64::dead"), "fd64::1/64", "fd64::dead/64"), "fd64::1"}, {eth1(addrs("fd64::dead"), "fd64::dead/64"), none},
			{eth1(addrs("fd64::dead"), "fd64::1/64", "fd64::dead/64"), "fd64::1"}}},
		{"a virtual address comes first", Choice{Names: []string{"eth1"}}, ipv4, []step{
			{eth1(nil, "10.64.0.200/32", "10.64.0.1/24"), "10.64.0.1"}}},
		{"a machine has nothing else", Choice{Names: []string{"eth1"}}, ipv4, []step{
			{eth1(nil, "10.64.0.1/32"), "10.64.0.1"}, {eth1(nil, "10.64.0.2/32"), "10.64.0.2"},
			{eth1(nil, "10.64.0.2/32", "10.64.0.3/24"), "10.64.0.3"}}},
		{"a rule names it", Choice{Names: []string{"10.64.0.200"}}, ipv4, []step{
			{eth1(nil, "10.64.0.1/24", "10.64.0.200/32"), "10.64.0.200"}}},
		{"of an earlier run", Choice{Names: []string{"eth1"}, Last: addrs("10.64.0.1")}, ipv4, []step{
			{eth1(addrs("10.64.0.1"), "10.64.0.9/24", "10.64.0.1/24"), "10.64.0.1"}}},
		{"of an earlier run, away at the start", Choice{Names: []string{"eth1"}, Last: addrs("10.64.0.1")}, ipv4, []step{
			{eth1(nil, "10.64.0.9/24"), "10.64.0.9"}, {eth1(nil, "10.64.0.9/24", "10.64.0.1/24"), "10.64.0.1"}}},
		{"renumbered for good", Choice{Names: []string{"eth1"}}, ipv4, []step{
			{eth1(nil, "10.64.0.1/24"), "10.64.0.1"}, {eth1(nil, "10.64.0.9/24"), "10.64.0.9"},
			{eth1(nil, "10.64.0.5/24", "10.64.0.9/24"), "10.64.0.9"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before []backend.Underlay
			for k, s := range c.steps {
				us, err := c.choice.pick(s.interfaces, c.family, backend.Node{Underlays: before}, nil)
				switch {
				case s.want == none && (err == nil || !strings.Contains(err.Error(), " stays, and ") || !strings.Contains(err.Error(), "does not take its place")):
					t.Errorf("step %d: got %+v, %v", k, us, err)
				case s.want != none && (err != nil || us[0].Local.String() != s.want):
					t.Fatalf("step %d: got %+v, %v, want %s", k, us, err, s.want)
				case err == nil:
					before = us
				}
			}
		})
	}
}

// TestPickAwaitsNodeIP: a node's own address that no interface has may still come, or an address
// translator may have it.
func TestPickAwaitsNodeIP(t *testing.T) {
	const none = "matches the node's InternalIP"
	for _, c := range []struct {
		name   string
		choice Choice
		want   string
	}{
		{"first start", Choice{}, none},
		{"after a while", Choice{Settled: true}, "eth0 10.0.2.15"},
		{"it was never here", Choice{Last: addrs("10.0.2.15")}, "eth0 10.0.2.15"},
		{"it was here before", Choice{Last: addrs("203.0.113.7"), Settled: true}, none},
		{"peers were told another one", Choice{Last: addrs("203.0.113.99")}, none},
		{"and after a while", Choice{Last: addrs("203.0.113.99"), Settled: true}, "eth0 10.0.2.15"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.choice.NodeIPs = addrs("203.0.113.7")
			if got := picked(c.choice, linux(), ipv4); !strings.Contains(got, c.want) {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestPickSaysWhy: an underlay tells by which rule it was chosen, by which it is kept or left later.
func TestPickSaysWhy(t *testing.T) {
	for want, c := range map[string]Choice{
		"the default route": {}, "--iface eth1": {Names: []string{"eth1"}}, "--iface-regex eth1": {Patterns: patterns("eth1")},
		"--iface-can-reach 192.0.2.9": {Reach: addrs("192.0.2.9")[0]}, "the node's InternalIP": {NodeIPs: addrs("10.64.0.1")},
		"--public-ip 10.64.0.1": {Public: addrs("10.64.0.1")},
	} {
		us, err := c.pick(linux(), ipv4, backend.Node{}, func(netip.Addr) (string, netip.Addr, error) { return "eth1", netip.Addr{}, nil })
		if err != nil || len(us) != 1 || us[0].By != want {
			t.Errorf("%s: got %+v, %v", want, us, err)
		}
	}
}

func TestPickSaysWhatThereWas(t *testing.T) {
	for _, c := range []struct {
		choice   Choice
		families []netstate.Family
		want     string
	}{
		{Choice{Names: []string{"eth7", "eth8"}}, ipv4, "no interface with an IPv4 address matches --iface eth7 or --iface eth8; there are: " +
			"lo (127.0.0.1/8 192.0.2.1/32 ::1/128), eth0 (10.0.2.15/24 fd02::15/64), eth1 (10.64.0.1/24 10.64.0.2/24), " +
			"eth2 (10.65.0.1/24 fd65::1/64 fd65::2/64), eth3 (10.66.0.1/24 down), eth4 (), eth5 (fd05::1/64), odd,name (10.67.0.1/24)"},
		{Choice{Names: []string{"eth1"}}, ipv6, "no interface with an IPv6 address matches --iface eth1"},
		{Choice{Names: []string{"eth3"}}, ipv4, "the interface eth3, which matches --iface eth3, is down"},
		{Choice{Names: []string{"cni0"}}, ipv4, "no interface with an IPv4 address matches --iface cni0"},
		{Choice{Patterns: patterns("^wlan")}, ipv4, "no interface with an IPv4 address matches --iface-regex ^wlan"},
		{Choice{Reach: netip.MustParseAddr("198.51.100.1")}, ipv4,
			"no interface with an IPv4 address matches --iface-can-reach 198.51.100.1 (network is unreachable)"},
	} {
		if got := picked(c.choice, linux(), c.families); !strings.HasPrefix(got, c.want) {
			t.Errorf("got %s\nwant %s", got, c.want)
		}
	}
}

// TestBridgeMAC: pods have the bridge's MAC in their ARP caches, so the one that it had stays wanted.
func TestBridgeMAC(t *testing.T) {
	c := Planner{Base: backend.BaseConfig{Bridge: "cni0"}}
	was, is := netstate.MAC{2, 0, 0, 0, 0, 1}, netstate.MAC{2, 0, 0, 0, 0, 2}
	for name, test := range map[string]struct {
		before     map[string]netstate.MAC
		interfaces []netstate.Interface
		want       netstate.MAC
	}{
		"altered":       {map[string]netstate.MAC{"cni0": was}, []netstate.Interface{{Name: "cni0", MAC: is}}, was},
		"never seen":    {nil, []netstate.Interface{{Name: "cni0", MAC: is}}, is},
		"deleted":       {map[string]netstate.MAC{"cni0": was}, nil, netstate.MAC{}},
		"other devices": {map[string]netstate.MAC{"eth0": was}, []netstate.Interface{{Name: "cni0", MAC: is}}, is},
	} {
		node, err := c.Facts(test.interfaces, backend.Node{MACs: test.before}, nil)
		if err != nil || node.MACs["cni0"] != test.want {
			t.Errorf("%s: got %s %v, want %s", name, node.MACs["cni0"], err, test.want)
		}
	}
}

// says is a store that tells of the node's own addresses.
type says struct {
	subnet.Store
	nodeIPs chan []netip.Addr
}

func (s says) Watch(ctx context.Context, f func(subnet.Snapshot)) error {
	snaps := make(chan subnet.Snapshot)
	go func() {
		var last subnet.Snapshot
		for {
			select {
			case <-ctx.Done():
				return
			case last.NodeIPs = <-s.nodeIPs:
			case snap := <-snaps:
				last.Local, last.Peers, last.Skips = snap.Local, snap.Peers, snap.Skips
			}
			if len(last.Local.Stacks) > 0 {
				f(last)
			}
		}
	}()
	return s.Store.Watch(ctx, func(snap subnet.Snapshot) {
		select {
		case snaps <- snap:
		case <-ctx.Done():
		}
	})
}

// TestRunFollowsTheNodeIP: the cluster tells of another InternalIP while the agent runs, before the
// interface has it and after.
func TestRunFollowsTheNodeIP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		for _, command := range []string{"ip link add eth0 type veth peer name peer0", "ip link set eth0 up", "ip addr add 10.0.2.15/24 dev eth0",
			"ip route add default via 10.0.2.2 dev eth0"} {
			n.must(n.kernel.Run(command))
		}
		store := says{nodeIPs: make(chan []netip.Addr)}
		n.tune = func(c *Config) {
			store.Store, c.Choice = c.Store, Choice{NodeIPs: addrs("192.168.33.101")}
			c.Store = store
		}
		stop := n.start()
		defer stop()
		n.eventually("ready", n.ready)
		n.eventually("the device is at the node's address", func() bool { return strings.Contains(n.state(), "local 192.168.33.101") })
		before := n.state()
		store.nodeIPs <- addrs("192.168.33.150")
		n.eventually("the address is missed", func() bool {
			return strings.Contains(n.log.String(), "matches the node's InternalIP any more, eth1 with 192.168.33.101 stays")
		})
		if n.state() != before {
			t.Errorf("without an underlay the state became\n%s", n.state())
		}
		n.must(n.kernel.Run("ip addr add 192.168.33.150/24 dev eth1"))
		n.eventually("the device follows", func() bool { return strings.Contains(n.state(), "local 192.168.33.150") })
		n.must(n.kernel.Run("ip addr add 192.168.33.160/24 dev eth1"))
		store.nodeIPs <- addrs("192.168.33.160")
		n.eventually("the device follows what the store says alone", func() bool { return strings.Contains(n.state(), "local 192.168.33.160") })
	})
}

// knows is a store that can be asked for the node's own addresses.
type knows struct {
	subnet.Store
	nodeIPs *atomic.Pointer[[]netip.Addr]
}

func (k knows) NodeIPs(context.Context) ([]netip.Addr, error) { return *k.nodeIPs.Load(), nil }

// TestRunFindsTheNodeIPThatChangedWhileItWasAway: the node comes back with another address, and the
// cluster learns of that later than its agent starts, so there is no underlay, no lease and no
// snapshot yet that could tell.
func TestRunFindsTheNodeIPThatChangedWhileItWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, known := newNode(t), atomic.Pointer[[]netip.Addr]{}
		own := addrs("192.168.33.101")
		known.Store(&own)
		n.tune = func(c *Config) {
			c.Choice = Choice{NodeIPs: own, Settled: true}
			c.Store = knows{c.Store, &known}
		}
		stop := n.start()
		n.eventually("ready", n.ready)
		n.eventually("the checkpoint", func() bool { _, err := ReadCheckpoint(n.checkpoint()); return err == nil })
		stop()
		n.must(n.kernel.Run("ip addr del 192.168.33.101/24 dev eth1"))
		n.must(n.kernel.Run("ip addr add 192.168.33.150/24 dev eth1"))
		stop = n.start()
		defer stop()
		n.eventually("the address is missed", func() bool { return n.logs("matches the node's InternalIP") > 0 })
		moved := addrs("192.168.33.150")
		known.Store(&moved)
		n.eventually("the device follows", func() bool { return n.ready() && n.has("local 192.168.33.150") })
	})
}

// TestSettledFacts: what the planner is told is settled is not waited for, however short the agent has run.
func TestSettledFacts(t *testing.T) {
	for settled, want := range map[bool]int{true: 1, false: 0} {
		m := newModel(t, nil)
		m.agent.Choice = Choice{NodeIPs: addrs("203.0.113.9"), Settled: settled}
		must(t, m.kernel.Run("ip route add default via 192.168.33.1 dev eth1"))
		m.agent.loop.started = time.Now()
		if node, err := m.agent.gatherFacts(t.Context()); len(node.Underlays) != want || (err == nil) != settled {
			t.Errorf("settled %t: underlays %+v, %v", settled, node.Underlays, err)
		}
	}
}

// TestBeside: host-gw may use the machine's other devices, but none of its own and none that carries nothing.
func TestBeside(t *testing.T) {
	link := func(name, onLink string) netstate.Interface {
		return netstate.Interface{Name: name, MTU: 1500, Up: true, Running: true, Ethernet: true, OnLink: []netip.Prefix{netip.MustParsePrefix(onLink)}}
	}
	eth1, eth2, owned, down, idle, apart, bare, vpn := link("eth1", "10.64.0.0/24"), link("eth2", "10.65.0.0/24"), link("cni0", "10.244.1.0/24"),
		link("eth3", "10.66.0.0/24"), link("docker0", "172.17.0.0/16"), link("eth4", "10.67.0.0/24"), link("eth5", "10.68.0.0/24"),
		link("wg0", "10.69.0.0/24")
	owned.Owned, down.Up, idle.Running, apart.VRF, bare.OnLink, vpn.Ethernet = true, false, false, "red", nil, false
	got := besideOf(eth1, []netstate.Interface{owned, eth2, eth1, down, idle, apart, bare, vpn})
	if want := []backend.Link{{Dev: "eth2", MTU: 1500, OnLink: eth2.OnLink}}; !reflect.DeepEqual(got, want) {
		t.Errorf("beside eth1 are %v, want %v", got, want)
	}
}
