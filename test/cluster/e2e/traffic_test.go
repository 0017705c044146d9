//go:build e2e

package e2e

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/test/cluster"
)

func TestInstall(t *testing.T) {
	if keep {
		t.Skip("a cluster that was kept is not a fresh one")
	}
	if strings.Contains(readyBefore, "True") {
		t.Errorf("nodes were Ready without a network: %s", readyBefore)
	}
	out := kubectl(t, "get", "nodes", `--output=jsonpath={range .items[*]}{.status.conditions[?(@.type=="NetworkUnavailable")].reason} {end}`)
	if got := strings.Fields(out); len(got) != 3 || slices.ContainsFunc(got, func(r string) bool { return r != "TwillIsUp" }) {
		t.Errorf("the condition NetworkUnavailable has the reasons %v", got)
	}
}

func TestMatrix(t *testing.T) { matrix(t) }

const hostProbe = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: hostprobe, namespace: default}
spec:
  selector: {matchLabels: {app: hostprobe}}
  template:
    metadata: {labels: {app: hostprobe}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      containers: [{name: probe, image: "localhost/twill-pod:1", args: [serve]}]
`

func TestHostNetwork(t *testing.T) {
	pods := probes(t)
	apply(t, hostProbe)
	kubectl(t, "rollout", "status", "daemonset/hostprobe", "--timeout=60s")
	hosts, err := spec.Pods(t.Context(), "app=hostprobe")
	must(t, err)
	var toPods, toHosts []string
	for i := range pods {
		toPods, toHosts = append(toPods, pods[i].Targets()...), append(toHosts, hosts[i].Targets()...)
	}
	for i := range pods {
		expect(t, hosts[i].Name, toPods...)
		expect(t, pods[i].Name, toHosts...)
	}
}

// outside asks from the host that is no node.
func outside(t *testing.T, targets ...string) []cluster.Reply {
	t.Helper()
	out, err := spec.Host("outside").Exec(t.Context(), append([]string{spec.PodProgram(), "probe"}, targets...)...)
	must(t, err)
	var replies []cluster.Reply
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var r cluster.Reply
		must(t, d.Decode(&r))
		replies = append(replies, r)
		if r.Error != "" {
			t.Errorf("the host outside asks %s: %s", r.Target, r.Error)
		}
	}
	return replies
}

func TestPodToTheOutsideIsMasqueraded(t *testing.T) {
	server, err := spec.Host("outside").Start(host.Command{Path: spec.PodProgram(), Args: []string{"serve"}, Log: t.TempDir() + "/log"})
	must(t, err)
	t.Cleanup(func() {
		if err := server.Kill(); err != nil {
			t.Error(err)
		}
	})
	var targets []string
	for _, a := range spec.Outside() {
		at := netip.AddrPortFrom(a, 8080).String()
		targets = append(targets, "tcp://"+at, "udp://"+at)
	}
	for n, p := range probes(t) {
		for i, r := range expect(t, p.Name, targets...) {
			if want := spec.Underlay(n + 1)[i/2].String(); client(r) != want {
				t.Errorf("%s: the host outside saw %s, want the node's %s", r.Target, client(r), want)
			}
		}
	}
}

const services = `apiVersion: v1
kind: Service
metadata: {name: all}
spec: {ipFamilyPolicy: RequireDualStack, selector: {app: probe}, ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: near}
spec: {ipFamilyPolicy: RequireDualStack, type: NodePort, externalTrafficPolicy: Local, selector: {app: probe}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
---
apiVersion: v1
kind: Service
metadata: {name: far}
spec: {ipFamilyPolicy: RequireDualStack, type: NodePort, selector: {app: single}, ports: [{port: 80, targetPort: 8080, nodePort: 30081}]}
---
apiVersion: v1
kind: Pod
metadata: {name: single, labels: {app: single}}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers: [{name: probe, image: "localhost/twill-pod:1", args: [serve], ports: [{containerPort: 8080, hostPort: 18080}]}]
`

func clusterIPs(t *testing.T, service string) []string {
	t.Helper()
	return strings.Fields(kubectl(t, "get", "service", service, "--output=jsonpath={range .spec.clusterIPs[*]}{} {end}"))
}

// at is host:port of every address.
func at(addrs []string, port int) []string {
	var all []string
	for _, a := range addrs {
		all = append(all, netip.AddrPortFrom(netip.MustParseAddr(a), uint16(port)).String())
	}
	return all
}

func TestServices(t *testing.T) {
	pods := probes(t)
	apply(t, services)
	kubectl(t, "wait", "--for=condition=Ready", "pod/single", "--timeout=60s")
	all, far := at(clusterIPs(t, "all"), 80), at(clusterIPs(t, "far"), 80)
	await(t, "kube-proxy to know the services", testwait.Limit, func() (bool, error) {
		replies, err := spec.Probe(t.Context(), pods[2].Name, "tcp://"+all[0], "tcp://"+all[1], "tcp://"+far[0], "tcp://"+far[1])
		return err == nil && !slices.ContainsFunc(replies, func(r cluster.Reply) bool { return r.Error != "" }), err
	})
	t.Run("ClusterIP", func(t *testing.T) {
		for _, p := range pods {
			expect(t, p.Name, "tcp://"+all[0], "udp://"+all[0], "tcp://"+all[1], "udp://"+all[1])
		}
	})
	t.Run("hairpin", func(t *testing.T) {
		for _, r := range expect(t, "single", "tcp://"+far[0], "tcp://"+far[1]) {
			if !strings.HasPrefix(r.Answer, "single ") {
				t.Errorf("%s: got %q, want an answer of the pod itself", r.Target, r.Answer)
			}
		}
	})
	t.Run("NodePort with externalTrafficPolicy Local keeps the client's address", localKeepsClient)
	t.Run("NodePort with externalTrafficPolicy Cluster", func(t *testing.T) {
		for n := 1; n <= spec.Nodes; n++ {
			for _, a := range spec.Underlay(n) {
				outside(t, "tcp://"+netip.AddrPortFrom(a, 30081).String())
			}
		}
	})
	t.Run("hostPort", func(t *testing.T) {
		for i, a := range spec.Underlay(1) {
			target := "tcp://" + netip.AddrPortFrom(a, 18080).String()
			if got, want := client(outside(t, target)[0]), spec.Outside()[i].String(); got != want {
				t.Errorf("%s: the pod saw %s, want %s", target, got, want)
			}
			expect(t, pods[2].Name, target)
		}
	})
}

func localKeepsClient(t *testing.T) {
	for n := 1; n <= spec.Nodes; n++ {
		for i, a := range spec.Underlay(n) {
			target := "tcp://" + netip.AddrPortFrom(a, 30080).String()
			r := outside(t, target)[0]
			if want := spec.Outside()[i].String(); client(r) != want {
				t.Errorf("%s: the pod saw %s, want %s", target, client(r), want)
			}
		}
	}
}
