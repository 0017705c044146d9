package locate

import (
	"net/netip"
	"testing"

	"github.com/twill-net/twill/packet"
)

var (
	far     = netip.MustParseAddr("203.0.113.2")
	outward = Flow{Src: a, Dst: far, Proto: "icmp", Sent: "ICMP", Error: "no answer", Outer: [2]netip.Addr{na}, Echo: "0123456789abcdef", Exit: "node1", Mask: na,
		Path: []string{"pod1", "node1", "outside"}}
)

// echoed is an echo request, or its reply, as it was seen.
func echoed(host, dev string, out bool, src, dst netip.Addr, echo string, back bool) packet.Sighting {
	info := "echo request"
	if back {
		info = "echo reply"
	}
	p := at(host, dev, out)
	p.Frame = packet.Frame{Layers: []packet.Layer{{Kind: "eth", From: "02:00:00:00:00:01", To: "02:00:00:00:00:31"}, {Kind: "ip", Src: src, Dst: dst, Proto: 1, Size: 60},
		{Kind: "icmp", Info: info, Echo: echo}}}
	return p
}

// TestSeeTranslated: an echo is known by its data when its address was translated, and another one's is not taken for it.
func TestSeeTranslated(t *testing.T) {
	failed := echoed("node1", "eth1", false, far, a, "", true)
	failed.Frame.Layers[2].Info = "type 3"
	for _, test := range []struct {
		p        packet.Sighting
		ok, back bool
	}{
		{echoed("node1", "eth1", true, na, far, outward.Echo, false), true, false},
		{echoed("node1", "eth1", false, far, na, outward.Echo, true), true, true},
		{echoed("node1", "eth1", true, na, far, "another pod's   ", false), false, false},
		{echoed("node1", "cni0", false, a, far, "", false), true, false},
		{failed, false, false},
	} {
		if s, ok := outward.See(test.p); ok != test.ok || s.Back != test.back {
			t.Errorf("%+v: got %v, back %v", test.p, ok, s.Back)
		}
	}
}

// TestOutside: what is blamed for packets that are lost on the way out.
func TestOutside(t *testing.T) {
	came := []packet.Sighting{echoed("pod1", "eth0", true, a, far, outward.Echo, false), echoed("node1", "cni0", false, a, far, outward.Echo, false)}
	masked := echoed("node1", "eth1", true, na, far, outward.Echo, false)
	bare := echoed("node1", "eth1", true, a, far, outward.Echo, false)
	asks := at("node1", "eth1", true)
	asks.Frame = packet.Frame{Layers: []packet.Layer{{Kind: "arp", Dst: nb, Info: "request"}}}
	way := Routed{Object: Object{Kind: Route, Dev: "eth1", Via: nb, Part: "unicast", Text: "default via 192.168.33.1 dev eth1", Usual: "no such route", About: netip.MustParsePrefix("0.0.0.0/0")}}
	refused := way
	refused.Refuses = true
	off := Object{Kind: Sysctl, Part: "net.ipv4.ip_forward", Value: "0", Text: "net.ipv4.ip_forward = 0", Usual: "1"}
	written := Object{Kind: Neighbour, Dev: "eth1", MAC: "02:00:00:00:00:31", Value: "PERMANENT", Text: "192.168.33.1 lladdr 02:00:00:00:00:31"}
	for name, test := range map[string]struct {
		seen       []packet.Sighting
		node       Host
		by         string
		unanswered bool
		unmasked   bool
	}{
		"it left as it should":                   {append(came, masked), Host{Routed: []Routed{way}, Unusual: []Object{{Kind: Link, Dev: "eno2", Part: Down, Text: "eno2: down"}}}, "", true, false},
		"with an entry that somebody wrote":      {append(came, masked), Host{Unusual: []Object{written}}, written.Text, true, false},
		"with the pod's address":                 {append(came, bare), Host{}, "masquerading of what leaves through eth1 is missing", false, true},
		"because of a rule":                      {append(came, bare), Host{Hits: []Hit{{Host: "node1", Verdict: "notrack", Src: a, Dst: far, Object: Object{Text: "notrack"}}}}, "notrack", false, true},
		"a rule gave it another":                 {append(came, masked), Host{Hits: []Hit{{Host: "node1", Rewrote: "saddr", Effect: Effect{Source: true}, Src: a, Dst: far, Object: Object{Kind: Rule, Text: "snat"}}}}, "snat", false, false},
		"the next hop does not answer":           {append(came, asks), Host{Routed: []Routed{way}}, "192.168.33.102 dev eth1 does not answer", false, false},
		"nobody was asked while it was watched":  {came, Host{Routed: []Routed{way}, Drops: []Drop{{Host: "node1", Reason: "NOT_SPECIFIED", Function: "neigh_invalidate"}}}, "192.168.33.102 dev eth1 does not answer", false, false},
		"a default route is as it must be":       {came, Host{Routed: []Routed{refused}, Unusual: []Object{off}, Drops: []Drop{{Host: "node1", Reason: "IP_INADDRERRORS", Function: "ip_error"}}}, off.Text, false, false},
		"of a pod that was not left it may lead": {nil, Host{}, "", false, false},
	} {
		test.node.Name, test.node.MACs = "node1", []string{"02:00:00:00:00:01"}
		hosts := []Host{{Name: "pod1", MACs: []string{"02:00:00:00:00:02"}}, test.node}
		for _, p := range test.seen {
			s, ok := outward.See(p)
			h := host(hosts, p.Host)
			if h.Seen = append(h.Seen, s); !ok {
				t.Errorf("%s: %+v is not seen", name, p)
			}
		}
		if got := Judge(outward, hosts, nil); got.By.Text != test.by || got.Unanswered != test.unanswered || got.Unmasked != test.unmasked {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
