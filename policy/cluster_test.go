package policy_test

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/manifest"
)

// nodes of the tests, for the pods of policy_test.go.
const nodes = `
---
{kind: Node, metadata: {name: n1, labels: {role: control}}, status: {addresses: [{type: Hostname, address: n1}, {type: InternalIP, address: 192.0.2.1}]}}
---
{kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 192.0.2.2}, {type: ExternalIP, address: 203.0.113.2}]}}
`

const (
	all      = "subject: {namespaces: {}}"
	fromAll  = "from: [{namespaces: {}}]"
	isolated = "\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: shop}\nspec: {podSelector: {}}\n"
	open     = "\nkind: NetworkPolicy\nmetadata: {name: open, namespace: shop}\nspec: {podSelector: {}, ingress: [{}]}\n"
)

// TestJudgeCluster is the meaning of single fields, and the order of rules, policies and tiers. test/policies holds whole
// policies against another judge.
func TestJudgeCluster(t *testing.T) {
	rule := func(action, rest string) string { return "{action: " + action + ", " + fromAll + rest + "}" }
	admin := func(priority, rules string) string {
		return "{tier: Admin, priority: " + priority + ", " + all + ", ingress: [" + rules + "]}"
	}
	baseline := func(rules string) string { return strings.Replace(admin("1", rules), "Admin", "Baseline", 1) }
	egress := func(to string) string {
		return "{tier: Admin, priority: 1, " + all + ", egress: [{action: Deny, to: [" + to + "]}]}"
	}
	deny, accept, pass := rule("Deny", ""), rule("Accept", ""), rule("Pass", "")
	ports := func(p string) string { return admin("1", rule("Deny", ", protocols: ["+p+"]")) }
	for _, test := range []struct {
		name, specs, policies, from, to string // specs: of ClusterNetworkPolicies c0, c1, …, a line each
		allowed                         bool
	}{
		{"the Admin tier denies", admin("1", deny), "", "db", "web:TCP:8080", false},
		{"before NetworkPolicies", admin("1", deny), open, "db", "web:TCP:8080", false},
		{"and accepts before them", admin("1", accept), isolated, "db", "web:TCP:8080", true},
		{"what passes is theirs", admin("1", pass+", "+accept), isolated, "db", "web:TCP:8080", false},
		{"and not the next policy's", admin("1", pass) + "\n" + admin("2", deny), "", "db", "web:TCP:8080", true},
		{"nor is what no rule matches denied", admin("1", rule("Deny", ", protocols: [{udp: {destinationPort: {number: 53}}}]")), "", "db", "web:TCP:8080", true},
		{"the first rule decides", admin("1", accept+", "+deny), "", "db", "web:TCP:8080", true},
		{"the lower priority is asked first", admin("2", deny) + "\n" + admin("1", accept), "", "db", "web:TCP:8080", true},
		{"of one priority the first name", admin("1", deny) + "\n" + admin("1", accept), "", "db", "web:TCP:8080", false},
		{"the Baseline tier denies", baseline(deny), "", "db", "web:TCP:8080", false},
		{"where no NetworkPolicy isolates", baseline(deny), open, "db", "web:TCP:8080", true},
		{"whose direction it is not", strings.ReplaceAll(strings.ReplaceAll(baseline(deny), "ingress", "egress"), "from", "to"), open, "db", "web:TCP:8080", false},
		{"nor accepts what one denies", baseline(accept), isolated, "db", "web:TCP:8080", false},
		{"what passes there is allowed", baseline(pass + ", " + deny), "", "db", "web:TCP:8080", true},
		{"what the Admin tier passes on is Baseline's", admin("1", pass) + "\n" + baseline(deny), "", "db", "web:TCP:8080", false},
		{"peers are pods, no addresses", admin("1", deny), "", "198.51.100.1", "web:TCP:8080", true},
		{"nor pods of the host's network", admin("1", deny), "", "node", "web:TCP:8080", true},
		{"which are no subjects", admin("1", deny), "", "web", "node:TCP:80", true},
		{"a pod reaches itself", admin("1", deny), "", "web", "web:TCP:8080", true},
		{"a subject's namespaces", strings.Replace(admin("1", deny), "namespaces: {}", "namespaces: {matchLabels: {team: ops}}", 1), "", "db", "web:TCP:8080", true},
		{"a subject's pods", strings.Replace(admin("1", deny), "namespaces: {}", "pods: {podSelector: {matchLabels: {app: web}}}", 1), "", "db", "web:TCP:8080", false},
		{"and no others", strings.Replace(admin("1", deny), "namespaces: {}", "pods: {podSelector: {matchLabels: {app: web}}}", 1), "", "web", "db:TCP:8080", true},
		{"of its namespaces", strings.Replace(admin("1", deny), "namespaces: {}", "pods: {namespaceSelector: {matchLabels: {team: ops}}, podSelector: {}}", 1), "", "db", "web:TCP:8080", true},
		{"a port", ports("{tcp: {destinationPort: {number: 8080}}}"), "", "db", "web:TCP:8080", false},
		{"of one protocol", ports("{udp: {destinationPort: {number: 8080}}}"), "", "db", "web:TCP:8080", true},
		{"or several", ports("{udp: {destinationPort: {number: 8080}}}, {sctp: {destinationPort: {number: 8080}}}"), "", "db", "web:SCTP:8080", false},
		{"a range's end", ports("{tcp: {destinationPort: {range: {start: 80, end: 8080}}}}"), "", "db", "web:TCP:8080", false},
		{"and beyond", ports("{tcp: {destinationPort: {range: {start: 80, end: 8080}}}}"), "", "db", "web:TCP:8081", true},
		{"a port's name", ports("{destinationNamedPort: http}"), "", "db", "web:TCP:8080", false},
		{"which another pod has not", ports("{destinationNamedPort: http}"), "", "web", "db:TCP:8080", true},
		{"networks", egress("{networks: [198.51.100.0/25, 198.51.100.1/32]}"), "", "web", "198.51.100.100:TCP:80", false},
		{"which have pods, too", egress("{networks: [0.0.0.0/0]}"), "", "web", "db:TCP:80", false},
		{"of a family", egress("{networks: ['::/0']}"), "", "web", "db:TCP:80", true},
		{"nodes", egress("{nodes: {matchLabels: {role: control}}}"), "", "web", "192.0.2.1:TCP:80", false},
		{"and no others", egress("{nodes: {matchLabels: {role: control}}}"), "", "web", "192.0.2.2:TCP:80", true},
		{"all nodes", egress("{nodes: {}}"), "", "db", "203.0.113.2:TCP:80", false},
		{"pods of a namespace", egress("{pods: {namespaceSelector: {matchLabels: {team: ops}}, podSelector: {}}}"), "", "web", "admin/tool:TCP:80", false},
		{"a peer of several", egress("{networks: [10.9.0.0/16]}, {namespaces: {matchLabels: {team: ops}}}"), "", "web", "admin/tool:TCP:80", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := clusterSnapshot(t, test.specs, test.policies)
			r, skips := policy.New(s)
			if len(skips) > 0 {
				t.Fatal(skips)
			}
			f := flow(t, s, test.from, test.to)
			if v := r.Judge(f); v.Allowed() != test.allowed {
				t.Errorf("%s: got %+v, want allowed %v", f, v, test.allowed)
			}
		})
	}
}

