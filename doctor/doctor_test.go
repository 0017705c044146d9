package doctor

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// healthy is a node of which there is nothing to say.
func healthy() Facts {
	local := subnet.Lease{Node: "n1", Backend: "vxlan", Stacks: []subnet.Stack{{Subnet: prefix("10.244.1.0/24"), Underlay: addr("192.0.2.1")}}}
	f := Facts{Node: "n1", Bridge: "cni0", PodMTU: 1450, Release: "6.1.0-18-amd64", Agent: Agent{Running: true}}
	f.Lease.Network.Pools = []subnet.Pool{{Network: prefix("10.244.0.0/16")}}
	f.Lease.Snapshot.Local = local
	f.Env.Env = subnet.Env{Subnets: []netip.Prefix{prefix("10.244.1.1/24")}, MTU: 1450}
	f.Sysctls = map[string]string{"net/ipv4/ip_forward": "1"}
	return f
}

func TestHealthyIsSilent(t *testing.T) {
	if got := Check(healthy()); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

// TestHost is what a lab cannot be made to have.
func TestHost(t *testing.T) {
	for want, alter := range map[string]func(*Facts){
		"conntrack-full": func(f *Facts) {
			f.Sysctls["net/netfilter/nf_conntrack_count"], f.Sysctls["net/netfilter/nf_conntrack_max"] = "95", "100"
		},
		"kernel-old":     func(f *Facts) { f.Release = "4.19.0-26-amd64" },
		"device-manager": func(f *Facts) { f.Programs = []Program{{Name: "NetworkManager"}} },
		"second-agent":   func(f *Facts) { f.Programs = []Program{{Name: "flanneld"}} },
		"kube-proxy-cidr": func(f *Facts) {
			f.Sysctls["net/bridge/bridge-nf-call-iptables"] = "1"
			f.Programs = []Program{{Name: "kube-proxy", Args: []string{"--cluster-cidr", "10.0.0.0/16"}}}
		},
		"br-netfilter-missing": func(f *Facts) {
			f.Programs = []Program{{Name: "kube-proxy"}}
		},
		"agent-deaf": func(f *Facts) { f.Agent.Unresponsive, f.Agent.NotReady = true, "refused" },
		"runner-down": func(f *Facts) {
			f.Agent.Runner = &Runner{Error: "listen on UDP port 8285: address already in use"}
		},
		"agent-not-ready":  func(f *Facts) { f.Agent.NotReady = "no lease" },
		"checksums-broken": func(f *Facts) { f.Underlay.ChecksumsBroken = map[string]bool{"flannel.1": true} },
		"certificate-ends": func(f *Facts) {
			f.Agent.Certificates = []Certificate{{"etcd-cafile /a", 15 * 24 * time.Hour}, {"etcd-certfile /b", 13 * 24 * time.Hour}}
		},
		"contended":    func(f *Facts) { f.Agent.Metrics = map[string]float64{"twill_contended_total": 2} },
		"nodes-read":   func(f *Facts) { f.API = API{Stray: "n9", Guard: "n1"} },
		"api-trouble":  func(f *Facts) { f.API = API{Problem: OtherProblem, Error: "list nodes: 500"} },
		"udp-not-sent": func(f *Facts) { f.Probes = []Probe{{Node: "n2", Kind: ProbeOverlay}} },
		"udp-reply-dropped": func(f *Facts) {
			f.Probes = []Probe{{Node: "n2", Kind: ProbeOverlay, Sent: 1, Seen: 1}}
		},
	} {
		f := healthy()
		alter(&f)
		if got := Check(f); len(got) != 1 || got[0].ID != want {
			t.Errorf("%s: got %+v", want, got)
		}
	}
	f := healthy()
	f.Sysctls["net/bridge/bridge-nf-call-iptables"] = "1"
	f.Programs = []Program{{Name: "kube-proxy", Args: []string{"--cluster-cidr=10.244.0.0/16"}}}
	f.Release, f.Sysctls["net/netfilter/nf_conntrack_count"], f.Sysctls["net/netfilter/nf_conntrack_max"] = "5.4.0", "5", "100"
	if got := Check(f); len(got) > 0 {
		t.Errorf("all is well: got %+v", got)
	}
}

// TestMovedByAgent: where the agent moves the packets itself, its end is a cause, and not only a risk.
func TestMovedByAgent(t *testing.T) {
	f := healthy()
	f.Want = netstate.NewState(netstate.Tun{Name: "flannel0"})
	f.Agent.Running = false
	if got := Check(f); len(got) != 2 || got[0].ID != "runner-down" || got[0].Severity != Broken || got[1].ID != "agent-down" {
		t.Errorf("got %+v", got)
	}
	f.Lease.Snapshot.Local.Backend = "wireguard"
	f.Agent = Agent{Running: true, Runner: &Runner{Running: true, Detail: "the agent moves the packets itself dev=flannel-wg"}}
	down := NewStatus(f)
	down.Runner = &Runner{Error: "address already in use"}
	var text bytes.Buffer
	if err := (StatusReport{Nodes: []Status{NewStatus(f), down}}).WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if s := text.String(); !strings.Contains(s, "wireguard (agent)") || strings.Count(s, "✗") != 1 || !strings.Contains(s, "does not run: address already in use") {
		t.Error(s)
	}
	f.Want = netstate.NewState(netstate.WireGuard{Name: "flannel-wg"})
	if s := NewStatus(f); s.Packets != "kernel" || s.backend() != "wireguard (kernel)" {
		t.Errorf("got %+v", s)
	}
}

// TestUnreached: status says from whom no answer comes, of peers and of what else the node needs.
func TestUnreached(t *testing.T) {
	f := healthy()
	f.Lease.Snapshot.Peers = []subnet.Lease{{Node: "n2", Backend: "vxlan"}}
	at := time.Date(2026, 11, 2, 3, 4, 5, 0, time.UTC)
	f.Agent.Unreached = []Unreached{{Kind: "default gateway", Addr: addr("192.0.2.254"), Since: at, Error: "no answer"},
		{Node: "n2", Addr: addr("10.244.2.1"), Since: at, Error: "no answer"}}
	var text bytes.Buffer
	if err := (StatusReport{Nodes: []Status{NewStatus(f)}}).WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"✗ n1 → default gateway: no packet of 192.0.2.254 comes back since 2026-11-02T03:04:05Z: no answer\n",
		"✗ n1 → n2: no packet of 10.244.2.1 comes back since 2026-11-02T03:04:05Z: no answer\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("got\n%s, want\n%s", text.String(), want)
		}
	}
}

