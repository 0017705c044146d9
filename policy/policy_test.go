package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/manifest"
)

// pods of the tests: shop/web, which names its port 8080, shop/db in both families, shop/node in the host's network, shop/old,
// which has ended, and admin/tool. Namespace admin has the label team=ops.
const pods = `
kind: Namespace
metadata: {name: admin, labels: {team: ops}}
---
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  containers: [{ports: [{name: http, containerPort: 8080}]}]
  initContainers: [{restartPolicy: Always, ports: [{name: proxy, containerPort: 15000}]}, {ports: [{name: gone, containerPort: 1}]}]
status: {podIPs: [{ip: 10.244.1.2}]}
---
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
status: {podIPs: [{ip: 10.244.1.3}, {ip: "fd00::3"}]}
---
kind: Pod
metadata: {name: node, namespace: shop, labels: {app: web}}
spec: {hostNetwork: true}
status: {podIPs: [{ip: 192.0.2.1}]}
---
kind: Pod
metadata: {name: old, namespace: shop, labels: {app: db}}
status: {phase: Succeeded, podIPs: [{ip: 10.244.1.3}]}
---
kind: Pod
metadata: {name: mapped, namespace: shop}
status: {podIPs: [{ip: "::ffff:10.244.3.2"}]}
---
kind: Pod
metadata: {name: tool, namespace: admin, labels: {app: tool}}
status: {podIPs: [{ip: 10.244.2.2}]}
`

