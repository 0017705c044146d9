package manifest_test

import (
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
}

func TestReadBad(t *testing.T) {
	for text, want := range map[string]string{
		"a: [":            "did not find expected node content",
		"- just\n- words": "is not an object of Kubernetes",
		"{kind: NetworkPolicy, metadata: {name: p}, spec: {ingres: []}}":                        `NetworkPolicy default/p: unknown field "spec.ingres"`,
		"{kind: Pod, metadata: {name: p}, spec: {containers: 5}}":                               "Pod default/p: ",
		"{kind: Pod, metadata: {name: p}, spec: {containers: [{ports: [{containerPort: x}]}]}}": "Pod default/p: ",
	} {
		if err := manifest.Read(strings.NewReader(text), &policy.Snapshot{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// FuzzRead: whatever is read is judged, without a panic.
func FuzzRead(f *testing.F) {
	f.Add("{kind: NetworkPolicy, metadata: {name: p}, spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 80}]}]}}\n---\n" +
		"{kind: Pod, metadata: {name: a}, status: {podIPs: [{ip: 10.0.0.1}]}}")
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
			for _, p := range r.Selecting(policy.Ingress, to) {
				p.Describe(policy.Ingress)
			}
		}
	})
}
