package probe

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
)

var a, b = netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("10.99.0.2")
var a6, b6 = netip.MustParseAddr("fd99::1"), netip.MustParseAddr("fd99::2")

// pair makes two namespaces with a cable between them.
func pair(t *testing.T) (near, far watch.Place) {
	t.Helper()
	hosts := []host.Host{{Name: "twill-probe-a"}, {Name: "twill-probe-b"}}
	for _, h := range hosts {
		_ = h.Delete() // what a crashed run left
		if err := h.Create(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Delete() })
	}
	run(t, hosts[0], "ip link add eth0 type veth peer name eth0 netns twill-probe-b")
	for i, h := range hosts {
		run(t, h, "ip link set lo up; ip link set eth0 up; ip addr add "+[]string{"10.99.0.1/24", "10.99.0.2/24"}[i]+" dev eth0; ip -6 addr add "+
			[]string{"fd99::1/64", "fd99::2/64"}[i]+" dev eth0 nodad")
	}
	return watch.Place{Host: hosts[0].Name, Do: hosts[0].Do}, watch.Place{Host: hosts[1].Name, Do: hosts[1].Do}
}

func run(t *testing.T, h host.Host, command string) {
	t.Helper()
	if _, err := h.Exec(t.Context(), "sh", "-ec", command); err != nil {
		t.Fatal(err)
	}
}

// TestSend: what is stopped is lost, and only that.
func TestSend(t *testing.T) {
	near, far := pair(t)
	var tries []Try
	for _, k := range Kinds {
		tries = append(tries, Try{From: near, To: far, Src: a, Dst: b, Kind: k, Size: 1500}, Try{From: near, To: far, Src: a6, Dst: b6, Kind: k, Size: 1500})
	}
	lost := func() string {
		var all []string
		for _, r := range Send(t.Context(), tries, Patience) {
			if r.Err != nil {
				all = append(all, string(r.Kind))
			}
		}
		return strings.Join(all, ", ")
	}
	testwait.Until(t, "all is answered", func() bool { return lost() == "" }) // the carrier takes a moment
	receiver := host.Host{Name: far.Host}
	for _, test := range []struct{ rule, want string }{
		{"", ""},
		{"tcp dport 1-65535 drop", "TCP, TCP"},
		{"meta nfproto ipv6 udp dport 1-65535 drop", "UDP, full-size UDP, fragmented UDP"},
		{"meta length > 1000 drop", "full-size ICMP, full-size ICMP, TCP, TCP, full-size UDP, full-size UDP, fragmented UDP, fragmented UDP"},
		{"icmp type echo-request drop", "ICMP, full-size ICMP"},
		{"meta l4proto udp meta length > 1500 drop", "fragmented UDP"}, // which IPv4 puts together before, and IPv6 after
		{"ip saddr 10.99.0.1 reject", "ICMP, full-size ICMP, TCP, UDP, full-size UDP, fragmented UDP"},
	} {
		if test.rule != "" {
			run(t, receiver, "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }; add rule inet t c "+test.rule+"'")
		}
		if got := lost(); got != test.want {
			t.Errorf("%q: got %q, want %q", test.rule, got, test.want)
		}
		run(t, receiver, "nft flush ruleset")
	}
	run(t, receiver, "ip link set eth0 mtu 1400")
	if got, want := lost(), "full-size ICMP, full-size ICMP, full-size UDP, full-size UDP, fragmented UDP, fragmented UDP"; got != want {
		t.Errorf("a smaller MTU: got %q, want %q", got, want)
	}
}

