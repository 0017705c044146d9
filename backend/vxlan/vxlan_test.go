package vxlan

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

var networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fc00::/48")}

// lease is node n's: 10.244.n.0/24 at 192.0.2.n, fc00:0:0:n::/64 at 2001:db8::n.
func lease(n int, families string) subnet.Lease {
	l := subnet.Lease{Node: fmt.Sprintf("n%d", n), Backend: "vxlan"}
	for _, f := range families {
		s := subnet.Stack{Subnet: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n)), Underlay: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n))}
		if f == '6' {
			s = subnet.Stack{Subnet: netip.MustParsePrefix(fmt.Sprintf("fc00:0:0:%d::/64", n)), Underlay: netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", n))}
		}
		s.Data = json.RawMessage(fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:0%c:%02x"}`, f, n))
		l.Stacks = append(l.Stacks, s)
	}
	return l
}

// node is node 1, with a link that reaches 192.0.2.0/24 and 2001:db8::/120.
func node(families string) backend.Node {
	n := backend.Node{Name: "n1"}
	for _, f := range families {
		u := backend.Underlay{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 1500, OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
		if f == '6' {
			u = backend.Underlay{Dev: "eth1", Local: netip.MustParseAddr("2001:db8::1"), MTU: 1500, OnLink: []netip.Prefix{netip.MustParsePrefix("2001:db8::/120")}}
		}
		if f == '5' { // IPv4 with a gateway behind which packets are smaller
			u.Narrow = map[netip.Prefix]int{netip.MustParsePrefix("203.0.113.0/24"): 1400}
		}
		u.Public = u.Local
		n.Underlays = append(n.Underlays, u)
	}
	return n
}

func newBackend(t *testing.T, options string) backend.Backend {
	t.Helper()
	b, warnings, err := New(networks, json.RawMessage(options))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%s: %v %v", options, warnings, err)
	}
	return b
}

// far makes a lease's underlay addresses ones behind a router.
func far(l subnet.Lease) subnet.Lease {
	for i, s := range l.Stacks {
		l.Stacks[i].Underlay = netip.MustParseAddr("203.0.113.9")
		if s.Family() == netstate.IPv6 {
			l.Stacks[i].Underlay = netip.MustParseAddr("2001:db8:9::9")
		}
	}
	return l
}

const vtep4 = `link flannel.1 vxlan id 1 dev eth0 local 192.0.2.1 dstport 8472 mtu 1450 address 02:00:00:00:04:01 up
sysctl net/ipv4/conf/flannel.1/rp_filter = 2
addr 10.244.1.0/32 dev flannel.1
`

const vtep6 = `link flannel-v6.1 vxlan id 1 dev eth1 local 2001:db8::1 dstport 8472 mtu 1430 address 02:00:00:00:06:01 up
sysctl net/ipv6/conf/flannel-v6.1/accept_ra = 0
addr fc00:0:0:1::/128 dev flannel-v6.1 nodad
`

