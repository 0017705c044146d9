package manifest_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/manifest"
)

// TestRead: lists, what makes pods, defaults, and kinds that do not matter.
func TestRead(t *testing.T) {
	var s policy.Snapshot
	err := manifest.Read(strings.NewReader(`
# nothing but a comment
---
kind: List
items:
- {kind: Deployment, metadata: {name: web}, spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{ports: [{containerPort: 80}]}]}}}}
- {kind: CronJob, metadata: {name: job, namespace: shop}, spec: {jobTemplate: {spec: {template: {metadata: {labels: {app: job}}}}}}}
- {kind: Pod, metadata: {name: cache, uid: u-1, creationTimestamp: "2026-01-02T03:04:05Z"}, spec: {nodeName: n1}}
- {kind: ConfigMap, metadata: {name: other}}
- {apiVersion: v1, kind: Node, metadata: {name: n1, labels: {role: db}}, status: {addresses: [{type: Hostname, address: n1}, {type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: "::ffff:192.0.2.2"}]}}
- {apiVersion: crd.antrea.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: other}, spec: {appliedTo: []}}
- {apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: c}, spec: {tier: Admin, priority: 3, subject: {namespaces: {}}}, status: {conditions: [{type: Ready}]}}
- {kind: NetworkPolicyList, items: [{kind: NetworkPolicy, metadata: {name: p, uid: 1-2}, spec: {podSelector: {}}}]}
`), &s)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Pods) != 3 || s.Pods[0].String() != "default/web" || s.Pods[0].Ports[0] != (policy.Port{Protocol: policy.TCP, Number: 80}) ||
		s.Pods[1].String() != "shop/job" || s.Pods[1].Labels["app"] != "job" {
		t.Errorf("got the pods %v", s.Pods)
	}
	want := policy.Pod{Namespace: "default", Name: "cache", UID: "u-1", Node: "n1", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if got := s.Pods[2]; !got.Equal(&want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if len(s.Policies) != 1 || s.Policies[0].Namespace != "default" || s.Policies[0].Name != "p" {
		t.Errorf("got the policies %+v", s.Policies)
	}
	if len(s.ClusterPolicies) != 1 || s.ClusterPolicies[0].Name != "c" || s.ClusterPolicies[0].Spec.Priority != 3 {
		t.Errorf("got the ClusterNetworkPolicies %+v", s.ClusterPolicies)
	}
	if got := fmt.Sprint(s.Nodes); got != "[{n1 role=db [192.0.2.1 192.0.2.2]}]" {
		t.Errorf("got the nodes %s", got)
	}
}

// TestReadKinds: lists as API servers print them, fields of other versions of Kubernetes, and kinds of other groups.
func TestReadKinds(t *testing.T) {
	const spec = "metadata: {name: p, namespace: shop}, spec: {podSelector: {}}"
	for text, want := range map[string]int{
		"{apiVersion: networking.k8s.io/v1, kind: NetworkPolicyList, items: [{" + spec + "}, {" + spec + "}]}":  2,
		"{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, " + spec + ", status: {conditions: []}}":       1,
		"{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: p}, spec: {selector: all()}}": 0,
		"{apiVersion: projectcalico.org/v3, kind: NetworkPolicyList, items: [{spec: {selector: all()}}]}":       0,
	} {
		var s policy.Snapshot
		if err := manifest.Read(strings.NewReader(text), &s); err != nil || len(s.Policies) != want {
			t.Errorf("%s: got %d policies and %v, want %d", text, len(s.Policies), err, want)
		}
	}
	var s policy.Snapshot
	const pods = "{apiVersion: v1, kind: PodList, items: [{metadata: {name: a}, status: {podIPs: [{ip: 10.244.1.2}]}}]}"
	if err := manifest.Read(strings.NewReader(pods), &s); err != nil || len(s.Pods) != 1 || s.Pods[0].String() != "default/a" {
		t.Errorf("got %v and %v", s.Pods, err)
	}
}

// TestReadBad: what is no object is an error, and so are all objects that cannot be read but NetworkPolicies, each with its
// name and after the others.
func TestReadBad(t *testing.T) {
	for text, want := range map[string]string{
		"a: [":            "did not find expected node content",
		"- just\n- words": "is not an object of Kubernetes",
		"{kind: NetworkPolicy, metadata: {name: p, namespace: 5}}":                                                    "is not an object of Kubernetes",
		"{kind: ClusterNetworkPolicy, metadata: {name: c}, spec: {ingress: [{from: [{networks: [10.0.0.0/8]}]}]}}":    `ClusterNetworkPolicy c: unknown field "spec.ingress[0].from[0].networks"`,
		"{kind: ClusterNetworkPolicy, apiVersion: policy.networking.k8s.io/v1, metadata: {name: c}}":                  "ClusterNetworkPolicy c: its apiVersion is policy.networking.k8s.io/v1, want policy.networking.k8s.io/v1alpha2",
		"{kind: ClusterNetworkPolicy, metadata: {name: c}, spec: {tier: admin, subject: {namespaces: {}}}}":           `ClusterNetworkPolicy c: there is no tier "admin"`,
		"{kind: ClusterNetworkPolicy, metadata: {name: c}, spec: {tier: Admin, subject: {}}}":                         "ClusterNetworkPolicy c: subject: want either namespaces or pods",
		"{kind: Pod, metadata: {name: p}, spec: {containers: 5}}":                                                     "Pod default/p: ",
		"{kind: Pod, metadata: {name: p}, spec: {containers: [{ports: [{containerPort: x}]}]}}":                       "Pod default/p: ",
		"{kind: Pod, metadata: {name: p}, status: {podIPs: [{ip: x}]}}":                                               "Pod default/p: ",
		"{kind: Job, metadata: {name: p, namespace: q}, spec: 5}\n---\n{kind: Node, metadata: {name: n1, labels: 5}}": "; Node n1: ",
	} {
		var s policy.Snapshot
		err := manifest.Read(strings.NewReader(text+"\n---\n{kind: Namespace, metadata: {name: last}}\n"), &s)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
		var unread manifest.Unread
		if _, read := s.Namespaces["last"]; errors.As(err, &unread) != read {
			t.Errorf("%s: the next object is read: %t, with %v", text, read, err)
		}
	}
}

// TestReadRefused: a NetworkPolicy that an API server would have refused allows nothing, where it is read at all.
func TestReadRefused(t *testing.T) {
	const spec = "spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{}]}"
	for text, want := range map[string]string{
		"kind: NetworkPolicy, metadata: {name: p}, " + strings.Replace(spec, "ingress", "ingres", 1):               `unknown field "spec.ingres"`,
		"kind: NetworkPolicy, metadata: {name: p}, status: {}, Spec: {}, " + spec:                                  `unknown field "Spec"`,
		"kind: NetworkPolicy, metadata: {name: p, labels: {release: 5}}, " + spec:                                  "json: cannot unmarshal number",
		"kind: NetworkPolicy, metadata: {name: p, labels: {-: x}}, " + spec:                                        "metadata.labels: Invalid value",
		"kind: NetworkPolicy, metadata: {name: P}, " + spec:                                                        "metadata.name: Invalid value",
		"kind: NetworkPolicy, metadata: {}, " + spec:                                                               "metadata.name: Required value",
		"kind: NetworkPolicy, metadata: {name: p}, metadata: {name: q}, " + spec:                                   "key \"metadata\" already set in map",
		"kind: networkpolicy, metadata: {name: p}, " + spec:                                                        "its kind is networkpolicy, want NetworkPolicy",
		"kind: NetworkPolicy, apiVersion: v1, metadata: {name: p}, " + spec:                                        "its apiVersion is v1, want networking.k8s.io/v1",
		"kind: NetworkPolicy, apiVersion: extensions/v1beta1, metadata: {name: p}, " + spec:                        "its apiVersion is extensions/v1beta1, want networking.k8s.io/v1",
		"kind: NetworkPolicy, apiVersion: networking.k8s.io/v2, metadata: {name: p}, " + spec:                      "its apiVersion is networking.k8s.io/v2, want networking.k8s.io/v1",
		"kind: NetworkPolicy, metadata: {name: p}, " + strings.Replace(spec, "[{}]", "[{ports: [{port: {}}]}]", 1): "json: cannot unmarshal",
	} {
		var s policy.Snapshot
		if err := manifest.Read(strings.NewReader("{"+text+"}"), &s); err != nil || len(s.Policies) != 1 || !strings.Contains(s.Policies[0].Refused, want) {
			t.Errorf("%s: got %v and %+v, want it refused for %s", text, err, s.Policies, want)
			continue
		}
		pod := &policy.Pod{Namespace: "default", Name: "a", Labels: map[string]string{"app": "web"}}
		r, skips := policy.New(s)
		f := policy.Flow{From: policy.Endpoint{Addr: netip.MustParseAddr("192.0.2.1")}, To: policy.Endpoint{Pod: pod}, Protocol: policy.TCP, Port: 80}
		if v := r.Judge(f); v.Allowed() || len(v.Ingress.Isolating) != 1 || len(skips) != 1 {
			t.Errorf("%s: got %+v and %v", text, v, skips)
		}
	}
}

// FuzzRead: whatever is read is judged, without a panic.
func FuzzRead(f *testing.F) {
	f.Add("{kind: NetworkPolicy, metadata: {name: p}, spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 80}]}]}}\n---\n" +
		"{kind: Pod, metadata: {name: a}, status: {podIPs: [{ip: 10.0.0.1}]}}")
	f.Add("{kind: ClusterNetworkPolicy, metadata: {name: c}, spec: {tier: Admin, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [10.0.0.0/8]}]}],\n" +
		"  ingress: [{from: [{pods: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}]}}\n---\n{kind: Pod, metadata: {name: a}, status: {podIPs: [{ip: 10.0.0.1}]}}")
	f.Fuzz(func(t *testing.T, text string) {
		var s policy.Snapshot
		if manifest.Read(strings.NewReader(text), &s) != nil {
			return
		}
		r, _ := policy.New(s)
		for _, pod := range s.Pods {
			to := policy.Endpoint{Pod: pod}
			flow := policy.Flow{To: to, Protocol: policy.TCP, Port: 80}
			r.Judge(flow).Explain(flow)
			for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
				a := r.Applying(d, to)
				for _, p := range a.Isolating {
					p.Describe(d)
				}
				for _, p := range append(a.Admin, a.Baseline...) {
					p.Describe(d)
				}
			}
		}
	})
}
