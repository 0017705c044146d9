package backend_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

func prefixes(list ...string) (all []netip.Prefix) {
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// lease is one of pairs of subnet and underlay address.
func lease(node, kind string, pairs ...string) subnet.Lease {
	l := subnet.Lease{Node: node, Backend: kind}
	for i := 0; i < len(pairs); i += 2 {
		a, _ := netip.ParseAddr(pairs[i+1])
		p, _ := netip.ParsePrefix(pairs[i])
		l.Stacks = append(l.Stacks, subnet.Stack{Subnet: p, Underlay: a})
	}
	return l
}

// TestPeers leaves out what is wrong, says why, and keeps the good peer that stands behind it.
func TestPeers(t *testing.T) {
	networks := prefixes("10.244.0.0/16", "fc00::/48")
	local := lease("n1", "vxlan", "10.244.1.0/24", "192.0.2.1", "fc00:0:0:1::/64", "2001:db8::1")
	node := backend.Node{Name: "n1", Underlays: []backend.Underlay{
		{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), OnLink: prefixes("192.0.2.0/24", "198.51.100.4/31")},
		{Dev: "eth0", Local: netip.MustParseAddr("2001:db8::1"), OnLink: prefixes("2001:db8::/64")}}}
	good := lease("good", "vxlan", "10.244.99.0/24", "192.0.2.99", "fc00:0:0:99::/64", "2001:db8::99")
	for name, test := range map[string]struct {
		peers []subnet.Lease
		kept  string // node/subnet
		skips string
	}{
		"nothing wrong": {nil, "", ""},
		"other backend": {[]subnet.Lease{lease("a", "host-gw", "10.244.2.0/24", "192.0.2.2")}, "",
			`a: it uses the backend "host-gw", this node uses "vxlan"`},
		"outside": {[]subnet.Lease{lease("a", "vxlan", "10.99.2.0/24", "192.0.2.2", "fc00:0:0:2::/64", "2001:db8::2")}, "a/fc00:0:0:2::/64",
			"a: its subnet 10.99.2.0/24 is outside the network [10.244.0.0/16 fc00::/48]"},
		"wider than the network": {[]subnet.Lease{lease("a", "vxlan", "10.0.0.0/8", "192.0.2.2")}, "",
			"a: its subnet 10.0.0.0/8 is outside the network [10.244.0.0/16 fc00::/48]"},
		"as wide as the network": {[]subnet.Lease{lease("a", "vxlan", "10.244.0.0/16", "192.0.2.2")}, "",
			"a: its subnet 10.244.0.0/16 overlaps 10.244.1.0/24, which n1 holds already"},
		"wider than two": {[]subnet.Lease{lease("a", "vxlan", "10.244.2.128/25", "192.0.2.2"), lease("b", "vxlan", "10.244.2.0/25", "192.0.2.3"),
			lease("c", "vxlan", "10.244.2.0/24", "192.0.2.4")}, "a/10.244.2.128/25 b/10.244.2.0/25", "c: its subnet 10.244.2.0/24 overlaps 10.244.2.128/25, which a holds already"},
		"no subnet": {[]subnet.Lease{lease("a", "vxlan", "", "192.0.2.2")}, "",
			"a: its subnet invalid Prefix is outside the network [10.244.0.0/16 fc00::/48]"},
		"no underlay": {[]subnet.Lease{lease("a", "vxlan", "10.244.2.0/24", "")}, "",
			"a: its underlay address invalid IP is not one that packets can be sent to"},
		"underlay is nobody's": {[]subnet.Lease{lease("a", "vxlan", "10.244.2.0/24", "0.0.0.0"), lease("b", "vxlan", "10.244.3.0/24", "127.0.0.1"),
			lease("c", "vxlan", "fc00:0:0:2::/64", "ff02::1")}, "", "a: its underlay address 0.0.0.0 is not one that packets can be sent to\n" +
			"b: its underlay address 127.0.0.1 is not one that packets can be sent to\n" +
			"c: its underlay address ff02::1 is not one that packets can be sent to"},
		"everybody's": {every("10.244.2.0/24", "255.255.255.255", "240.1.2.3", "0.1.2.3", "224.0.0.1", "192.0.2.255", "192.0.2.0", "::ffff:192.0.2.9"), "", refused(
			"255.255.255.255", "240.1.2.3", "0.1.2.3", "224.0.0.1", "192.0.2.255", "192.0.2.0", "::ffff:192.0.2.9")},
		"IPv6 of one link, or of none": {every("fc00:0:0:2::/64", "fe80::1", "fe80::1%eth0", "::", "::1", "ff0e::1", "2001:db8::9%eth0"), "", refused(
			"fe80::1", "fe80::1%eth0", "::", "::1", "ff0e::1", "2001:db8::9%eth0")},
		"in its own subnet": {[]subnet.Lease{lease("a", "vxlan", "10.244.2.0/24", "10.244.2.9")}, "",
			"a: its underlay address 10.244.2.9 is not one that packets can be sent to"},
		"two hosts of one link": {[]subnet.Lease{lease("a", "vxlan", "10.244.2.0/24", "198.51.100.4"), lease("b", "vxlan", "10.244.3.0/24", "198.51.100.5")},
			"a/10.244.2.0/24 b/10.244.3.0/24", ""},
		"the last address of a /23 that is no link": {[]subnet.Lease{lease("a", "vxlan", "10.244.2.0/24", "192.0.1.255")}, "a/10.244.2.0/24", ""},
		"longer in a wider one's end": {[]subnet.Lease{lease("a", "vxlan", "10.244.8.0/22", "192.0.2.2"), lease("b", "vxlan", "10.244.11.255/32", "192.0.2.3"),
			lease("c", "vxlan", "10.244.12.0/24", "192.0.2.4")}, "a/10.244.8.0/22 c/10.244.12.0/24", "b: its subnet 10.244.11.255/32 overlaps 10.244.8.0/22, which a holds already"},
		"mixed families": {[]subnet.Lease{lease("a", "vxlan", "fc00:0:0:2::/64", "192.0.2.2")}, "",
			"a: its subnet fc00:0:0:2::/64 and its underlay address 192.0.2.2 are of different families"},
		"this node's underlay": {[]subnet.Lease{lease("a", "vxlan", "10.244.2.0/24", "192.0.2.1")}, "",
			"a: its underlay address 192.0.2.1 is this node's own"},
		"this node's address before a NAT is another's too": {[]subnet.Lease{lease("a", "vxlan", "10.244.2.0/24", "203.0.113.1")}, "a/10.244.2.0/24", ""},
		"this node's subnet": {[]subnet.Lease{lease("a", "vxlan", "10.244.1.0/24", "192.0.2.2")}, "",
			"a: its subnet 10.244.1.0/24 overlaps 10.244.1.0/24, which n1 holds already"},
		"one subnet twice: the older has it": {[]subnet.Lease{lease("a", "vxlan", "10.244.2.0/24", "192.0.2.2"), lease("b", "vxlan", "10.244.2.0/24", "192.0.2.3")},
			"a/10.244.2.0/24", "b: its subnet 10.244.2.0/24 overlaps 10.244.2.0/24, which a holds already"},
		"one underlay twice": {[]subnet.Lease{lease("a", "vxlan", "10.244.2.0/24", "192.0.2.2"), lease("b", "vxlan", "10.244.3.0/24", "192.0.2.2")},
			"a/10.244.2.0/24 b/10.244.3.0/24", ""},
		"wider after longer": {[]subnet.Lease{lease("a", "vxlan", "10.244.2.128/25", "192.0.2.2"), lease("b", "vxlan", "10.244.2.0/24", "192.0.2.3")},
			"a/10.244.2.128/25", "b: its subnet 10.244.2.0/24 overlaps 10.244.2.128/25, which a holds already"},
		"longer after wider": {[]subnet.Lease{lease("a", "vxlan", "10.244.4.0/22", "192.0.2.2"), lease("b", "vxlan", "10.244.6.0/24", "192.0.2.3")},
			"a/10.244.4.0/22", "b: its subnet 10.244.6.0/24 overlaps 10.244.4.0/22, which a holds already"},
		"a skipped lease holds nothing": {[]subnet.Lease{lease("a", "host-gw", "10.244.2.0/24", "192.0.2.2"), lease("b", "vxlan", "10.244.2.0/24", "192.0.2.2")},
			"b/10.244.2.0/24", `a: it uses the backend "host-gw", this node uses "vxlan"`},
	} {
		t.Run(name, func(t *testing.T) {
			snap := subnet.Snapshot{Local: local, Peers: append(test.peers, good)}
			peers, skips := backend.Peers(networks, node, snap)
			var kept, skipped []string
			for _, p := range peers {
				kept = append(kept, fmt.Sprintf("%s/%s", p.Node, p.Subnet))
			}
			for _, s := range skips {
				skipped = append(skipped, s.Node+": "+s.Detail)
			}
			want := strings.TrimSpace(test.kept + " good/10.244.99.0/24 good/fc00:0:0:99::/64")
			if got := strings.Join(kept, " "); got != want {
				t.Errorf("kept %s, want %s", got, want)
			}
			if got := strings.Join(skipped, "\n"); got != test.skips {
				t.Errorf("skipped\n%s\nwant\n%s", got, test.skips)
			}
		})
	}
}