// TestNewCluster: of what cannot be understood, rules that accept match nothing, and others deny everything.
func TestNewCluster(t *testing.T) {
	peers := func(p string) string { return ", ingress: [{action: A, from: [" + p + "]}]" }
	ports := func(p string) string { return ", ingress: [{action: A, " + fromAll + ", protocols: [" + p + "]}]" }
	const noPeer = "ingress[0], peer 1: it has 0 known fields, want one: namespaces, pods, nodes or networks"
	const unread = "egress[0], peer 1: the cluster's Nodes cannot be read yet, want the right to list and watch them"
	for _, test := range []struct{ spec, want string }{
		{peers("{}"), noPeer},
		{peers("{}, {namespaces: {}}"), noPeer},
		{peers("{namespaces: {}, pods: {podSelector: {}}}"), "ingress[0], peer 1: it has 2 known fields, want one: namespaces, pods, nodes or networks"},
		{peers("{namespaces: {matchExpressions: [{key: a, operator: Like}]}}"), `ingress[0], peer 1: "Like" is not a valid label selector operator`},
		{peers(""), "ingress[0]: it has no peers, want at least one"},
		{ports("{}"), "ingress[0], protocol 1: it has 0 known fields, want one: tcp, udp, sctp or destinationNamedPort"},
		{ports("{tcp: {destinationPort: {number: 1}}, destinationNamedPort: x}"), "ingress[0], protocol 1: it has 2 known fields, want one: tcp, udp, sctp or destinationNamedPort"},
		{ports("{udp: {}}"), "ingress[0], protocol 1: UDP: want a destinationPort with either a number or a range"},
		{ports("{tcp: {destinationPort: {}}}"), "ingress[0], protocol 1: TCP: want a destinationPort with either a number or a range"},
		{ports("{tcp: {destinationPort: {number: 70000}}}"), "ingress[0], protocol 1: TCP: the port 70000 is not from 1 to 65535"},
		{ports("{tcp: {destinationPort: {range: {start: 9, end: 8}}}}"), "ingress[0], protocol 1: TCP: 9 to 8 is no range from 1 to 65535"},
		{", egress: [{name: out, action: A, to: [{networks: [10.0.0.300/8]}]}]", `egress[0], peer 1: the network "10.0.0.300/8" is not a range such as 10.1.0.0/16`},
		{", egress: [{action: A, to: [{nodes: {matchExpressions: [{key: a, operator: Like}]}}]}]", `egress[0], peer 1: "Like" is not a valid label selector operator`},
		{", egress: [{action: A, to: [{nodes: {}}, {namespaces: {}}]}]", unread},
		{", egress: [{action: A, to: [{domainNames: [example.com]}]}]", "egress[0], peer 1: domainNames are not supported"},
	} {
		for _, action := range []policy.Action{policy.Accept, policy.Deny, policy.Pass} {
			// The other tier denies what the rule should not accept.
			spec := "{tier: Admin, priority: 1, " + all + strings.Replace(test.spec, "action: A", "action: "+string(action), 1) + "}"
			s := clusterSnapshot(t, spec, "")
			s.NoNodes = test.want == unread
			r, skips := policy.New(s)
			if len(skips) != 1 || skips[0].Kind != policy.ClusterKind || skips[0].Policy != "c0" || skips[0].Err.Error() != test.want {
				t.Fatalf("%s: got %v, want %q", spec, skips, test.want)
			}
			v := r.Judge(flow(t, s, "db", "web:UDP:9"))
			decisions := []*policy.Decision{v.Egress.Decision, v.Ingress.Decision}
			denied := slices.ContainsFunc(decisions, func(d *policy.Decision) bool { return d != nil && d.Action == policy.Deny })
			accepted := slices.ContainsFunc(decisions, func(d *policy.Decision) bool { return d != nil && d.Action == policy.Accept })
			if accepted || denied != (action != policy.Accept) {
				t.Errorf("%s: got %+v, %+v", spec, decisions[0], decisions[1])
			}
		}
	}
}

