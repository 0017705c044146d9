package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const shop = `
{kind: NetworkPolicy, metadata: {name: deny-all, namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}
---
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: db}}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.9.0.0/16]}}]
    ports: [{port: http}, {protocol: UDP, port: 5000, endPort: 5010}]
---
{kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}}, egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}}
---
{kind: Deployment, metadata: {name: web, namespace: shop}, spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{ports: [{name: http, containerPort: 8080}]}]}}}}
---
{kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, status: {podIPs: [{ip: 10.244.0.3}]}}
`

// TestPolicyTest: pods, addresses, names of ports, families, and what is wrong with arguments.
func TestPolicyTest(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"shop/db shop/web:http", "allowed: TCP 8080 from shop/db to shop/web\n  egress: shop/db allows TCP 8080 to shop/web\n  ingress: shop/web allows TCP 8080 from shop/db\n"},
		{"10.244.0.3 shop/web:8080/tcp", "allowed: TCP 8080 from shop/db to shop/web\n"},
		{"-n shop db web:81", "denied: TCP 81 from shop/db to shop/web\n  egress: shop/db allows TCP 81 to shop/web\n" +
			"  ingress: shop/deny-all and shop/web isolate shop/web for ingress; no policy allows TCP 81 from shop/db\n"},
		{"10.9.1.1 shop/web:5000/udp", "denied: UDP 5000 from 10.9.1.1 to shop/web\n  egress: 10.9.1.1 is no pod\n"},
		{"10.8.1.1 shop/web:5010/UDP", "allowed: UDP 5010 from 10.8.1.1 to shop/web\n"},
		{"fd00::1 shop/web:8080", "denied: TCP 8080 from fd00::1 to shop/web\n"},
		{"fd00::1 [fd00::2]:8080", "allowed: TCP 8080 from fd00::1 to fd00::2\n"},
		{"shop/db -o json shop/web:81", `"allowed": false`},
		{"fd00::1 192.0.2.1:80", "fd00::1 and 192.0.2.1:80 have no address of the same family"},
		{"nobody shop/web:80", "there is no pod default/nobody"},
		{"shop/db shop/web", `"shop/web": want a pod or an address, a colon and a port, such as shop/web-0:80/tcp`},
		{"shop/db shop/web:0", `the port is "0", want a number from 1 to 65535, or the name of a port of the pod`},
		{"shop/db shop/web:https", `the port is "https", want a number`},
		{"shop/db shop/web:8/icmp", `the protocol is "icmp", want tcp, udp or sctp`},
	} {
		got, err := runPolicy("test " + test.args)
		text := got
		if err != nil && !errors.Is(err, errFindings) {
			text = err.Error()
		}
		if !strings.Contains(text, test.want) {
			t.Errorf("%s: got %q, want %q", test.args, text, test.want)
		}
		if denied := strings.HasPrefix(test.want, "denied"); denied != (errors.Is(err, errFindings) && strings.HasPrefix(got, "denied")) {
			t.Errorf("%s: the error is %v", test.args, err)
		}
	}
}

