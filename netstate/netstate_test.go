package netstate

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

var mac = MAC{2, 0, 0, 0, 0, 1}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// TestStrings is every kind with every attribute, as plans print it.
func TestStrings(t *testing.T) {
	for want, o := range map[string]Object{
		"link flannel.1 vxlan id 1 dev eth0 local 192.0.2.1 dstport 8472 mtu 1450 address 02:00:00:00:00:01 up": VXLAN{Name: "flannel.1",
			VNI: 1, Port: 8472, Dev: "eth0", Local: addr("192.0.2.1"), MTU: 1450, MAC: mac, Up: true, Marked: true},
		"link x vxlan id 2 dev eth0 local 2001:db8::1 dstport 4789 mtu 1 address 00:00:00:00:00:00 learning gbp down unmarked proxy": VXLAN{
			Name: "x", VNI: 2, Port: 4789, Dev: "eth0", Local: addr("2001:db8::1"), MTU: 1, Learning: true, GBP: true,
			Extra: "proxy"},
		"link cni0 bridge mtu 1450 address 02:00:00:00:00:01 up": Bridge{Name: "cni0", MTU: 1450,
			MAC: mac, Up: true, Marked: true},
		"link cni0 bridge mtu 0 address 00:00:00:00:00:00 down unmarked master b": Bridge{Name: "cni0", Extra: "master b"},
		"link flannel0 tun mtu 1472 up": Tun{Name: "flannel0", MTU: 1472,
			Up: true, Marked: true},
		"link flannel0 tun mtu 0 down unmarked tap": Tun{Name: "flannel0", Extra: "tap"},
		"link flannel.ipip ipip local 192.0.2.1 mtu 1480 up": Tunnel{Name: "flannel.ipip",
			Local: addr("192.0.2.1"), MTU: 1480, Up: true, Marked: true},
		"link flannel-v6.ipip ip6tnl external mtu 0 down unmarked ttl 3": Tunnel{Name: "flannel-v6.ipip",
			External: true, Extra: "ttl 3"},
		"link flannel-wg wireguard mtu 1420 up": WireGuard{Name: "flannel-wg",
			MTU: 1420, Up: true, Marked: true},
		"link flannel-wg wireguard mtu 0 down unmarked x": WireGuard{Name: "flannel-wg", Extra: "x"},
		"listener dev f port 51820 key " + keyText + " fwmark 1": Listener{Dev: "f", Port: 51820,
			Public: PublicKey{1}, Extra: "fwmark 1"},
		"peer " + keyText + " dev f": Peer{Dev: "f", Public: PublicKey{1}},
		"policy fwd src 10.0.0.0/8 dst 10.1.0.0/16 priority 116000 block": Policy{Dir: Fwd,
			Src: prefix("10.0.0.0/8"), Dst: prefix("10.1.0.0/16"), Priority: PolicyPriority, Block: true},
		"route fc00:2::/64 encap ip6 src 2001:db8::1 dst 2001:db8::2 dev f": Route{Dst: prefix("fc00:2::/64"),
			Via: addr("2001:db8::2"), Outer: addr("2001:db8::1"),
			Dev: "f", Metric: 1024, Protocol: Protocol},
		"route 10.244.2.0/24 dev f src 10.244.1.1": Route{Dst: prefix("10.244.2.0/24"), Dev: "f", Src: addr("10.244.1.1"),
			Protocol: Protocol},
		"peer " + keyText + " dev f endpoint 192.0.2.2:51820 allowed 10.244.2.0/24 allowed fc00:2::/64 shared abc keepalive 25 x": Peer{Dev: "f", Public: PublicKey{1},
			Endpoint: netip.MustParseAddrPort("192.0.2.2:51820"), Allowed: Allowed{prefix("10.244.2.0/24"),
				prefix("fc00:2::/64")}, Shared: "abc", Keepalive: 25, Extra: "x"},
		"policy in src 10.0.0.0/8 dst 10.1.0.0/16 priority 116001 esp 192.0.2.1 to 192.0.2.2 reqid 11 optional x": Policy{Dir: In, Src: prefix("10.0.0.0/8"),
			Dst: prefix("10.1.0.0/16"), Priority: PolicyPriority +
				1, From: addr("192.0.2.1"), To: addr("192.0.2.2"), ReqID: 11, Optional: true, Extra: "x"},
		"chain nftables ip guard-input first x; mark & 0x4000 local iif cni0 oif != f src 10.0.0.0/8 udp dport 8472 drop; dst != 10.0.0.0/8 proto 4 return y": Chain{
			Role: GuardInput, Place: First, Extra: "x", Rules: [MaxRules]Rule{{Mark: 0x4000, Local: true, In: "cni0",
				NotOut: "f", Src: prefix("10.0.0.0/8"),
				Packet: Transport{Protocol: UDP, Port: 8472}, Verdict: Drop}, {NotDst: prefix("10.0.0.0/8"),
				Packet: Transport{Protocol: IPv4InIP}, Verdict: Return, Extra: "y"}}},
		"chain iptables ip guard-forward; src != 10.0.0.0/8 masquerade; dst 10.0.0.0/8 masquerade random-fully": Chain{Mode: IPTables, Role: GuardForward,
			Rules: [MaxRules]Rule{{NotSrc: prefix("10.0.0.0/8"), Verdict: Masquerade},
				{Dst: prefix("10.0.0.0/8"), Verdict: MasqueradeRandom}}},
		"link cni0 of type dummy":        OtherLink{"cni0", "dummy"},
		"sysctl net/ipv4/ip_forward = 1": Sysctl{Name: "net/ipv4/ip_forward", Value: "1"},
		"addr 10.244.1.1/24 dev cni0":    Addr{Dev: "cni0", Prefix: prefix("10.244.1.1/24")},
		"addr fc00::1/64 dev cni0 nodad valid_lft 5": Addr{Dev: "cni0", Prefix: prefix("fc00::1/64"),
			NoDAD: true, Extra: "valid_lft 5"},
		"addr 10.0.0.1/32 peer 10.0.0.2/32 dev p": Addr{Dev: "p", Prefix: prefix("10.0.0.1/32"),
			Peer: prefix("10.0.0.2/32")},
		"neigh fc00:: lladdr 02:00:00:00:00:01 dev f permanent":           Neigh{Dev: "f", IP: addr("fc00::"), MAC: mac},
		"fdb 02:00:00:00:00:01 dst 192.0.2.2 dev f self permanent port 1": FDB{"f", mac, addr("192.0.2.2"), "port 1"},
		"route 10.244.2.0/24 via 10.244.2.0 dev f onlink": Route{Dst: prefix("10.244.2.0/24"), Via: addr("10.244.2.0"),
			Dev:    "f",
			Onlink: true, Protocol: Protocol},
		"route 10.244.2.0/24 dev f metric 1024 proto 3 tos 0x10 (no. 2) mtu 900": Route{Dst: prefix("10.244.2.0/24"),
			Dev: "f", Metric: 1024,
			Protocol: 3, TOS: 16, Nth: 2, Extra: "mtu 900"},
		"route fc00:2::/64 dev f": Route{Dst: prefix("fc00:2::/64"), Dev: "f", Metric: 1024,
			Protocol: Protocol},
		"route fc00:2::/64 dev f metric 0": Route{Dst: prefix("fc00:2::/64"), Dev: "f", Protocol: Protocol},
		"route blackhole 10.244.1.0/24 metric 4096": Route{Dst: prefix("10.244.1.0/24"), Metric: 4096, Blackhole: true,
			Protocol: Protocol},
		"chain iptables ip6 forward misplaced; accept": Chain{Mode: IPTables, Family: IPv6, Role: Forward,
			Place: Misplaced, Rules: [MaxRules]Rule{{Verdict: Accept}}},
		"set ip6 pods-1 type addr":                    Set{Family: IPv6, Name: "pods-1", Type: Addresses},
		"filter ip in-1 {counter drop}":               Filter{Family: IPv4, Name: "in-1", Rules: "counter drop"},
		"element pods-1 10.244.1.2/32":                Element{Set: "pods-1", Prefix: prefix("10.244.1.2/32")},
		"element ingress fc00::2/128 : goto in-1":     Element{Set: "ingress", Prefix: prefix("fc00::2/128"), Verdict: "goto in-1"},
		"element block-1 10.0.0.1/32 to 10.0.0.3":     Range("block-1", netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.3")),
		"element block-1 10.0.0.2/31":                 Range("block-1", netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")),
		"element block-1 ::/0":                        Range("block-1", netip.IPv6Unspecified(), LastAddr(prefix("ff00::/8"))),
		"element ports-1 0.0.0.0/0 port 80-81":        Element{Set: "ports-1", Prefix: prefix("0.0.0.0/0"), Port: 80, LastPort: 81},
		"element p 10.244.1.2/32 proto 6 port 80":     Element{Set: "p", Prefix: prefix("10.244.1.2/32"), Protocol: 6, Port: 80},
		"hook ip forward {jump egress\ngoto ingress}": Hook{Family: IPv4, Rules: "jump egress\ngoto ingress"},
		"hook ip6 input {goto node}":                  Hook{Family: IPv6, Local: true, Rules: "goto node"},
	} {
		if got := o.String(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

// keyText is the public key that begins with 1, and is zero else.
const keyText = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="

// TestMarks: by these an agent knows what another version of it wrote, so they must never change.
func TestMarks(t *testing.T) {
	if Mark != "twill" || Protocol != 116 || PolicyPriority != 116000 || PolicyPriorities != 10 {
		t.Errorf("the marks are %q, protocol %d, and %d priorities from %d on", Mark, Protocol, PolicyPriorities,
			PolicyPriority)
	}
}

// TestKeyOrder: keys differ in the first of these that does; the order is the one in which objects can be written.
func TestKeyOrder(t *testing.T) {
	low, high := prefix("10.0.0.0/8"), prefix("10.0.0.0/9")
	keys := []Key{
		{Kind: KindLink, Name: "b", Prefix: high, MAC: MAC{1}, Metric: 9},
		{Kind: KindSysctl, Name: "a", Prefix: high, MAC: MAC{1}, Metric: 9},
		{Kind: KindSysctl, Name: "b", Prefix: low, MAC: MAC{1}, Metric: 9},
		{Kind: KindSysctl, Name: "b", Prefix: high, MAC: MAC{5: 1}, Metric: 9},
		{Kind: KindSysctl, Name: "b", Prefix: high, MAC: MAC{4: 1}, Metric: 9},
		{Kind: KindSysctl, Name: "b", Prefix: high, MAC: MAC{1}, Metric: 1},
		{Kind: KindSysctl, Name: "b", Prefix: high, MAC: MAC{1}, Metric: 2},
		{Kind: KindSysctl, Name: "b", Prefix: prefix("11.0.0.0/8"), MAC: MAC{}},
		{Kind: KindAddr, Name: "a"},
		{Kind: KindNeigh}, {Kind: KindFDB}, {Kind: KindListener}, {Kind: KindPeer}, {Kind: KindPolicy}, {Kind: KindRoute},
		{Kind: KindChain}, {Kind: KindSet}, {Kind: KindFilter}, {Kind: KindElement}, {Kind: KindHook},
	}
	for i, a := range keys {
		for j, b := range keys {
			if got, want := a.compare(b), cmp.Compare(i, j); got != want {
				t.Errorf("%v and %v are compared to %d, want %d", a, b, got, want)
			}
		}
	}
}

// node is one object of every kind, in dependency order.
func node() []Object {
	gw := addr("10.244.2.0")
	return []Object{
		Bridge{Name: "cni0", MTU: 1450, MAC: mac, Up: true, Marked: true},
		VXLAN{Name: "flannel.1", VNI: 1, Port: 8472, Dev: "eth0", Local: addr("192.0.2.1"), MTU: 1450, MAC: mac, Up: true,
			Marked: true},
		Sysctl{Name: "net/ipv4/ip_forward", Value: "1"},
		Offload{Dev: "flannel.1"},
		Addr{Dev: "cni0", Prefix: prefix("10.244.1.1/24")},
		Addr{Dev: "flannel.1", Prefix: prefix("10.244.1.0/32")},
		Neigh{Dev: "flannel.1", IP: gw, MAC: mac},
		FDB{Dev: "flannel.1", MAC: mac, Dst: addr("192.0.2.2")},
		Route{Dst: prefix("10.244.2.0/24"), Via: gw, Dev: "flannel.1", Onlink: true, Protocol: Protocol},
		Route{Dst: prefix("10.244.10.0/24"), Via: gw, Dev: "flannel.1", Onlink: true, Protocol: Protocol},
		Chain{Role: Postrouting},
		Chain{Role: Forward, Place: First},
	}
}

func TestDiffOrder(t *testing.T) {
	state := NewState(node()...)
	var up, down []string
	for _, o := range state.Sorted() {
		up = append(up, "+ "+o.String())
		if !o.Key().Kind.undeletable() {
			down = append([]string{"- " + o.String()}, down...)
		}
	}
	kinds := ""
	for _, c := range Diff(state, nil) {
		kinds += c.Key().Kind.String() + " "
	}
	if want := "link link sysctl offload addr addr neigh fdb route route chain chain "; kinds != want {
		t.Errorf("got the kinds %s, want %s", kinds, want)
	}
	for name, test := range map[string]struct {
		want, have State
		plan       []string
	}{
		"up": {state, nil, up}, "down": {nil, state, down}, "same": {state, state, nil},
	} {
		if got, want := Diff(test.want, test.have).String(), strings.Join(append(test.plan, ""), "\n"); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

// TestGuardsGoLast: what keeps pods' packets in the overlay stays until the overlay is gone.
func TestGuardsGoLast(t *testing.T) {
	have := NewState(append(node(), Chain{Role: GuardForward}, Chain{Role: GuardSource, Family: IPv6})...)
	plan := Diff(nil, have)
	for i, c := range plan[len(plan)-2:] {
		if chain, ok := c.Was.(Chain); !ok || chain.Role < GuardInput {
			t.Errorf("change %d from the end is %s, want a guard", 2-i, c)
		}
	}
}

// TestDiffGolden: puts first, then deletes; a replaced object is one change; another type in a slot as well.
func TestDiffGolden(t *testing.T) {
	want := NewState(node()...)
	have := maps.Clone(want)
	have.Add(OtherLink{"cni0", "dummy"}, Sysctl{Name: "net/ipv4/ip_forward", Value: "0"}, Sysctl{Name: "net/ipv4/other", Value: "0"},
		Route{Dst: prefix("10.244.10.0/24"), Dev: "eth0", Protocol: 3}, Route{Dst: prefix("10.244.2.0/24"), Metric: 7,
			Protocol: Protocol, Dev: "eth0"},
		Listener{Dev: "flannel-wg"}, // it goes with its device
		Neigh{Dev: "flannel.1", IP: addr("10.244.9.0"), MAC: mac}, FDB{Dev: "flannel.1", MAC: mac, Dst: addr("192.0.2.9")})
	delete(have, Addr{Dev: "cni0", Prefix: prefix("10.244.1.1/24")}.Key())
	const golden = `~ link cni0 bridge mtu 1450 address 02:00:00:00:00:01 up (was link cni0 of type dummy)
~ sysctl net/ipv4/ip_forward = 1 (was sysctl net/ipv4/ip_forward = 0)
+ addr 10.244.1.1/24 dev cni0
~ route 10.244.10.0/24 via 10.244.2.0 dev flannel.1 onlink (was route 10.244.10.0/24 dev eth0 proto 3)
- route 10.244.2.0/24 dev eth0 metric 7
- fdb 02:00:00:00:00:01 dst 192.0.2.9 dev flannel.1 self permanent
- neigh 10.244.9.0 lladdr 02:00:00:00:00:01 dev flannel.1 permanent
`
	if got := Diff(want, have).String(); got != golden {
		t.Errorf("got\n%s\nwant\n%s", got, golden)
	}
}

// randomState has objects in few slots, so that two of them meet.
func randomState(r *rand.Rand) State {
	s := State{}
	for range r.IntN(30) {
		dev := string(rune('a' + r.IntN(3)))
		ip := netip.AddrFrom4([4]byte{10, 244, byte(r.IntN(3)), 0})
		m := MAC{2, 0, 0, 0, 0, byte(r.IntN(3))}
		s.Add([]Object{
			Bridge{Name: dev, MTU: r.IntN(2)}, VXLAN{Name: dev, VNI: r.IntN(2)}, OtherLink{dev, "dummy"},
			Sysctl{Name: dev, Value: string(rune('0' + r.IntN(2)))}, Addr{Dev: dev, Prefix: Host(ip), NoDAD: r.IntN(2) == 0},
			Neigh{Dev: dev, IP: ip, MAC: m}, FDB{Dev: dev, MAC: m, Dst: ip, Extra: dev}, Route{Dst: Host(ip), Metric: r.IntN(2), Dev: dev,
				Nth: r.IntN(2)},
			Chain{Mode: Mode(r.IntN(2)), Place: Place(r.IntN(3))},
		}[r.IntN(9)])
	}
	return s
}

// TestDiffProperties: the diff of equals is empty; carried out on a map it gives what was wanted (sysctls stay);
// its text does not depend on map order; no slot comes twice.
func TestDiffProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		want, have := randomState(r), randomState(r)
		if p := Diff(want, maps.Clone(want)); len(p) > 0 {
			t.Fatalf("the diff of equals:\n%s", p)
		}
		plan, got, seen := Diff(want, have), maps.Clone(have), map[Key]bool{}
		for _, c := range plan {
			if seen[c.Key()] {
				t.Fatalf("two changes of %v:\n%s", c.Key(), plan)
			}
			seen[c.Key()] = true
			if c.Want == nil {
				delete(got, c.Was.Key())
			} else {
				got.Add(c.Want)
			}
		}
		for k := range have {
			if _, wanted := want[k]; !wanted && k.Kind.undeletable() {
				delete(got, k)
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
		if again := Diff(maps.Clone(want), maps.Clone(have)); again.String() != plan.String() {
			t.Fatalf("two diffs of the same:\n%s\n%s", plan, again)
		}
	}
}

// TestSlots: what the kernel can hold at once has different keys, what it cannot has one.
func TestSlots(t *testing.T) {
	r := Route{Dst: prefix("10.244.2.0/24"), Via: addr("10.0.0.1"), Dev: "a"}
	with := func(f func(*Route)) Route { o := r; f(&o); return o }
	for name, test := range map[string]struct {
		a, b Object
		same bool
	}{
		"route, another gateway":  {r, with(func(r *Route) { r.Via = addr("10.0.0.2") }), true},
		"route, another device":   {r, with(func(r *Route) { r.Dev = "b" }), true},
		"route and blackhole":     {r, with(func(r *Route) { r.Blackhole = true }), true},
		"route, another protocol": {r, with(func(r *Route) { r.Protocol = 3 }), true},
		"route, another metric":   {r, with(func(r *Route) { r.Metric = 3 }), false},
		"route, another tos":      {r, with(func(r *Route) { r.TOS = 4 }), false},
		"route, the second":       {r, with(func(r *Route) { r.Nth = 2 }), false},
		"route, another length":   {r, with(func(r *Route) { r.Dst = prefix("10.244.2.0/25") }), false},
		"link, another type":      {Bridge{Name: "a"}, VXLAN{Name: "a"}, true},
		"link, a foreign type":    {Bridge{Name: "a"}, OtherLink{"a", "dummy"}, true},
		"addr, another length": {Addr{Dev: "a", Prefix: prefix("10.0.0.1/24")},
			Addr{Dev: "a", Prefix: prefix("10.0.0.1/25")}, false},
		"link, WireGuard":    {Bridge{Name: "a"}, WireGuard{Name: "a"}, true},
		"link, another name": {Bridge{Name: "a"}, Bridge{Name: "b"}, false},
		"link and sysctl":    {Bridge{Name: "a"}, Sysctl{Name: "a"}, false},
		"neigh, another mac": {Neigh{Dev: "a", IP: addr("10.0.0.1"), MAC: mac}, Neigh{Dev: "a", IP: addr("10.0.0.1"), MAC: MAC{}}, true},
		"fdb, another destination": {FDB{Dev: "a", MAC: mac, Dst: addr("10.0.0.1")},
			FDB{Dev: "a", MAC: mac, Dst: addr("10.0.0.2")}, false},
		"neigh and addr": {Neigh{Dev: "a", IP: addr("10.0.0.1")}, Addr{Dev: "a", Prefix: prefix("10.0.0.1/32")},
			false},
		"tun and tunnel":           {Tun{Name: "a"}, Tunnel{Name: "a"}, true},
		"listener, another port":   {Listener{Dev: "a", Port: 1}, Listener{Dev: "a"}, true},
		"listener, another device": {Listener{Dev: "a"}, Listener{Dev: "b"}, false},
		"peer, another endpoint":   {Peer{Dev: "a", Keepalive: 1}, Peer{Dev: "a"}, true},
		"peer, another key":        {Peer{Dev: "a", Public: PublicKey{1}}, Peer{Dev: "a"}, false},
		"peer, another device":     {Peer{Dev: "a"}, Peer{Dev: "b"}, false},
		"policy, another tunnel":   {Policy{Src: r.Dst, Dst: r.Dst, ReqID: 1}, Policy{Src: r.Dst, Dst: r.Dst}, true},
		"policy, another priority": {Policy{Src: r.Dst, Dst: r.Dst, Priority: 1}, Policy{Src: r.Dst, Dst: r.Dst}, true},
		"policy, the other way":    {Policy{Src: r.Dst, Dst: r.Dst, Dir: Out}, Policy{Src: r.Dst, Dst: r.Dst}, false},
		"policy, another source":   {Policy{Src: prefix("10.0.0.0/8"), Dst: r.Dst}, Policy{Src: r.Dst, Dst: r.Dst}, false},
		"policy, other pods":       {Policy{Src: r.Dst, Dst: prefix("10.0.0.0/8")}, Policy{Src: r.Dst, Dst: r.Dst}, false},
		"chain, another family":    {Chain{}, Chain{Family: IPv6}, false},
		"chain, another role":      {Chain{}, Chain{Role: Forward}, false},
		"chain, another place":     {Chain{}, Chain{Place: First}, true},
		"chain, another mode":      {Chain{}, Chain{Mode: IPTables}, false},
		"chain, another rule":      {Chain{}, Chain{Rules: [MaxRules]Rule{{Verdict: Accept}}}, true},
	} {
		if same := test.a.Key() == test.b.Key(); same != test.same {
			t.Errorf("%s: same slot %t, want %t", name, same, test.same)
		}
	}
}

func TestSameDevice(t *testing.T) {
	have := VXLAN{Name: "f", VNI: 1, Port: 8472, Dev: "eth0", Local: addr("192.0.2.1"), MTU: 1450, MAC: mac, Up: true,
		Marked: true}
	for name, f := range map[string]func(*VXLAN){
		"mtu": func(l *VXLAN) { l.MTU = 1 }, "mac": func(l *VXLAN) { l.MAC = MAC{} }, "up": func(l *VXLAN) { l.Up = false },
		"mark": func(l *VXLAN) { l.Marked = false }, "vni!": func(l *VXLAN) { l.VNI = 2 },
		"port!": func(l *VXLAN) { l.Port = 1 },
		"dev!":  func(l *VXLAN) { l.Dev = "x" }, "local!": func(l *VXLAN) { l.Local = addr("192.0.2.2") },
		"gbp!": func(l *VXLAN) { l.GBP = true }, "learning!": func(l *VXLAN) { l.Learning = true },
		"extra": func(l *VXLAN) { l.Extra = "x" },
	} {
		want := have
		f(&want)
		if same := SameDevice(have, want); same == strings.HasSuffix(name, "!") {
			t.Errorf("another %s: the same device %t", name, same)
		}
	}
}

// TestSameTunnel: what is fixed when a tunnel is made.
func TestSameTunnel(t *testing.T) {
	have := Tunnel{Name: "f", Local: addr("192.0.2.1"), MTU: 1480, Up: true, Marked: true}
	for name, f := range map[string]func(*Tunnel){
		"mtu": func(l *Tunnel) { l.MTU = 1 }, "up": func(l *Tunnel) { l.Up = false },
		"mark":  func(l *Tunnel) { l.Marked = false },
		"name!": func(l *Tunnel) { l.Name = "x" }, "local!": func(l *Tunnel) { l.Local = addr("192.0.2.2") },
		"external!": func(l *Tunnel) { l.External = true }, "extra": func(l *Tunnel) { l.Extra = "x" },
	} {
		want := have
		f(&want)
		if same := SameDevice(have, want); same == strings.HasSuffix(name, "!") {
			t.Errorf("another %s: the same device %t", name, same)
		}
	}
}

// TestSameKind: a device of another kind is another one.
func TestSameKind(t *testing.T) {
	for _, c := range []struct {
		have, want Object
		same       bool
	}{
		{Bridge{Name: "b", Extra: "vlan_filtering"}, Bridge{Name: "b", MTU: 1450, MAC: mac, Up: true, Marked: true}, true},
		{Bridge{Name: "b", Extra: "master x"}, Bridge{Name: "b"}, true},
		{Tun{Name: "b"}, Tun{Name: "b", MTU: 1450, Up: true, Marked: true}, true},
		{Tun{Name: "b", Extra: "multi_queue 1"}, Tun{Name: "b"}, true},
		{WireGuard{Name: "b"}, WireGuard{Name: "b", MTU: 1450, Up: true, Marked: true}, true},
		{WireGuard{Name: "b", Extra: "master x"}, WireGuard{Name: "b"}, true},
		{Bridge{Name: "b"}, Tun{Name: "b"}, false},
		{OtherLink{"b", "veth"}, Bridge{Name: "b"}, false},
		{OtherLink{"b", "veth"}, OtherLink{"b", "veth"}, false},
		{nil, nil, false},
	} {
		if got := SameDevice(c.have, c.want); got != c.same {
			t.Errorf("%s and %s: the same device %t", c.have, c.want, got)
		}
	}
	if !IsOverlay(Tunnel{}) || IsOverlay(Bridge{}) || IsOverlay(nil) {
		t.Error("IsOverlay")
	}
}

func TestLeftMade(t *testing.T) {
	l := Left{Network: netip.MustParsePrefix("10.244.0.0/16"), Bits: 24, Gateways: true}
	want := State{}
	want.Add(Addr{Dev: "cni0", Prefix: netip.MustParsePrefix("10.244.1.1/24")})
	via := func(dst string) Route {
		return Route{Dst: netip.MustParsePrefix(dst), Via: netip.MustParseAddr("192.0.2.2"), Dev: "eth0", Protocol: 3}
	}
	hole := func(dst string) Route {
		return Route{Dst: netip.MustParsePrefix(dst), Blackhole: true, Protocol: 3}
	}
	metric, noGateway := via("10.244.9.0/24"), via("10.244.9.0/24")
	metric.Metric, noGateway.Via = 50, netip.Addr{}
	for _, c := range []struct {
		route Route
		made  bool
	}{
		{via("10.244.9.0/24"), true}, {via("10.245.9.0/24"), false}, {via("10.244.9.0/25"), false}, {via("10.244.0.0/16"),
			false},
		{metric, false}, {noGateway, false}, {hole("10.244.1.0/24"), true}, {hole("10.244.2.0/24"), false},
	} {
		if got := l.Made(c.route, want); got != c.made {
			t.Errorf("%s: may be flannel's is %v, want %v", c.route, got, c.made)
		}
	}
	if l.Gateways = false; l.Made(via("10.244.9.0/24"), want) {
		t.Error("a backend without gateways has made a route by one")
	}
}

func TestBridgeMAC(t *testing.T) {
	for a, want := range map[string]string{"10.244.1.1": "0a:58:0a:f4:01:01", "fc00::1": "0a:58:c6:5d:db:e6"} {
		if got := BridgeMAC(addr(a)); got.String() != want || !got.IsUnicast() {
			t.Errorf("BridgeMAC(%s) = %s, want %s", a, got, want)
		}
	}
}

func TestInterface(t *testing.T) {
	i := Interface{Addrs: []netip.Prefix{prefix("fc00::1/64"), prefix("10.0.0.1/24"), prefix("10.0.0.2/24")}}
	if !i.Has(addr("10.0.0.2")) || !i.Has(addr("fc00::1")) || i.Has(addr("10.0.0.3")) {
		t.Error("Has")
	}
}

// TestIsUnicast: a group's address, or none, is no device's.
func TestIsUnicast(t *testing.T) {
	for s, want := range map[string]bool{"02:00:00:00:00:01": true, "fe:ff:ff:ff:ff:ff": true, "00:00:00:00:00:01": true,
		"00:00:00:00:00:00": false, "01:00:5e:00:00:01": false, "03:00:00:00:00:01": false, "ff:ff:ff:ff:ff:ff": false} {
		if m, err := ParseMAC(s); err != nil || m.IsUnicast() != want {
			t.Errorf("%s is unicast: %t, error %v, want %t", s, m.IsUnicast(), err, want)
		}
	}
}

func TestParseMACErrors(t *testing.T) {
	for _, s := range []string{"", "02:00:00:00:00:0", "02:00:00:00:00:011", "02-00-00-00-00-01", "0g:00:00:00:00:01",
		"02:00:00:00:00:1:"} {
		if m, err := ParseMAC(s); err == nil || !strings.Contains(err.Error(), "want the form aa:bb:cc:dd:ee:ff") {
			t.Errorf("ParseMAC(%q) = %s, %v", s, m, err)
		}
	}
}

func FuzzParseMAC(f *testing.F) {
	for _, s := range []string{"02:00:00:00:00:01", "AA:bb:Cc:dd:ee:ff", "", "0@:00:00:00:00:00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMAC(s)
		if err != nil {
			return
		}
		if m.String() != strings.ToLower(s) {
			t.Errorf("%q was read as %s", s, m)
		}
	})
}

// TestSysctlObserved: a value that is as good as the wanted one looks like it.
func TestSysctlObserved(t *testing.T) {
	limited := Sysctl{Name: "net/x", Value: "64", Also: Values{Least: 32, Most: 255}}
	low := Sysctl{Name: "net/x", Value: "0", Also: Values{Least: 0, Most: 2}}
	for _, test := range []struct {
		want  Sysctl
		value string
		good  bool
	}{
		{limited, "64", true}, {limited, "32", true}, {limited, "255", true}, {limited, "31", false}, {limited, "256", false},
		{limited, "x", false}, {low, "0", true}, {low, "2", true}, {low, "3", false}, {low, "-1", false},
		{Sysctl{Name: "net/x", Value: "1"}, "0", false}, {Sysctl{Name: "net/x", Value: "1"}, "1", true},
	} {
		if got := test.want.Observed(test.value); (got == test.want) != test.good || !test.good && got.Value != test.value {
			t.Errorf("%s observed as %q is %s", test.want, test.value, got)
		}
	}
}
