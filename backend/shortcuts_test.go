package backend_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/hostgw"
	"github.com/twill-net/twill/backend/vxlan"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

const bridgeMAC = "0a:58:0a:f4:01:01"

func mac(text string) netstate.MAC {
	m, err := netstate.ParseMAC(text)
	if err != nil {
		panic(err)
	}
	return m
}

// fastNode is node 1 with a pod, on an underlay of both families.
func fastNode() backend.Node {
	port := netstate.Port{Name: "veth1", Bridge: "cni0", MTU: 1450, MAC: mac("02:00:00:00:00:01"), Pod: mac("02:00:00:00:00:02"), Up: true}
	port = port.WithAddrs([]netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:244:0:1::5")})
	return backend.Node{Name: "n1", Ports: []netstate.Port{port}, MACs: map[string]netstate.MAC{"cni0": mac(bridgeMAC)},
		Underlays: []backend.Underlay{
			{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 1500, OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
			{Dev: "eth0", Local: netip.MustParseAddr("2001:db8::1"), MTU: 1500, OnLink: []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}},
		}}
}

// fastLease is node n's, of both families.
func fastLease(kind string, n int, at4, at6 string) subnet.Lease {
	data := []byte(fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:01:%02x"}`, n))
	return subnet.Lease{Node: fmt.Sprint("n", n), Backend: kind, Stacks: []subnet.Stack{
		{Subnet: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n)), Underlay: netip.MustParseAddr(at4), Data: data},
		{Subnet: netip.MustParsePrefix(fmt.Sprintf("fd00:244:0:%x::/64", n)), Underlay: netip.MustParseAddr(at6), Data: data}}}
}

// near and away are leases on the segment of fastNode and behind a router.
func near(kind string, n int) subnet.Lease {
	return fastLease(kind, n, fmt.Sprint("192.0.2.", n), fmt.Sprintf("2001:db8::%x", n))
}

func away(kind string, n int) subnet.Lease {
	return fastLease(kind, n, fmt.Sprint("198.51.100.", n), fmt.Sprintf("2001:db8:9::%x", n))
}

// wanted is what a backend and the bridge want.
func wanted(t *testing.T, node backend.Node, kind, options string, peers ...subnet.Lease) netstate.State {
	t.Helper()
	networks := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")}
	b, warnings, err := map[string]func([]netip.Prefix, string) (backend.Backend, []string, error){
		"vxlan": func(n []netip.Prefix, o string) (backend.Backend, []string, error) {
			return vxlan.New(n, []byte(o))
		},
		"host-gw": func(n []netip.Prefix, o string) (backend.Backend, []string, error) {
			return hostgw.New(n, []byte(o))
		},
	}[kind](networks, options)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	snap := subnet.Snapshot{Local: near(kind, 1), Peers: peers}
	want, _ := b.Desired(node, snap)
	want.Merge(backend.Base(backend.BaseConfig{Bridge: "cni0", MTU: b.MTU(node)}, node, snap.Local))
	return want
}

// namedMAC is what vxlan calls node 1's VTEP of a family.
func namedMAC(want netstate.State, dev string) string {
	l, _ := want[netstate.Key{Kind: netstate.KindLink, Name: dev}].(netstate.VXLAN)
	return l.MAC.String()
}

const (
	podPorts = "podport 10.244.1.5 dev veth1 lladdr " + bridgeMAC + " > 02:00:00:00:00:02\n" +
		"podport fd00:244:0:1::5 dev veth1 lladdr " + bridgeMAC + " > 02:00:00:00:00:02\nswitch skipmark 0x0\n" +
		"program from_pod dev cni0 ingress\n"
	encap2 = "shortcut 10.244.2.0/24 encap vxlan id 1 from 192.0.2.1 to 192.0.2.2:8472 dev eth0 in flannel.1 lladdr MAC4 > 02:00:00:00:01:02 mtu 1450\n"
	vtep2  = "shortcut 10.244.2.0/24 dev flannel.1 in flannel.1 lladdr MAC4 > 02:00:00:00:01:02 mtu 1450\n"
	encap3 = "shortcut 10.244.3.0/24 encap vxlan id 1 from 192.0.2.1 to 198.51.100.3:8472 dev eth0 in flannel.1 lladdr MAC4 > 02:00:00:00:01:03 mtu 1450\n"
	six2   = "shortcut fd00:244:0:2::/64 dev flannel-v6.1 in flannel-v6.1 lladdr MAC6 > 02:00:00:00:01:02 mtu 1430\n"
	six3   = "shortcut fd00:244:0:3::/64 dev flannel-v6.1 in flannel-v6.1 lladdr MAC6 > 02:00:00:00:01:03 mtu 1430\n"
	direct = "shortcut 10.244.2.0/24 via 192.0.2.2 dev eth0 in eth0 mtu 1500\n"
	toV4   = "program to_pod dev flannel.1 ingress\n"
	toV6   = "program to_pod dev flannel-v6.1 ingress\n"
	toEth  = "program to_pod dev eth0 ingress\n"
	plain2 = encap2 + six2 + podPorts + toV6 + toV4
	direc6 = "shortcut fd00:244:0:2::/64 via 2001:db8::2 dev eth0 in eth0 mtu 1500\n"
)