// every is a peer for each of the underlay addresses.
func every(pods string, underlays ...string) (peers []subnet.Lease) {
	for _, a := range underlays {
		peers = append(peers, lease("a", "vxlan", pods, a))
	}
	return peers
}

// refused is why these addresses are none.
func refused(underlays ...string) string {
	var lines []string
	for _, a := range underlays {
		lines = append(lines, "a: its underlay address "+a+" is not one that packets can be sent to")
	}
	return strings.Join(lines, "\n")
}

// TestPeersOverlap compares what is left out with what a look at every pair says, in networks of few
// addresses and many lengths.
func TestPeersOverlap(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 0))
		snap := subnet.Snapshot{Local: lease("n1", "vxlan", "10.244.1.0/24", "192.0.2.1")}
		held, want := prefixes("10.244.1.0/24"), 0
		for i := range 12 {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(random.IntN(4)), byte(random.IntN(256))}), 20+random.IntN(13)).Masked()
			snap.Peers = append(snap.Peers, subnet.Lease{Node: fmt.Sprint("p", i), Backend: "vxlan", Stacks: []subnet.Stack{
				{Subnet: p, Underlay: netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + i)})}}})
			if !slices.ContainsFunc(held, p.Overlaps) {
				held, want = append(held, p), want+1
			}
		}
		if peers, skips := backend.Peers(prefixes("10.244.0.0/16"), backend.Node{}, snap); len(peers) != want || len(skips) != 12-want {
			t.Fatalf("seed %d: %v: %d peers, want %d; left out %v", seed, snap.Peers, len(peers), want, skips)
		}
	}
}