// TestMerge: a thousand routes of one cause are one finding, that says how many and shows a few.
func TestMerge(t *testing.T) {
	f := healthy()
	for i := range 1000 {
		want := netstate.Route{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}), 32), Dev: "flannel.1", Protocol: netstate.Protocol}
		f.Plan = append(f.Plan, netstate.Change{Want: want})
	}
	got := Check(f)
	if len(got) != 1 || got[0].Count != 1000 || len(got[0].More) != maxShown {
		t.Errorf("got %d findings, the first: %+v", len(got), got[0])
	}
}

// TestDiagnosis: the JSON's names are a promise.
func TestDiagnosis(t *testing.T) {
	f := healthy()
	f.Agent.Running = false
	var text, data bytes.Buffer
	r := Diagnose(f, time.Second)
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "! agent-down: the agent does not run  ← most likely the cause") {
		t.Errorf("%v\n%s", err, &text)
	}
	if err := r.WriteJSON(&data); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"schema", "node", "backend", "subnets", "peers", "tookSeconds", "findings", "unread"} {
		if _, ok := got[key]; !ok {
			t.Errorf("the report has no %q", key)
		}
	}
	first := got["findings"].([]any)[0].(map[string]any)
	for _, key := range []string{"id", "title", "object", "expected", "actual", "why", "fix", "page", "severity", "count"} {
		if _, ok := first[key]; !ok {
			t.Errorf("a finding has no %q", key)
		}
	}
}

// TestNothingHere: nobody is told to probe who has just done so, and no node is praised while packets are lost.
func TestNothingHere(t *testing.T) {
	for _, test := range []struct {
		answered int
		probes   Probes
		want     string
	}{
		{0, Probes{}, "run twillctl doctor --probe"},
		{1, Probes{}, "✓ nothing is wrong here, and one peer answers; packets between pods: twillctl doctor --probe"},
		{2, Probes{Sent: 3}, "✓ nothing is wrong here, and packets came back"},
		{2, Probes{Sent: 3, Lost: 1}, "? nothing else is seen to be wrong on this node"},
	} {
		var b strings.Builder
		s := NewSurvey([]Diagnosis{{Node: "node1", Answered: test.answered}}, nil, test.probes, Lost{})
		if err := s.WriteText(&b); err != nil || !strings.Contains(b.String(), test.want) {
			t.Errorf("%+v: %v\n%s", test.probes, err, b.String())
		}
	}
}

