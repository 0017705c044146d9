package doctor

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
)

// enforcing is a healthy node whose agent enforces network policies.
func enforcing() Facts {
	f := healthy()
	f.Policies.Wanted = true
	f.Agent.Policies = &PolicyStatus{Enforced: true}
	f.Sysctls["net/bridge/bridge-nf-call-iptables"] = "1"
	return f
}

// TestPolicies: who enforces network policies, and what keeps them from being enforced.
func TestPolicies(t *testing.T) {
	chain := func(name, tool string) func(*Facts) {
		return func(f *Facts) {
			f.Chains = append(f.Chains, rules.Chain{Family: "ip", Table: "filter", Name: name, Tool: tool})
		}
	}
	table := func(name string) func(*Facts) {
		return func(f *Facts) { f.Chains = append(f.Chains, rules.Chain{Family: "inet", Table: name, Name: "x"}) }
	}
	device := func(name string) func(*Facts) {
		return func(f *Facts) { f.Interfaces = append(f.Interfaces, netstate.Interface{Name: name}) }
	}
	for name, alter := range map[string]func(*Facts){
		"kube-router": chain("KUBE-NWPLCY-X7", "iptables"), "Calico": chain("cali-FORWARD", ""), "Cilium": device("cilium_net"),
		"kube-network-policies": table("kube-network-policies"), "Antrea": device("antrea-gw0"),
		"Weave's weave-npc": chain("WEAVE-NPC", "iptables"),
	} {
		f := enforcing()
		alter(&f)
		if got := Check(f); len(got) != 1 || got[0].ID != "policy-engines-both" || got[0].Object != name {
			t.Errorf("%s beside Twill: got %+v", name, got)
		}
		f.Policies.Wanted, f.Agent.Policies, f.Policies.Count = false, nil, 3
		if got := Check(f); len(got) > 0 {
			t.Errorf("%s alone: got %+v", name, got)
		}
		if got := NewStatus(f).Policies; got.String() != name {
			t.Errorf("%s alone: the status is %q", name, got)
		}
	}
	for want, alter := range map[string]func(*Facts){
		"policies-not-enforced: NetworkPolicies: 2 exist, and nothing on this node enforces them (expected something that enforces them)": func(f *Facts) {
			*f = healthy()
			f.Policies.Count = 2
		},
		"policies-not-enforced: twilld: no buffer space (expected enforced by twilld --network-policy)": func(f *Facts) {
			f.Agent.Policies = &PolicyStatus{Error: "no buffer space"}
		},
		"policies-not-enforced: the tables twill-policy: not as they should be: + filter ip in-1 {tcp dport 80 accept; counter drop}, " +
			"and 1 more (expected enforced by twilld --network-policy)": func(f *Facts) {
			f.Policies.Plan = netstate.Plan{{Want: netstate.Filter{Family: netstate.IPv4, Name: "in-1", Rules: "tcp dport 80 accept\ncounter drop"}},
				{Want: netstate.Hook{Family: netstate.IPv4}}}
		},
		"policies-ipvs: kube-proxy: the device kube-ipvs0 is there: its mode is IPVS (expected mode nftables or iptables)": device("kube-ipvs0"),
		"br-netfilter-missing: network policies: net/bridge/bridge-nf-call-iptables = 0 (expected net/bridge/bridge-nf-call-iptables = 1)": func(f *Facts) {
			f.Sysctls["net/bridge/bridge-nf-call-iptables"] = "0"
			f.Plan = netstate.Plan{{Want: netstate.Sysctl{Name: "net/bridge/bridge-nf-call-iptables", Value: "1"},
				Was: netstate.Sysctl{Name: "net/bridge/bridge-nf-call-iptables", Value: "0"}}}
		},
	} {
		f := enforcing()
		alter(&f)
		if got := Check(f); len(got) != 1 || got[0].ID+": "+got[0].evidence() != want {
			t.Errorf("want %s, got %+v", want, got)
		}
	}
	claimed := enforcing()
	claimed.Agent.Policies.Claims, claimed.Agent.Policies.Claimed = []string{"the status of pod a/b has 10.244.1.2", "c"}, 40
	if got := Check(claimed); len(got) != 1 || got[0].ID != "address-claimed" || got[0].Count != 40 || got[0].Actual != claimed.Agent.Policies.Claims[0] {
		t.Errorf("claimed addresses: got %+v", got)
	}
	left := enforcing()
	left.Agent.Policies.LeftOut, left.Agent.Policies.Refused = []string{"shop/big"}, []string{"guard"}
	if got := Check(left); len(got) != 1 || got[0].ID != "policy-left-out" || got[0].Object != "NetworkPolicy shop/big" || got[0].Count != 2 || len(got[0].More) != 1 ||
		!strings.HasPrefix(got[0].More[0], "ClusterNetworkPolicy guard: ") {
		t.Errorf("policies beyond the budget: got %+v", got)
	}
	unmarked := enforcing()
	mark := netstate.Port{Bridge: "cni0", MTU: 1450, Addrs: "10.244.1.2"}.Alias()
	unmarked.Agent.Policies.Unmarked = map[string]string{"veth1": mark, "veth2": "somebody's", "veth'; true '": mark}
	if got := Check(unmarked); len(got) != 1 || got[0].ID != "pod-port-unmarked" || got[0].Object != "veth1" ||
		got[0].Command != "ip link set dev 'veth1' alias '"+mark+"'" {
		t.Errorf("a port without its mark: got %+v", got)
	}
	for name, f := range map[string]Facts{"enforced": enforcing(), "off": healthy()} {
		if got := Check(f); len(got) > 0 {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	f := healthy()
	device("kube-ipvs0")(&f)
	if got := Check(f); len(got) > 0 {
		t.Errorf("IPVS without policies: got %+v", got)
	}
}

// auditing is a healthy node whose agent audits network policies.
func auditing() Facts {
	f := enforcing()
	f.Policies.Audit = true
	f.Agent.Policies = &PolicyStatus{Audit: true, Audited: []netstate.Denied{{Family: "IPv4", Direction: "ingress", Policies: "shop/db", Packets: 7}}}
	return f
}

// TestAudit: it is said that nothing is enforced, unless another engine does, and what could not be closed is not called so.
func TestAudit(t *testing.T) {
	other, left, broken := auditing(), auditing(), auditing()
	other.Interfaces = append(other.Interfaces, netstate.Interface{Name: "cilium_net"})
	left.Agent.Policies.LeftOut = []string{"shop/big"}
	broken.Agent.Policies.Error = "no buffer space"
	const audit = "policies-not-enforced: twilld --network-policy=audit: they are audited: what they deny is counted, and passes " +
		"(expected enforced by twilld --network-policy)"
	for _, test := range []struct {
		name, status string
		f            Facts
		want         []string
	}{
		{"audit", "audit", auditing(), []string{audit}},
		{"beside another engine", "audit Cilium", other, nil},
		{"beyond the budget", "audit", left, []string{audit, "policy-left-out: NetworkPolicy shop/big: it costs the node more, and the pods that " +
			"it selects would be closed if policies were enforced (expected within --network-policy-budget)"}},
		{"failing", "not audited", broken, []string{audit, "policies-not-enforced: twilld: no buffer space (expected audited by twilld --network-policy)"}},
	} {
		var got []string
		for _, f := range checkAll(test.f) {
			got = append(got, f.ID+": "+f.evidence())
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
		if s := NewStatus(test.f).Policies; s.Enforced || !s.Audit || s.String() != test.status || len(s.Audited) != 1 {
			t.Errorf("%s: the status is %+v, %s", test.name, s, s)
		}
	}
}

// TestUnenforced: a workstation knows whether there are policies, and each node whether anything enforces them.
func TestUnenforced(t *testing.T) {
	other := healthy()
	other.Interfaces = append(other.Interfaces, netstate.Interface{Name: "cilium_net"})
	for name, test := range map[string]struct {
		f     Facts
		count int
		want  int
	}{"nothing": {healthy(), 2, 1}, "no policies": {healthy(), 0, 0}, "Twill": {enforcing(), 2, 0}, "another engine": {other, 2, 0}} {
		d := Diagnose(test.f, 0)
		d.Unenforced(test.count)
		d.Unenforced(test.count)
		if len(d.Findings) != test.want || test.want > 0 && (d.Findings[0].ID != "policies-not-enforced" || d.Findings[0].Place != "n1" || !d.Failed()) {
			t.Errorf("%s: got %+v", name, d.Findings)
		}
	}
}

// TestPolicyStatus: the status says in a word who enforces policies, and in a line why not.
func TestPolicyStatus(t *testing.T) {
	broken := enforcing()
	broken.Agent.Policies = &PolicyStatus{Error: "no buffer space"}
	var text bytes.Buffer
	r := StatusReport{Nodes: []Status{NewStatus(healthy()), NewStatus(enforcing()), NewStatus(broken)}}
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(text.String(), "\n")
	for i, want := range []string{" – ", " enforced ", " not enforced "} {
		if !strings.Contains(lines[i+1], want) {
			t.Errorf("line %d: want %q in %q", i+1, want, lines[i+1])
		}
	}
	if want := "✗ n1: network policies are not enforced: twilld: no buffer space"; lines[4] != want {
		t.Errorf("got %q, want %q", lines[4], want)
	}
	if NewStatus(healthy()).Policies != nil || fmt.Sprint(NewStatus(enforcing()).Policies) != "enforced" {
		t.Errorf("got %v and %v", NewStatus(healthy()).Policies, NewStatus(enforcing()).Policies)
	}
}