// TestAsk: a refused connection is an answer, and silence is none.
func TestAsk(t *testing.T) {
	near, far := pair(t)
	ask := func(k Kind, to netip.AddrPort) error { return Ask(t.Context(), near, k, to) }
	at := netip.AddrPortFrom(b, 53)
	testwait.Until(t, "a ping is answered", func() bool { return ask(ICMP, at) == nil }) // the carrier takes a moment
	if err := ask(TCP, at); err != nil {
		t.Errorf("a closed port: %v", err)
	}
	if err := ask(ICMP, at); err != nil {
		t.Errorf("a ping: %v", err)
	}
	if err := ask(DNS, at); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("no DNS server: %v", err)
	}
	if err := ask(UDPFull, at); err == nil {
		t.Error("a kind that cannot be asked is answered")
	}
	run(t, host.Host{Name: far.Host}, "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; policy drop; }'")
	for _, k := range []Kind{TCP, ICMP, DNS} {
		if err := ask(k, at); err == nil || !strings.Contains(err.Error(), "no answer") {
			t.Errorf("%s to a host that drops all: %v", k, err)
		}
	}
}

// TestTwice: an answer that comes twice is no good one.
func TestTwice(t *testing.T) {
	near, far := pair(t)
	try := Try{From: near, To: far, Src: a, Dst: b, Kind: ICMP, Size: 1500}
	testwait.Nil(t, "it is answered", func() error { return Send(t.Context(), []Try{try}, Patience)[0].Err })
	run(t, host.Host{Name: far.Host}, "nft 'add table ip t; add chain ip t c { type filter hook input priority 0; }; add rule ip t c icmp type echo-request dup to 10.99.0.2'")
	if got := Send(t.Context(), []Try{try}, Patience)[0].Err; got == nil || got.Error() != "answered more than once" {
		t.Errorf("got %v", got)
	}
}

// TestSource: the kernel's choice is the sender's address.
func TestSource(t *testing.T) {
	near, _ := pair(t)
	if got, err := Source(near, b); got != a || err != nil {
		t.Errorf("got %s, %v; want %s", got, err, a)
	}
	if got, err := Source(near, netip.MustParseAddr("192.0.2.1")); err == nil || !strings.Contains(err.Error(), "network is unreachable") {
		t.Errorf("without a route: got %s, %v", got, err)
	}
}

// TestOnBehalf: a node sends in the name of a pod behind it, and sees the answers on their way to the pod.
func TestOnBehalf(t *testing.T) {
	near, far := pair(t) // near is the node
	pod := host.Host{Name: "twill-probe-c"}
	_ = pod.Delete() // what a crashed run left
	if err := pod.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pod.Delete() })
	node := host.Host{Name: near.Host}
	run(t, node, "ip link add pod0 type veth peer name eth0 netns twill-probe-c; ip link set pod0 up; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; "+
		"ip addr add 10.98.0.1/24 dev pod0; ip -6 addr add fd98::1/64 dev pod0 nodad")
	run(t, pod, "ip link set eth0 up; ip addr add 10.98.0.2/24 dev eth0; ip -6 addr add fd98::2/64 dev eth0 nodad; ip route add default via 10.98.0.1; ip -6 route add default via fd98::1")
	run(t, host.Host{Name: far.Host}, "ip route add 10.98.0.0/24 via 10.99.0.1; ip -6 route add fd98::/64 via fd99::1")
	var tries []Try
	for _, k := range []Kind{ICMP, ICMPFull} {
		tries = append(tries, Try{From: near, To: far, Src: netip.MustParseAddr("10.98.0.2"), Dst: b, Kind: k, OnBehalf: true, Size: 1500},
			Try{From: near, To: far, Src: netip.MustParseAddr("fd98::2"), Dst: b6, Kind: k, OnBehalf: true, Size: 1500})
	}
	lost := func() (n int) {
		for _, r := range Send(t.Context(), tries, Patience) {
			if r.Err != nil {
				n++
			}
		}
		return n
	}
	testwait.Until(t, "all are answered", func() bool { return lost() == 0 })
	// Rules about the pod's address meet the probes, and rules about the node's do not.
	receiver := host.Host{Name: far.Host}
	for rule, want := range map[string]int{"ip saddr 10.98.0.2 drop": 2, "ip6 saddr fd98::2 drop": 2, "ip saddr 10.99.0.1 drop": 0} {
		run(t, receiver, "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }; add rule inet t c "+rule+"'")
		if got := lost(); got != want {
			t.Errorf("%s: %d are lost, want %d", rule, got, want)
		}
		run(t, receiver, "nft flush ruleset")
	}
}