// TestExplained: a finding that explains why packets were lost takes these losses along, so that nothing beside it says that
// the cause is not known. One about another reason, or of another node, does not.
func TestExplained(t *testing.T) {
	loss := func(reason string) locate.Loss {
		return locate.Loss{Host: "node1/pod1", Drop: reason, Reason: reason + " in nf_hook_slow", Flow: locate.Flow{Sent: "TCP", Error: "no answer"}}
	}
	likely := loss("NETFILTER_DROP")
	likely.Likely, likely.By = true, locate.Object{Kind: locate.Rule, Text: "ip x y handle 3: drop"}
	for name, test := range map[string]struct {
		node string
		loss locate.Loss
		left int
	}{
		"full table":     {"node1", loss("NETFILTER_DROP"), 0},
		"another reason": {"node1", loss("QDISC_DROP"), 1},
		"no reason":      {"node1", loss(""), 1},
		"another node":   {"node2", loss("NETFILTER_DROP"), 1},
		"a known rule":   {"node1", likely, 1},
		"of no reason":   {"node1", loss("NOT_SPECIFIED"), 1},
	} {
		nodes := []Diagnosis{{Node: test.node, Findings: []Finding{{ID: string(conntrackFull), Severity: Risk}}}}
		s := NewSurvey(nodes, nil, Probes{Sent: 2, Lost: 1}, Lost{Followed: []locate.Loss{test.loss, test.loss}})
		f := s.Nodes[0].Findings[0]
		if taken := f.Severity == Broken && slices.Equal(f.More, []string{"this lost TCP: NETFILTER_DROP in nf_hook_slow"}); len(s.Lost) != test.left ||
			taken != (test.left == 0) || s.First == nil || taken && s.First.ID != string(conntrackFull) {
			t.Errorf("%s: got %+v, first %+v", name, s.Lost, s.First)
		}
		if nodes[0].Findings[0].Severity != Risk {
			t.Errorf("%s: the node's own diagnosis was altered", name)
		}
		nodes[0].Add(Probes{Sent: 2, Lost: 1}, Lost{Followed: []locate.Loss{test.loss}})
		if len(nodes[0].Findings) != 1+test.left {
			t.Errorf("%s: of one node: got %+v", name, nodes[0].Findings)
		}
	}
}

// TestExplainedByPeer: what a node lacks for one peer, or for one family, is not why packets to another one are lost.
func TestExplainedByPeer(t *testing.T) {
	missing := Finding{ID: string(routeMissing), Severity: Broken, peer: "node2", family: netstate.IPv4}
	l := locate.Loss{Host: "node1", Drop: "IP_OUTNOROUTES", Flow: locate.Flow{Src: netip.MustParseAddr("10.244.1.2"), Path: []string{"node1/pod1", "node1", "node2", "node2/pod1"}}}
	if !missing.explains("node1", l) {
		t.Error("the missing route does not explain it")
	}
	l.Flow.Src = netip.MustParseAddr("fd00:244:1::2")
	if missing.explains("node1", l) {
		t.Error("an IPv4 route explains an IPv6 packet")
	}
	l.Flow.Src, l.Flow.Path = netip.MustParseAddr("10.244.1.2"), []string{"node1/pod1", "node1", "node3", "node3/pod1"}
	if missing.explains("node1", l) {
		t.Error("the route to node2 explains a packet to node3")
	}
}

// TestSurveyOfOthers: findings that other nodes printed are ordered as one's own are.
func TestSurveyOfOthers(t *testing.T) {
	var nodes []Diagnosis
	const printed = `[{"node": "a", "findings": [{"id": "from-the-future", "severity": "broken"}]},
		{"node": "b", "findings": [{"id": "packet-lost-near", "severity": "broken"}]},
		{"node": "c", "findings": [{"id": "agent-down", "severity": "risk"}, {"id": "packet-lost", "severity": "broken"}]}]`
	if err := json.Unmarshal([]byte(printed), &nodes); err != nil {
		t.Fatal(err)
	}
	if s := NewSurvey(nodes, nil, Probes{}, Lost{}); s.First == nil || s.First.ID != "packet-lost" {
		t.Errorf("got %+v first", s.First)
	}
}