// TestUnknownParts: an action that is unknown denies, a subject selects nothing, a tier has no policy; and names of domains
// are left out of a rule that accepts, which keeps its other peers.
func TestUnknownParts(t *testing.T) {
	for _, test := range []struct {
		spec, want string
		allowed    bool
	}{
		{"{tier: Admin, priority: 1, " + all + ", ingress: [{action: Log, " + fromAll + "}]}", `ingress[0]: there is no action "Log", want Accept, Deny or Pass: the rule denies everything`, false},
		{"{tier: Admin, priority: 1, subject: {}, ingress: [{action: Deny, " + fromAll + "}]}", "subject: want either namespaces or pods", true},
		{"{tier: Middle, priority: 1, " + all + ", ingress: [{action: Deny, " + fromAll + "}]}", `tier: there is no tier "Middle", want Admin or Baseline: the policy is left out`, true},
		{"{tier: Admin, priority: 1, " + all + ", egress: [{action: Accept, to: [{domainNames: [a.example]}, {namespaces: {}}]}, {action: Deny, to: [{namespaces: {}}]}]}", "egress[0], peer 1: domainNames are not supported", true},
	} {
		s := clusterSnapshot(t, "{tier: Admin, "+all+"}", "")
		spec := &s.ClusterPolicies[0].Spec // as an API server might have it: files have no such subject, and no such tier
		*spec = policy.ClusterSpec{}
		if err := yaml.UnmarshalStrict([]byte(test.spec), spec); err != nil {
			t.Fatal(err)
		}
		r, skips := policy.New(s)
		if len(skips) != 1 || skips[0].Err.Error() != test.want {
			t.Errorf("%s: got %v, want %q", test.spec, skips, test.want)
		}
		if v := r.Judge(flow(t, s, "db", "web:TCP:80")); v.Allowed() != test.allowed {
			t.Errorf("%s: got %+v, want allowed %v", test.spec, v, test.allowed)
		}
	}
}