func TestDesired(t *testing.T) {
	for name, test := range map[string]struct {
		families, options string
		peers             []subnet.Lease
		golden            string
	}{
		"v4": {"4", ``, []subnet.Lease{lease(2, "4")}, vtep4 + `neigh 10.244.2.0 lladdr 02:00:00:00:04:02 dev flannel.1 permanent
fdb 02:00:00:00:04:02 dst 192.0.2.2 dev flannel.1 self permanent
route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink
`},
		"v6": {"6", ``, []subnet.Lease{lease(2, "46")}, vtep6 + `neigh fc00:0:0:2:: lladdr 02:00:00:00:06:02 dev flannel-v6.1 permanent
fdb 02:00:00:00:06:02 dst 2001:db8::2 dev flannel-v6.1 self permanent
route fc00:0:0:2::/64 via fc00:0:0:2:: dev flannel-v6.1 onlink
`},
		"dual": {"46", ``, []subnet.Lease{lease(2, "46"), lease(3, "4")}, strings.Split(vtep6, "\n")[0] + "\n" + strings.Split(vtep4, "\n")[0] + `
sysctl net/ipv4/conf/flannel.1/rp_filter = 2
sysctl net/ipv6/conf/flannel-v6.1/accept_ra = 0
addr fc00:0:0:1::/128 dev flannel-v6.1 nodad
addr 10.244.1.0/32 dev flannel.1
neigh fc00:0:0:2:: lladdr 02:00:00:00:06:02 dev flannel-v6.1 permanent
neigh 10.244.2.0 lladdr 02:00:00:00:04:02 dev flannel.1 permanent
neigh 10.244.3.0 lladdr 02:00:00:00:04:03 dev flannel.1 permanent
fdb 02:00:00:00:06:02 dst 2001:db8::2 dev flannel-v6.1 self permanent
fdb 02:00:00:00:04:02 dst 192.0.2.2 dev flannel.1 self permanent
fdb 02:00:00:00:04:03 dst 192.0.2.3 dev flannel.1 self permanent
route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink
route 10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink
route fc00:0:0:2::/64 via fc00:0:0:2:: dev flannel-v6.1 onlink
`},
		"a narrow way": {"5", ``, []subnet.Lease{lease(2, "4"), far(lease(3, "4"))}, strings.Replace(vtep4, "02:00:00:00:04:01", "02:00:00:00:05:01", 1) +
			`neigh 10.244.2.0 lladdr 02:00:00:00:04:02 dev flannel.1 permanent
neigh 10.244.3.0 lladdr 02:00:00:00:04:03 dev flannel.1 permanent
fdb 02:00:00:00:04:02 dst 192.0.2.2 dev flannel.1 self permanent
fdb 02:00:00:00:04:03 dst 203.0.113.9 dev flannel.1 self permanent
route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink
route 10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink mtu 1350
`},
		"DirectRouting": {"4", `{"DirectRouting":true}`, []subnet.Lease{lease(2, "4"), far(lease(3, "4"))}, vtep4 +
			`neigh 10.244.3.0 lladdr 02:00:00:00:04:03 dev flannel.1 permanent
fdb 02:00:00:00:04:03 dst 203.0.113.9 dev flannel.1 self permanent
route 10.244.2.0/24 via 192.0.2.2 dev eth0
route 10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink
`},
		"SpreadMetrics": {"46", `{"SpreadMetrics":true,"DirectRouting":true}`, []subnet.Lease{lease(2, "4"), far(lease(3, "46"))},
			strings.Split(vtep6, "\n")[0] + "\n" + strings.Split(vtep4, "\n")[0] + `
sysctl net/ipv4/conf/flannel.1/rp_filter = 2
sysctl net/ipv6/conf/flannel-v6.1/accept_ra = 0
addr fc00:0:0:1::/128 dev flannel-v6.1 nodad
addr 10.244.1.0/32 dev flannel.1
neigh fc00:0:0:3:: lladdr 02:00:00:00:06:03 dev flannel-v6.1 permanent
neigh 10.244.3.0 lladdr 02:00:00:00:04:03 dev flannel.1 permanent
fdb 02:00:00:00:06:03 dst 2001:db8:9::9 dev flannel-v6.1 self permanent
fdb 02:00:00:00:04:03 dst 203.0.113.9 dev flannel.1 self permanent
route 10.244.2.0/24 via 192.0.2.2 dev eth0 metric 1202
route 10.244.3.0/24 via 10.244.3.0 dev flannel.1 metric 1203 onlink
route fc00:0:0:3::/64 via fc00:0:0:3:: dev flannel-v6.1 onlink
`},
		"DirectRouting v6": {"6", `{"DirectRouting":true}`, []subnet.Lease{lease(2, "6")}, vtep6 + "route fc00:0:0:2::/64 via 2001:db8::2 dev eth1\n"},
		"GBP and Learning": {"4", `{"GBP":true,"Learning":true}`, nil, strings.Replace(vtep4, " up", " learning gbp up", 1)},
		"port and MTU":     {"4", `{"Port":4789,"MTU":1400}`, nil, strings.NewReplacer("8472", "4789", "1450", "1350").Replace(vtep4)},
		"checksums by the NIC": {"4", `{"TxChecksum":"on"}`, nil, strings.Replace(vtep4, "\naddr",
			"\noffload flannel.1 tx-checksum-ip-generic on\naddr", 1)},
		"checksums by the kernel": {"6", `{"TxChecksum":"off"}`, nil, strings.Replace(vtep6, "\naddr",
			"\noffload flannel-v6.1 tx-checksum-ip-generic off\naddr", 1)},
		"checksums that are not known to break": {"4", `{"TxChecksum":"auto"}`, nil, vtep4},
		"VNI": {"4", `{"VNI":4096}`, nil, strings.NewReplacer("flannel.1", "flannel.4096", "id 1", "id 4096", "02:00:00:00:04:01",
			"12:c7:c7:a0:e8:e1").Replace(vtep4)}, // the published MAC is VNI 1's
	} {
		t.Run(name, func(t *testing.T) {
			b, snap := newBackend(t, test.options), subnet.Snapshot{Local: lease(1, test.families), Peers: test.peers}
			state, skips := b.Desired(node(test.families), snap)
			if got := state.String(); got != test.golden || len(skips) > 0 {
				t.Errorf("got\n%swant\n%sskips %v", got, test.golden, skips)
			}
			again, _ := b.Desired(node(test.families), snap)
			if !maps.Equal(state, again) {
				t.Errorf("another time\n%s", again)
			}
		})
	}
}

