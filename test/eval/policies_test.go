package eval

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// The policies of TestPolicies: what is isolated, and an exception.
const (
	denyIngress = `{kind: NetworkPolicy, metadata: {name: deny, namespace: shop}, spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}}`
	denyEgress  = `{kind: NetworkPolicy, metadata: {name: stay, namespace: jobs}, spec: {podSelector: {}, policyTypes: [Egress]}}`
	allowTCP    = `{kind: NetworkPolicy, metadata: {name: tcp, namespace: shop}, spec: {podSelector: {matchLabels: {app: web}},
  ingress: [{ports: [{protocol: TCP}], from: [{namespaceSelector: {}}]}]}}`
)

// TestPolicies: connections that policies deny are named with the policy, the direction and what is missing, and are no
// fault; what the rules drop for other reasons is one.
func TestPolicies(t *testing.T) {
	t.Parallel()
	p := newPoliced(t)
	for _, test := range []struct {
		name, manifest string
		denied         int
		want           []string // place, object, and the sentences in any order
	}{
		// 3 pods send 6 probes each in 2 families, and one more to the outside leaves the pod.
		{"ingress", denyIngress, 36, []string{"node1", "shop/node1-pod1, ingress",
			"shop/deny isolates shop/node1-pod1 for ingress; no policy allows ICMP from jobs/node2-pod1",
			"shop/deny isolates shop/node1-pod1 for ingress; no policy allows TCP ", "no policy allows UDP ",
			"from default/node1-pod2", "from default/node2-pod2"}},
		{"egress", denyEgress, 38, []string{"node2", "jobs/node2-pod1, egress",
			"jobs/stay isolates jobs/node2-pod1 for egress; no policy allows ICMP to shop/node1-pod1",
			"no policy allows UDP ", "to default/node2-pod2"}},
		{"ports", denyIngress + "\n---\n" + allowTCP, 30, []string{"node1", "shop/node1-pod1, ingress",
			"shop/deny and shop/tcp isolate shop/node1-pod1 for ingress; no policy allows ICMP from default/node2-pod2", "no policy allows UDP "}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p.apply(t, test.manifest)
			s := p.surveyUntil(t, fmt.Sprint(test.denied, " denied probes of 152, and none lost"), func(s doctor.Survey) bool {
				return !s.Failed() && s.First == nil && s.Probes.Lost == 0 && s.Probes.Denied == test.denied && s.Probes.Sent == 152
			})
			if len(s.Lost) != 1 || s.Lost[0].ID != "policy-denied" || s.Lost[0].Severity != doctor.Intended {
				t.Fatalf("got %+v", s.Lost)
			}
			f := s.Lost[0]
			if f.Place != test.want[0] || f.Object != test.want[1] {
				t.Errorf("%s at %s, want %s at %s", f.Object, f.Place, test.want[1], test.want[0])
			}
			for _, want := range test.want[2:] {
				if text := strings.Join(append(f.More, f.Actual), "\n"); !strings.Contains(text, want) {
					t.Errorf("want %q in\n%s", want, text)
				}
			}
		})
	}
	t.Run("both", func(t *testing.T) {
		p.apply(t, denyIngress+"\n---\n"+denyEgress)
		s := p.survey(t)
		var got []string
		for _, f := range s.Lost {
			got = append(got, f.ID+" "+f.Place+" "+f.Object)
		}
		slices.Sort(got)
		if want := []string{"policy-denied node1 shop/node1-pod1, ingress", "policy-denied node2 jobs/node2-pod1, egress"}; !slices.Equal(got, want) || s.Failed() {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("trace", p.traces)
	t.Run("test", func(t *testing.T) {
		p.apply(t, denyIngress)
		out, code := p.run(t, "lab", "--name", p.Name(), "test")
		if code != 0 || !strings.Contains(out, "denied") || !strings.Contains(out, "– 36 of 152 probes are denied by network policies") ||
			!strings.Contains(out, "shop/deny isolates shop/node1-pod1") {
			t.Errorf("exits %d with\n%s", code, out)
		}
	})
	t.Run("with an agent's rights", p.asAgents)
	t.Run("other faults", p.otherFaults)
	t.Run("unreadable", p.unreadable)
	t.Run("unknown pod", p.unknownPod)
	t.Run("outdated", p.outdated)
}

// policed is a lab whose agents enforce policies, and the program as people run it.
type policed struct {
	*lab.Lab

	program string
}

func newPoliced(t *testing.T) *policed {
	t.Helper()
	l := labtest.StartDefault(t, lab.Spec{Name: "doctorpolicies", Family: lab.Dual, Store: lab.File, Nodes: 2, Pods: 2, NetworkPolicy: true})
	p := &policed{l, filepath.Join(labtest.BinDir(t), "twillctl")}
	check(t, p.pod("node1/pod1").Label("shop", map[string]string{"app": "web"}))
	check(t, p.pod("node2/pod1").Label("jobs", nil))
	_, err := l.Converge(t.Context(), testwait.Limit)
	check(t, err)
	return p
}

func (p *policed) pod(id string) *lab.Pod {
	return p.Pods()[slices.IndexFunc(p.Pods(), func(o *lab.Pod) bool { return o.ID() == id })]
}

// apply gives the agents a manifest instead of all earlier ones, and waits until each node's rules are as it says.
func (p *policed) apply(t *testing.T, manifest string) {
	t.Helper()
	check(t, p.ApplyManifest("policies.yaml", []byte(manifest)))
	p.await(t)
}

// await waits until nothing is wrong with any node's rules.
func (p *policed) await(t *testing.T) {
	t.Helper()
	testwait.Nil(t, "rules with which nothing is wrong", func() error {
		var wrong []error
		for _, n := range p.Nodes() {
			for _, o := range doctor.Check(lookAt(t, p.Lab, n, doctor.PeerProbes)) {
				wrong = append(wrong, fmt.Errorf("%s: %s: %s", n.Name, o.ID, o.Actual))
			}
		}
		return errors.Join(wrong...)
	})
}

// run runs twillctl, and returns its output and exit code.
func (p *policed) run(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), p.program, args...)
	cmd.Env = append(os.Environ(), "TWILL_BIN_DIR="+filepath.Dir(p.Spec().Programs.Agent))
	text, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// survey asks the doctor about the lab, with packets, and holds its exit code against its answer.
func (p *policed) survey(t *testing.T) (s doctor.Survey) {
	t.Helper()
	out, code := p.run(t, "doctor", "--lab", p.Name(), "--probe", "-o", "json")
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if (code == 1) != s.Failed() {
		t.Errorf("it exits %d, and failed: %t", code, s.Failed())
	}
	return s
}

// surveyUntil asks until the survey is as it should be: a busy machine may lose other probes, too.
func (p *policed) surveyUntil(t *testing.T, what string, ok func(doctor.Survey) bool) (s doctor.Survey) {
	t.Helper()
	testwait.Nil(t, what, func() error {
		if s = p.survey(t); !ok(s) {
			return fmt.Errorf("failed %t, first %+v, probes %+v", s.Failed(), s.First, s.Probes)
		}
		return nil
	})
	return s
}

// traces: a trace shows the rules as a place on the path, in the pod's own node, and what passes.
func (p *policed) traces(t *testing.T) {
	const denied = "shop/deny isolates shop/node1-pod1 for ingress; no policy allows "
	for _, test := range []struct {
		manifest, from, to string
		code               int
		want               []string
	}{
		{denyIngress, "node2/pod2", "node1/pod1", 1, []string{"– node1    network policies           " + denied + "anything from default/node2-pod2",
			"– 6 of 6 probes are denied", "– policy-denied: network policies deny", "kubectl twill policy shop/node1-pod1"}},
		{denyIngress, "node1/pod2", "node1/pod1", 1, []string{"– node1    network policies", denied + "ICMP from default/node1-pod2"}},
		{denyIngress, "node1/pod1", "node2/pod2", 0, []string{"✓ all 6 probes came back", "  node1    network policies           everything passes"}},
		{denyEgress, "node2/pod1", "node1/pod2", 1, []string{"– node2    network policies           jobs/stay isolates jobs/node2-pod1 for egress; no policy allows anything to default/node1-pod2"}},
		{denyIngress + "\n---\n" + allowTCP, "node2/pod2", "node1/pod1", 1, []string{
			"! node1    network policies           shop/deny and shop/tcp isolate shop/node1-pod1 for ingress; " +
				"no policy allows everything from default/node2-pod2, only TCP",
			"✓ 1 probes came back", "– 5 of 6 probes are denied by network policies"}},
	} {
		p.apply(t, test.manifest)
		out, code := p.run(t, "trace", "--lab", p.Name(), test.from, test.to)
		if code != test.code {
			t.Errorf("%s to %s: exits %d, want %d", test.from, test.to, code, test.code)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s to %s: want %q in\n%s", test.from, test.to, want, out)
			}
		}
	}
}