// TestPeersEarlier: a subnet that a node had before leads there until anybody holds a part of it, and nobody is told if it does not.
func TestPeersEarlier(t *testing.T) {
	networks := prefixes("10.244.0.0/16")
	node := backend.Node{Name: "n1", Underlays: []backend.Underlay{{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), OnLink: prefixes("192.0.2.0/24")}}}
	before := func(l subnet.Lease, all ...string) subnet.Lease {
		l.Stacks[0] = l.Stacks[0].WithEarlier(prefixes(all...))
		return l
	}
	local := before(lease("n1", "vxlan", "10.244.1.0/24", "192.0.2.1"), "10.244.20.0/24", "10.244.2.0/24")
	snap := subnet.Snapshot{Local: local, Peers: []subnet.Lease{
		before(lease("free", "vxlan", "10.244.2.0/24", "192.0.2.2"), "10.244.12.0/24", "10.244.13.0/24"),
		before(lease("taken", "vxlan", "10.244.3.0/24", "192.0.2.3"), "10.244.5.0/24", "10.244.1.128/25"),
		before(lease("wide", "vxlan", "10.244.4.0/24", "192.0.2.4"), "10.244.0.0/17", "10.99.0.0/24"),
		before(lease("later", "vxlan", "10.244.5.0/24", "192.0.2.5"), "10.244.12.0/24", "10.244.20.0/24"),
		before(lease("other", "host-gw", "10.244.6.0/24", "192.0.2.6"), "10.244.16.0/24"),
	}}.WithEarlier()
	var got []string
	peers, skips := backend.Peers(networks, node, snap)
	for _, p := range peers {
		got = append(got, fmt.Sprintf("%s/%s %t", p.Node, p.Subnet, p.Earlier))
	}
	want := []string{"free/10.244.2.0/24 false", "taken/10.244.3.0/24 false", "wide/10.244.4.0/24 false", "later/10.244.5.0/24 false",
		"free/10.244.12.0/24 true", "free/10.244.13.0/24 true"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(skips) != 1 || skips[0].Node != "other" {
		t.Errorf("left out: %v", skips)
	}
}