// TestSkips leaves out one peer, says why, and keeps the others.
func TestSkips(t *testing.T) {
	with := func(data string) subnet.Lease {
		l := lease(2, "4")
		l.Stacks[0].Data = json.RawMessage(data)
		return l
	}
	for data, want := range map[string]string{
		`{"VNI":2,"VtepMAC":"02:00:00:00:04:02"}`:             `n2: it uses VNI 2, this node uses 1`,
		`{"VNI":1,"VtepMAC":"02:00:00:00:04:02","Port":4789}`: `n2: it uses UDP port 4789, this node uses 8472`,
		`{"VNI":1,"VtepMAC":"02:00:00:00:04:01"}`:             `n2: its VTEP MAC 02:00:00:00:04:01 is n1's already`,
		`{"VNI":1,"VtepMAC":"01:00:5e:00:00:01"}`:             `n2: its backend-data has the VtepMAC "01:00:5e:00:00:01", want a unicast MAC address`,
		`{"VNI":1,"VtepMAC":"00:00:00:00:00:00"}`:             `n2: its backend-data has the VtepMAC "00:00:00:00:00:00", want a unicast MAC address`,
		`{"VNI":1}`: `n2: its backend-data has the VtepMAC "", want a unicast MAC address`,
		`null`:      `n2: its backend-data has the VtepMAC "", want a unicast MAC address`,
		`{"VNI":"1","VtepMAC":"02:00:00:00:04:02"}`: `n2: its backend-data "{\"VNI\":\"1\",\"VtepMAC\":\"02:00:00:00:04:02\"}" is not an object with VNI and VtepMAC`,
		`{`: `n2: its backend-data "{" is not an object with VNI and VtepMAC`,
		``:  `n2: its backend-data "" is not an object with VNI and VtepMAC`,
	} {
		snap := subnet.Snapshot{Local: lease(1, "4"), Peers: []subnet.Lease{with(data), lease(3, "4")}}
		state, skips := newBackend(t, "").Desired(node("4"), snap)
		if len(skips) != 1 || skips[0].Node+": "+skips[0].Detail != want {
			t.Errorf("%s:\n got %v\nwant %s", data, skips, want)
		}
		if text := state.String(); !strings.Contains(text, "route 10.244.3.0/24") || strings.Contains(text, "10.244.2.0") {
			t.Errorf("%s: the other peer is not there, or this one is:\n%s", data, text)
		}
	}
	third := lease(3, "4")
	third.Stacks[0].Data = lease(2, "4").Stacks[0].Data
	_, skips := newBackend(t, "").Desired(node("4"), subnet.Snapshot{Local: lease(1, "4"), Peers: []subnet.Lease{lease(2, "4"), third}})
	if len(skips) != 1 || skips[0] != (subnet.Skip{Node: "n3", Code: subnet.DuplicateMAC, Detail: "its VTEP MAC 02:00:00:00:04:02 is n2's already"}) {
		t.Errorf("two peers with one MAC: %v", skips)
	}
}