// asAgents: the agents of both nodes, which may not enter pods, know together what policies deny.
func (p *policed) asAgents(t *testing.T) {
	p.apply(t, denyIngress+"\n---\n"+denyEgress+"\n---\n"+allowTCP)
	for _, test := range []struct {
		from, to string
		object   string // of the finding; empty: nothing is denied
		lost     int
	}{
		{"node2/pod2", "node1/pod1", p.pod("node1/pod1").Addrs[0].String() + ", ingress", 2}, // ICMP; TCP passes
		{"node1/pod1", "node2/pod2", "", 0},                                                  // although not in the other direction
		{"node2/pod1", "node1/pod2", p.pod("node2/pod1").Addrs[0].String() + ", egress", 2},  // the answers are judged there
	} {
		from, to := p.pod(test.from), p.pod(test.to)
		var parts [2]doctor.Trace
		for i, n := range []*lab.Node{from.Node, to.Node} {
			out, _ := n.Exec(t.Context(), "setpriv", "--bounding-set=-all,+net_admin,+net_raw,+dac_override", p.program, "trace", "-o", "json",
				"--checkpoint-file", n.CheckpointFile(), "--subnet-file", n.SubnetFile(), "--cni-cache-dir", n.CNICache(),
				from.Addrs[0].String(), to.Addrs[0].String()) // exits 1 if something stops the packet
			if err := json.Unmarshal([]byte(out), &parts[i]); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		got := doctor.Join(parts[0], parts[1])
		stops := got.Stopped != nil && got.Stopped.Finding == "policy-denied"
		switch {
		case got.Probes.Lost > 0 || got.Probes.Denied != test.lost:
			t.Errorf("%s to %s: probes %+v, want %d denied; %+v", test.from, test.to, got.Probes, test.lost, got.Lost)
		case test.object == "" && len(got.Lost) > 0, test.object != "" && (len(got.Lost) != 1 || got.Lost[0].Object != test.object):
			t.Errorf("%s to %s: got %+v, want %s", test.from, test.to, got.Lost, test.object)
		case stops != (test.from == "node2/pod1") || got.Failed() != (stops || test.lost > 0):
			t.Errorf("%s to %s: failed %t, stopped %+v", test.from, test.to, got.Failed(), got.Stopped)
		}
	}
}

// otherFaults: what policies deny hides no fault, neither on another path nor on the same.
func (p *policed) otherFaults(t *testing.T) {
	p.apply(t, denyIngress)
	node := p.Nodes()[1]
	_, err := node.Exec(t.Context(), "iptables", "-w", "-t", "raw", "-I", "PREROUTING", "-s", p.pod("node2/pod2").Addrs[0].String(), "-p", "udp", "-j", "DROP")
	check(t, err)
	s := p.surveyUntil(t, "15 lost probes, and why", func(s doctor.Survey) bool {
		return s.First != nil && s.First.ID == "packet-lost" && s.First.Place == "node2" && strings.Contains(s.First.Object, "-j DROP") &&
			s.Probes.Lost == 15 && s.Probes.Denied == 36
	})
	_, err = node.Exec(t.Context(), "iptables", "-w", "-t", "raw", "-F", "PREROUTING")
	check(t, err)
	if len(s.Lost) != 2 || s.Lost[1].ID != "policy-denied" {
		t.Errorf("got %+v", s.Lost)
	}
}

// unreadable: where the policies cannot be read, the chain and a command that explains it are named.
func (p *policed) unreadable(t *testing.T) {
	p.apply(t, denyIngress)
	check(t, p.ApplyManifest("bad.yaml", []byte("[]")))
	s := p.survey(t)
	check(t, p.DeleteManifest("bad.yaml"))
	addr := p.pod("node1/pod1").Addrs[0].String()
	if s.Failed() || len(s.Lost) == 0 || s.Lost[0].ID != "policy-denied" || !strings.HasPrefix(s.Lost[0].Actual, "the chain in-") ||
		!strings.Contains(s.Lost[0].Actual, " isolates "+addr+" for ingress; no rule of it allows ") ||
		!strings.HasSuffix(s.Lost[0].Fix, "kubectl twill policy "+addr) {
		t.Errorf("failed %t, first %+v, got %+v", s.Failed(), s.First, s.Lost)
	}
	if len(s.Nodes) != 2 || !strings.Contains(strings.Join(s.Nodes[0].Unread, "\n"), "network policies: ") {
		t.Errorf("what could not be read is not said: %+v", s.Nodes)
	}
}

// unknownPod: a pod that comes while the agent is away has no network, and the doctor says why.
func (p *policed) unknownPod(t *testing.T) {
	p.apply(t, "{}")
	node := p.Nodes()[1]
	check(t, node.KillAgent())
	pod, err := node.AddPod(t.Context(), "pod3")
	check(t, err)
	s := p.survey(t)
	if s.First == nil || s.First.ID != "policy-unknown-pod" || s.First.Place != "node2" || s.Probes.Denied != 0 || s.Probes.Lost == 0 ||
		!strings.Contains(s.First.Actual, "default/node2-pod3 has "+pod.Addrs[0].String()+", and the rules of node2 do not know it yet") {
		t.Errorf("first %+v, probes %+v", s.First, s.Probes)
	}
	check(t, node.StartAgent(t.Context()))
	p.awaitPing(t, pod, p.pod("node1/pod2").Addrs[0])
	check(t, node.DelPod(t.Context(), pod))
	p.await(t)
	if s := p.survey(t); s.Failed() || s.Probes.Denied != 0 {
		t.Errorf("afterwards: first %+v, probes %+v", s.First, s.Probes)
	}
}

func (p *policed) awaitPing(t *testing.T, from *lab.Pod, to netip.Addr) {
	t.Helper()
	testwait.Nil(t, "an answer from "+to.String(), func() error {
		_, err := from.Ping(t.Context(), host.Ping{To: to, Timeout: pingLimit})
		return err
	})
}

// outdated: rules that deny what the policies allow by now are a fault.
func (p *policed) outdated(t *testing.T) {
	p.apply(t, denyIngress)
	node := p.Nodes()[0]
	check(t, node.KillAgent())
	check(t, p.ApplyManifest("policies.yaml", []byte("{}")))
	s := p.surveyUntil(t, "36 lost probes, and why", func(s doctor.Survey) bool {
		return s.First != nil && s.First.ID == "policy-outdated" && s.First.Place == "node1" && s.Probes.Denied == 0 && s.Probes.Lost == 36 &&
			strings.Contains(s.First.Actual, "although no policy isolates shop/node1-pod1 for ingress")
	})
	check(t, node.StartAgent(t.Context()))
	if !slices.ContainsFunc(s.Nodes[0].Findings, func(f doctor.Finding) bool { return f.ID == "policies-not-enforced" }) {
		t.Errorf("node1: got %+v", s.Nodes[0].Findings)
	}
}
