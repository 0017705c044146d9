package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// TestWithoutBridge: with --bridge= Twill makes the path between the nodes, as flannel does in Canal, and upstream's
// plugins ptp and host-local connect the pods, as Calico's plugin does: a veth and a route for each. The nodes forward
// nothing that no rule accepts.
func TestWithoutBridge(t *testing.T) {
	plugins := buildPlugins(t, "main/ptp", "ipam/host-local")
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			s := small("canal" + strings.ReplaceAll(backend, "-", ""))
			s.Backend, s.Pods = backend, -1
			s.Agents = map[string]string{"": withoutBridge(t, s.Programs.Agent)}
			c := cluster{t, labtest.Start(t, s)}
			var pods []canalPod
			for _, n := range c.lab.Nodes() {
				c.exec(n, "iptables -P FORWARD DROP")
				pods = append(pods, c.canalPod(n, plugins))
			}
			c.canalConverges(pods)
			c.canalPings(pods)
			node := c.lab.Nodes()[0]
			links := c.exec(node, "ip -o link show")
			if strings.Contains(links, "cni0") {
				c.Errorf("there is a bridge:\n%s", links)
			}
			c.must(node.RestartAgent(c.Context()))
			c.canalPings(pods)
			if now := c.exec(node, "ip -o link show"); now != links {
				c.Errorf("links were\n%sand are, after a restart of the agent,\n%s", links, now)
			}
		})
	}
}

// buildPlugins builds some of upstream's plugins, and returns their folder.
func buildPlugins(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		pkg := "github.com/containernetworking/plugins/plugins/" + name
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir, pkg).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", pkg, err, out)
		}
	}
	return dir
}

// withoutBridge is an agent with one flag more. The lab knows by its name that it is Twill's.
func withoutBridge(t *testing.T, agent string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "twilld")
	if err := os.WriteFile(path, fmt.Appendf(nil, "#!/bin/sh\nexec %s \"$@\" --bridge=\n", agent), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// canalPod is a pod that the lab does not know.
type canalPod struct {
	host.Host
	addr string
	mtu  int
}

// canalPod makes a pod on a node, in the node's subnet.
func (c cluster) canalPod(n *lab.Node, plugins string) canalPod {
	c.Helper()
	env, err := n.Env()
	c.must(err)
	p := canalPod{Host: host.Host{Name: n.Host.Name + "-pod"}, mtu: env.MTU}
	c.must(p.Create())
	c.Cleanup(func() { _ = p.Delete() })
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "ptp", "mtu": %d,
		"ipam": {"type": "host-local", "subnet": %q, "dataDir": %q, "routes": [{"dst": "0.0.0.0/0"}]}}`,
		env.MTU, n.Subnets()[0], c.TempDir())
	add := "CNI_COMMAND=ADD CNI_IFNAME=eth0 CNI_CONTAINERID=%s CNI_NETNS=%s CNI_PATH=%s %s/ptp"
	c.execArgs(n, []string{"sh", "-c", "echo '" + conf + "' | " + fmt.Sprintf(add, p.Name, p.Path(), plugins, plugins)})
	addr, err := p.Exec(c.Context(), "sh", "-c", "ip -4 -o address show eth0 | sed 's,.*inet ,,;s,/.*,,'")
	c.must(err)
	p.addr = strings.TrimSpace(addr)
	return p
}

// canalConverges waits until the first packet arrives: the agents have to see the new policy of FORWARD.
func (c cluster) canalConverges(pods []canalPod) {
	c.Helper()
	testwait.Nil(c, "the first packet arrives", func() error {
		_, err := pods[0].Exec(c.Context(), "ping", "-c", "1", "-W", "1", pods[1].addr)
		return err
	})
}

// canalPings sends packets of full size between the pods.
func (c cluster) canalPings(pods []canalPod) {
	c.Helper()
	for i, p := range pods {
		to := pods[(i+1)%len(pods)]
		size := fmt.Sprint(p.mtu - 28)
		out, err := p.Exec(c.Context(), "ping", "-c", "5", "-i", "0.1", "-W", "20", "-M", "do", "-s", size, to.addr)
		if err != nil || !strings.Contains(out, "5 received") {
			c.Errorf("%s → %s: %v\n%s", p.Name, to.addr, err, out)
		}
	}
}