func TestShortcuts(t *testing.T) {
	peer := func(kind string) []subnet.Lease { return []subnet.Lease{near(kind, 2)} }
	for name, test := range map[string]struct {
		kind, options string
		peers         []subnet.Lease
		node          func(*backend.Node)
		alter         func(netstate.State)
		golden        string
	}{
		"vxlan":    {kind: "vxlan", peers: peer("vxlan"), golden: plain2},
		"no peers": {kind: "vxlan"},
		"host-gw":  {kind: "host-gw", peers: peer("host-gw"), golden: direct + direc6 + podPorts + toEth},
		"DirectRouting": {kind: "vxlan", options: `{"DirectRouting":true}`, peers: []subnet.Lease{near("vxlan", 2), away("vxlan", 3)},
			golden: direct + encap3 + direc6 + six3 + podPorts + toEth + toV6 + toV4},
		"another port and VNI": {kind: "vxlan", options: `{"Port":4789}`, peers: peer("vxlan"),
			golden: strings.Replace(plain2, "8472", "4789", 1)},
		"behind NAT": {kind: "vxlan", peers: peer("vxlan"), node: func(n *backend.Node) {
			n.Underlays[0].Public = netip.MustParseAddr("203.0.113.1")
		}, golden: plain2},
		"GBP": {kind: "vxlan", options: `{"GBP":true}`, peers: peer("vxlan")},
		"the MTU is more than fits": {kind: "vxlan", options: `{"MTU":9000}`, peers: peer("vxlan"),
			golden: strings.Replace(plain2, "mtu 1430", "mtu 8930", 1)},
		"checksums by the kernel": {kind: "vxlan", options: `{"TxChecksum":"off"}`, peers: peer("vxlan"),
			golden: vtep2 + six2 + podPorts + toV6 + toV4},
		"checksums by the NIC": {kind: "vxlan", options: `{"TxChecksum":"on"}`, peers: peer("vxlan"),
			node: func(n *backend.Node) { n.ChecksumsOff = map[string]bool{"flannel.1": true} }, golden: plain2},
		"somebody has checksums off": {kind: "vxlan", peers: peer("vxlan"),
			node:   func(n *backend.Node) { n.ChecksumsOff = map[string]bool{"flannel.1": true} },
			golden: vtep2 + six2 + podPorts + toV6 + toV4},
		"somebody shapes the device": {kind: "vxlan", peers: peer("vxlan"),
			node:   func(n *backend.Node) { n.Queued = map[string]bool{"flannel.1": true} },
			golden: vtep2 + six2 + podPorts + toV6 + toV4},
		"somebody shapes the bridge": {kind: "vxlan", peers: peer("vxlan"), node: func(n *backend.Node) { n.Queued = map[string]bool{"cni0": true} }},
		"a shaped pod": {kind: "vxlan", peers: peer("vxlan"), node: func(n *backend.Node) { n.Queued = map[string]bool{"veth1": true} },
			golden: encap2 + six2 + podPorts[strings.Index(podPorts, "switch"):] + toV6 + toV4},
		"a pod with somebody else's filter": {kind: "vxlan", peers: peer("vxlan"), node: func(n *backend.Node) { n.Beside = map[string]string{"veth1": "egress bpf"} },
			golden: encap2 + six2 + podPorts[strings.Index(podPorts, "switch"):] + toV6 + toV4},
		"a pod of an older plugin": {kind: "vxlan", peers: peer("vxlan"), node: func(n *backend.Node) { n.Ports[0].Addrs = "" },
			golden: encap2 + six2 + podPorts[strings.Index(podPorts, "switch"):] + toV6 + toV4},
		"addresses of no pod of this node": {kind: "vxlan", peers: peer("vxlan"),
			node:   func(n *backend.Node) { n.Ports[0].Addrs = "10.244.2.5 10.244.1.1 fe80::1 192.0.2.7" },
			golden: encap2 + six2 + podPorts[strings.Index(podPorts, "switch"):] + toV6 + toV4},
		"two pods with one address": {kind: "vxlan", peers: peer("vxlan"), node: func(n *backend.Node) {
			for i := range 2 {
				twin := n.Ports[0]
				twin.Name, twin.Addrs = fmt.Sprint("veth", i+2), "10.244.1.5"
				n.Ports = append(n.Ports, twin)
			}
		}, golden: encap2 + six2 + podPorts[strings.Index(podPorts, "podport fd"):] + toV6 + toV4},
		"no bridge": {kind: "vxlan", peers: peer("vxlan"), alter: func(s netstate.State) {
			delete(s, netstate.Key{Kind: netstate.KindLink, Name: "cni0"})
		}},
		"two nodes of one VTEP": {kind: "vxlan", peers: peer("vxlan"), alter: func(s netstate.State) {
			s.Add(netstate.FDB{Dev: "flannel.1", MAC: mac("02:00:00:00:01:02"), Dst: netip.MustParseAddr("192.0.2.3")},
				netstate.FDB{Dev: "flannel.1", MAC: mac("02:00:00:00:01:02"), Dst: netip.MustParseAddr("192.0.2.4")})
		}, golden: six2 + podPorts + toV6},
		"another route has the better metric": {kind: "vxlan", peers: peer("vxlan"), alter: func(s netstate.State) {
			s.Add(netstate.Route{Dst: netip.MustParsePrefix("fd00:244:0:2::/64"), Dev: "tun0", Metric: 5, Protocol: netstate.Protocol})
		}, golden: encap2 + podPorts + toV4},
		"another's route": {kind: "vxlan", peers: peer("vxlan"), alter: func(s netstate.State) {
			s.Add(netstate.Route{Dst: netip.MustParsePrefix("10.244.2.0/24"), Via: netip.MustParseAddr("10.244.2.0"), Dev: "flannel.1", Protocol: 4})
		}, golden: six2 + podPorts + toV6},
		"a device of another type": {kind: "vxlan", peers: peer("vxlan"), alter: func(s netstate.State) {
			s.Add(netstate.Tun{Name: "flannel.1", Up: true}, netstate.WireGuard{Name: "flannel-v6.1"})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			node := fastNode()
			if test.node != nil {
				test.node(&node)
			}
			want := wanted(t, node, test.kind, test.options, test.peers...)
			macs := strings.NewReplacer("MAC4", namedMAC(want, "flannel.1"), "MAC6", namedMAC(want, "flannel-v6.1"))
			if test.alter != nil {
				test.alter(want)
			}
			if got, golden := backend.Shortcuts(want, node, "cni0", 0).String(), macs.Replace(test.golden); got != golden {
				t.Errorf("got\n%swant\n%s", got, golden)
			}
		})
	}
}