// TestAPITrouble: the problem says who has to act.
func TestAPITrouble(t *testing.T) {
	for _, c := range []struct {
		api     API
		id, fix string
	}{
		{API{Problem: Forbidden, Grant: "system:serviceaccount:kube-twill:twill the verb get on nodes"},
			"api-trouble", "403: grant system:serviceaccount:kube-twill:twill the verb get on nodes: Documentation/twill.yml has it"},
		{API{Problem: Forbidden}, "api-trouble", "401: the token is not valid; 403: grant the verb that the error names"},
		{API{Problem: Unauthorized}, "api-trouble", "401: the token is not valid: restart"},
		{API{Problem: TooManyRequests}, "api-trouble", "429: "},
		{API{Problem: ExpiredCert}, "clock-skew", "set the clock"},
		{API{Problem: UnknownAuthority}, "api-trouble", "the API server's certificate is of another authority"},
		{API{Problem: Unreachable}, "api-trouble", "nobody answers"},
		{API{Problem: OtherProblem}, "api-trouble", "401: the token is not valid; 403"},
	} {
		f := healthy()
		f.API = c.api
		if got := Check(f); len(got) != 1 || got[0].ID != c.id || !strings.HasPrefix(got[0].Fix, c.fix) {
			t.Errorf("%+v: want %s, %s, got %+v", c.api, c.id, c.fix, got)
		}
	}
}

// TestRemoval: the command that deletes a rule, or changes a policy, is that of the program whose rule it is.
func TestRemoval(t *testing.T) {
	const saved = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -i cni0 -j REJECT\nCOMMIT\n"
	nft := []rules.Chain{{Family: "inet", Table: "filter", Name: "forward", Hook: "forward", Policy: rules.Drop}}
	for _, c := range []struct {
		chains   []rules.Chain
		src, in  string
		wantText string
	}{
		{rules.ParseSave("ip", saved), "10.244.1.2", "cni0", "iptables -t filter -D FORWARD -i cni0 -j REJECT"},
		{rules.ParseSave("ip6", saved), "fd00::2", "cni0", "ip6tables -t filter -D FORWARD -i cni0 -j REJECT"},
		{rules.ParseSave("ip6", saved), "fd00::2", "eth0", "ip6tables -P FORWARD ACCEPT"},
		{nft, "10.244.1.2", "cni0", ""},
	} {
		d := rules.Decide(c.chains, "forward", rules.Packet{Src: addr(c.src), Dst: addr(c.src), In: c.in})
		if got := removal(d); !d.Stops() || !strings.HasPrefix(got, c.wantText) || c.wantText == "" && got != "" {
			t.Errorf("%+v: got %q, want %q", d, got, c.wantText)
		}
	}
}

// TestBridgeFilter: bridged packets have to go through the firewall where there is a kube-proxy, in the families of pods.
func TestBridgeFilter(t *testing.T) {
	process := func(f *Facts) { f.Programs = []Program{{Name: "kube-proxy"}} }
	iptables := func(f *Facts) { f.Chains = []rules.Chain{{Family: "ip", Table: "nat", Name: "KUBE-SERVICES"}} }
	nft := func(f *Facts) { f.Chains = []rules.Chain{{Family: "ip", Table: "kube-proxy", Name: "services"}} }
	const v4, v6 = "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"
	for name, c := range map[string]struct {
		proxy  func(*Facts)
		values map[string]string
		fix    string // empty: there is no finding
	}{
		"no proxy":         {func(*Facts) {}, nil, ""},
		"as it should be":  {process, map[string]string{v4: "1"}, ""},
		"off":              {process, map[string]string{v4: "0", v6: "1"}, "sysctl -w " + v4 + "=1"},
		"no module":        {iptables, nil, "load it: modprobe br_netfilter"},
		"nftables":         {nft, nil, "load it: modprobe br_netfilter"},
		"the other family": {nft, map[string]string{v4: "1", v6: "0"}, ""},
	} {
		f := healthy()
		c.proxy(&f)
		for k, v := range c.values {
			f.Sysctls[k] = v
		}
		got := Check(f)
		if c.fix == "" && len(got) > 0 || c.fix != "" && (len(got) != 1 || got[0].ID != "br-netfilter-missing" || !strings.HasPrefix(got[0].Fix, c.fix)) {
			t.Errorf("%s: %+v, want the fix %q", name, got, c.fix)
		}
	}
}

