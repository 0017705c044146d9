package locate

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/packet"
)

var (
	a, b   = netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.2.2")
	na, nb = netip.MustParseAddr("192.168.33.101"), netip.MustParseAddr("192.168.33.102")
	flow   = Flow{Src: a, Dst: b, Proto: "icmp", Sent: "ICMP", Error: "no answer", Outer: [2]netip.Addr{na, nb},
		Path: []string{"pod1", "node1", "underlay", "node2", "pod2"}}
)

func at(host, dev string, out bool) packet.Sighting {
	return packet.Sighting{Point: packet.Point{Host: host, Dev: dev, Out: out}}
}

// crossing returns hosts that the packet crossed up to the given device, and all devices on the whole path.
func crossing(last int, back bool) []Host {
	path := []packet.Sighting{
		at("pod1", "eth0", true), at("node1", "veth1", false), at("node1", "cni0", false), at("node1", "flannel.1", true),
		at("node1", "eth1", true), at("underlay", "node1", false), at("underlay", "node2", true), at("node2", "eth1", false),
		at("node2", "flannel.1", false), at("node2", "cni0", true), at("node2", "veth2", true), at("pod2", "eth0", false),
	}
	hosts := []Host{{Name: "pod1"}, {Name: "node1"}, {Name: "underlay"}, {Name: "node2"}, {Name: "pod2"}}
	add := func(s Seen) {
		for i := range hosts {
			if hosts[i].Name == s.Host {
				hosts[i].Seen = append(hosts[i].Seen, s)
			}
		}
	}
	for i, s := range path {
		if back || i <= last {
			add(Seen{Sighting: s, Size: 60})
		}
	}
	for i := range path {
		s := path[len(path)-1-i]
		if s.Out = !s.Out; back && i <= last {
			add(Seen{Sighting: s, Size: 60, Back: true})
		}
	}
	return hosts
}