func TestPolicyOfPod(t *testing.T) {
	got, err := runPolicy("shop/web")
	want := `shop/web
  ingress: isolated by shop/deny-all, shop/web, which allow
    shop/web: TCP http and UDP 5000–5010 from pods with app=db of namespace shop and 10.0.0.0/8 without 10.9.0.0/16
  egress: isolated by shop/deny-all, nothing is allowed
`
	if err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for args, want := range map[string]string{
		"192.0.2.1":    "192.0.2.1 is no pod's address",
		"-f /none web": "lstat /none: no such file or directory",
	} {
		if _, err := runPolicy(args); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

// TestPolicyTiers: what the Admin tier does comes first; the Baseline tier shows where no NetworkPolicy isolates.
func TestPolicyTiers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tiers.yaml")
	text := shop + `
---
{kind: Pod, metadata: {name: tool, namespace: admin}}
---
kind: ClusterNetworkPolicy
metadata: {name: tools}
spec:
  {tier: Admin, priority: 5, subject: {namespaces: {}}, egress: [{action: Accept, to: [{nodes: {}}, {domainNames: [a.example]}]}],
   ingress: [{name: ops, action: Pass, from: [{namespaces: {matchLabels: {team: ops}}}]}, {action: Deny, from: [{pods: {podSelector: {matchLabels: {app: web}}}}]}]}
---
kind: ClusterNetworkPolicy
metadata: {name: rest}
spec: {tier: Baseline, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 22}}}]}]}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const warning = "warning: ClusterNetworkPolicy tools: egress[0], peer 2: domainNames are not supported\n"
	const admin = `  ingress: the Admin tier is asked first
    tools: passes on everything from all pods of namespaces with team=ops
    tools: denies everything from pods with app=web of all namespaces
`
	const out = `  egress: the Admin tier is asked first
    tools: accepts everything to all nodes and a.example (domain names are not supported)
`
	for args, want := range map[string]string{
		"shop/web": "shop/web\n" + admin + `  ingress: isolated by shop/deny-all, shop/web, which allow
    shop/web: TCP http and UDP 5000–5010 from pods with app=db of namespace shop and 10.0.0.0/8 without 10.9.0.0/16
` + out + "  egress: isolated by shop/deny-all, nothing is allowed\n",
		"admin/tool": "admin/tool\n" + admin + `  ingress: no NetworkPolicy isolates the pod, the Baseline tier is asked, all else is allowed
    rest: denies TCP 22 from all pods of all namespaces
` + out + "  egress: no NetworkPolicy isolates the pod, all else is allowed\n",
		"-o json admin/tool":           `"baseline": [` + "\n      " + `"rest: denies TCP 22`,
		"test shop/web admin/tool:80":  "  ingress: ClusterNetworkPolicy tools denies TCP 80 from shop/web in the Admin tier, by its rule ingress[1]\n",
		"test admin/tool admin/tool:1": "allowed: TCP 1 from admin/tool to admin/tool\n",
	} {
		got, err := runPolicy(args + " --filename=" + file)
		if err != nil && !errors.Is(err, errFindings) {
			t.Error(err)
		}
		if !strings.HasPrefix(got, warning) || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", args, got, want)
		}
	}
}

func runPolicy(args string) (string, error) {
	c := root()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetIn(strings.NewReader(shop))
	words := strings.Fields(args)
	if !strings.Contains(args, "--filename") {
		words = append(words, "--filename=-")
	}
	c.SetArgs(append([]string{"policy"}, words...))
	err := c.Execute()
	return out.String(), err
}

// TestPolicyLeftOut: a policy that costs the pod's node too much is named, and what it allows is not.
func TestPolicyLeftOut(t *testing.T) {
	r := restrictions{"shop/web", direction{Policies: []string{"shop/big", "shop/web"}, Rules: []string{"shop/web: everything from everywhere"},
		LeftOut: []string{"shop/big"}}, direction{}, nil}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	want := "shop/web\n  ingress: isolated by shop/big, shop/web, nothing is allowed: the pod's node leaves out what costs it more than " +
		"--network-policy-budget\n    left out: shop/big\n  egress: no NetworkPolicy isolates the pod, everything is allowed\n"
	if text.String() != want {
		t.Errorf("got %q, want %q", text.String(), want)
	}
}

