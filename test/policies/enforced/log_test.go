package enforced

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nflog"
)

// logFlag makes agents log what policies deny.
const logFlag = "--network-policy-log"

// logPolicies let everybody reach the server's port 80, and the client send from its own addresses.
const logPolicies = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-80}
spec:
  podSelector: {matchLabels: {pod: server}}
  ingress:
  - ports: [{port: 80}, {port: 80, protocol: UDP}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: own-address}
spec:
  podSelector: {matchLabels: {pod: client}}
  policyTypes: [Egress]
  egress: [{}]
`

// TestLog: what policies deny is a line in the log of the agent that denies it, with the policies, the pods, the
// addresses and the ports; what they allow is none, ten thousand packets are few, and without the flag nothing is logged.
func TestLog(t *testing.T) {
	l := labtest.Start(t, lab.Spec{Name: "tlog", Nodes: 2, Family: lab.Dual, Store: lab.File, NetworkPolicy: true,
		Sites: map[string]lab.Site{"": {Flags: []string{logFlag}}}})
	near, far := l.Nodes()[0], l.Nodes()[1]
	client, server := addPod(t, near, "client"), addPod(t, far, "server")
	if err := l.ApplyManifest("policy.yaml", []byte(logPolicies)); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	for _, f := range netstate.Families {
		tryPorts(t, client, server.Addr(f))
	}
	await(t, far, 4, func(string) bool { return true })
	lines := denials(t, far)
	for _, f := range netstate.Families {
		from, to := client.Addr(f), server.Addr(f)
		for protocol, port := range map[string]int{"TCP": 81, "UDP": 82} {
			want := regexp.MustCompile(`level=INFO msg="network policies deny a packet" from="?` + quoted(from) + `:[0-9]+"? to="?` +
				quoted(to) + fmt.Sprintf(`:%d"? protocol=%s direction=ingress policies=default/only-80 `, port, protocol) +
				`source=default/node1-client destination=default/node2-server$`)
			if n := count(lines, want.MatchString); n != 1 {
				t.Errorf("%d lines are about %s %d from %s to %s, want one like %s:\n%s", n, protocol, port, from, to, want, strings.Join(lines, "\n"))
			}
		}
	}
	if len(lines) != 4 || len(denials(t, near)) > 0 {
		t.Errorf("%s has %d lines, want 4; %s has %q, want none", far.Name, len(lines), near.Name, denials(t, near))
	}
	flood(t, client, netip.AddrPortFrom(server.Addr(netstate.IPv4), 83))
	send(t, client, forged{dst: gateway(near), src: netstate.MAC{2, 5: 7}, from: strangers[0], port: 7, payload: "x",
		to: netip.AddrPortFrom(server.Addr(netstate.IPv4), 80)})
	isFlood := func(line string) bool { return strings.Contains(line, ":83 ") }
	await(t, far, 1, isFlood)
	await(t, near, 1, func(string) bool { return true })
	lines = denials(t, far)
	if n := count(lines, isFlood); n > 9 || len(lines)-n != 4 { // their intervals grow: 9 are minutes
		t.Errorf("a flood is %d lines:\n%s", n, strings.Join(lines, "\n"))
	}
	forgery := regexp.MustCompile(`a pod's frame is dropped.* from=192\.0\.2\.77:7 to=.*:80 protocol=UDP device=veth\S+ direction=egress`)
	if got := denials(t, near); len(got) != 1 || !forgery.MatchString(got[0]) {
		t.Errorf("a forged frame is logged as %q, want %s", got, forgery)
	}
	logTaken(t, near)
	withoutLog(t, far, func() { tryPorts(t, client, server.Addr(netstate.IPv4)) })
}

func addPod(t *testing.T, n *lab.Node, name string) *lab.Pod {
	t.Helper()
	pod, err := n.AddPod(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range pod.Addrs {
		for _, network := range []string{"tcp", "udp"} {
			for port := uint16(80); port < 83; port++ {
				echo, err := pod.Echo(t.Context(), network, netip.AddrPortFrom(addr, port))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { echo.Close() })
			}
		}
	}
	return pod
}

