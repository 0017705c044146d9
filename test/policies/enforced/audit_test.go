package enforced

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

// auditPolicies let nobody reach the server's ports 81 and 82, and the client not send to port 82.
const auditPolicies = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-80}
spec:
  podSelector: {matchLabels: {pod: server}}
  ingress:
  - ports: [{port: 80}, {port: 80, protocol: UDP}, {port: 7000, endPort: 7001}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: not-82}
spec:
  podSelector: {matchLabels: {pod: client}}
  policyTypes: [Egress]
  egress: [{ports: [{port: 80, endPort: 81}, {port: 80, protocol: UDP}, {port: 7000, endPort: 7001}]}]
`

// TestAudit: while policies are audited, what they deny passes, and is counted for the policies that deny it; a flag switches
// enforcement on, and back. An open connection that they allow goes on, and an agent that knows no policies blocks nothing.
func TestAudit(t *testing.T) {
	l := labtest.Start(t, lab.Spec{Name: "taudit", Nodes: 2, Family: lab.Dual, Store: lab.File, NetworkPolicy: true})
	near, far := l.Nodes()[0], l.Nodes()[1]
	client, server := addPod(t, near, "client"), addPod(t, far, "server")
	if err := l.ApplyManifest("policy.yaml", []byte(auditPolicies)); err != nil {
		t.Fatal(err)
	}
	a := &auditing{T: t, lab: l, agents: map[string]host.Process{}}
	var talks []*talk
	for i, f := range netstate.Families {
		talks = append(talks, open(t, "tcp", client, server, netip.AddrPortFrom(server.Addr(f), uint16(7000+i))))
	}
	for _, mode := range []string{"audit", "true", "audit"} {
		a.start(mode)
		audits := mode == "audit"
		for _, f := range netstate.Families {
			a.tries(client, server.Addr(f), audits)
		}
		a.counts(near, audits, netstate.Denied{Direction: "egress", Policies: "default/not-82"})
		a.counts(far, audits, netstate.Denied{Direction: "ingress", Policies: "default/only-80"})
		pass(t, talks, 10)
	}
	send(t, client, forged{dst: gateway(near), src: netstate.MAC{2, 5: 7}, from: strangers[0], port: 7, payload: "x",
		to: netip.AddrPortFrom(server.Addr(netstate.IPv4), 80)})
	a.counts(near, true, netstate.Denied{Family: netstate.Ethernet.String(), Direction: "egress"})
	a.unknown(client, server)
}

// auditing is a lab whose agents are started again with other flags.
type auditing struct {
	*testing.T
	lab    *lab.Lab
	agents map[string]host.Process // by node
}

// start starts all agents in a mode, in place of those that run, and waits until the rules are those of the policies.
func (a *auditing) start(mode string) {
	a.Helper()
	for _, n := range a.lab.Nodes() {
		a.restart(n, "--network-policy="+mode)
	}
	settled(a.T, a.lab)
	for _, n := range a.lab.Nodes() {
		if s := a.status(n); s.Audit != (mode == "audit") || s.Enforced == s.Audit || s.Error != "" {
			a.Errorf("%s with %s: the status is %+v", n.Name, mode, s)
		}
	}
}

// restart starts a node's agent with further flags, and waits until it is ready.
func (a *auditing) restart(n *lab.Node, flags ...string) {
	a.Helper()
	stop := n.StopAgent
	if p, again := a.agents[n.Name]; again {
		stop = func(ctx context.Context) error { return p.Stop(ctx, 5*time.Second) }
	}
	if err := stop(a.Context()); err != nil {
		a.Fatal(err)
	}
	p, err := n.Start(host.Command{Path: a.lab.Spec().Programs.Agent, Args: append(n.AgentFlags(), flags...), Log: n.Log(),
		Env: []string{"PATH=" + os.Getenv("PATH"), "NODE_NAME=" + n.Name}})
	if err != nil {
		a.Fatal(err)
	}
	a.agents[n.Name] = p
	a.Cleanup(func() { _ = p.Kill() })
	testwait.Nil(a.T, "the agent of "+n.Name+" is ready", func() error {
		if !p.Running() {
			log, _ := os.ReadFile(n.Log())
			a.Fatalf("the agent of %s has ended: %s", n.Name, log[max(0, len(log)-500):])
		}
		return n.Probe(a.Context(), "/readyz")
	})
}

// tries asks the server where policies allow it and where they do not, which passes only if they are audited.
func (a *auditing) tries(client *lab.Pod, to netip.Addr, audits bool) {
	a.Helper()
	for _, c := range []struct {
		network string
		port    uint16
		allowed bool
	}{{"tcp", 80, true}, {"udp", 80, true}, {"tcp", 81, false}, {"tcp", 82, false}, {"udp", 82, false}} {
		passes, patience := c.allowed || audits, 500*time.Millisecond
		if passes {
			patience = testwait.Limit
		}
		ctx, cancel := context.WithTimeout(a.Context(), patience)
		err := client.Ask(ctx, c.network, netip.AddrPortFrom(to, c.port))
		cancel()
		if (err == nil) != passes {
			a.Errorf("%s %d of %s, audit %v: %v", c.network, c.port, to, audits, err)
		}
	}
}

// status is what a node's agent says of policies.
func (a *auditing) status(n *lab.Node) agent.PolicyStatus {
	a.Helper()
	text, err := n.Ask(a.Context(), "/status")
	var r agent.Report
	if err == nil {
		err = json.Unmarshal([]byte(text), &r)
	}
	if err != nil || r.Policies == nil {
		a.Fatalf("%s: %v: %s", n.Name, err, text)
	}
	return *r.Policies
}

// counts waits until a node has counted packets for policies: those that passed in the status and in a metric, and those that
// were dropped in another.
func (a *auditing) counts(n *lab.Node, audits bool, want netstate.Denied) {
	a.Helper()
	labels := fmt.Sprintf("direction=%q", want.Direction)
	families := []string{want.Family}
	if want.Family == "" {
		families = []string{netstate.IPv4.String(), netstate.IPv6.String()}
	}
	metric, other := "twill_policy_dropped_packets_total", "twill_policy_audited_packets_total"
	if audits {
		metric, other = other, metric
	}
	for _, want.Family = range families {
		testwait.Nil(a.T, fmt.Sprintf("%s counts %+v", n.Name, want), func() error {
			text, err := n.Ask(a.Context(), "/metrics")
			line := fmt.Sprintf("%s{%s,family=%q,policies=%q} ", metric, labels, want.Family, want.Policies)
			if err == nil && (!strings.Contains(text, line) || strings.Contains(text, other+"{")) {
				err = errors.New(strings.Join(slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
					return !strings.HasPrefix(line, metric) && !strings.HasPrefix(line, other)
				}), "\n"))
			}
			return err
		})
		said := a.status(n).Audited
		if is := slices.ContainsFunc(said, func(d netstate.Denied) bool {
			packets := d.Packets
			d.Packets = 0
			return packets > 0 && d == want
		}); is != audits {
			a.Errorf("%s, audit %v: the status has %+v, and %+v", n.Name, audits, said, want)
		}
	}
}

// unknown starts agents that cannot read policies, after others that enforced them: with an audit all passes, also what a pod sends
// that comes now.
func (a *auditing) unknown(client, server *lab.Pod) {
	a.Helper()
	a.start("true")
	for _, n := range a.lab.Nodes() {
		a.restart(n, "--network-policy=audit", "--network-policy-file="+n.Dir()+"/none")
	}
	testwait.Nil(a.T, "all passes", func() error {
		ctx, cancel := context.WithTimeout(a.Context(), time.Second)
		defer cancel()
		return client.Ask(ctx, "udp", netip.AddrPortFrom(server.Addr(netstate.IPv4), 82))
	})
	for _, f := range netstate.Families {
		a.tries(client, server.Addr(f), true)
	}
	late := addPod(a.T, client.Node, "late")
	for _, f := range netstate.Families {
		a.tries(late, server.Addr(f), true)
	}
	if s := a.status(client.Node); !s.Audit || s.Enforced || !strings.Contains(s.Error, "not known yet") {
		a.Errorf("the status is %+v", s)
	}
}