func host(all []Host, name string) *Host {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

func TestJudge(t *testing.T) {
	rule := Object{Kind: Rule, Text: "inet x f handle 3: drop", Fix: "nft delete rule inet x f handle 3"}
	sysctl := func(name, value string) Object {
		return Object{Kind: Sysctl, Part: name, Value: value, Text: name + " = " + value}
	}
	for name, test := range map[string]struct {
		last int
		back bool
		with func(all []Host)
		host string
		by   string
		is   bool // exact
	}{
		"nothing is known": {last: 2, host: "node1"},
		"a rule that stops it": {last: 2, host: "node1", by: rule.Text, is: true, with: func(all []Host) {
			host(all, "node1").Hits = []Hit{{Host: "node1", Object: rule, Stops: true, Src: a, Dst: b}}
		}},
		"a rule whose counter moved": {last: 2, host: "node1", by: rule.Text, with: func(all []Host) {
			host(all, "node1").Hits = []Hit{{Host: "node1", Object: rule, Stops: true, Counted: true}}
		}},
		"a rule whose counter moved, and the kernel's word": {last: 2, host: "node1", by: rule.Text, is: true, with: func(all []Host) {
			host(all, "node1").Hits = []Hit{{Host: "node1", Object: rule, Stops: true, Counted: true}}
			host(all, "node1").Drops = []Drop{{Host: "node1", Reason: "NETFILTER_DROP", Function: "nf_hook_slow"}}
		}},
		"the default route of the tunnel": {last: 4, host: "node1", with: func(all []Host) {
			host(all, "node1").Routed = []Routed{{Outer: true, Object: Object{Kind: Route, Text: "default via 192.168.33.1 dev eth1 proto dhcp", Usual: "no such route", About: netip.MustParsePrefix("0.0.0.0/0")}}}
		}},
		"a route to a host that nobody watches": {last: 4, host: "node1", with: func(all []Host) {
			host(all, "underlay").Name = "another"
			host(all, "node1").Routed = []Routed{{Outer: true, Object: Object{Kind: PolicyRule, Text: "100: from 192.168.33.101 lookup 100", Usual: "no such rule"}}}
		}},
		"a rule of routing behind the place": {last: 2, host: "node1", with: func(all []Host) {
			host(all, "node2").Routed = []Routed{{Object: Object{Kind: PolicyRule, Text: "100: from 10.244.0.0/16 lookup 100", Usual: "no such rule"}}}
		}},
		"a rule that copies, and no answer": {last: 2, host: "node1", by: rule.Text, with: func(all []Host) {
			host(all, "node1").Hits = []Hit{{Host: "node1", Object: rule, Rewrote: "copied", Effect: Effect{Copies: true}, Src: a, Dst: b}}
			host(all, "node1").Seen[1].MACs = []string{"02:00:00:00:00:77"} // of a copy
		}},
		"somebody else answers": {last: 2, host: "node1", by: "local 10.244.2.0/24 dev lo", is: true, with: func(all []Host) {
			host(all, "pod1").Seen = append(host(all, "pod1").Seen, Seen{Sighting: at("pod1", "eth0", false), Back: true})
			host(all, "node1").Routed = []Routed{{Object: Object{Kind: Route, Text: "local 10.244.2.0/24 dev lo", Usual: "no such route"}}}
		}},
		"a device that is down, with which a route went": {last: -1, host: "pod1", by: "eth0: down", with: func(all []Host) {
			host(all, "pod1").Unusual = []Object{{Kind: Link, Dev: "eth0", Part: Down, Text: "eth0: down"}}
			host(all, "pod1").Routed = []Routed{{Object: Object{Kind: Route, Text: "to 10.244.2.2 is missing", Usual: "a route"}, Refuses: true, Missing: true}}
		}},
		"a rule that stops others": {last: 2, host: "node1", with: func(all []Host) {
			host(all, "node1").Hits = []Hit{{Host: "node1", Object: rule, Stops: true, Src: nb, Dst: netip.MustParseAddr("10.9.9.9")}}
		}},
		"a rule that stops some packets of a connection": {last: 11, back: true, host: "node2", by: rule.Text, is: true, with: func(all []Host) {
			host(all, "node2").Hits = []Hit{{Host: "node2", Object: rule, Stops: true, Src: a, Dst: b}}
		}},
		"a rule that stops the tunnel": {last: 7, host: "node2", by: rule.Text, is: true, with: func(all []Host) {
			host(all, "node2").Hits = []Hit{{Host: "node2", Object: rule, Stops: true, Src: na, Dst: nb}}
		}},
		"a rule that gave it another source": {last: 8, host: "node1", by: rule.Text, with: func(all []Host) {
			host(all, "node1").Hits = []Hit{{Host: "node1", Object: rule, Rewrote: "saddr 10.244.1.2 to 10.9.9.9", Effect: Effect{Source: true}, Src: a, Dst: b}}
		}},
		"a rule that marked it": {last: 8, host: "node1", by: rule.Text, with: func(all []Host) {
			host(all, "node1").Hits = []Hit{{Host: "node1", Object: rule, Rewrote: "mark 0x0 to 0x1", Effect: Effect{Marks: true, Mark: 1}, Src: a, Dst: b}}
		}},
		"a rule that rewrote it, one node before": {last: 8, host: "node1", by: rule.Text, is: true, with: func(all []Host) {
			host(all, "node1").Hits = []Hit{{Host: "node1", Object: rule, Rewrote: "ttl 64 to 1", Src: a, Dst: b}}
			host(all, "node2").Drops = []Drop{{Host: "node2", Reason: "IP_INHDR", Function: "ip_forward"}}
		}},
		"a parameter, by the kernel's reason": {last: 8, host: "node2", by: "net.ipv4.conf.flannel/1.rp_filter = 1", is: true, with: func(all []Host) {
			h := host(all, "node2")
			h.Drops = []Drop{{Host: "node2", Dev: "flannel.1", Reason: "IP_RPFILTER", Function: "ip_rcv_finish_core"}}
			h.Unusual = []Object{sysctl("net.ipv4.tcp_syncookies", "0"), sysctl("net.ipv4.conf.flannel/1.rp_filter", "1"), sysctl("net.ipv6.conf.all.forwarding", "0")}
		}},
		"a policy, by the kernel's reason": {last: 8, host: "node2", by: "src 10.244.0.0/16 action block", is: true, with: func(all []Host) {
			h := host(all, "node2")
			h.Drops = []Drop{{Host: "node2", Dev: "flannel.1", Reason: "XFRM_POLICY", Function: "ip_forward"}}
			h.Unusual = []Object{{Kind: Route, Text: "blackhole 10.9.0.0/16"}, {Kind: IPsec, Text: "src 10.244.0.0/16 action block"}}
		}},
		"an entry about other addresses": {last: 2, host: "node1", with: func(all []Host) {
			host(all, "node1").Unusual = []Object{{Kind: Route, Text: "blackhole 10.9.0.0/16", About: netip.MustParsePrefix("10.9.0.0/16")}}
		}},
		"a rule that leads the packet away": {last: 2, host: "node1", by: "100: from 10.244.1.2 lookup 77", is: true, with: func(all []Host) {
			h := host(all, "node1")
			h.Routed = []Routed{{Object: Object{Kind: PolicyRule, Text: "100: from 10.244.1.2 lookup 77", Usual: "no such rule"}}, {Object: Object{Kind: Route, Text: "10.244.2.0/24 dev flannel.1"}}}
			h.Unusual = []Object{sysctl("net.ipv4.ip_forward", "1"), {Kind: Route, Text: "blackhole 10.244.2.0/24 table 9"}}
		}},
		"a MAC of a host that the packet has passed": {last: 1, host: "pod1", by: "lladdr 02:00:00:00:00:01, which no host behind it has", with: func(all []Host) {
			host(all, "pod1").MACs, host(all, "node1").Seen[0].MACs, host(all, "node1").Seen[0].SrcMAC = []string{"02:00:00:00:00:01"}, []string{"02:00:00:00:00:01"}, "02:00:00:00:00:01"
			for _, name := range []string{"node1", "underlay", "node2", "pod2"} {
				host(all, name).MACs = []string{"02:00:00:00:00:22"}
			}
		}},
		"a MAC that nobody has": {last: 1, host: "pod1", by: "10.244.1.1 dev eth0 lladdr 02:00:00:00:00:99 PERMANENT", is: true, with: func(all []Host) {
			for i := range all {
				all[i].MACs = []string{"02:00:00:00:00:22"}
			}
			host(all, "node1").Seen[0].MACs = []string{"02:00:00:00:00:99"}
			host(all, "pod1").Unusual = []Object{{Kind: Neighbour, MAC: "02:00:00:00:00:99", Text: "10.244.1.1 dev eth0 lladdr 02:00:00:00:00:99 PERMANENT"}}
		}},
		"what only lets more pass": {last: 2, host: "node1", with: func(all []Host) {
			h := host(all, "node1")
			h.Drops = []Drop{{Host: "node1", Reason: "NETFILTER_DROP", Function: "nf_hook_slow"}}
			h.Unusual = []Object{sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "1")}
		}},
		"the machine has run out of something": {last: 2, host: "node1", by: "gc_thresh3 = 1", is: true, with: func(all []Host) {
			h := host(all, "node1")
			h.Drops = []Drop{{Host: "node1", Reason: "NEIGH_CREATEFAIL", Function: "ip_finish_output2", Limit: sysctl("gc_thresh3", "1")}}
			h.Unusual = []Object{{Kind: Neighbour, Text: "10.244.2.9 dev cni0 PERMANENT"}}
		}},
		"the receiver does not answer": {last: 11, host: "pod2", by: "net.ipv4.icmp_echo_ignore_all = 1", with: func(all []Host) {
			host(all, "pod2").Unusual = []Object{sysctl("net.ipv4.tcp_rmem", "1 1 1"), sysctl("net.ipv4.icmp_echo_ignore_all", "1")}
		}},
		"the answer is lost": {last: 3, back: true, host: "node2", by: rule.Text, is: true, with: func(all []Host) {
			host(all, "node2").Hits = []Hit{{Host: "node2", Object: rule, Stops: true, Src: b, Dst: a}}
		}},
		"nothing leaves the sender": {last: -1, host: "pod1", by: "unreachable default", is: true, with: func(all []Host) {
			host(all, "pod1").Routed = []Routed{{Object: Object{Kind: Route, Text: "unreachable default", Usual: "no such route"}, Refuses: true}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := crossing(test.last, test.back)
			if test.with != nil {
				test.with(hosts)
			}
			got := Judge(flow, hosts, nil)
			if again := original(Judge(flow, reworded(hosts), nil)); fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", got) {
				t.Errorf("with other words for the same objects\ngot  %+v\nwant %+v", again, got)
			}
			if got.Host != test.host || got.By.Text != test.by || got.Exact != test.is || got.Back != test.back {
				t.Errorf("got %q, %q, exact %t, back %t; want %q, %q, exact %t, back %t; last %q, missing %q",
					got.Host, got.By.Text, got.Exact, got.Back, test.host, test.by, test.is, test.back, got.Last, got.Missing)
			}
		})
	}
}