// TestPeersFamilies: what this node does not have is passed over without a word.
func TestPeersFamilies(t *testing.T) {
	snap := subnet.Snapshot{Local: lease("n1", "vxlan", "10.244.1.0/24", "192.0.2.1"),
		Peers: []subnet.Lease{lease("a", "vxlan", "10.244.2.0/24", "192.0.2.2", "fc00:0:0:2::/64", "2001:db8::2")}}
	peers, skips := backend.Peers(prefixes("10.244.0.0/16"), backend.Node{}, snap)
	if len(peers) != 1 || len(skips) != 0 {
		t.Errorf("got %v, %v", peers, skips)
	}
}

func TestParseOptions(t *testing.T) {
	type options struct {
		VNI           int
		DirectRouting bool
		PSK           string
	}
	for raw, want := range map[string]string{
		``:                                      `{0 false } []`,
		`null`:                                  `{0 false } []`,
		`{"type":"vxlan","vni":7,"PSK":"x"}`:    `{7 false x} []`,
		`{"Type":"vxlan","directrouting":true}`: `{0 true } []`,
		`{"Zzz":1,"DirectRoutin":true}`: `{0 false } [net-conf Backend has an unknown key "DirectRoutin", it is ignored: did you mean DirectRouting? ` +
			`net-conf Backend has an unknown key "Zzz", it is ignored]`,
		`{"VNI":"1"}`:           `net-conf Backend: VNI is a JSON string, want a whole number`,
		`{"VNI":1.5}`:           `net-conf Backend: VNI is a JSON number 1.5, want a whole number`,
		`{"DirectRouting":"x"}`: `net-conf Backend: DirectRouting is a JSON string, want true or false`,
		`{"PSK":1}`:             `net-conf Backend: PSK is a JSON number, want a string`,
		`[]`:                    `net-conf Backend: a JSON array, want an object`,
		`"vxlan"`:               `net-conf Backend: a JSON string, want an object`,
	} {
		var o options
		warnings, err := backend.ParseOptions([]byte(raw), &o)
		got := fmt.Sprint(o, warnings)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", raw, got, want)
		}
	}
	if _, err := backend.ParseOptions([]byte(`{`), &options{}); err == nil || !strings.HasPrefix(err.Error(), "net-conf Backend: ") {
		t.Errorf("half an object: %v", err)
	}
}