// TestJudge is the meaning of single fields. test/policies holds whole policies against another judge.
func TestJudge(t *testing.T) {
	for _, test := range []struct {
		name, specs, from, to string // specs: of policies of namespace shop, a line each
		allowed               bool
	}{
		{"no policy", "", "db", "web:TCP:8080", true},
		{"all pods, no rules", "podSelector: {}", "db", "web:TCP:8080", false},
		{"without types, egress stays open", "podSelector: {}", "web", "198.51.100.1:TCP:80", true},
		{"without types, with egress rules", "{podSelector: {}, egress: [{to: [{podSelector: {}}]}]}", "web", "198.51.100.1:TCP:80", false},
		{"only egress", "{podSelector: {}, policyTypes: [Egress]}", "198.51.100.1", "web:TCP:8080", true},
		{"an empty list of peers is all", "{podSelector: {}, ingress: [{from: []}]}", "198.51.100.1", "web:TCP:8080", true},
		{"an empty rule is everything", "{podSelector: {}, ingress: [{}]}", "198.51.100.1", "web:SCTP:9", true},
		{"an empty selector is the namespace's pods", "{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}", "db", "web:TCP:8080", true},
		{"and no other's", "{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}", "admin/tool", "web:TCP:8080", false},
		{"one peer of two selectors", "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: db}}, namespaceSelector: {matchLabels: {team: ops}}}]}]}", "admin/tool", "web:TCP:8080", false},
		{"two peers of a selector each", "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: db}}}, {namespaceSelector: {matchLabels: {team: ops}}}]}]}", "admin/tool", "web:TCP:8080", true},
		{"the namespace's own name", "{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: admin}}}]}]}", "admin/tool", "web:TCP:8080", true},
		{"NotIn selects what has no such label", "{podSelector: {matchExpressions: [{key: tier, operator: NotIn, values: [x]}]}}", "db", "web:TCP:8080", false},
		{"an exception of one rule, allowed by another", "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.244.1.0/24]}}]}, {from: [{podSelector: {}}]}]}", "db", "web:TCP:8080", true},
		{"an exception", "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.244.1.0/24]}}]}]}", "db", "web:TCP:8080", false},
		{"an IPv4-mapped exception", `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.244.0.0/16, except: ["::ffff:10.244.1.0/120"]}}]}]}`, "db", "web:TCP:8080", false},
		{"an IPv4-mapped range", `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: "::ffff:10.244.1.3/128"}}]}]}`, "db", "web:TCP:8080", true},
		{"an IPv4-mapped address", `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.244.3.0/24}}]}]}`, "mapped", "web:TCP:8080", true},
		{"a port of no protocol is TCP's", "{podSelector: {}, ingress: [{ports: [{port: 8080}]}]}", "db", "web:UDP:8080", false},
		{"a protocol without a port", "{podSelector: {}, ingress: [{ports: [{protocol: UDP}]}]}", "db", "web:UDP:5", true},
		{"the end of a range", "{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 90}]}]}", "db", "web:TCP:90", true},
		{"behind a range", "{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 90}]}]}", "db", "web:TCP:91", false},
		{"a port's name", "{podSelector: {}, ingress: [{ports: [{port: http}]}]}", "db", "web:TCP:8080", true},
		{"a sidecar's", "{podSelector: {}, ingress: [{ports: [{port: proxy}]}]}", "db", "web:TCP:15000", true},
		{"an init container's, which has ended", "{podSelector: {}, ingress: [{ports: [{port: gone}]}]}", "db", "web:TCP:1", false},
		{"the name of the destination's port", "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: http}]}]}", "db", "web:TCP:8080", true},
		{"which an address has not", "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: http}]}]}", "db", "198.51.100.1:TCP:8080", false},
		{"the host's network is not selected", "podSelector: {}", "db", "node:TCP:80", true},
		{"and no peer by its labels", "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}", "node", "db:TCP:80", false},
		{"but one by its address", "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.1/32}}]}]}", "node", "db:TCP:80", true},
		{"a pod reaches itself", "{podSelector: {}, policyTypes: [Ingress, Egress]}", "web", "web:TCP:8080", true},
		{"two policies add up", "podSelector: {}\n{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}", "db", "web:TCP:8080", true},
		{"both ends must allow it", "{podSelector: {matchLabels: {app: db}}, policyTypes: [Egress]}\n{podSelector: {}, ingress: [{}]}", "db", "web:TCP:8080", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := snapshot(t, test.specs)
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

// TestNew: what an API server would have refused allows nothing, and is named. The rest applies.
func TestNew(t *testing.T) {
	for _, test := range []struct{ spec, want string }{
		{"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.300/8}}]}]}", `ingress[0], peer 1: the cidr "10.0.0.300/8" is not a range such as 10.1.0.0/16`},
		{"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [x]}}]}]}", `ingress[0], peer 1: the exception "x" is not a range such as 10.1.2.0/24`},
		{"{podSelector: {}, ingress: [{}, {from: [{}]}]}", "ingress[1], peer 1: it is empty, want an ipBlock, a podSelector or a namespaceSelector"},
		{"{podSelector: {}, egress: [{to: [{podSelector: {}}, {ipBlock: {cidr: 0.0.0.0/0}, podSelector: {}}]}]}", "egress[0], peer 2: it has an ipBlock and a selector, want one of them"},
		{"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}]}]}", `ingress[0], peer 1: the exception "10.0.0.0/8" is not a part of the cidr "10.0.0.0/8"`},
		{"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/9]}}]}]}", `ingress[0], peer 1: the exception "11.0.0.0/9" is not a part of the cidr "10.0.0.0/8"`},
		{"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [\"fd00::/64\"]}}]}]}", `ingress[0], peer 1: the exception "fd00::/64" is not a part of the cidr "10.0.0.0/8"`},
		{"{podSelector: {}, policyTypes: [Ingress, Ingress, Ingress]}", "policyTypes: there are 3, want Ingress, Egress or both"},
		{"{ingress: [{}], podSelector: {matchExpressions: [{key: a, operator: Like}]}}", `podSelector: "Like" is not a valid label selector operator: the policy is refused, it allows nothing`},
	} {
		s := snapshot(t, test.spec)
		r, skips := policy.New(s)
		if len(skips) != 1 || skips[0].Policy != "shop/p0" || skips[0].Err.Error() != test.want {
			t.Errorf("%s: got %v, want %q", test.spec, skips, test.want)
		}
		if closes := []string{"ingress: [{from", "Like"}; slices.ContainsFunc(closes, func(c string) bool { return strings.Contains(test.spec, c) }) && r.Judge(flow(t, s, "db", "web:TCP:80")).Allowed() {
			t.Errorf("%s allows a connection", test.spec)
		}
	}
}

// TestExceptions: however many exceptions an ipBlock has, all that is beside them is allowed, and nothing else is.
func TestExceptions(t *testing.T) {
	for _, n := range []int{1, 200, 20_000} {
		var except []string
		for i := range n {
			except = append(except, fmt.Sprintf("%q", fmt.Sprintf("2000::%x/128", 2*i+1)))
		}
		s := snapshot(t, `podSelector: {}, ingress: [{from: [{ipBlock: {cidr: "2000::/3", except: [`+strings.Join(except, ", ")+`]}}]}]`)
		r, skips := policy.New(s)
		if len(skips) > 0 {
			t.Errorf("with %d exceptions: %v", n, skips)
		}
		for from, want := range map[string]bool{"2000::": true, "2000::1": false, "2000::2": true, "3000::1": true, "4000::": false,
			fmt.Sprintf("2000::%x", 2*n-1): false, fmt.Sprintf("2000::%x", 2*n): true} {
			if got := r.Judge(flow(t, s, from, "db:TCP:80")).Allowed(); got != want {
				t.Errorf("with %d exceptions: %s is allowed: %v", n, from, got)
			}
		}
	}
}

// TestExplain: the sentences are those of the documentation.
func TestExplain(t *testing.T) {
	s := snapshot(t, "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 53, protocol: UDP}], to: [{namespaceSelector: {}}]}]}\npodSelector: {}")
	r, _ := policy.New(s)
	f := flow(t, s, "admin/tool", "web:TCP:8080")
	egress, ingress := r.Judge(f).Explain(f)
	if want := "no policy isolates admin/tool for egress"; egress != want {
		t.Errorf("got %q, want %q", egress, want)
	}
	if want := "shop/p1 isolates shop/web for ingress; no policy allows TCP 8080 from admin/tool"; ingress != want {
		t.Errorf("got %q, want %q", ingress, want)
	}
	got := r.Selecting(policy.Egress, f.To)[0].Describe(policy.Egress)
	if want := "UDP 53 to all pods of all namespaces"; len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// snapshot is the tests' pods with policies p0, p1, …
func snapshot(t *testing.T, specs string) (s policy.Snapshot) {
	t.Helper()
	text := pods
	for i, spec := range strings.Split(specs, "\n") {
		if spec != "" {
			if !strings.HasPrefix(spec, "{") {
				spec = "{" + spec + "}"
			}
			text += "---\nkind: NetworkPolicy\nmetadata: {name: p" + string(rune('0'+i)) + ", namespace: shop}\nspec: " + spec + "\n"
		}
	}
	if err := manifest.Read(strings.NewReader(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// flow is from a pod, or an address, to one, "NAME:PROTOCOL:PORT".
func flow(t *testing.T, s policy.Snapshot, from, to string) policy.Flow {
	t.Helper()
	end := func(name string) policy.Endpoint {
		if addr, err := netip.ParseAddr(name); err == nil {
			return policy.Endpoint{Addr: addr}
		}
		namespace, base, ok := strings.Cut(name, "/")
		if !ok {
			namespace, base = "shop", name
		}
		p, err := s.Find(namespace, base)
		if err != nil {
			t.Fatal(err)
		}
		return policy.Endpoint{Addr: p.Addrs[0], Pod: p}
	}
	parts := strings.Split(to, ":")
	port, err := netip.ParseAddrPort("0.0.0.0:" + parts[2])
	if err != nil {
		t.Fatal(err)
	}
	return policy.Flow{From: end(from), To: end(parts[0]), Protocol: policy.Protocol(parts[1]), Port: port.Port()}
}

// TestPodOrder: the newest of two pods is one of them, and the same whichever is asked.
func TestPodOrder(t *testing.T) {
	second := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct{ newer, older policy.Pod }{
		{policy.Pod{Created: second.Add(time.Second), UID: "a"}, policy.Pod{Created: second, UID: "b"}},
		{policy.Pod{Created: second, UID: "b"}, policy.Pod{Created: second, UID: "a"}},
		{policy.Pod{Created: second}, policy.Pod{}},
	} {
		if !test.newer.Newer(&test.older) || test.older.Newer(&test.newer) || test.newer.Newer(&test.newer) {
			t.Errorf("%+v is not newer than %+v, or not only", test.newer, test.older)
		}
	}
}

// TestPodEqual: two pods differ if one field does.
func TestPodEqual(t *testing.T) {
	pod := func(change func(*policy.Pod)) *policy.Pod {
		p := &policy.Pod{Namespace: "shop", Name: "web", UID: "u", Node: "n", Labels: map[string]string{"app": "web"},
			Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.2")}, Ports: []policy.Port{{Name: "http", Protocol: policy.TCP, Number: 80}}}
		change(p)
		return p
	}
	same := pod(func(*policy.Pod) {})
	if !same.Equal(pod(func(p *policy.Pod) { p.Created = p.Created.Local() })) {
		t.Error("a pod differs from itself")
	}
	for i, change := range []func(*policy.Pod){
		func(p *policy.Pod) { p.Namespace = "x" }, func(p *policy.Pod) { p.Name = "x" }, func(p *policy.Pod) { p.UID = "x" },
		func(p *policy.Pod) { p.Node = "x" }, func(p *policy.Pod) { p.Created = p.Created.Add(1) },
		func(p *policy.Pod) { p.Labels = map[string]string{"app": "x"} }, func(p *policy.Pod) { p.Addrs = nil },
		func(p *policy.Pod) { p.Ports[0].Name = "x" }, func(p *policy.Pod) { p.HostNetwork = true }, func(p *policy.Pod) { p.Ended = true },
	} {
		if same.Equal(pod(change)) {
			t.Errorf("change %d makes no difference", i)
		}
	}
}

// TestRefused: what an API server refuses in a policy is named in a sentence, and allows nothing: neither the pods that it
// selects are open for it, nor is another policy of the file left out.
func TestRefused(t *testing.T) {
	for spec, want := range map[string]string{
		"{podSelector: {}, policyTypes: [ingress]}":                                             `policyTypes: "ingress" is no direction, want Ingress or Egress`,
		"{podSelector: {}, policyTypes: [Egress, Both]}":                                        `policyTypes: "Both" is no direction, want Ingress or Egress`,
		"{podSelector: {}, ingress: [{ports: [{endPort: 9000}]}]}":                              "ingress[0], port 1: it has an endPort and no port, want both",
		"{podSelector: {}, ingress: [{ports: [{port: http, endPort: 9000}]}]}":                  `ingress[0], port 1: its port "http" is a name, want a number with an endPort`,
		"{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 70000}]}]}":                   "ingress[0], port 1: its endPort is 70000, want a number from its port 80 to 65535",
		"{podSelector: {}, ingress: [{ports: [{port: 9000, endPort: 80}]}]}":                    "ingress[0], port 1: its endPort is 80, want a number from its port 9000 to 65535",
		"{podSelector: {}, ingress: [{ports: [{port: 0, endPort: 9000}]}]}":                     "ingress[0], port 1: its port is 0, want a number from 1 to 65535",
		"{podSelector: {}, ingress: [{ports: [{port: 70000}]}]}":                                "ingress[0], port 1: its port is 70000, want a number from 1 to 65535",
		`{podSelector: {}, ingress: [{ports: [{port: ""}]}]}`:                                   `ingress[0], port 1: its port "" is no port's name`,
		`{podSelector: {}, ingress: [{ports: [{port: "8080"}]}]}`:                               `ingress[0], port 1: its port "8080" is no port's name`,
		"{podSelector: {}, ingress: [{ports: [{protocol: tcp, port: 8080}]}]}":                  `ingress[0], port 1: its protocol is "tcp", want TCP, UDP or SCTP`,
		"{podSelector: {}, ingress: [{from: [{}]}]}":                                            "ingress[0], peer 1: it is empty, want an ipBlock, a podSelector or a namespaceSelector",
		"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}, podSelector: {}}]}]}": "ingress[0], peer 1: it has an ipBlock and a selector, want one of them",
	} {
		s := snapshot(t, spec[1:len(spec)-1])
		s.Policies = append(s.Policies, policy.NetworkPolicy{})
		s.Policies[1].Name, s.Policies[1].Namespace = "other", "admin"
		r, skips := policy.New(s)
		if len(skips) != 1 || !strings.Contains(fmt.Sprint(skips[0].Err), want) {
			t.Errorf("%s: got %v, want %q", spec, skips, want)
		}
		for _, port := range []string{"web:TCP:80", "web:TCP:8080"} {
			if r.Judge(flow(t, s, "db", port)).Allowed() {
				t.Errorf("%s opens %s", spec, port)
			}
		}
		if len(r.Applying(policy.Ingress, policy.Endpoint{Pod: &policy.Pod{Namespace: "admin"}}).Isolating) != 1 {
			t.Errorf("%s: the policy of another namespace is left out", spec)
		}
	}
}