// TestClaims: of two nodes at different addresses with one MAC only one has it, and it is not the one that copied it.
func TestClaims(t *testing.T) {
	const mac = "0a:0b:0c:0d:0e:0f"
	claimed := func(n int, mac string) subnet.Lease {
		l := lease(n, "4")
		l.Stacks[0].Data = json.RawMessage(`{"VNI":1,"VtepMAC":"` + mac + `"}`)
		return l
	}
	at := func(l subnet.Lease, underlay string) subnet.Lease {
		l.Stacks[0].Underlay = netip.MustParseAddr(underlay)
		return l
	}
	b := newBackend(t, "").(Backend)
	first := func(nodes ...string) map[subnet.Claim]int {
		order := map[subnet.Claim]int{}
		for i, n := range nodes {
			order[subnet.Claim{Node: n, What: b.Claims(claimed(2, mac).Stacks[0])[0]}] = i
		}
		return order
	}
	own := b.namedMAC("n3", netstate.IPv4).String()
	for name, test := range map[string]struct {
		peers  []subnet.Lease // oldest first
		claims map[subnet.Claim]int
		lost   string
	}{
		"the older one, if nothing is known":     {[]subnet.Lease{claimed(2, mac), claimed(3, mac)}, nil, "n3: its VTEP MAC " + mac + " is n2's already"},
		"who was seen with it first":             {[]subnet.Lease{claimed(2, mac), claimed(3, mac)}, first("n3", "n2"), "n2: its VTEP MAC " + mac + " is n3's already"},
		"who was seen with it first, of three":   {[]subnet.Lease{claimed(2, mac), claimed(4, mac), claimed(3, mac)}, first("n3", "n2", "n4"), "n2 n4"},
		"the one whose name makes it":            {[]subnet.Lease{claimed(2, own), claimed(3, own)}, nil, "n2: its VTEP MAC " + own + " is n3's already"},
		"this node":                              {[]subnet.Lease{claimed(2, "02:00:00:00:04:01")}, nil, "n2: its VTEP MAC 02:00:00:00:04:01 is n1's already"},
		"one machine with two names":             {[]subnet.Lease{claimed(2, mac), at(claimed(3, mac), "192.0.2.2")}, nil, ""},
		"one machine with two names, and a copy": {[]subnet.Lease{claimed(4, mac), claimed(2, mac), at(claimed(3, mac), "192.0.2.2")}, first("n2", "n3", "n4"), "n4"},
		"a copy of address and MAC harms nobody": {[]subnet.Lease{at(claimed(2, mac), "192.0.2.3"), claimed(3, mac)}, nil, ""},
		"a copy of the address alone":            {[]subnet.Lease{at(lease(2, "4"), "192.0.2.3"), lease(3, "4")}, nil, ""},
		"a copy with another VNI does not stand for it": {[]subnet.Lease{func() subnet.Lease {
			l := lease(2, "4")
			l.Stacks[0].Data = json.RawMessage(`{"VNI":2,"VtepMAC":"` + mac + `"}`)
			return l
		}(), claimed(3, mac)}, nil, "n2: it uses VNI 2, this node uses 1"},
	} {
		t.Run(name, func(t *testing.T) {
			state, skips := b.Desired(node("4"), subnet.Snapshot{Local: lease(1, "4"), Peers: test.peers, Claims: test.claims})
			var lost, names []string
			for _, s := range skips {
				lost, names = append(lost, s.Node+": "+s.Detail), append(names, s.Node)
			}
			if got := strings.Join(lost, "\n"); got != test.lost && strings.Join(names, " ") != test.lost {
				t.Errorf("left out %q, want %q", got, test.lost)
			}
			text := state.String()
			for _, p := range test.peers {
				reached := strings.Contains(text, "route "+p.Stacks[0].Subnet.String())
				if reached == slices.Contains(names, p.Node) {
					t.Errorf("%s is reached: %t\n%s", p.Node, reached, text)
				}
			}
		})
	}
}

// TestSameMACInBothFamilies: the devices differ, so that is no conflict.
func TestSameMACInBothFamilies(t *testing.T) {
	peer := lease(2, "46")
	peer.Stacks[1].Data = peer.Stacks[0].Data
	state, skips := newBackend(t, "").Desired(node("46"), subnet.Snapshot{Local: lease(1, "46"), Peers: []subnet.Lease{peer}})
	if len(skips) > 0 || !strings.Contains(state.String(), "route fc00:0:0:2::/64") {
		t.Errorf("skips %v\n%s", skips, state)
	}
}