// TestPreferredRoute: a route with a metric that the kernel prefers to the peer's, which has a metric of its own.
func TestPreferredRoute(t *testing.T) {
	f, dst := healthy(), prefix("10.244.2.0/24")
	f.Underlay = backend.Node{Underlays: []backend.Underlay{{Dev: "eth0", Local: addr("192.0.2.1"), Public: addr("192.0.2.1")}}}
	f.Want = netstate.NewState(netstate.Route{Dst: dst, Via: dst.Addr(), Dev: "flannel.1", Metric: netstate.SpreadMetric(dst),
		Onlink: true, Protocol: netstate.Protocol})
	f.Paths = []Path{{Node: "n2", Subnet: dst, Pod: dst.Addr().Next(), Underlay: addr("192.0.2.2"), Hop: Hop{Dev: "flannel.1"},
		Outer: Hop{Dev: "eth0"}}}
	if got := Check(f); len(got) > 0 {
		t.Errorf("all is well: got %+v", got)
	}
	f.Paths[0].Hop = Hop{Dev: "eth0", Via: addr("192.0.2.9")}
	f.Routes = []Route{{Dst: dst, Via: addr("192.0.2.9"), Dev: "eth0"}}
	const want = "ip route del 10.244.2.0/24 via 192.0.2.9 dev eth0"
	if got := Check(f); len(got) != 1 || got[0].ID != "route-shadowed" || got[0].Fix != want {
		t.Errorf("got %+v, want the fix %q", got, want)
	}
}

// TestRoutesAsCommands: what deletes a route can be run, whatever kind of route it is.
func TestRoutesAsCommands(t *testing.T) {
	for want, r := range map[string]Route{
		"ip route del 10.244.1.64/26 via 192.0.2.9 dev eth0": {Dst: prefix("10.244.1.64/26"), Via: addr("192.0.2.9"), Dev: "eth0"},
		"ip route del blackhole 10.244.1.64/26":              {Type: "blackhole", Dst: prefix("10.244.1.64/26")},
		"ip route del 10.244.1.64/26":                        {Dst: prefix("10.244.1.64/26")}, // to several next hops
	} {
		f := healthy()
		f.Routes = []Route{r}
		if got := Check(f); len(got) != 1 || got[0].ID != "route-shadowed" || got[0].Fix != want {
			t.Errorf("got %+v, want the fix %q", got, want)
		}
	}
	f := healthy()
	f.Underlay = backend.Node{Underlays: []backend.Underlay{{Dev: "eth0", Local: addr("192.0.2.1"), Public: addr("192.0.2.1")}}}
	f.Paths = []Path{{Node: "n2", Underlay: addr("198.51.100.2"), Outer: Hop{Dev: "eth0", Via: addr("192.0.2.254")},
		Neighbour: Neighbour{State: netstate.NeighPermanent, MAC: "0e:00:00:00:00:99"}}}
	if got := Check(f); len(got) != 1 || got[0].ID != "underlay-neighbour" || got[0].Fix != "ip neigh del 192.0.2.254 dev eth0" {
		t.Errorf("got %+v, want the router's entry deleted", got)
	}
}

// TestFailedNeighbour: that the kernel asked for a peer in vain counts until packets were sent to that peer.
func TestFailedNeighbour(t *testing.T) {
	f := healthy()
	f.Underlay = backend.Node{Underlays: []backend.Underlay{{Dev: "eth0", Local: addr("192.0.2.1"), Public: addr("192.0.2.1")}}}
	f.Paths = []Path{{Node: "n2", Underlay: addr("192.0.2.2"), Outer: Hop{Dev: "eth0"}, Neighbour: Neighbour{State: netstate.NeighFailed}}}
	if got := Check(f); len(got) != 1 || got[0].ID != "peer-unanswered" || got[0].Command != "" {
		t.Errorf("not asked: got %+v, want peer-unanswered without a command", got)
	}
	f.Probes = []Probe{{Node: "n2", Kind: ProbeOverlay, OK: true}}
	if got := Check(f); len(got) != 0 {
		t.Errorf("it answered: got %+v, want nothing", got)
	}
	f.Probes = []Probe{{Node: "n2", Kind: ProbeUnderlay, Error: "no reply", Sent: -1, Seen: -1}}
	if got := Check(f); len(got) != 1 || got[0].ID != "peer-unanswered" {
		t.Errorf("it did not answer: got %+v, want peer-unanswered once", got)
	}
}

// TestOffloadAltered: the command that mends it is the one that people know.
func TestOffloadAltered(t *testing.T) {
	f := healthy()
	want := netstate.Offload{Dev: "flannel.1"}
	f.Plan = netstate.Plan{{Was: netstate.Offload{Dev: "flannel.1", On: true}, Want: want}}
	got := Check(f)
	if len(got) != 1 || got[0].ID != "vtep-altered" || !strings.HasPrefix(got[0].Fix, "ethtool -K flannel.1 tx-checksum-ip-generic off ") {
		t.Errorf("got %+v", got)
	}
}