func TestBase(t *testing.T) {
	local := lease("n1", "vxlan", "10.244.1.0/24", "192.0.2.1", "fc00:0:0:1::/64", "2001:db8::1")
	node := backend.Node{Name: "n1", Underlays: []backend.Underlay{{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), AcceptRA: true}}}
	cfg := backend.BaseConfig{Bridge: "cni0", MTU: 1430, Blackhole: true}
	const golden = `link cni0 bridge mtu 1430 address 0a:58:0a:f4:01:01 up
sysctl net/ipv4/ip_forward = 1
sysctl net/ipv6/conf/cni0/accept_dad = 0
sysctl net/ipv6/conf/all/forwarding = 1
addr 10.244.1.1/24 dev cni0
addr fc00:0:0:1::1/64 dev cni0 nodad
addr fe80::858:aff:fef4:101/64 dev cni0
route 10.244.1.0/24 dev cni0 src 10.244.1.1 proto 2
route blackhole 10.244.1.0/24 metric 4096
route fc00:0:0:1::/64 dev cni0 metric 256 proto 2
route blackhole fc00:0:0:1::/64 metric 4096
`
	if got := backend.Base(cfg, node, local).String(); got != golden {
		t.Errorf("got\n%s\nwant\n%s", got, golden)
	}
	const bare = `sysctl net/ipv4/ip_forward = 1
sysctl net/ipv6/conf/all/forwarding = 1
route blackhole 10.244.1.0/24 metric 4096
route blackhole fc00:0:0:1::/64 metric 4096
`
	if got := backend.Base(backend.BaseConfig{MTU: 1430, Blackhole: true}, node, local).String(); got != bare {
		t.Errorf("without a bridge: got\n%s\nwant\n%s", got, bare)
	}
	node.Underlays = append(node.Underlays, backend.Underlay{Dev: "eth1", Local: netip.MustParseAddr("2001:db8::1"), AcceptRA: true})
	node.MACs = map[string]netstate.MAC{"cni0": {2, 0, 0, 0, 0, 9}}
	cfg.Blackhole = false
	cfg.Filter = true
	for _, want := range []string{"bridge-nf-call-iptables = 1\n", "bridge-nf-call-ip6tables = 1\n"} {
		if got := backend.Base(cfg, node, local).String(); !strings.Contains(got, "sysctl net/bridge/"+want) {
			t.Errorf("with network policies: got\n%s\nwant %s", got, want)
		}
	}
	cfg.Filter = false
	got := backend.Base(cfg, node, local).String()
	for _, want := range []string{"sysctl net/ipv6/conf/eth1/accept_ra = 2\n", "link cni0 bridge mtu 1430 address 02:00:00:00:00:09 up\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	node.Underlays[1].AcceptRA = false
	node.LosesRA = []string{"wan0"}
	if got := backend.Base(cfg, node, local).String(); !strings.Contains(got, "sysctl net/ipv6/conf/wan0/accept_ra = 2\nsysctl net/ipv6/conf/all/forwarding = 1\n") {
		t.Errorf("wan0 is to go on taking router advertisements before the host forwards:\n%s", got)
	}
	node.LosesRA = nil
	if got := backend.Base(cfg, node, local).String(); strings.Contains(got, "accept_ra") {
		t.Errorf("eth1 takes no router advertisements, and is to take them:\n%s", got)
	}
	if strings.Contains(got, "blackhole") || strings.Contains(got, "eth0") {
		t.Errorf("a blackhole, or IPv4's interface, in\n%s", got)
	}
	local.Stacks = local.Stacks[:1]
	if got := backend.Base(cfg, node, local).String(); strings.Contains(got, "ipv6") {
		t.Errorf("without IPv6:\n%s", got)
	}
	if got := backend.Base(cfg, node, subnet.Lease{}); len(got) != 0 {
		t.Errorf("without a lease:\n%s", got)
	}
}

func TestReachesAndSmallestMTU(t *testing.T) {
	u := backend.Underlay{OnLink: prefixes("192.0.2.0/24", "2001:db8::/64")}
	for a, want := range map[string]bool{"192.0.2.9": true, "192.0.3.9": false, "2001:db8::9": true, "2001:db8:1::9": false} {
		if got := u.Reaches(netip.MustParseAddr(a)); got != want {
			t.Errorf("reaches %s: %t", a, got)
		}
	}
	for want, underlays := range map[int][]backend.Underlay{0: nil, 1400: {{MTU: 1500}, {MTU: 1400}}, 9000: {{MTU: 9000}}} {
		if got := backend.SmallestMTU(underlays); got != want {
			t.Errorf("smallest of %v: %d, want %d", underlays, got, want)
		}
	}
}

// TestPeersOfFlannelWithoutName: in its leases flannel names all backends but udp and alloc.
func TestPeersOfFlannelWithoutName(t *testing.T) {
	for name, want := range map[string]int{"udp": 1, "alloc": 1, "vxlan": 0} {
		peers, skips := backend.Peers(prefixes("10.244.0.0/16"), backend.Node{}, subnet.Snapshot{
			Local: lease("n1", name, "10.244.1.0/24", "192.0.2.1"),
			Peers: []subnet.Lease{lease("flannels", "", "10.244.2.0/24", "192.0.2.2")},
		})
		if len(peers) != want || len(skips) != 1-want {
			t.Errorf("%s: peers %v, left out %v; want %d peers", name, peers, skips, want)
		}
	}
}
