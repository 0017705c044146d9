package wireguard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/backendtest"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/secret"
	"github.com/twill-net/twill/subnet"
)

var networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fc00::/48")}

// key is node n's public key in base64.
func key(n int) string { return wgtypes.Key{byte(n), 1}.String() }

// lease is node n's, with both families and data.
func lease(n int, data string) subnet.Lease {
	return subnet.Lease{Node: fmt.Sprintf("n%d", n), Backend: "wireguard", Stacks: []subnet.Stack{
		{Subnet: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n)), Underlay: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n)), Data: json.RawMessage(data)},
		{Subnet: netip.MustParsePrefix(fmt.Sprintf("fc00:0:0:%d::/64", n)), Underlay: netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", n)), Data: json.RawMessage(data)}}}
}

func published(n int) string { return `{"PublicKey":"` + key(n) + `"}` }

func newBackend(t *testing.T, options string) *Backend {
	t.Helper()
	b, _, err := New(networks, []byte(options))
	if err != nil {
		t.Fatal(err)
	}
	return b.(*Backend)
}

// bothFamilies is node n, on two interfaces.
func bothFamilies(n int) backend.Node {
	l := lease(n, "")
	return backend.Node{Name: l.Node, Underlays: []backend.Underlay{
		{Dev: "eth0", Local: l.Stacks[0].Underlay, MTU: 1500}, {Dev: "eth1", Local: l.Stacks[1].Underlay, MTU: 1500}}}
}

// TestKernel is what is wanted of a kernel with WireGuard, in every mode.
func TestKernel(t *testing.T) {
	node := bothFamilies(1)
	node.WireGuard = true
	snap := subnet.Snapshot{Local: lease(1, published(1)), Peers: []subnet.Lease{lease(2, published(2))}}
	psk := key(9)
	const separate = `link flannel-wg wireguard mtu 1420 up
link flannel-wg-v6 wireguard mtu 1420 up
sysctl net/ipv4/conf/flannel-wg/rp_filter = 2
sysctl net/ipv6/conf/flannel-wg-v6/accept_ra = 0
addr 10.244.1.0/32 dev flannel-wg
addr fc00:0:0:1::/128 dev flannel-wg-v6 nodad
listener dev flannel-wg port 51820 key KEY1
listener dev flannel-wg-v6 port 51821 key KEY1
peer KEY2 dev flannel-wg endpoint 192.0.2.2:51820 allowed 10.244.2.0/24 shared SHARED keepalive 25
peer KEY2 dev flannel-wg-v6 endpoint [2001:db8::2]:51821 allowed fc00:0:0:2::/64 shared SHARED keepalive 25
route 10.244.2.0/24 dev flannel-wg
route fc00:0:0:2::/64 dev flannel-wg-v6
`
	const shared = `link flannel-wg wireguard mtu 1420 up
sysctl net/ipv4/conf/flannel-wg/rp_filter = 2
sysctl net/ipv6/conf/flannel-wg/accept_ra = 0
addr 10.244.1.0/32 dev flannel-wg
addr fc00:0:0:1::/128 dev flannel-wg nodad
listener dev flannel-wg port 51820 key KEY1
peer KEY2 dev flannel-wg endpoint ENDPOINT:51820 allowed 10.244.2.0/24 allowed fc00:0:0:2::/64 shared SHARED keepalive 25
route 10.244.2.0/24 dev flannel-wg
route fc00:0:0:2::/64 dev flannel-wg
`
	for mode, golden := range map[string]string{
		"separate": separate,
		"auto":     strings.Replace(shared, "ENDPOINT", "192.0.2.2", 1), // of two public ones the IPv4 one
		"ipv4":     strings.Replace(shared, "ENDPOINT", "192.0.2.2", 1),
		"ipv6":     strings.Replace(shared, "ENDPOINT", "[2001:db8::2]", 1),
	} {
		b := newBackend(t, `{"Mode":"`+mode+`","PSK":"`+psk+`","PersistentKeepaliveInterval":25}`)
		golden = strings.NewReplacer("KEY1", key(1), "KEY2", key(2), "SHARED", secret.Fingerprint(wgtypes.Key{9, 1})).Replace(golden)
		state, skips := b.Desired(node, snap)
		if got := state.String(); got != golden || len(skips) > 0 {
			t.Errorf("%s: skips %v, got\n%swant\n%s", mode, skips, got, golden)
		}
		if strings.Contains(state.String(), psk) {
			t.Errorf("the pre-shared key stands in\n%s", state)
		}
	}
}

