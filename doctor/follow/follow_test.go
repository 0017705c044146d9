package follow

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/netstate"
)

var a, b = netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.2.2")

// TestChoose: lost probes of different pods are followed, and one of each pair.
func TestChoose(t *testing.T) {
	var lost []probe.Result
	hosts := []string{"p1", "p2", "p3", "p4"}
	for i, from := range hosts {
		for j, to := range hosts {
			for _, k := range probe.Kinds {
				if i != j {
					lost = append(lost, probe.Result{Err: errors.New("lost"), Try: probe.Try{From: watch.Here(from), To: watch.Here(to), Kind: k,
						Src: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Dst: netip.AddrFrom4([4]byte{10, 0, 0, byte(j)})}})
				}
			}
		}
	}
	chosen, pairs, seen := choose(lost), map[[2]string]bool{}, map[string]bool{}
	for _, r := range chosen {
		if pairs[[2]string{r.From.Host, r.To.Host}] || pairs[[2]string{r.To.Host, r.From.Host}] {
			t.Errorf("%s is followed twice", r.Try)
		}
		pairs[[2]string{r.From.Host, r.To.Host}] = true
		seen[r.From.Host], seen[r.To.Host] = true, true
	}
	if len(chosen) != 6 || len(seen) != 4 {
		t.Errorf("got %d of %d hosts", len(chosen), len(seen))
	}
	if len(choose(nil)) != 0 {
		t.Error("nothing is lost, and something followed")
	}
}

// TestTries: what cannot be entered sends nothing, and gets what its kernel answers.
func TestTries(t *testing.T) {
	n := Network{Pods: []Pod{{Place: watch.Here("p1"), Addrs: []netip.Addr{a}}, {Place: watch.Place{Host: "node2"}, Addrs: []netip.Addr{b, netip.MustParseAddr("fd00::1")}}}}
	tries := n.tries()
	if len(tries) != 2 || tries[0].Kind != probe.ICMP || tries[1].Kind != probe.ICMPFull || tries[0].Dst != b {
		t.Errorf("got %v", tries)
	}
}

// TestShared: what all pods have is how pods are, and what one has stays.
func TestShared(t *testing.T) {
	at := func(host string, texts ...string) *seenAt {
		s := &seenAt{View: watch.View{Place: watch.Here(host)}}
		for _, text := range texts {
			s.unusual = append(s.unusual, locate.Object{Kind: locate.Sysctl, Part: strings.Fields(text)[0], Value: strings.Fields(text)[2], Text: text})
		}
		return s
	}
	all := []*seenAt{at("node1/pod1", "net.a = 1", "net.b = 1"), at("node2/pod1", "net.a = 1"), at("underlay", "net.c = 1"), at("node1", "net.veth1a.d = 1"), at("node2", "net.veth2b.d = 1")}
	Network{}.shared(all)
	for i, want := range []string{"net.b = 1", "", "net.c = 1", "", ""} {
		got := ""
		for _, o := range all[i].unusual {
			got += o.Text
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", all[i].Host, got, want)
		}
	}
}