// tryPorts asks a server on the ports that are allowed, and on one of each protocol that is not.
func tryPorts(t *testing.T, client *lab.Pod, to netip.Addr) {
	t.Helper()
	for _, c := range []struct {
		network string
		port    uint16
		allowed bool
	}{{"tcp", 80, true}, {"udp", 80, true}, {"tcp", 81, false}, {"udp", 82, false}} {
		patience := 500 * time.Millisecond
		if c.allowed {
			patience = testwait.Limit
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := client.Ask(ctx, c.network, netip.AddrPortFrom(to, c.port))
		cancel()
		if (err == nil) != c.allowed {
			t.Errorf("%s %d of %s: %v", c.network, c.port, to, err)
		}
	}
}

// flood sends ten thousand packets.
func flood(t *testing.T, client *lab.Pod, to netip.AddrPort) {
	t.Helper()
	conn := listen(t, client.Host, netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	for range 10000 {
		if _, err := conn.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(to)); err != nil {
			t.Fatal(err)
		}
	}
}

// logTaken starts the node's agent again while another process listens where rules log: the agent says so, and enforces
// policies without the log.
func logTaken(t *testing.T, n *lab.Node) {
	t.Helper()
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	var other *nflog.Log
	if err := n.Do(func() (err error) {
		other, err = nflog.Open(netstate.LogGroup)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := n.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	const want = `policies are enforced, and what they deny is not logged" err="another process listens to the NFLOG group 116`
	if log, err := os.ReadFile(n.Log()); err != nil || !strings.Contains(string(log), want) {
		t.Errorf("the agent's log has no %q: %v", want, err)
	}
	if text := ruleset(t, n); strings.Contains(text, "log prefix") || !strings.Contains(text, "twill-policy") {
		t.Errorf("while nobody can listen there are the rules\n%s", text)
	}
}

// withoutLog starts the node's agent without its log of what is denied: policies stay, and one plan takes the rules away.
func withoutLog(t *testing.T, n *lab.Node, try func()) {
	t.Helper()
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	flags := slices.DeleteFunc(n.AgentFlags(), func(f string) bool { return f == logFlag })
	if len(flags) == len(n.AgentFlags()) || !strings.Contains(ruleset(t, n), "log prefix") {
		t.Fatalf("the agent does not log: %q\n%s", n.AgentFlags(), ruleset(t, n))
	}
	before := len(denials(t, n))
	agent, err := n.Start(host.Command{Path: labtest.Spec(lab.Spec{}).Programs.Agent, Args: flags, Log: n.Log(),
		Env: []string{"PATH=" + os.Getenv("PATH"), "NODE_NAME=" + n.Name}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Kill() })
	testwait.Nil(t, "no rule logs without the flag", func() error {
		if text := ruleset(t, n); strings.Contains(text, "log prefix") {
			return errors.New(text)
		}
		return nil
	})
	try()
	testwait.Pause(t, 300*time.Millisecond, "nothing is logged")
	if text := ruleset(t, n); !strings.Contains(text, "twill-policy") || len(denials(t, n)) != before {
		t.Errorf("without the flag there are %d more lines, and the rules\n%s", len(denials(t, n))-before, text)
	}
	log, err := os.ReadFile(n.Log())
	if err != nil {
		t.Fatal(err)
	}
	all := string(log)
	if plans := strings.Count(all[strings.LastIndex(all, "twilld starts"):], `msg="network policies" changes=`); plans != 1 {
		t.Errorf("%d plans take the rules away that log, want one", plans)
	}
}

func ruleset(t *testing.T, n *lab.Node) string {
	t.Helper()
	out, err := n.Exec(t.Context(), "nft", "list", "ruleset")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// denials are the lines of an agent's log about packets and frames that were dropped.
func denials(t *testing.T, n *lab.Node) (lines []string) {
	t.Helper()
	log, err := os.ReadFile(n.Log())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "network policies deny") || strings.Contains(line, "is dropped") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// await returns when the agent's log has so many lines that match.
func await(t *testing.T, n *lab.Node, want int, matches func(string) bool) {
	t.Helper()
	testwait.Nil(t, fmt.Sprintf("%d lines of what %s drops", want, n.Name), func() error {
		if lines := denials(t, n); count(lines, matches) < want {
			return fmt.Errorf("there are %q", lines)
		}
		return nil
	})
}

func count(lines []string, matches func(string) bool) (n int) {
	for _, line := range lines {
		if matches(line) {
			n++
		}
	}
	return n
}

// quoted is a pattern for an address as it stands before a port.
func quoted(a netip.Addr) string {
	if a.Is6() {
		return regexp.QuoteMeta("[" + a.String() + "]")
	}
	return regexp.QuoteMeta(a.String())
}