func TestDesired(t *testing.T) {
	b := newBackend(t, `{"Type":"wireguard"}`)
	node := bothFamilies(1)
	snap := subnet.Snapshot{Local: lease(1, published(1)), Peers: []subnet.Lease{lease(2, published(2)), lease(3, `{"PublicKey":"x"}`),
		lease(4, published(2)), lease(5, published(1)), lease(6, `null`), lease(7, `{"PublicKey":"`+key(7)+`","Port":99999}`), lease(8, `[]`), lease(9, `{"PublicKey":"`+wgtypes.Key{}.String()+`"}`)}}
	state, skips := b.Desired(node, snap)
	const golden = `link flannel-wg tun mtu 1420 up
link flannel-wg-v6 tun mtu 1420 up
sysctl net/ipv4/conf/flannel-wg/rp_filter = 2
sysctl net/ipv6/conf/flannel-wg-v6/accept_ra = 0
addr 10.244.1.0/32 dev flannel-wg
addr fc00:0:0:1::/128 dev flannel-wg-v6 nodad
route 10.244.2.0/24 dev flannel-wg
route fc00:0:0:2::/64 dev flannel-wg-v6
`
	if got := state.String(); got != golden {
		t.Errorf("got\n%swant\n%s", got, golden)
	}
	reasons := map[string]string{}
	for _, s := range skips {
		reasons[s.Node] = s.Detail
	}
	for node, want := range map[string]string{"n3": `has the PublicKey "x"`, "n4": "is n2's already", "n5": "is n1's already", "n6": `has the PublicKey ""`,
		"n7": "has the Port 99999", "n8": "is not an object", "n9": `has the PublicKey "AAAA`} {
		if !strings.Contains(reasons[node], want) {
			t.Errorf("%s: %q, want %q", node, reasons[node], want)
		}
	}
	if len(reasons) != 7 || b.MTU(node) != 1420 {
		t.Errorf("skips %v, MTU %d", reasons, b.MTU(node))
	}
}

// TestClaims: of two nodes at different places with one key only one has it; behind one NAT there are many.
func TestClaims(t *testing.T) {
	at := func(l subnet.Lease, other subnet.Lease) subnet.Lease {
		for i := range l.Stacks {
			l.Stacks[i].Underlay = other.Stacks[i].Underlay
		}
		return l
	}
	port := func(n, port int) string { return fmt.Sprintf(`{"PublicKey":"%s","Port":%d}`, key(n), port) }
	only := func(l subnet.Lease, i int) subnet.Lease { l.Stacks = l.Stacks[i : i+1]; return l }
	first := func(b *Backend, n int, nodes ...string) map[subnet.Claim]int {
		order := map[subnet.Claim]int{}
		for _, s := range lease(n, published(n)).Stacks {
			for i, name := range nodes {
				order[subnet.Claim{Node: name, What: b.Claims(s)[0]}] = i
			}
		}
		return order
	}
	for _, mode := range []string{"separate", "auto", "ipv6"} {
		b := newBackend(t, `{"Mode":"`+mode+`"}`)
		for name, test := range map[string]struct {
			peers  []subnet.Lease // oldest first
			claims map[subnet.Claim]int
			lost   string // the nodes
			ends   string // what must stand in the state
		}{
			"a copied key, nothing known":  {[]subnet.Lease{lease(2, published(3)), lease(3, published(3))}, nil, "n3 n3", ""},
			"a copied key":                 {[]subnet.Lease{lease(2, published(3)), lease(3, published(3))}, first(b, 3, "n3", "n2"), "n2 n2", ""},
			"a copied key and port":        {[]subnet.Lease{at(lease(2, port(3, 7)), lease(3, "")), lease(3, published(3))}, first(b, 3, "n3", "n2"), "n2 n2", ""},
			"a copied address":             {[]subnet.Lease{at(lease(2, published(2)), lease(3, "")), lease(3, published(3))}, nil, "", ""},
			"a copied address and key":     {[]subnet.Lease{at(lease(2, published(3)), lease(3, "")), lease(3, published(3))}, nil, "", "allowed 10.244.2.0/24 allowed 10.244.3.0/24"},
			"two ports of one NAT":         {[]subnet.Lease{at(lease(2, port(2, 7)), lease(3, "")), lease(3, port(3, 8))}, nil, "", ":7 allowed 10.244.2.0/24"},
			"this node's key":              {[]subnet.Lease{lease(2, published(1))}, nil, "n2 n2", ""},
			"a key of a node without IPv6": {[]subnet.Lease{only(lease(2, published(3)), 1), only(lease(3, published(3)), 0)}, first(b, 3, "n3", "n2"), map[bool]string{true: "", false: "n2"}[mode == "separate"], "192.0.2.3:51820 allowed 10.244.3.0/24"},
			"one machine under five names": {[]subnet.Lease{lease(2, published(2)), at(lease(3, published(2)), lease(2, "")), at(lease(4, published(2)), lease(2, "")),
				at(lease(5, published(2)), lease(2, "")), at(lease(6, published(2)), lease(2, ""))}, nil, map[bool]string{true: "", false: "n6 n6"}[mode == "separate"], ""},
			"a subnet of before": {[]subnet.Lease{lease(2, published(2)), {Node: "n2", Backend: "wireguard", Earlier: true, Stacks: []subnet.Stack{
				{Subnet: netip.MustParsePrefix("10.244.9.0/24"), Underlay: lease(2, "").Stacks[0].Underlay, Data: json.RawMessage(published(2))}}}}, nil, "",
				"allowed 10.244.2.0/24 allowed 10.244.9.0/24"},
		} {
			t.Run(mode+"/"+name, func(t *testing.T) {
				node := bothFamilies(1)
				node.WireGuard = true
				state, skips := b.Desired(node, subnet.Snapshot{Local: lease(1, published(1)), Peers: test.peers, Claims: test.claims})
				var lost []string
				for _, s := range skips {
					lost = append(lost, s.Node)
				}
				if got := strings.Join(lost, " "); got != test.lost || !strings.Contains(state.String(), test.ends) {
					t.Errorf("left out %q, want %q: %v\n%s", got, test.lost, skips, state)
				}
			})
		}
	}
}