func TestMTU(t *testing.T) {
	for _, test := range []struct {
		families, options string
		mtu, want         int
	}{
		{"4", ``, 1500, 1450}, {"6", ``, 1500, 1430}, {"46", ``, 1500, 1430}, {"4", ``, 9000, 8950},
		{"4", `{"MTU":1400}`, 1500, 1350}, {"46", `{"MTU":1400}`, 9000, 1330}, {"", ``, 0, 0},
	} {
		n := node(test.families)
		for i := range n.Underlays {
			n.Underlays[i].MTU = test.mtu
		}
		if got := newBackend(t, test.options).MTU(n); got != test.want {
			t.Errorf("%+v: got %d", test, got)
		}
	}
}

// TestMAC: what peers know wins, then the device's, then one that the name alone decides.
func TestMAC(t *testing.T) {
	b, full := newBackend(t, ""), node("46")
	full.MACs = map[string]netstate.MAC{"flannel.1": {2, 0, 0, 0, 0, 0x77}}
	unknown, broken := full, lease(1, "46")
	unknown.MACs = nil
	broken.Stacks[0].Data = json.RawMessage(`{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}`)
	for name, test := range map[string]struct {
		node   backend.Node
		last   subnet.Lease
		family netstate.Family
		want   string
	}{
		"published":               {full, lease(1, "46"), netstate.IPv4, "02:00:00:00:04:01"},
		"published v6":            {full, lease(1, "46"), netstate.IPv6, "02:00:00:00:06:01"},
		"device":                  {full, subnet.Lease{}, netstate.IPv4, "02:00:00:00:00:77"},
		"name":                    {unknown, subnet.Lease{}, netstate.IPv4, "82:59:3a:6c:c3:f8"},
		"name v6":                 {unknown, subnet.Lease{}, netstate.IPv6, "4e:09:44:d0:9c:80"},
		"published is no address": {full, broken, netstate.IPv4, "02:00:00:00:00:77"},
	} {
		data, err := b.Publish(test.node, test.last, test.family)
		if want := fmt.Sprintf(`{"VNI":1,"VtepMAC":"%s","Port":8472}`, test.want); err != nil || string(data) != want {
			t.Errorf("%s: %s, %v, want %s", name, data, err, want)
		}
		if _, mac, err := parseData(data); err != nil || !mac.IsUnicast() {
			t.Errorf("%s: what is published cannot be read: %v", name, err)
		}
	}
}

func TestOptions(t *testing.T) {
	for raw, want := range map[string]string{
		`{"VNI":0}`:            "net-conf Backend: VNI 0: want 1 to 16777215",
		`{"VNI":16777216}`:     "net-conf Backend: VNI 16777216: want 1 to 16777215",
		`{"Port":65536}`:       "net-conf Backend: Port 65536: want 1 to 65535, or 0 for 8472",
		`{"Port":-1}`:          "net-conf Backend: Port -1: want 1 to 65535, or 0 for 8472",
		`{"MTU":100}`:          "net-conf Backend: MTU 100: want 626 to 65535, or 0 for the interface's",
		`{"MTU":625}`:          "net-conf Backend: MTU 625: want 626 to 65535, or 0 for the interface's",
		`{"MTU":65536}`:        "net-conf Backend: MTU 65536: want 626 to 65535, or 0 for the interface's",
		`{"MTU":1349}`:         "net-conf Backend: MTU 1349: want at least 1350, because IPv6 pods need packets of 1280 bytes",
		`{"MTU":1300}`:         "net-conf Backend: MTU 1300: want at least 1350, because IPv6 pods need packets of 1280 bytes",
		`{"GBP":1}`:            "net-conf Backend: GBP is a JSON number, want true or false",
		`{"Learning":"yes"}`:   "net-conf Backend: Learning is a JSON string, want true or false",
		`{"TxChecksum":"no"}`:  `net-conf Backend: TxChecksum "no": want "auto", "on" or "off"`,
		`{"TxChecksum":false}`: "net-conf Backend: TxChecksum is a JSON bool, want a string",
		`{"FastPath":"on"}`:    "net-conf Backend: FastPath is a JSON string, want true or false",
		`{"SkipMark":-1}`:      "net-conf Backend: SkipMark is a JSON number -1, want a whole number from 0 to 4294967295",
	} {
		if _, _, err := New(networks, json.RawMessage(raw)); err == nil || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %s", raw, err, want)
		}
	}
	for _, raw := range []string{`{"VNI":1,"Port":1,"MTU":1350}`, `{"VNI":16777215,"Port":65535,"MTU":65535}`} {
		if _, _, err := New(networks, json.RawMessage(raw)); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if _, _, err := New(networks[:1], json.RawMessage(`{"MTU":626}`)); err != nil {
		t.Errorf("MTU 626 for IPv4 alone: %v", err)
	}
	b := newBackend(t, `{"DirectRouting":true,"Port":4789}`).(Backend)
	if want := (netstate.Transport{Protocol: netstate.UDP, Port: 4789}); b.Wrapped(netstate.IPv4) != want || b.Wrapped(netstate.IPv6) != want || !b.Direct() {
		t.Errorf("packets are wrapped in %s and %s, want %s; direct: %t", b.Wrapped(netstate.IPv4), b.Wrapped(netstate.IPv6), want, b.Direct())
	}
	if got := newBackend(t, `{"FastPath":true,"SkipMark":4294967295}`).(backend.Accelerable).Accelerable(); got !=
		(backend.FastPath{On: true, SkipMark: 0xffffffff}) {
		t.Errorf("the fast path is %+v", got)
	}
	if _, warnings, err := New(networks, json.RawMessage(`{"Type":"vxlan","Vnii":3}`)); err != nil || len(warnings) != 1 {
		t.Errorf("a typo: %v, %v", warnings, err)
	}
}