func TestSkipMark(t *testing.T) {
	got := backend.Shortcuts(wanted(t, fastNode(), "host-gw", "", near("host-gw", 2)), fastNode(), "cni0", 0x30)
	if s := (netstate.Switch{}); got[s.Key()] != (netstate.Switch{SkipMark: 0x30}) {
		t.Errorf("the switch is %v", got[s.Key()])
	}
}

// kernelPath is what the kernel does with a packet to addr: it looks in want as the kernel looks in its tables. It
// returns nothing where packets do not leave in one way only.
func kernelPath(want netstate.State, addr netip.Addr) (dev, via, inner, outer string) {
	var route netstate.Route
	for _, o := range want {
		if r, ok := o.(netstate.Route); ok && r.Dst.Contains(addr) && (!route.Dst.IsValid() || r.Dst.Bits() > route.Dst.Bits() ||
			r.Dst.Bits() == route.Dst.Bits() && r.Metric < route.Metric) {
			route = r
		}
	}
	l, tunnel := want[netstate.Key{Kind: netstate.KindLink, Name: route.Dev}].(netstate.VXLAN)
	if !tunnel {
		return route.Dev, route.Via.String(), "", ""
	}
	neigh, _ := want[netstate.Neigh{Dev: route.Dev, IP: route.Via}.Key()].(netstate.Neigh)
	for _, o := range want {
		if f, ok := o.(netstate.FDB); ok && f.Dev == l.Name && f.MAC == neigh.MAC {
			outer += fmt.Sprintf("%s %s > %s vni %d port %d", l.Dev, l.Local, f.Dst, l.VNI, l.Port)
		}
	}
	return route.Dev, "", l.MAC.String() + " > " + neigh.MAC.String(), outer
}