// TestMistaken: an address that a pod lacks, one that another host has, and a MAC of two pods.
func TestMistaken(t *testing.T) {
	n := Network{Pods: []Pod{{Place: watch.Here("p1"), Node: "n", Addrs: []netip.Addr{a}}, {Place: watch.Here("p2"), Node: "n", Addrs: []netip.Addr{b}}}}
	id := func(host string, mac string, addrs ...netip.Addr) identity {
		i := identity{Place: watch.Here(host), addrs: map[netip.Addr]string{}, bits: map[netip.Addr]int{}, macs: map[string]string{mac: "eth0"}}
		for _, a := range addrs {
			i.addrs[a], i.bits[a] = "eth0", 24
		}
		return i
	}
	gateway := netip.MustParseAddr("10.244.1.1")
	own, outer := netstate.BridgeMAC(a).String(), netip.MustParseAddr("192.168.33.101")
	for name, test := range map[string]struct {
		all   []identity
		outer []netip.Addr
		want  map[string]string // texts by host
	}{
		"healthy": {all: []identity{id("p1", "02:00:00:00:00:01", a), id("p2", "02:00:00:00:00:02", b)}},
		"another pod has it": {all: []identity{id("p1", "02:00:00:00:00:01"), id("p2", "02:00:00:00:00:02", b, a)},
			want: map[string]string{"p1": a.String() + " is missing on eth0", "p2": a.String() + " dev eth0, which is the address of p1"}},
		"the node's own": {all: []identity{id("p1", "02:00:00:00:00:01", a), id("p2", "02:00:00:00:00:02", b, gateway), id("n", "02:00:00:00:00:03", gateway)},
			want: map[string]string{"p2": gateway.String() + " dev eth0, which is the address of n"}},
		"one MAC, which is made of an address": {all: []identity{id("p1", own, a), id("p2", own, b)},
			want: map[string]string{"p2": "eth0: address " + own + ", which p1 has too"}},
		"the node's is gone": {all: []identity{id("p1", "02:00:00:00:00:01", a), id("p2", "02:00:00:00:00:02", b), id("n", "02:00:00:00:00:03")}, outer: []netip.Addr{outer},
			want: map[string]string{"n": outer.String() + " is missing on eth1"}},
	} {
		n.Pods[0].Own = test.outer
		got := n.mistaken(test.all, map[string]map[netip.Addr]string{"n": {outer: "eth1"}})
		if len(got) != len(test.want) {
			t.Errorf("%s: got %v", name, got)
		}
		for host, want := range test.want {
			if len(got[host]) == 0 || got[host][0].Text != want {
				t.Errorf("%s: %s: got %v, want %q", name, host, got[host], want)
				continue
			}
			a, _, taken := strings.Cut(want, " dev eth0, which is the address of ")
			if fix := "ip addr del " + a + "/24 dev eth0"; taken && got[host][0].Fix != fix {
				t.Errorf("%s: %s: the kernel has the address with its length, so the command is %q, got %q", name, host, fix, got[host][0].Fix)
			}
		}
	}
}

// TestChanged: a device has another MAC than its neighbours have learned.
func TestChanged(t *testing.T) {
	const is, was, others = "02:00:00:00:00:09", "02:00:00:00:00:01", "02:00:00:00:00:02"
	at := func(host string, addr netip.Addr, mac string) identity {
		return identity{Place: watch.Here(host), addrs: map[netip.Addr]string{addr: "eth1"}, macs: map[string]string{mac: "eth1"}}
	}
	entry := func(host, mac string, learnt bool) *seenAt {
		e := neighbour{locate.Object{Kind: locate.Neighbour, About: netip.PrefixFrom(a, 32)}, a, mac, learnt}
		return &seenAt{View: watch.View{Place: watch.Here(host)}, neighs: []neighbour{e}}
	}
	given := netstate.BridgeMAC(a).String()
	for name, test := range map[string]struct {
		mac   string
		hosts []*seenAt
		found bool
	}{
		"right":               {is, []*seenAt{entry("n2", is, true), entry("n3", is, true)}, false},
		"another host's":      {is, []*seenAt{entry("n2", others, true), entry("n3", others, true)}, false},
		"written by somebody": {is, []*seenAt{entry("n2", was, false), entry("n3", was, false)}, false},
		"only one thinks so":  {is, []*seenAt{entry("n2", was, true), entry("n3", is, true)}, false},
		"a pod's own":         {given, []*seenAt{entry("n2", was, true), entry("n3", was, true)}, false},
		"old":                 {is, []*seenAt{entry("n2", was, true), entry("n3", was, true)}, true},
	} {
		n, found := Network{Pods: []Pod{{Place: watch.Here("n1"), Addrs: []netip.Addr{a}}}}, map[string][]locate.Object{}
		n.changed(found, []identity{at("n1", a, test.mac), at("n2", b, others)}, test.hosts)
		if len(found["n1"]) > 0 != test.found || len(found["n2"]) > 0 {
			t.Errorf("%s: got %v", name, found)
		}
	}
}

