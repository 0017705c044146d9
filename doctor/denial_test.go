package doctor

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/manifest"
	"github.com/twill-net/twill/subnet"
)

// shop is a cluster: web on n1 is isolated for ingress, and gets TCP from its own namespace only.
func shop() policy.Snapshot {
	var s policy.Snapshot
	err := manifest.Read(strings.NewReader(`
{kind: NetworkPolicy, metadata: {namespace: shop, name: web}, spec: {podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{protocol: TCP}], from: [{podSelector: {}}]}]}}
---
{kind: Pod, metadata: {namespace: shop, name: web, labels: {app: web}}, spec: {nodeName: n1}, status: {podIPs: [{ip: 10.244.1.2}]}}
---
{kind: Pod, metadata: {namespace: jobs, name: near}, spec: {nodeName: n1}, status: {podIPs: [{ip: 10.244.1.3}]}}
---
{kind: Pod, metadata: {namespace: shop, name: db}, spec: {nodeName: n2}, status: {podIPs: [{ip: 10.244.2.2}]}}
---
{kind: Pod, metadata: {namespace: jobs, name: cron}, spec: {nodeName: n2}, status: {podIPs: [{ip: 10.244.2.3}]}}
`), &s)
	if err != nil || len(s.Pods) != 4 {
		panic(err)
	}
	return s
}

// policedNode is a node of the cluster, whose kernel has what the policies want; it knows the policies if it is told to.
func policedNode(name, pods string, knows bool) Facts {
	f := enforcing()
	f.Node = name
	f.Lease.Snapshot.Local.Stacks = []subnet.Stack{{Subnet: prefix(pods)}}
	s := shop()
	f.Policies.Tables, _ = policy.Desired(policy.Site{Node: name, Bridge: "cni0", Subnets: []netip.Prefix{prefix(pods)}}, s)
	if knows {
		f.Policies.Snapshot = &s
	}
	return f
}

func flowOf(src, dst, proto string, port uint16) locate.Flow {
	return locate.Flow{Src: addr(src), Dst: addr(dst), Proto: proto, Port: port, Sent: proto, Error: "no answer"}
}

// TestDenies: what policies deny, why, and what rules drop for other reasons.
func TestDenies(t *testing.T) {
	knowing := NewJudges(policedNode("n1", "10.244.1.0/24", true), policedNode("n2", "10.244.2.0/24", false))
	ignorant := NewJudges(policedNode("n1", "10.244.1.0/24", false))
	stale := policedNode("n1", "10.244.1.0/24", true)
	stale.Policies.Snapshot.Policies = nil
	unbridged := policedNode("n1", "10.244.1.0/24", true)
	unbridged.Sysctls["net/bridge/bridge-nf-call-iptables"] = "0"
	asking := policedNode("n1", "10.244.1.0/24", false)
	asked := 0
	asking.Policies.Ask = func() (policy.Snapshot, error) { asked++; return shop(), nil }
	refused := policedNode("n1", "10.244.1.0/24", false)
	refused.Policies.Ask = func() (policy.Snapshot, error) { return policy.Snapshot{}, errors.New("403") }
	audits, late := policedNode("n1", "10.244.1.0/24", true), policedNode("n1", "10.244.1.0/24", true)
	audits.Policies.Audit, late.Policies.Audit = true, true
	audits.Policies.Tables, _ = policy.Desired(policy.Site{Node: "n1", Bridge: "cni0", Subnets: []netip.Prefix{prefix("10.244.1.0/24")}, Audit: true}, shop())
	for name, test := range map[string]struct {
		judges *Judges
		flow   locate.Flow
		reason Reason // empty: it passes
		why    string
	}{
		"audited": {NewJudges(audits), flowOf("10.244.2.2", "10.244.1.2", "udp", 53), "", ""},
		"an audit for which the rules are not there yet": {NewJudges(late), flowOf("10.244.2.2", "10.244.1.2", "udp", 53), Outdated,
			"although policies are only audited there"},
		"another protocol": {knowing, flowOf("10.244.2.2", "10.244.1.2", "udp", 53), Asked,
			"shop/web isolates shop/web for ingress; no policy allows UDP 53 from shop/db"},
		"without ports": {knowing, flowOf("10.244.2.2", "10.244.1.2", "icmp", 0), Asked,
			"shop/web isolates shop/web for ingress; no policy allows ICMP from shop/db"},
		"one node":        {knowing, flowOf("10.244.1.3", "10.244.1.2", "tcp", 80), Asked, "no policy allows TCP 80 from jobs/near"},
		"allowed":         {knowing, flowOf("10.244.2.2", "10.244.1.2", "tcp", 8080), "", ""},
		"not isolated":    {knowing, flowOf("10.244.1.2", "10.244.2.2", "udp", 53), "", ""},
		"nobody's":        {knowing, flowOf("10.244.2.2", "10.244.1.9", "tcp", 80), UnknownPod, "10.244.1.9 is one of n1's addresses, and no pod is known"},
		"nobody sends":    {ignorant, flowOf("10.244.1.9", "10.244.2.2", "icmp", 0), UnknownPod, "10.244.1.9 is one of n1's addresses"},
		"unknown":         {ignorant, flowOf("10.244.2.3", "10.244.1.2", "tcp", 80), Asked, " isolates 10.244.1.2 for ingress; no rule of it allows TCP 80 from 10.244.2.3 to 10.244.1.2"},
		"asked for":       {NewJudges(asking), flowOf("10.244.2.3", "10.244.1.2", "tcp", 80), Asked, "no policy allows TCP 80 from jobs/cron"},
		"not answered":    {NewJudges(refused), flowOf("10.244.2.3", "10.244.1.2", "tcp", 80), Asked, "the chain in-"},
		"outdated":        {NewJudges(stale), flowOf("10.244.2.3", "10.244.1.2", "tcp", 80), Outdated, "although no policy isolates shop/web for ingress"},
		"past the rules":  {NewJudges(unbridged), flowOf("10.244.1.3", "10.244.1.2", "tcp", 80), "", ""},
		"from other node": {NewJudges(unbridged), flowOf("10.244.2.3", "10.244.1.2", "tcp", 80), Asked, "TCP 80 from jobs/cron"},
	} {
		d, ok := test.judges.deny(test.flow)
		if ok != (test.reason != "") || d.Reason != test.reason || !strings.Contains(d.Why, test.why) || test.judges.Denies(test.flow) != (test.reason == Asked) {
			t.Errorf("%s: got %+v, %t", name, d, ok)
		}
	}
	if asked != 1 {
		t.Errorf("the policies were asked for %d times", asked)
	}
}

