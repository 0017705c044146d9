package enforced

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/policy"
)

// guarded lets pods with app=friend alone reach the pod "guarded" of each node.
const guarded = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: guarded}
spec:
  podSelector: {matchLabels: {pod: pod2}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: friend}}}]
`

// claims are pods of a node, younger than all others, whose status has the addresses of other nodes' pods. They have the
// label app=friend.
func claims(t *testing.T, l *lab.Lab, by string) []byte {
	t.Helper()
	type object = map[string]any
	var items []object
	for _, n := range l.Nodes() {
		for _, p := range n.Pods() {
			if n.Name == by {
				continue
			}
			ips := []object{}
			for _, a := range p.Addrs {
				ips = append(ips, object{"ip": a})
			}
			items = append(items, object{"kind": "Pod", "metadata": object{"namespace": "default", "name": "claims-" + n.Name + "-" + p.Name,
				"labels": object{"app": "friend"}, "creationTimestamp": time.Now().UTC().Format(time.RFC3339)},
				"spec": object{"nodeName": by}, "status": object{"podIPs": ips}})
		}
	}
	text, err := json.Marshal(object{"kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestClaims: a node whose pods claim all addresses of all other nodes takes no pod's network away, and lets nobody in. When it
// has no rules any more, those of the other nodes keep its pods out as before.
func TestClaims(t *testing.T) {
	l := labtest.Start(t, lab.Spec{Name: "tclaims", Nodes: 3, Pods: 2, Family: lab.Dual, Store: lab.File, NetworkPolicy: true})
	e := newEnds(t, l)
	if err := l.ApplyManifest("guarded.yaml", []byte(guarded)); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	without := "" // a node that enforces nothing
	check := func(when string) {
		t.Helper()
		for from, pod := range e.pods {
			for to, other := range e.pods {
				if from.Is4() != to.Is4() || pod == other {
					continue
				}
				want := other.Name != "pod2" || other.Node.Name == without
				flow := policy.Flow{From: policy.Endpoint{Addr: from}, To: policy.Endpoint{Addr: to}, Protocol: policy.TCP, Port: 80}
				if got := e.try(t.Context(), flow, want); got != want {
					t.Errorf("%s: %s/%s (%s) reaches %s/%s (%s): %v, want %v", when, pod.Node.Name, pod.Name, from, other.Node.Name,
						other.Name, to, got, want)
				}
			}
		}
	}
	check("before")
	if err := l.ApplyManifest("claims.json", claims(t, l, "node1")); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	check("while node1 claims all addresses of all others")
	for _, n := range l.Nodes()[1:] {
		const line = "a pod's status has an address that is not its own"
		testwait.Until(t, n.Name+" logs each claim once", func() bool {
			log, err := os.ReadFile(n.Log())
			return err == nil && strings.Count(string(log), line) == 4
		})
	}
	without = "node1"
	if err := l.Nodes()[0].StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Nodes()[0].Exec(t.Context(), "nft", "flush", "ruleset"); err != nil {
		t.Fatal(err)
	}
	check("when node1 enforces nothing")
}
