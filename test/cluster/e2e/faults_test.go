//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/test/cluster"
)

func TestRollingUpdateLosesNothing(t *testing.T) {
	pods := probes(t)
	l := startLoad(t, pods[0], pods[2], 25)
	testwait.Pause(t, time.Second, "the load runs before the rollout begins")
	began := time.Now()
	rolled := make(chan error, 1)
	kubectl(t, "-n", "kube-twill", "rollout", "restart", "daemonset/twill")
	go func() {
		_, err := spec.Kubectl(t.Context(), "-n", "kube-twill", "rollout", "status", "daemonset/twill", "--timeout=5m")
		t.Logf("the rollout took %s", time.Since(began).Round(time.Second))
		rolled <- err
	}()
	for {
		l.finish(t)
		select {
		case err := <-rolled:
			must(t, err)
			return
		default:
			l = startLoad(t, pods[0], pods[2], 25) // a busy machine needs more than one
		}
	}
}

func TestKilledAgentLosesNothing(t *testing.T) {
	pods := probes(t)
	l := startLoad(t, pods[1], pods[2], 90)
	for kill := range 20 {
		before := restarts(t)
		must(t, spec.KillContainer(t.Context(), "node3", "twilld"))
		await(t, fmt.Sprintf("the agent after kill %d", kill+1), testwait.Limit, func() (bool, error) {
			return restarts(t) > before && agentReady(t), nil
		})
	}
	matrix(t)
	l.finish(t)
}

func agentOn(t *testing.T, node, path string) string {
	t.Helper()
	return strings.TrimSpace(kubectl(t, "-n", "kube-twill", "get", "pods", "--field-selector=spec.nodeName="+node,
		"--output=jsonpath={.items[0].status.containerStatuses[0]."+path+"}"))
}

// agentLog is what the agent on a node has said since it started.
func agentLog(t *testing.T, node string) string {
	t.Helper()
	pod := strings.TrimSpace(kubectl(t, "-n", "kube-twill", "get", "pods", "--field-selector=spec.nodeName="+node, "--output=jsonpath={.items[0].metadata.name}"))
	return kubectl(t, "-n", "kube-twill", "logs", pod, "--container=twilld")
}

func restarts(t *testing.T) (n int) {
	t.Helper()
	_, err := fmt.Sscan(agentOn(t, "node3", "restartCount"), &n)
	must(t, err)
	return n
}

func agentReady(t *testing.T) bool { return agentOn(t, "node3", "ready") == "true" }

func TestKubeletRestart(t *testing.T) {
	pods := probes(t)
	l := startLoad(t, pods[0], pods[1], 15)
	must(t, spec.KillProgram("node2", "kubelet"))
	testwait.Pause(t, 5*time.Second, "a kubelet that was killed, and the one after it, lose nothing")
	kubectl(t, "wait", "--for=condition=Ready", "node/node2", "--timeout=60s")
	l.finish(t)
	matrix(t)
}

// pods is a number of pods on one node.
func podsOn(name, node string, count int) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: default}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      nodeName: %[2]s
      terminationGracePeriodSeconds: 1
      containers: [{name: probe, image: %[4]q, args: [serve]}]
