package doctor

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

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
			f.Programs = []Program{{Name: "kube-proxy", Args: []string{"--cluster-cidr", "10.0.0.0/16"}}}
		},
		"agent-deaf": func(f *Facts) { f.Agent.Deaf, f.Agent.NotReady = true, "refused" },
		"runner-down": func(f *Facts) {
			f.Agent.Runner = &Runner{Error: "listen on UDP port 8285: address already in use"}
		},
		"agent-not-ready": func(f *Facts) { f.Agent.NotReady = "no lease" },
		"contended":       func(f *Facts) { f.Agent.Metrics = map[string]float64{"twill_contended_total": 2} },
		"api-trouble":     func(f *Facts) { f.API = API{Asked: true, Error: "list nodes: 403"} },
		"udp-not-sent":    func(f *Facts) { f.Probes = []Probe{{Node: "n2", Kind: "overlay"}} },
		"udp-reply-dropped": func(f *Facts) {
			f.Probes = []Probe{{Node: "n2", Kind: "overlay", Sent: 1, Seen: 1}}
		},
	} {
		f := healthy()
		alter(&f)
		if got := Check(f); len(got) != 1 || got[0].ID != want {
			t.Errorf("%s: got %+v", want, got)
		}
	}
	f := healthy()
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
	f.Agent = Agent{Running: true, Runner: &Runner{Running: true, Says: "the agent moves the packets itself dev=flannel-wg"}}
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

// TestMerge: a thousand routes of one cause are one finding, that says how many and shows a few.
func TestMerge(t *testing.T) {
	f := healthy()
	for i := range 1000 {
		want := netstate.Route{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}), 32), Dev: "flannel.1", Protocol: netstate.Protocol}
		f.Plan = append(f.Plan, netstate.Change{Want: want})
	}
	got := Check(f)
	if len(got) != 1 || got[0].Count != 1000 || len(got[0].More) != mostShown {
		t.Errorf("got %d findings, the first: %+v", len(got), got[0])
	}
}

// TestDecide walks chains as the kernel does.
func TestDecide(t *testing.T) {
	pods := Match{Prefixes: []netip.Prefix{prefix("10.244.0.0/16")}}
	base := func(rules ...Rule) Chain {
		return Chain{Family: "ip", Table: "filter", Name: "FORWARD", Hook: "forward", Policy: "drop", Rules: rules}
	}
	user := func(rules ...Rule) Chain { return Chain{Family: "ip", Table: "filter", Name: "USER", Rules: rules} }
	jump := Rule{Verdict: "jump", Target: "USER"}
	p := Packet{Src: addr("10.244.1.2"), Dst: addr("10.244.2.2"), In: "cni0", Out: "flannel.1", Proto: "tcp", DPort: 80}
	for name, test := range map[string]struct {
		chains []Chain
		want   string
	}{
		"policy":               {[]Chain{base()}, "drop"},
		"accepted":             {[]Chain{base(Rule{Src: pods, Verdict: "accept"})}, "accept"},
		"first rule wins":      {[]Chain{base(Rule{Verdict: "reject"}, Rule{Src: pods, Verdict: "accept"})}, "reject"},
		"not":                  {[]Chain{base(Rule{Src: Match{pods.Prefixes, true}, Verdict: "reject"}, Rule{Verdict: "accept"})}, "accept"},
		"wildcard device":      {[]Chain{base(Rule{In: DevMatch{Name: "cni+"}, Verdict: "accept"})}, "accept"},
		"nft wildcard device":  {[]Chain{base(Rule{Out: DevMatch{Name: "flannel*"}, Verdict: "accept"})}, "accept"},
		"other device":         {[]Chain{base(Rule{In: DevMatch{Name: "docker0"}, Verdict: "accept"})}, "drop"},
		"unknown never holds":  {[]Chain{base(Rule{UnknownIf: "-m set", Verdict: "reject"}, Rule{Verdict: "accept"})}, "accept"},
		"jump accepts":         {[]Chain{base(jump), user(Rule{Verdict: "accept"})}, "accept"},
		"jump returns":         {[]Chain{base(jump, Rule{Verdict: "accept"}), user(Rule{Verdict: "return"}, Rule{Verdict: "drop"})}, "accept"},
		"goto ends the caller": {[]Chain{base(Rule{Verdict: "goto", Target: "USER"}, Rule{Verdict: "accept"}), user()}, "drop"},
		"loop":                 {[]Chain{base(jump), user(jump)}, "drop"},
		"every chain decides": {[]Chain{base(Rule{Verdict: "accept"}), {Family: "inet", Table: "fw", Name: "f", Hook: "forward", Priority: 5, Policy: "accept",
			Rules: []Rule{{DPort: 80, Proto: "tcp", Verdict: "drop"}}}}, "drop"},
		"other family": {[]Chain{{Family: "ip6", Hook: "forward", Policy: "drop"}}, "accept"},
	} {
		if got := Decide(test.chains, "forward", p); got.Verdict != test.want {
			t.Errorf("%s: got %+v, want %s", name, got, test.want)
		}
	}
}

// TestReport: the JSON's names are a promise.
func TestReport(t *testing.T) {
	f := healthy()
	f.Agent.Running = false
	var text, data bytes.Buffer
	r := NewReport(f, time.Second)
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

// TestAPITrouble: who has to act is told from what the API server says.
func TestAPITrouble(t *testing.T) {
	for text, want := range map[string][2]string{
		`get node "a": nodes "a" is forbidden: User "system:serviceaccount:kube-twill:twill" cannot get resource "nodes" in API group "" at the cluster scope`: {
			"api-trouble", "403: grant system:serviceaccount:kube-twill:twill the verb get on nodes"},
		`get node "a": Unauthorized`: {"api-trouble", "401: "},
		`get node "a": the server has received too many requests and has asked us to try again later`:                                            {"api-trouble", "429: "},
		`Get "https://10.96.0.1": tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2020-01-01`: {"clock-skew", "set the clock"},
		`Get "https://10.96.0.1": tls: failed to verify certificate: x509: certificate signed by unknown authority`:                              {"api-trouble", "the API server's certificate is of another authority"},
		`dial tcp 10.96.0.1:443: connect: connection refused`:                                                                                    {"api-trouble", "nobody answers"},
	} {
		got := Check(Facts{API: API{Asked: true, Error: text}, Agent: Agent{Running: true}})
		i := slices.IndexFunc(got, func(f Finding) bool { return f.ID == want[0] })
		if i < 0 || !strings.HasPrefix(got[i].Fix, want[1]) {
			t.Errorf("%s: want %v, got %+v", text, want, got)
		}
	}
}