// TestIsWanted: nothing that the agent or the plugin made is to blame, as long as it is as they made it.
func TestIsWanted(t *testing.T) {
	mac := netstate.MAC{2, 0, 0, 0, 0, 1}
	want := netstate.State{}
	want.Add(netstate.Sysctl{Name: "net/ipv4/conf/flannel.1/rp_filter", Value: "2", Also: netstate.Values{Least: 0, Most: 0}},
		netstate.Neigh{Dev: "flannel.1", IP: a, MAC: mac}, netstate.FDB{Dev: "flannel.1", MAC: mac, Dst: b},
		netstate.Port{Name: "veth1", Bridge: "cni0", Pod: mac, Addrs: a.String(), Locked: true, Isolated: true},
		netstate.Port{Name: "veth2", Bridge: "cni0", MTU: 1400}, netstate.Bridge{Name: "cni0", MTU: 1350}, netstate.BridgeFDB{Bridge: "cni0", MAC: mac, Port: "veth1"},
		netstate.Policy{Dir: netstate.Out, Src: netip.PrefixFrom(a, 24).Masked(), Dst: netip.PrefixFrom(b, 24).Masked(), Priority: 116001})
	sysctl := func(name, value string) locate.Object {
		return locate.Object{Kind: locate.Sysctl, Part: name, Value: value, Key: netstate.Sysctl{Name: "net/ipv4/conf/" + name + "/rp_filter"}.Key()}
	}
	neighbour := func(mac string) locate.Object {
		return locate.Object{Kind: locate.Neighbour, Dev: "flannel.1", MAC: mac, Key: netstate.Neigh{Dev: "flannel.1", IP: a}.Key()}
	}
	forwards := func(dst netip.Addr) locate.Object {
		return locate.Object{Kind: locate.FDB, Dev: "flannel.1", MAC: mac.String(), Key: netstate.FDB{Dev: "flannel.1", MAC: mac, Dst: dst}.Key()}
	}
	bridges := func(port string) locate.Object {
		return locate.Object{Kind: locate.FDB, Dev: port, MAC: mac.String(), Bridge: "cni0", Key: netstate.BridgeFDB{Bridge: "cni0", MAC: mac}.Key()}
	}
	link := func(dev, part, value string) locate.Object {
		return locate.Object{Kind: locate.Link, Dev: dev, Part: part, Value: value}
	}
	port := func(dev, part, value string) locate.Object {
		return locate.Object{Kind: locate.BridgePort, Dev: dev, Bridge: "cni0", Part: part, Value: value}
	}
	policy := func(dir netstate.Direction, priority string) locate.Object {
		p := netstate.Policy{Dir: dir, Src: netip.PrefixFrom(a, 24).Masked(), Dst: netip.PrefixFrom(b, 24).Masked()}
		return locate.Object{Kind: locate.IPsec, Part: dir.String(), Value: priority, Key: p.Key()}
	}
	for _, test := range []struct {
		object locate.Object
		wanted bool
	}{
		{sysctl("flannel.1", "2"), true},
		{sysctl("flannel.1", "1"), false},
		{sysctl("eth0", "2"), false},
		{neighbour(mac.String()), true},
		{neighbour("02:00:00:00:00:09"), false},
		{forwards(b), true},
		{forwards(netip.MustParseAddr("10.244.2.9")), false},
		{bridges("veth1"), true},
		{bridges("veth2"), false},
		{link("veth1", "group", "116"), true},
		{link("veth1", "group", "7"), false},
		{link("veth1", locate.Down, ""), false},
		{link("veth2", "group", "116"), false},
		{link("veth2", "mtu", "1400"), true},
		{link("veth2", "mtu", "1000"), false},
		{link("cni0", "mtu", "1350"), true},
		{link("cni0", "mtu", "1000"), false},
		{link("eth0", "mtu", "1350"), false},
		{port("veth1", "isolated", "on"), true},
		{port("veth1", "locked", "on"), true},
		{port("veth1", "learning", "off"), true},
		{port("veth1", "state", "disabled"), false},
		{port("veth2", "isolated", "on"), false},
		{policy(netstate.Out, "116001"), true},
		{policy(netstate.Out, "5"), false},
		{policy(netstate.Fwd, "116001"), false},
	} {
		if got := IsWanted(want, test.object); got != test.wanted {
			t.Errorf("%+v: got %t", test.object, got)
		}
	}
}

// TestAskPods: only a peer's bridge has pods beside it. What comes after a gateway's address, or after one outside, is
// somebody else's.
func TestAskPods(t *testing.T) {
	for way, want := range map[Way]bool{Inside: true, Gateway: false, Outside: false} {
		asked := false
		from := watch.Place{Host: "node1", Do: func(func() error) error { asked = true; return errors.New("not here") }}
		to := watch.Place{Host: "there"}
		n := Network{Pods: []Pod{{Place: to, Node: to.Host, Way: way}}}
		r := Report{Lost: []probe.Result{{Try: probe.Try{From: from, To: to, Kind: probe.ICMP, Src: netip.MustParseAddr("10.244.1.2"),
			Dst: netip.MustParseAddr("192.0.2.1")}, Err: errors.New("no answer")}}}
		if aside := n.askPods(t.Context(), &r); asked != want || len(aside) > 0 {
			t.Errorf("way %d: asked %t, want %t; put aside %v", way, asked, want, aside)
		}
	}
}