`, name, node, count, cluster.PodImage)
}

func TestAPIServerDownForAMinute(t *testing.T) {
	pods := probes(t)
	// Not a pod's ping: kubectl exec goes through the API server, and ends with it.
	stream, err := spec.Host("node2").Stream(pods[2].Addrs[0], 10*time.Millisecond)
	must(t, err)
	defer stream.Close()
	from := stream.Mark()
	must(t, spec.StopAPI())
	testwait.Pause(t, 20*time.Second, "nothing is lost while the API server is down")
	must(t, spec.KillProgram("node3", "kube-proxy"))
	testwait.Pause(t, 40*time.Second, "nothing is lost while kube-proxy cannot ask it")
	must(t, spec.StartAPI(t.Context()))
	loss, err := stream.Between(t.Context(), from, stream.Mark())
	if err != nil || loss.Lost > 0 || loss.Sent < 5000 {
		t.Errorf("while the API server was down: %v, %v", loss, err)
	}
	began := time.Now()
	apply(t, podsOn("after", "node2", 5))
	kubectl(t, "rollout", "status", "deployment/after", "--timeout=150s")
	// Kubernetes' own parts look again after up to half a minute each.
	t.Logf("5 pods were ready %s after the API server was", time.Since(began).Round(time.Second))
	matrix(t)
}

// TestManyPods creates 110 pods on one node at once and deletes them.
func TestManyPods(t *testing.T) {
	probes(t)
	before, err := spec.Reserved("node2")
	must(t, err)
	began := time.Now()
	manifest := podsOn("many", "node2", 110)
	apply(t, manifest)
	kubectl(t, "rollout", "status", "deployment/many", "--timeout=240s")
	t.Logf("110 pods were ready after %s", time.Since(began).Round(100*time.Millisecond))
	pods, err := spec.Pods(t.Context(), "app=many")
	must(t, err)
	distinct(t, pods, 110)
	began = time.Now()
	kubectl(t, "delete", "deployment", "many", "--wait=false")
	await(t, "110 pods to go", 4*time.Minute, func() (bool, error) {
		out, err := spec.Kubectl(t.Context(), "get", "pods", "--selector=app=many", "--output=name")
		return err == nil && out == "", err
	})
	t.Logf("110 pods were gone after %s", time.Since(began).Round(100*time.Millisecond))
	await(t, "their addresses to be free", testwait.Limit, func() (bool, error) {
		after, err := spec.Reserved("node2")
		if len(after) > len(before) {
			err = fmt.Errorf("%d reservations, before there were %d", len(after), len(before))
		}
		return len(after) <= len(before), err
	})
}

// distinct checks that no address was given twice.
func distinct(t *testing.T, pods []cluster.Pod, count int) {
	t.Helper()
	seen := map[netip.Addr]string{}
	for _, p := range pods {
		for _, a := range p.Addrs {
			if other, ok := seen[a]; ok {
				t.Errorf("%s and %s both have %s", other, p.Name, a)
			}
			seen[a] = p.Name
		}
	}
	if len(pods) != count || len(seen) != 2*count {
		t.Errorf("%d pods have %d addresses, want %d and %d", len(pods), len(seen), count, 2*count)
	}
}

// TestReboot ends node3 as a power failure does: its namespaces and /run are gone, /var/lib is kept.
func TestReboot(t *testing.T) {
	apply(t, podsOn("some", "node3", 10))
	kubectl(t, "rollout", "status", "deployment/some", "--timeout=60s")
	probes(t)
	leak(t, 3, "of-an-earlier-boot")
	must(t, spec.StopNode("node3"))
	// The machine's kernel goes on, and with it its boot id.
	must(t, os.WriteFile(spec.NodeFiles("node3", "var/lib/cni/networks/cbr0/.twill-boot"), []byte("an earlier boot's id\n"), 0o644))
	must(t, spec.Reboot(3))
	await(t, "node3 to be seen as gone or back", time.Minute, func() (bool, error) {
		return bootReady(t), nil
	})
	await(t, "its pods to come back", 2*time.Minute, func() (bool, error) {
		pods, err := spec.Pods(t.Context(), "app=some")
		if err != nil || len(pods) != 10 {
			return false, err
		}
		m, err := spec.PodMatrix(t.Context(), append(pods[:1:1], probes(t)...))
		if err != nil {
			return false, err
		}
		return m.Err() == nil, m.Err()
	})
	pods, err := spec.Pods(t.Context(), "app=some")
	must(t, err)
	distinct(t, pods, 10)
	noLeak(t, "node3")
	freedBeforeTheLease(t, agentLog(t, "node3"))
}

// freedBeforeTheLease checks the agent's order after a reboot: no pod can be given an address before.
func freedBeforeTheLease(t *testing.T, log string) {
	t.Helper()
	freed, leased := strings.Index(log, "container=of-an-earlier-boot"), strings.Index(log, "msg=leased")
	if freed < 0 || leased < 0 || freed > leased {
		t.Errorf("addresses of an earlier boot are freed at %d of the log, the subnet is leased at %d:\n%s", freed, leased, log)
	}
}

// bootReady reports whether the agent on node3 has come up since the last boot and node3 is Ready.
func bootReady(t *testing.T) bool {
	out, err := spec.Kubectl(t.Context(), "get", "node", "node3", `--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	_, pinged := spec.Host("node1").Ping(t.Context(), host.Ping{To: spec.Underlay(3)[0]})
	return err == nil && out == "True" && pinged == nil && agentReady(t)
}

// noLeak checks that a node's reservations are the addresses of its pods, no more and no less.
func noLeak(t *testing.T, node string) {
	t.Helper()
	await(t, "reservations to be those of the pods of "+node, time.Minute, func() (bool, error) {
		pods, err := spec.Pods(t.Context(), "")
		if err != nil {
			return false, err
		}
		var want []string
		for _, p := range pods {
			for _, a := range p.Addrs {
				if p.Node == node && slices.ContainsFunc(cluster.PodNetworks, func(n netip.Prefix) bool { return n.Contains(a) }) {
					want = append(want, a.String())
				}
			}
		}
		have, err := spec.Reserved(node)
		if err != nil {
			return false, err
		}
		slices.Sort(want)
		slices.Sort(have)
		if !slices.Equal(want, have) {
			return false, fmt.Errorf("reserved are %v, pods have %v", have, want)
		}
		return true, nil
	})
}

// TestNodeLeavesAndComesBack deletes node3 from the API: it comes back, with another subnet, under the same name.
func TestNodeLeavesAndComesBack(t *testing.T) {
	probes(t)
	before := kubectl(t, "get", "node", "node3", "--output=jsonpath={.metadata.uid} {.spec.podCIDR}")
	kubectl(t, "delete", "node", "node3")
	must(t, spec.KillProgram("node3", "kubelet")) // it registers when it starts
	await(t, "node3 to register again", time.Minute, func() (bool, error) {
		after, err := spec.Kubectl(t.Context(), "get", "node", "node3", "--output=jsonpath={.metadata.uid} {.spec.podCIDR}")
		return err == nil && strings.Contains(after, ".") && after != before, nil
	})
	t.Logf("node3 was %s and is %s", before, kubectl(t, "get", "node", "node3", "--output=jsonpath={.metadata.uid} {.spec.podCIDR}"))
	kubectl(t, "wait", "--for=condition=Ready", "node/node3", "--timeout=90s")
	must(t, spec.WaitReady(t.Context()))
	kubectl(t, "delete", "pods", "--selector=app=probe", "--field-selector=spec.nodeName=node3", "--ignore-not-found")
	await(t, "every pod to reach every pod", 2*time.Minute, func() (bool, error) {
		m, err := spec.PodMatrix(t.Context(), probes(t))
		if err != nil {
			return false, err
		}
		return m.Err() == nil, m.Err()
	})
	noLeak(t, "node3")
}