// TestPorts: a peer's own port is used; flannel's nodes do not say one.
func TestPorts(t *testing.T) {
	b := newBackend(t, `{"ListenPort":7000,"ListenPortV6":7001}`)
	peers, skips := b.peers(backend.Node{}, subnet.Snapshot{Local: lease(1, published(1)), Peers: []subnet.Lease{lease(2, published(2)), lease(3, `{"PublicKey":"`+key(3)+`","Port":9}`)}})
	if len(peers) != 4 || len(skips) != 0 || peers[0].port != 7000 || peers[1].port != 7001 || peers[2].port != 9 {
		t.Errorf("%v %v", peers, skips)
	}
}

func TestOptions(t *testing.T) {
	for options, want := range map[string]string{
		`{"ListenPort":0}`:                                      "ListenPort 0: want 1 to 65535",
		`{"ListenPortV6":70000}`:                                "ListenPortV6 70000: want 1 to 65535",
		`{"ListenPort":9,"ListenPortV6":9}`:                     "are both 9: want two ports",
		`{"PersistentKeepaliveInterval":-1}`:                    "PersistentKeepaliveInterval -1: want 0 to 65535 seconds",
		`{"Mode":"both"}`:                                       `Mode "both": want separate, auto, ipv4 or ipv6`,
		`{"MTU":655}`:                                           "MTU 655: want 656 to 65535",
		`{"ListenPort":65536}`:                                  "ListenPort 65536: want 1 to 65535",
		`{"ListenPort":1,"ListenPortV6":65535}`:                 "",
		`{"ListenPort":9,"ListenPortV6":9,"Mode":"auto"}`:       "",
		`{"MTU":656}`:                                           "",
		`{"MTU":65535}`:                                         "",
		`{"MTU":65536}`:                                         "MTU 65536: want 656 to 65535",
		`{"PersistentKeepaliveInterval":65535}`:                 "",
		`{"PersistentKeepaliveInterval":65536}`:                 "PersistentKeepaliveInterval 65536: want 0 to 65535 seconds",
		`{"PSK":"c2VjcmV0"}`:                                    "PSK is not a key",
		`{"PSK":"` + key(1) + `","Mode":"separate","MTU":1400}`: "",
	} {
		_, warnings, err := New(networks, []byte(options))
		if got := fmt.Sprint(err); len(warnings) > 0 || want == "" && err != nil || !strings.Contains(got, want) && want != "" || strings.Contains(got, "c2VjcmV0") {
			t.Errorf("%s: %v %s", options, warnings, got)
		}
	}
}

// TestKey: it is made once, for root's eyes, and never told.
func TestKey(t *testing.T) {
	dir, said := t.TempDir(), ""
	env := backend.Env{Dir: dir, Log: backendtest.Log(func(line string) { said += line })}
	b := newBackend(t, `{}`)
	if data, err := b.Publish(backend.Node{}, subnet.Lease{}, netstate.IPv4); err == nil {
		t.Errorf("publishes %s before there is a key", data)
	}
	var first string
	for range 2 {
		b := newBackend(t, `{}`)
		if err := b.Prepare(context.Background(), env); err != nil {
			t.Fatal(err)
		}
		data, err := b.Publish(backend.Node{}, subnet.Lease{}, netstate.IPv6)
		if err != nil || !strings.HasSuffix(string(data), `,"Port":51821}`) || first != "" && string(data) != first {
			t.Errorf("publishes %s, %v, before it was %s", data, err, first)
		}
		first = string(data)
	}
	path := filepath.Join(dir, "wgkey")
	text, err := os.ReadFile(path)
	info, _ := os.Stat(path)
	if err != nil || info.Mode() != 0o600 || strings.Contains(said, string(text)) || len(text) != 44 {
		t.Errorf("the key's file: %v, %v; said %s", err, info.Mode(), said)
	}
	if err := os.WriteFile(path, []byte("c2VjcmV0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Prepare(context.Background(), env); err == nil || strings.Contains(err.Error(), "c2VjcmV0") || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged key: %v", err)
	}
	t.Setenv(keyVariable, filepath.Join(dir, "other"))
	if err := b.Prepare(context.Background(), env); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "other")); err != nil {
		t.Error(err)
	}
}

func FuzzData(f *testing.F) {
	f.Add([]byte(published(1)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		k, port, err := parseData(raw)
		if err == nil && (k == (wgtypes.Key{}) || port < 0 || port > 65535) {
			t.Errorf("%q: %v %d", raw, k, port)
		}
	})
}