// TestLost: losses by rules about policies are told from others, each once, and findings about them are grouped by pod.
func TestLost(t *testing.T) {
	j := NewJudges(policedNode("n1", "10.244.1.0/24", true))
	byRule := func(f locate.Flow, chain string) locate.Loss {
		return locate.Loss{Flow: f, Host: "n1", Exact: true, Stopped: true, Likely: true,
			By: locate.Object{Kind: locate.Rule, Text: "ip twill-policy " + chain + " handle 3: counter drop", Table: netstate.FilterTable, Chain: chain}}
	}
	denied := flowOf("10.244.2.2", "10.244.1.2", "icmp", 0)
	other := byRule(flowOf("10.244.1.2", "10.244.2.2", "tcp", 80), "forward")
	other.By.Table = "other"
	lost := j.Lost([]locate.Loss{byRule(denied, "in-1"), byRule(flowOf("10.244.1.9", "10.244.2.2", "tcp", 80), "egress"), other,
		byRule(flowOf("10.244.1.2", "10.244.2.2", "udp", 80), "forward")},
		[]locate.Flow{denied, denied, flowOf("10.244.2.3", "10.244.1.2", "tcp", 80), flowOf("10.244.2.3", "10.244.1.2", "udp", 80)})
	if len(lost.Followed) != 2 || len(lost.Denied) != 4 {
		t.Fatalf("got %d followed, %+v", len(lost.Followed), lost.Denied)
	}
	var got []string
	for _, f := range lost.findings() {
		got = append(got, f.ID+" "+f.Place+" "+f.Object)
	}
	want := []string{"packet-lost n1 rule ip twill-policy forward handle 3: counter drop",
		"policy-unknown-pod n1 10.244.1.9, egress", "policy-denied n1 shop/web, ingress"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	f := lost.findings()[2]
	if f.Count != 3 || len(f.More) != 2 || f.Severity != Intended || f.Likely || !strings.HasSuffix(f.Fix, "kubectl twill policy shop/web") {
		t.Errorf("got %+v", f)
	}
	if d, ok := j.ofLoss(byRule(denied, "frames")); ok {
		t.Errorf("a forged address: got %+v", d)
	}
	// A chain that is not in the tables any more, as the trace shows it.
	d, ok := NewJudges().ofLoss(byRule(denied, "eg-7"))
	if !ok || d.Reason != Asked || d.Direction != policy.Egress || d.Node != "n1" || d.Pod != "10.244.2.2" {
		t.Errorf("got %+v, %t", d, ok)
	}
	for _, chain := range []string{"egress-backwards", "egress-errors"} {
		if d, _ := NewJudges().ofLoss(byRule(denied, chain)); d.Reason != UnknownPod || d.Direction != policy.Egress {
			t.Errorf("by the chain %s: got %+v", chain, d)
		}
	}
	if d, _ := NewJudges().ofLoss(byRule(denied, "ingress")); d.Reason != UnknownPod || d.Direction != policy.Ingress {
		t.Errorf("got %+v", d)
	}
}

// TestIntended: what somebody asked for is no fault: not the first finding, not a reason to fail, and said all the same.
func TestIntended(t *testing.T) {
	j := NewJudges(policedNode("n1", "10.244.1.0/24", true))
	lost := j.Lost(nil, []locate.Flow{flowOf("10.244.2.2", "10.244.1.2", "icmp", 0)})
	var b bytes.Buffer
	s := NewSurvey([]Diagnosis{{Node: "n1"}}, nil, Probes{Sent: 3, Denied: 1}, lost)
	if err := s.WriteText(&b); err != nil || s.Failed() || s.First != nil {
		t.Errorf("failed %t, first %+v, %v", s.Failed(), s.First, err)
	}
	for _, want := range []string{"✓ 2 probes of pods came back", "– 1 of 3 probes are denied by network policies\n", "\n– policy-denied: ",
		"✓ nothing is wrong here, and packets came back"} {
		if !strings.Contains(b.String(), want) || strings.Contains(b.String(), "most likely the cause") {
			t.Errorf("want %q in\n%s", want, b.String())
		}
	}
	b.Reset()
	d := Diagnosis{Node: "n1"}
	d.Add(Probes{Sent: 3, Denied: 1}, lost)
	if err := d.WriteText(&b); err != nil || d.Failed() || !strings.Contains(b.String(), "– policy-denied") ||
		!strings.Contains(b.String(), "✓ nothing is wrong here") {
		t.Errorf("failed %t, %v\n%s", d.Failed(), err, b.String())
	}
	d.Add(Probes{Sent: 1}, Lost{Followed: []locate.Loss{{Host: "n1"}}})
	if !d.Failed() || d.Findings[0].ID != "packet-lost-near" {
		t.Errorf("failed %t, %+v", d.Failed(), d.Findings)
	}
	all := NewSurvey([]Diagnosis{{Node: "n1", Findings: []Finding{{ID: string(routeMissing), Severity: Broken}}}}, nil, Probes{Sent: 1, Denied: 1}, lost)
	if all.First == nil || all.First.Severity != Broken {
		t.Errorf("nothing came back, and tables are not believed: %+v", all.First)
	}
	b.Reset()
	var c Connectivity
	c.Count("n1", "n2", "IPv4", "ICMP", WasDenied)
	c.Count("n1", "n2", "IPv4", "TCP", CameBack)
	c.Count("n1", "n2", "IPv4", "TCP", WasDenied)
	c.Explain(lost)
	if err := c.WriteText(&b); err != nil || c.Failed() || !strings.Contains(b.String(), "– denied  ✓ 1/2") {
		t.Errorf("failed %t, %v\n%s", c.Failed(), err, b.String())
	}
	if c.Count("n1", "n2", "IPv4", "TCP", WasLost); !c.Failed() || c.Probes.Sent != 4 || c.Probes.Lost != 1 || c.Probes.Denied != 2 {
		t.Errorf("got %+v", c.Probes)
	}
}

// TestTracePolicies: the rules are a place on the path there, in the node of the pod that they are about, and not on that
// of the reply.
func TestTracePolicies(t *testing.T) {
	n1, n2 := policedNode("n1", "10.244.1.0/24", true), policedNode("n2", "10.244.2.0/24", false)
	for _, test := range []struct {
		src, dst, from, to string
		stops, partial     bool
		entry              string
	}{
		{"10.244.2.3", "10.244.1.2", "n2", "n1", true, false, "shop/web isolates shop/web for ingress; no policy allows anything from jobs/cron"},
		{"10.244.2.2", "10.244.1.2", "n2", "n1", false, true, "no policy allows everything from shop/db, only TCP"},
		{"10.244.1.2", "10.244.2.2", "n1", "n2", false, false, "everything passes"},
		{"10.244.1.3", "10.244.1.2", "n1", "n1", true, false, "no policy allows anything from jobs/near"},
	} {
		flow := Flow{Src: addr(test.src), Dst: addr(test.dst), From: test.from, To: test.to}
		near, far := n2, n1
		if test.from == "n1" {
			near, far = n1, n2
		}
		if test.from == test.to {
			far = near
		}
		trace := Follow(near, far, flow)
		var last Step
		for _, s := range trace.Forward {
			if s.Place == "network policies" {
				last = s
			}
		}
		if (trace.Stopped != nil) != test.stops || last.Partial != test.partial || !strings.Contains(last.Entry, test.entry) ||
			trace.Failed() != test.stops {
			t.Errorf("%s to %s: stopped %+v, %+v", test.src, test.dst, trace.Stopped, last)
		}
		if slices.ContainsFunc(trace.Back, func(s Step) bool { return s.Place == "network policies" }) {
			t.Errorf("the reply is judged: %+v", trace.Back)
		}
	}
}

// TestTiers: a ClusterNetworkPolicy denies one port, and says so by its rule.
func TestTiers(t *testing.T) {
	f := policedNode("n1", "10.244.1.0/24", true)
	var s policy.Snapshot
	if err := manifest.Read(strings.NewReader(`
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: guard}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}},
  ingress: [{name: ssh, action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 22}}}, {tcp: {destinationPort: {number: 23}}}]}]}}
`), &s); err != nil || len(s.ClusterPolicies) != 1 {
		t.Fatal(err, s)
	}
	s.Pods = f.Policies.Snapshot.Pods
	var skips []policy.Skip
	f.Policies.Snapshot = &s
	f.Policies.Tables, skips = policy.Desired(policy.Site{Node: "n1", Bridge: "cni0", Subnets: []netip.Prefix{prefix("10.244.1.0/24")}}, s)
	flow := Flow{Src: addr("10.244.2.2"), Dst: addr("10.244.1.2"), From: "n2", To: "n1"}
	got := visit{f, flow}.denied()
	if got == nil || got.Reason != Asked || got.Why != "ClusterNetworkPolicy guard denies TCP 22 from shop/db in the Admin tier, by its rule ssh, and not TCP 23" {
		t.Errorf("%v, got %+v", skips, got)
	}
	f.Policies.Snapshot = nil
	if got := (visit{f, flow}).denied(); !strings.HasSuffix(got.Why, "no rule of it allows TCP 22 from 10.244.2.2 to 10.244.1.2, and not TCP 23") {
		t.Errorf("got %+v", got)
	}
	j := NewJudges(f)
	if d, ok := j.deny(flowOf("10.244.2.2", "10.244.1.2", "tcp", 22)); !ok || d.Reason != Asked {
		t.Errorf("TCP 22: got %+v, %t", d, ok)
	}
	if d, ok := j.deny(flowOf("10.244.2.2", "10.244.1.2", "icmp", 0)); ok {
		t.Errorf("ICMP: got %+v", d)
	}
}

// TestJoinDenied: two nodes that each send ICMP in their pod's name, and see no more than their own end, know together that
// policies deny it.
func TestJoinDenied(t *testing.T) {
	somewhere := Finding{ID: "packet-lost-near", Place: "n2", Severity: Broken}
	probes := Probes{Sent: 2, Lost: 2, OnlyICMP: true, OnBehalf: true}
	there := Flow{Src: addr("10.244.2.2"), Dst: addr("10.244.1.2"), From: "n2", To: "n1"} // ICMP is denied, TCP is not
	near, far := FollowHere(policedNode("n2", "10.244.2.0/24", true), there), FollowHere(policedNode("n1", "10.244.1.0/24", true), there)
	near.Probes, near.Lost, far.Probes = probes, []Finding{somewhere}, Probes{Sent: 2, OnlyICMP: true, OnBehalf: true}
	got := Join(near, far)
	if got.Probes.Lost != 0 || got.Probes.Denied != 2 || got.Probes.Sent != 4 || len(got.Lost) != 1 || got.Lost[0].ID != "policy-denied" {
		t.Errorf("there: got %+v, %+v", got.Probes, got.Lost)
	}
	// In the other direction everything passes, but for what the receiver sends to ask for itself.
	back := Flow{Src: addr("10.244.1.2"), Dst: addr("10.244.2.2"), From: "n1", To: "n2"}
	near, far = FollowHere(policedNode("n1", "10.244.1.0/24", true), back), FollowHere(policedNode("n2", "10.244.2.0/24", true), back)
	near.Probes, far.Probes, far.Lost = Probes{Sent: 2, OnlyICMP: true}, probes, []Finding{somewhere}
	if got := Join(near, far); got.Failed() || got.Probes.Sent != 2 || len(got.Lost) != 0 {
		t.Errorf("back: got %+v, %+v", got.Probes, got.Lost)
	}
	near.Lost, near.Probes = []Finding{somewhere}, probes // what nobody denies stays a fault
	if got := Join(near, far); !got.Failed() || got.Probes.Lost != 2 || len(got.Lost) != 1 {
		t.Errorf("a fault: got %+v, %+v", got.Probes, got.Lost)
	}
}