// TestExplainCluster: the sentences are those of the documentation.
func TestExplainCluster(t *testing.T) {
	s := clusterSnapshot(t, "{tier: Admin, priority: 1, "+all+", ingress: [{name: no tools, action: Deny, from: [{pods: {namespaceSelector: {matchLabels: {team: ops}}, podSelector: {}}}], "+
		"protocols: [{tcp: {destinationPort: {range: {start: 80, end: 90}}}}, {destinationNamedPort: http}]}]}\n"+
		"{tier: Baseline, priority: 1, "+all+", egress: [{action: Accept, to: [{nodes: {}}, {networks: [10.244.1.2/32]}, {domainNames: [a.example]}]}, {action: Pass, to: [{namespaces: {}}]}]}", "")
	r, _ := policy.New(s)
	f := flow(t, s, "admin/tool", "web:TCP:8080")
	egress, ingress := r.Judge(f).Explain(f)
	if want := "ClusterNetworkPolicy c1 accepts TCP 8080 to shop/web in the Baseline tier, by its rule egress[0]"; egress != want {
		t.Errorf("got %q, want %q", egress, want)
	}
	if want := "ClusterNetworkPolicy c0 denies TCP 8080 from admin/tool in the Admin tier, by its rule no tools"; ingress != want {
		t.Errorf("got %q, want %q", ingress, want)
	}
	got := append(r.Applying(policy.Ingress, f.To).Admin[0].Describe(policy.Ingress), r.Applying(policy.Egress, f.To).Baseline[0].Describe(policy.Egress)...)
	want := []string{
		"denies TCP 80–90 and port http from all pods of namespaces with team=ops",
		"accepts everything to all nodes, 10.244.1.2/32 and a.example (domain names are not supported)",
		"passes on everything to all pods of all namespaces",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// clusterSnapshot is the tests' pods and nodes, with ClusterNetworkPolicies c0, c1, … and other policies.
func clusterSnapshot(t *testing.T, specs, policies string) (s policy.Snapshot) {
	t.Helper()
	text := pods + nodes + "---" + policies
	for i, spec := range strings.Split(specs, "\n") {
		text += "\n---\nkind: ClusterNetworkPolicy\napiVersion: policy.networking.k8s.io/v1alpha2\nmetadata: {name: c" + string(rune('0'+i)) + "}\nspec: " + spec + "\n"
	}
	if err := manifest.Read(strings.NewReader(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}