// reword replaces all that is said of an object to people.
func reword(o Object) Object {
	for _, text := range []*string{&o.Text, &o.Fix, &o.Usual} {
		if *text != "" {
			*text = "§" + hex.EncodeToString([]byte(*text))
		}
	}
	return o
}

// reworded returns hosts whose objects have other words: what is said of the same kernel by another tool.
func reworded(all []Host) []Host {
	all = slices.Clone(all)
	for i := range all {
		h := &all[i]
		h.Unusual, h.Neighbours, h.Hits, h.Routed = slices.Clone(h.Unusual), slices.Clone(h.Neighbours), slices.Clone(h.Hits), slices.Clone(h.Routed)
		for _, objects := range [][]Object{h.Unusual, h.Neighbours} {
			for i := range objects {
				objects[i] = reword(objects[i])
			}
		}
		h.Drops = slices.Clone(h.Drops)
		for i := range h.Drops {
			h.Drops[i].Limit = reword(h.Drops[i].Limit)
		}
		for i := range h.Hits {
			h.Hits[i].Object = reword(h.Hits[i].Object)
			if h.Hits[i].Rewrote != "" {
				h.Hits[i].Rewrote = "§"
			}
		}
		for i := range h.Routed {
			h.Routed[i].Object = reword(h.Routed[i].Object)
		}
	}
	return all
}

