package enforced

import (
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
)

// fromPod2 lets a pod be reached from another one only.
const fromPod2 = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: ingress}
spec:
  podSelector: {matchLabels: {pod: pod1}}
  ingress: [{from: [{podSelector: {matchLabels: {pod: pod2}}}]}]
`

// TestBridgeFilterOff: where br_netfilter does not show packets between the node's pods to the rules, none passes while policies
// isolate one of them, and the doctor says why. They pass again when it does.
func TestBridgeFilterOff(t *testing.T) {
	l := labtest.Start(t, lab.Spec{Name: "tbroff", Nodes: 1, Pods: 3, Family: lab.Dual, Store: lab.File, NetworkPolicy: true})
	e, node := newEnds(t, l), l.Nodes()[0]
	if err := l.ApplyManifest("ingress.yaml", []byte(fromPod2)); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	pods := node.Pods()
	check := func(when string, allowed bool) {
		t.Helper()
		for _, family := range netstate.Families {
			for _, c := range []struct {
				from, to *lab.Pod
				want     bool
			}{{pods[1], pods[0], allowed}, {pods[2], pods[0], false}, {pods[0], pods[2], allowed}, {pods[1], pods[2], allowed}} {
				for _, protocol := range []policy.Protocol{policy.TCP, policy.UDP} {
					flow := policy.Flow{From: policy.Endpoint{Addr: c.from.Addr(family)}, To: policy.Endpoint{Addr: c.to.Addr(family)},
						Protocol: protocol, Port: 80}
					if got := e.try(t.Context(), flow, c.want); got != c.want {
						t.Errorf("%s: %s from %s to %s passes: %v, want %v", when, protocol, flow.From.Addr, flow.To.Addr, got, c.want)
					}
				}
			}
		}
	}
	check("at first", true)
	if err := node.StopAgent(t.Context()); err != nil { // it puts the parameters back
		t.Fatal(err)
	}
	for _, value := range []string{"0", "1"} {
		for _, name := range []string{"iptables", "ip6tables"} {
			if err := node.SetSysctl("net/bridge/bridge-nf-call-"+name, value); err != nil {
				t.Fatal(err)
			}
		}
		check("bridge-nf-call-iptables and ip6tables are "+value, value == "1")
		if found := withoutFilter(t, l, node); found != (value == "0") {
			t.Errorf("while the parameters are %s, the doctor names them: %v", value, found)
		}
	}
}

// withoutFilter reports whether the doctor says that packets go past the rules.
func withoutFilter(t *testing.T, l *lab.Lab, n *lab.Node) bool {
	t.Helper()
	f, err := gather(t, l, n)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range doctor.Check(f) {
		if found.ID == "br-netfilter-missing" {
			return true
		}
	}
	return false
}
