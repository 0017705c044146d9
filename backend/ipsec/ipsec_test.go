package ipsec

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/strongswan/govici/vici"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

var (
	networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56")}
	psk      = strings.Repeat("0123456789abcdef", 6)
)

func lease(n int) subnet.Lease {
	return subnet.Lease{Node: fmt.Sprintf("n%d", n), Backend: "ipsec", Stacks: []subnet.Stack{
		{Subnet: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n)), Underlay: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n))},
		{Subnet: netip.MustParsePrefix(fmt.Sprintf("fd00:244:0:%d::/64", n)), Underlay: netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", n))}}}
}

func node(n int, dev string) backend.Node {
	facts := backend.Node{Name: lease(n).Node}
	for _, s := range lease(n).Stacks {
		facts.Underlays = append(facts.Underlays, backend.Underlay{Dev: dev, Local: s.Underlay, Public: s.Underlay, MTU: 1500})
	}
	return facts
}

func newBackend(t *testing.T) Backend {
	t.Helper()
	b, warnings, err := New(networks, json.RawMessage(`{"Type":"ipsec","PSK":"`+psk+`"}`))
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	return b.(Backend)
}

func TestDesired(t *testing.T) {
	b := newBackend(t)
	foreign := lease(3)
	foreign.Backend = "vxlan"
	state, skips := b.Desired(node(1, "eth0"), subnet.Snapshot{Local: lease(1), Peers: []subnet.Lease{lease(2), foreign}})
	const golden4 = `policy fwd src 10.244.2.0/24 dst 10.244.1.0/24 priority 116001 esp 192.0.2.2 to 192.0.2.1 reqid 11
policy fwd src 192.0.2.2/32 dst 10.244.1.0/24 priority 116001 esp 192.0.2.2 to 192.0.2.1 reqid 11 optional
policy in src 10.244.2.0/24 dst 10.244.1.0/24 priority 116001 esp 192.0.2.2 to 192.0.2.1 reqid 11
policy in src 10.244.2.0/24 dst 192.0.2.1/32 priority 116001 esp 192.0.2.2 to 192.0.2.1 reqid 11 optional
policy in src 192.0.2.2/32 dst 10.244.1.0/24 priority 116001 esp 192.0.2.2 to 192.0.2.1 reqid 11 optional
policy out src 0.0.0.0/0 dst 10.244.0.0/16 priority 116002 block
policy out src 0.0.0.0/0 dst 10.244.1.0/24 priority 116000
policy out src 10.244.1.0/24 dst 10.244.2.0/24 priority 116001 esp 192.0.2.1 to 192.0.2.2 reqid 11
policy out src 192.0.2.1/32 dst 10.244.2.0/24 priority 116001 esp 192.0.2.1 to 192.0.2.2 reqid 11
route 10.244.2.0/24 via 192.0.2.2 dev eth0 onlink src 10.244.1.1
`
	six := strings.NewReplacer("10.244.1.0/24", "fd00:244:0:1::/64", "10.244.2.0/24", "fd00:244:0:2::/64", "192.0.2.1/32", "2001:db8::1/128",
		"192.0.2.2/32", "2001:db8::2/128", "192.0.2.1", "2001:db8::1", "192.0.2.2", "2001:db8::2", "0.0.0.0/0", "::/0", "10.244.0.0/16", "fd00:244::/56",
		"10.244.1.1", "fd00:244:0:1::1")
	if got, want := lines(state.String()), lines(golden4+six.Replace(golden4)); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if len(skips) != 1 || skips[0].Node != "n3" {
		t.Errorf("skips %v, want n3, which is of another backend", skips)
	}
	both, four := node(1, "eth0"), node(1, "eth0")
	four.Underlays = four.Underlays[:1]
	if b.MTU(both) != 1403 || b.MTU(four) != 1423 {
		t.Errorf("MTU %d, of IPv4 alone %d", b.MTU(both), b.MTU(four))
	}
	if data, err := b.Publish(node(1, "eth0"), subnet.Lease{}, netstate.IPv4); data != nil || err != nil {
		t.Errorf("publishes %s, %v", data, err)
	}
	if _, _, err := New(networks, json.RawMessage(`{"PSK":"short"}`)); err == nil || strings.Contains(err.Error(), "short") || !strings.Contains(err.Error(), "has 5 characters, want 96") {
		t.Errorf("a short PSK: %v", err)
	}
}

// lines are sorted: which family comes first does not matter.
func lines(text string) string {
	all := strings.SplitAfter(text, "\n")
	slices.Sort(all)
	return strings.Join(all, "")
}

// TestConnections: names are flannel's, and the messages do not lose anything on the way to charon.
func TestConnections(t *testing.T) {
	b := newBackend(t)
	b.options.UDPEncap = true
	all := b.connections(backend.Input{Node: node(1, "eth0"), Snapshot: subnet.Snapshot{Local: lease(1), Peers: []subnet.Lease{lease(2)}}})
	const name = "192.0.2.1-10.244.1.0/24-10.244.2.0/24-192.0.2.2"
	if _, ok := all["2001:db8::1-fd00:244:0:1::/64-fd00:244:0:2::/64-2001:db8::2"]; !ok || len(all) != 2 {
		t.Fatalf("connections %v, want %s and one for IPv6", all, name)
	}
	m, err := vici.MarshalMessage(map[string]ikeConf{name: b.conf(all[name])})
	if err != nil {
		t.Fatal(err)
	}
	conf, ok := m.Get(name).(*vici.Message)
	if !ok || conf.Get("encap") != "yes" {
		t.Fatalf("message %v", m)
	}
	child := conf.Get("children").(*vici.Message).Get("10.244.1.0/24-10.244.2.0/24").(*vici.Message)
	for key, want := range map[string]string{"policies": "no", "reqid": "11", "mode": "tunnel"} {
		if child.Get(key) != want {
			t.Errorf("%s is %v, want %s", key, child.Get(key), want)
		}
	}
}