// original returns a loss with the words that reword replaced.
func original(l Loss) Loss {
	for _, o := range append([]*Object{&l.By}, pointers(l.Others)...) {
		for _, text := range []*string{&o.Text, &o.Fix, &o.Usual} {
			if code, ok := strings.CutPrefix(*text, "§"); ok {
				words, _ := hex.DecodeString(code)
				*text = string(words)
			}
		}
	}
	return l
}

func pointers(all []Object) (to []*Object) {
	for i := range all {
		to = append(to, &all[i])
	}
	return to
}

// TestSize: where small packets arrive, only large ones count.
func TestSize(t *testing.T) {
	hosts := crossing(11, true)
	f := flow
	f.Size = 700
	host(hosts, "pod1").Seen = append(host(hosts, "pod1").Seen, Seen{Sighting: at("pod1", "eth0", true), Size: 1450})
	host(hosts, "node1").Seen = append(host(hosts, "node1").Seen, Seen{Sighting: at("node1", "veth1", false), Size: 1450})
	if got := Judge(f, hosts, nil); got.Host != "node1" || got.Back || got.Last != "node1, coming in through veth1" {
		t.Errorf("got %+v", got)
	}
}

// TestPartial: where some packets come through, the kernel's first drop of the others counts, and not what sockets throw
// away.
func TestPartial(t *testing.T) {
	hosts := crossing(11, false)
	for _, s := range crossing(11, true)[0].Seen {
		host(hosts, "pod1").Seen = append(host(hosts, "pod1").Seen, s)
	}
	host(hosts, "pod1").Seen = append(host(hosts, "pod1").Seen, Seen{Sighting: at("pod1", "eth0", false), Back: true})
	host(hosts, "pod1").Drops = []Drop{{Host: "pod1", Reason: "NO_SOCKET", Function: "__udp4_lib_rcv", Back: true}}
	host(hosts, "node2").Drops = []Drop{{Host: "node2", Dev: "veth2", Reason: "QDISC_DROP", Function: "__dev_queue_xmit"}}
	host(hosts, "node2").Unusual = []Object{{Kind: Qdisc, Dev: "veth2", Text: "veth2: tbf 1: root"}}
	if got := Judge(flow, hosts, nil); got.Host != "node2" || got.By.Text != "veth2: tbf 1: root" || !got.Exact || got.Reason != "QDISC_DROP in __dev_queue_xmit" {
		t.Errorf("got %+v", got)
	}
}