func FuzzParseData(f *testing.F) {
	for _, s := range []string{`{"VNI":1,"VtepMAC":"02:00:00:00:04:02"}`, `null`, `{}`, `[`, `{"vni":1e3,"vtepmac":"x"}`,
		`{"VNI":,"VtepMAC":"02:00:00:00:04:02"}`, `{"VNI":18446744073709551617,"VtepMAC":"02:00:00:00:04:02"}`, `{"VNI":1/,"VtepMAC":"02:00:00:00:04:02"}`,
		`{"VNI":1:,"VtepMAC":"02:00:00:00:04:02"}`, `{"VNI":1,"VtepMAC":"02:00:00:00:04:02"`, `"VNI":1,"VtepMAC":"02:00:00:00:04:02"}`,
		`{"VNI":01,"VtepMAC":"02:00:00:00:04:02"}`, `{"VNI":+1,"VtepMAC":"02:00:00:00:04:02"}`, `{"VNI":16777215,"VtepMAC":"0A:bb:00:00:04:02","Port":-1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		said, mac, err := parseData(raw)
		if err != nil {
			return
		}
		text, err := json.Marshal(data{said.VNI, mac.String(), said.Port})
		if err != nil {
			t.Fatal(err)
		}
		if again, same, err := parseData(text); err != nil || again.VNI != said.VNI || again.Port != said.Port ||
			same != mac || !mac.IsUnicast() {
			t.Errorf("%q was read as %v %s, and that as %v %s: %v", raw, said, mac, again, same, err)
		}
	})
}

func FuzzParseOptions(f *testing.F) {
	for _, s := range []string{`{"VNI":1,"Port":8472,"MTU":1450,"GBP":true,"Learning":true,"DirectRouting":true}`, `null`, ``, `[]`, `{"x":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		o, _, err := parseOptions(raw)
		if err == nil && (o.VNI < 1 || o.VNI > maxVNI || o.Port < 1 || o.Port > 65535 || o.MTU != 0 && o.MTU < minMTU) {
			t.Errorf("%q was read as %+v", raw, o)
		}
	})
}

func BenchmarkDesired(b *testing.B) {
	node, snap := backend.Node{Name: "n1", Underlays: []backend.Underlay{{Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 1500}}}, subnet.Snapshot{}
	for i := range 5001 {
		snap.Peers = append(snap.Peers, subnet.Lease{Node: fmt.Sprint("n", i), Backend: "vxlan", Stacks: []subnet.Stack{{
			Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24),
			Underlay: netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}),
			Data:     json.RawMessage(fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:%02x:%02x"}`, i>>8, i&255))}}})
	}
	snap.Local, snap.Peers = snap.Peers[0], snap.Peers[1:]
	vx, _, err := New([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if want, skips := vx.Desired(node, snap); len(want) != 3*5000+3 || len(skips) > 0 {
			b.Fatalf("%d objects, %d peers left out", len(want), len(skips))
		}
	}
}