// TestPolicyAudit: what nodes that audit have counted is there by policy, for all nodes and for a pod, and a node that cannot be
// asked is named.
func TestPolicyAudit(t *testing.T) {
	const counts = `{"family":"IPv4","direction":"ingress","policies":"shop/deny,shop/web","packets":5},
		{"family":"IPv6","direction":"ingress","policies":"shop/deny,shop/web","packets":7},{"family":"IPv4","direction":"egress","policies":"shop/deny","packets":2},
		{"family":"IPv4","direction":"ingress","policies":"shop/deny","packets":40},{"family":"IPv4","direction":"ingress","policies":"guard","packets":3},
		{"family":"IPv4","direction":"egress","policies":"","packets":9},{"family":"Ethernet","direction":"egress","policies":"","packets":1}`
	answer := func(policies string) string {
		return `{"schema":1,"nodes":[{"node":"n1","findings":[],"policies":` + policies + `}]}`
	}
	deny := `{"kind":"NetworkPolicy","apiVersion":"networking.k8s.io/v1","metadata":{"name":"deny","namespace":"shop"},"spec":{"podSelector":{},"policyTypes":["Ingress","Egress"]}}`
	web := `{"kind":"NetworkPolicy","apiVersion":"networking.k8s.io/v1","metadata":{"name":"web","namespace":"shop"},"spec":{"podSelector":{"matchLabels":{"app":"web"}},"policyTypes":["Ingress"]}}`
	pod := `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-0","namespace":"shop","labels":{"app":"web"}},"spec":{"nodeName":"n1"},"status":{"phase":"Running","podIPs":[{"ip":"10.244.1.2"}]}}`
	set := strings.TrimSuffix(ownSet, "}") + `,"spec":{"template":{}}}`
	cluster := list(set, podJSON("twill-abc", "n1", "DaemonSet", "1"), deny, web, pod)
	const isolated = "shop/web-0\n  ingress: isolated by shop/deny, shop/web, nothing is allowed\n  egress: isolated by shop/deny, nothing is allowed\n"
	k := newFakeKubectl(t, map[string]string{"get.json": cluster})
	for _, test := range []struct{ name, exec, args, want string }{
		{"all nodes", answer(`{"enforced":false,"audit":true,"audited":[` + counts + `]}`), "policy", `NODE  POLICIES  PACKETS  DIRECTION  WOULD BE DENIED BY
n1    audit     40       ingress    shop/deny
n1    audit     12       ingress    shop/deny,shop/web
n1    audit     9        egress     no policy: no pod is known to have the address
n1    audit     3        ingress    guard
n1    audit     2        egress     shop/deny
n1    audit     1        egress     no policy: frames that their pods may not send
`},
		{"no node audits", answer(`{"enforced":true}`), "policy", "NODE  POLICIES  PACKETS  DIRECTION  WOULD BE DENIED BY\nn1    enforced  –        –          –\n"},
		{"for programs", answer(`{"enforced":false,"audit":true,"audited":[` + counts + `]}`), "policy -o json",
			`"denied": [` + "\n        {\n          \"direction\": \"ingress\",\n          \"policies\": \"shop/deny\",\n          \"packets\": 40\n        },"},
		{"a pod", answer(`{"enforced":false,"audit":true,"audited":[` + counts + `]}`), "policy shop/web-0", isolated +
			"  audit: nothing is enforced on n1; these policies would have denied there since they changed, of all pods that have them\n" +
			"    ingress, shop/deny,shop/web: 12 packets\n    egress, shop/deny: 2 packets\n"},
		{"a pod without denials", answer(`{"enforced":false,"audit":true}`), "policy shop/web-0", isolated +
			"  audit: nothing is enforced on n1; these policies would have denied nothing there since they changed\n"},
		{"a pod of a node that enforces", answer(`{"enforced":true}`), "policy shop/web-0", isolated},
		{"silent", "no JSON", "policy", "✗ n1: node n1 printed no JSON"},
		{"files", "", "policy -f .", "which pod? want NAMESPACE/POD: what an audit has counted is in a cluster, and not in files"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(k.dir, "exec"), []byte(test.exec), 0o600); err != nil {
				t.Fatal(err)
			}
			out, code := k.run(strings.Fields(test.args)...)
			want := map[string]int{"silent": 1, "files": 2}[test.name]
			if whole := test.name != "for programs" && want == 0; code != want || !strings.Contains(out, test.want) || whole && out != test.want {
				t.Errorf("exits %d, want %d:\n%s\nwant\n%s", code, want, out, test.want)
			}
		})
	}
	if asked := k.asked(); !strings.Contains(asked, "get daemonsets.apps,pods --output=json --namespace=kube-twill ") {
		t.Errorf("agents are not looked for in their namespace: kubectl %s", asked)
	}
}