// TestUnheard: what the kernel says of a packet between nodes that no socket takes is said in words, too.
func TestUnheard(t *testing.T) {
	hosts := crossing(7, false)
	d := Drop{Host: "node2", Dev: "eth0", Reason: "NO_SOCKET", Function: "__udp4_lib_rcv", Unheard: "no VXLAN listens on port 8472"}
	host(hosts, "node2").Drops = []Drop{d}
	if got, want := Judge(flow, hosts, nil).Reason, "NO_SOCKET in __udp4_lib_rcv: no VXLAN listens on port 8472 at node2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestCopied: the copies come back and end before the rule that makes them, on the way there or back.
func TestCopied(t *testing.T) {
	o := Object{Kind: Rule, Text: "ip filter INPUT handle 3: TEE"}
	f := flow
	f.Twice = true
	for _, back := range []bool{false, true} {
		hosts := crossing(2, back)
		host(hosts, "pod2").Hits = []Hit{{Host: "pod2", Object: o, Rewrote: "copied", Effect: Effect{Copies: true}, Src: a, Dst: b}}
		if got := Judge(f, hosts, nil); got.Host != "pod2" || got.By != o || !got.Exact {
			t.Errorf("back %t: got %+v", back, got)
		}
	}
}

// TestTaken: another pod has an address of the flow.
func TestTaken(t *testing.T) {
	o := Object{Kind: Address, Text: "10.244.2.2 dev eth0", About: netip.PrefixFrom(b, 32)}
	got := Judge(flow, crossing(5, false), map[string][]Object{"other": {o}, "else": {{Kind: Address, About: netip.MustParsePrefix("10.9.0.1/32")}}})
	if got.Host != "other" || got.By != o || !got.Exact {
		t.Errorf("got %+v", got)
	}
}

func TestClues(t *testing.T) {
	for _, test := range []struct {
		reason, function string
		want             Kind
	}{
		{"NETFILTER_DROP", "nf_hook_slow", Rule}, {"XFRM_POLICY", "ip_forward", IPsec}, {"IP_RPFILTER", "ip_rcv_finish_core", Sysctl},
		{"IP_INNOROUTES", "ip_rcv_finish", Route}, {"NOT_SPECIFIED", "br_handle_frame_finish", BridgePort}, {"OTHERHOST", "ip_rcv_core", Neighbour},
		{"TC_INGRESS", "__netif_receive_skb_core", Qdisc}, {"NEIGH_FAILED", "arp_error_report", Neighbour}, {"PKT_TOO_BIG", "ip_forward", Link},
	} {
		c, ok := clueOf(Drop{Reason: test.reason, Function: test.function})
		if !ok || c.kinds[0] != test.want {
			t.Errorf("%s in %s: got %v, want %s first", test.reason, test.function, c.kinds, test.want)
		}
	}
}

// TestByNode: a node asks in the name of a pod, which cannot be looked into.
func TestByNode(t *testing.T) {
	f := Flow{Src: a, Dst: netip.MustParseAddr("10.244.1.3"), Proto: "icmp", Path: []string{"node1/v1", "node1", "node1/v2"}, ByNode: true, In: "cni0"}
	node := Host{Name: "node1", MACs: []string{"02:00:00:00:00:01"}}
	if l := Judge(f, []Host{node}, nil); l.Host != "node1" || l.Last != "nowhere" {
		t.Errorf("nothing is seen: it is the node that sends, got %+v", l)
	}
	node.Seen = []Seen{{Sighting: at("node1", "v2", true), MACs: []string{"02:00:00:00:00:22"}, SrcMAC: "02:00:00:00:00:01", Size: 60},
		{Sighting: at("node1", "v2", false), MACs: []string{"02:00:00:00:00:11"}, SrcMAC: "02:00:00:00:00:22", Size: 60, Back: true}}
	node.Neighbours = []Object{{Kind: Neighbour, Dev: "cni0", MAC: "02:00:00:00:00:11", Text: "v1's"}}
	if l := Judge(f, []Host{node}, nil); l.By.Text != "" || l.Host != "node1" || !l.Back {
		t.Errorf("the answer has the pod's MAC, as it should, got %+v", l)
	}
	for name, c := range map[string]struct {
		hit  Hit
		says bool
	}{
		"what the node sends":               {Hit{Host: "node1", Hook: "output", Family: "ip", Src: f.Src, Stops: true}, true},
		"what the node gets":                {Hit{Host: "node1", Hook: "input", Family: "ip", Dst: f.Src, Stops: true}, true},
		"what is forwarded":                 {Hit{Host: "node1", Hook: "forward", Family: "ip", Src: f.Src, Stops: true}, false},
		"what pods send to the bridge, too": {Hit{Host: "node1", Hook: "input", Family: "bridge", Dst: f.Src, Stops: true}, false},
		"what carries it":                   {Hit{Host: "node1", Hook: "output", Family: "ip", Src: na, Stops: true}, false},
		"only met":                          {Hit{Host: "node1", Hook: "output", Family: "ip", Src: f.Src}, false},
	} {
		if _, got := f.StoppedAtNode([]Host{{Name: "node1", Hits: []Hit{c.hit}}}); got != c.says {
			t.Errorf("%s: got %t, want %t", name, got, c.says)
		}
	}
	f.Size, f.Outer = 725, [2]netip.Addr{na, na.Next()}
	if _, got := f.StoppedAtNode([]Host{{Name: "node1", Hits: []Hit{{Host: "node1", Hook: "output", Family: "ip", Src: f.Src, Stops: true}}}}); got {
		t.Error("a rule that stops full packets alone also stops those that carry pods'")
	}
}
