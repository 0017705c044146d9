package enforced

import (
	"os"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/plugin/wire"
	"github.com/twill-net/twill/policy"
)

// egressOnly has a pod's frames checked, and lets it reach pods.
const egressOnly = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: egress}
spec:
  podSelector: {matchLabels: {pod: pod1}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {}}]}]
`

// TestPortWithoutAlias: a pod whose port loses the CNI plugin's mark keeps its network and its policies, the doctor names the
// port, and the command that it offers puts the mark back.
func TestPortWithoutAlias(t *testing.T) {
	l := labtest.Start(t, lab.Spec{Name: "tunmarked", Nodes: 1, Pods: 2, Family: lab.Dual, Store: lab.File, NetworkPolicy: true})
	e, node := newEnds(t, l), l.Nodes()[0]
	if err := l.ApplyManifest("egress.yaml", []byte(egressOnly)); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	first, second := node.Pods()[0], node.Pods()[1]
	passes := func(when string) {
		t.Helper()
		for _, family := range netstate.Families {
			flow := policy.Flow{From: policy.Endpoint{Addr: first.Addr(family)}, To: policy.Endpoint{Addr: second.Addr(family)},
				Protocol: policy.TCP, Port: 80}
			if !e.try(t.Context(), flow, true) {
				t.Errorf("%s: %s does not reach %s", when, flow.From.Addr, flow.To.Addr)
			}
		}
	}
	passes("with policies")
	var port string
	if err := node.Do(func() error {
		attached, err := wire.AttachedPods()
		port = attached.Addrs[first.Addr(netstate.IPv4)]
		return err
	}); err != nil || port == "" {
		t.Fatalf("the port of %s is %q: %v", first.Name, port, err)
	}
	if _, err := node.Exec(t.Context(), "ip", "link", "set", "dev", port, "alias", ""); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the agent says that the mark is gone", func() bool {
		log, err := os.ReadFile(node.Log())
		return err == nil && strings.Contains(string(log), "has lost the CNI plugin's mark") && strings.Contains(string(log), "port="+port)
	})
	settled(t, l)
	passes("without the mark")

	found := unmarked(t, l, node)
	if len(found) != 1 || found[0].Object != port || found[0].Command == "" {
		t.Fatalf("the doctor finds %+v, want a port %s without its mark, and a command", found, port)
	}
	if _, err := node.Exec(t.Context(), "sh", "-c", found[0].Command); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the doctor finds nothing more", func() bool { return len(unmarked(t, l, node)) == 0 })
	passes("with the mark again")
	settled(t, l)
}

// unmarked returns what the doctor finds of ports without marks.
func unmarked(t *testing.T, l *lab.Lab, n *lab.Node) (all []doctor.Finding) {
	t.Helper()
	f, err := gather(t, l, n)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range doctor.Check(f) {
		if found.ID == "pod-port-unmarked" {
			all = append(all, found)
		}
	}
	return all
}