// shortcutPath is what a shortcut says in the same words.
func shortcutPath(want netstate.State, s netstate.Shortcut) (dev, via, inner, outer string) {
	switch s.Mode {
	case netstate.NextHop:
		return s.Dev, s.Outer.String(), "", ""
	case netstate.ThroughVTEP:
		_, _, _, outer = kernelPath(want, s.Dst.Addr()) // the device's own doing
		return s.Dev, "", s.Src.String() + " > " + s.MAC.String(), outer
	}
	return s.From, "", s.Src.String() + " > " + s.MAC.String(),
		fmt.Sprintf("%s %s > %s vni %d port %d", s.Dev, s.Local, s.Outer, s.VNI, s.Port)
}

// TestShortcutsFollowTheKernel: whatever the cluster is and whatever of it is missing, a shortcut leads where the kernel
// leads, to each of its addresses.
func TestShortcutsFollowTheKernel(t *testing.T) {
	checked := 0
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 18))
		kind, options := "host-gw", ""
		if random.IntN(3) > 0 {
			kind = "vxlan"
			options = fmt.Sprintf(`{"DirectRouting":%t,"Learning":%t,"Port":%d}`, random.IntN(2) == 0, random.IntN(2) == 0, 4789+random.IntN(2))
		}
		var peers []subnet.Lease
		for n := 2; n < 12; n++ {
			l := near(kind, n)
			if random.IntN(2) == 0 {
				l = away(kind, n)
			}
			if random.IntN(4) == 0 { // claims what another one has
				l.Stacks[random.IntN(2)].Data = near(kind, 2+random.IntN(10)).Stacks[0].Data
			}
			if random.IntN(6) == 0 {
				l.Stacks[0].Subnet = netip.PrefixFrom(l.Stacks[0].Subnet.Addr(), 20+random.IntN(6)).Masked()
			}
			peers = append(peers, l)
		}
		node := fastNode()
		want := wanted(t, node, kind, options, peers...)
		objects := want.Sorted()
		for range random.IntN(4) {
			delete(want, objects[random.IntN(len(objects))].Key())
		}
		got := backend.Shortcuts(want, node, "cni0", 0)
		programs := map[string]bool{}
		for _, o := range got {
			if p, ok := o.(netstate.Program); ok && p.Name == netstate.ToPod {
				programs[p.Dev] = true
			}
		}
		for _, o := range got {
			s, ok := o.(netstate.Shortcut)
			if !ok {
				continue
			}
			checked++
			for _, addr := range []netip.Addr{s.Dst.Addr(), s.Dst.Addr().Next().Next()} {
				dev, via, inner, outer := kernelPath(want, addr)
				d, v, i, u := shortcutPath(want, s)
				if dev != d || via != v || inner != i || outer != u {
					t.Errorf("seed %d: to %s the kernel goes %q and %q", seed, addr, []string{dev, via, inner, outer}, []string{d, v, i, u})
				}
			}
			if !programs[s.From] {
				t.Errorf("seed %d: nothing takes packets of %s at %s", seed, s.Dst, s.From)
			}
		}
	}
	if checked < 1000 {
		t.Errorf("%d shortcuts were looked at: this test proves little", checked)
	}
}

// TestNoShortcutWithoutAPiece: each object that a shortcut needs is needed.
func TestNoShortcutWithoutAPiece(t *testing.T) {
	node := fastNode()
	want := wanted(t, node, "vxlan", "", near("vxlan", 2))
	dst := netip.MustParsePrefix("10.244.2.0/24")
	key := netstate.Shortcut{Dst: dst}.Key()
	if backend.Shortcuts(want, node, "cni0", 0)[key] == nil {
		t.Fatal("there is no shortcut")
	}
	needs := []string{"link flannel.1", "link cni0", "neigh 10.244.2.0", "fdb 02:00:00:00:01:02 dst 192.0.2.2", "route 10.244.2.0/24"}
	for _, o := range want.Sorted() {
		less := netstate.NewState(want.Sorted()...)
		delete(less, o.Key())
		needed := slices.ContainsFunc(needs, func(n string) bool { return strings.HasPrefix(o.String(), n) })
		if has := backend.Shortcuts(less, node, "cni0", 0)[key] != nil; has == needed {
			t.Errorf("without %s: a shortcut: %t", o, has)
		}
	}
}
