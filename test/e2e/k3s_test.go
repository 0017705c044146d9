//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// k3sConf is the net-conf.json that k3s (pkg/agent/flannel) writes for its flannel, with its own networks. A family that
// the cluster does not have is the network of all addresses, and not enabled.
const k3sConf = `{
	"Network": "%s",
	"EnableIPv6": %t,
	"EnableIPv4": %t,
	"IPv6Network": "%s",
	"Backend": {
	"Type": "%s"
}
}
`

// k3sAgent is genuine flannel as k3s runs it: it knows its lease from the Node, leaves the Node's condition
// NetworkUnavailable alone, and writes iptables rules. When the file twill is there it is Twill.
const k3sAgent = `#!/bin/sh
[ -e %[1]s/twill ] || exec %[2]s "$@" --set-node-network-unavailable=false
exec %[3]s "$@" --checkpoint-file=%[1]s/checkpoint.json
`

// TestK3s moves three nodes from flannel as k3s runs it to Twill, one after the other, and back. Pods of all nodes ping
// each other all the while, and no packet is lost, nor one in the seconds in which a node has neither agent. k3s itself
// does not run: flannel is genuine, with the configuration that k3s gives it.
func TestK3s(t *testing.T) {
	for _, backend := range []string{"vxlan", "host-gw"} {
		for _, family := range []string{lab.IPv4, lab.IPv6, lab.Dual} {
			t.Run(backend+"/"+family, func(t *testing.T) {
				four, six := "0.0.0.0/0", "::/0"
				if family != lab.IPv6 {
					four = "10.42.0.0/16"
				}
				if family != lab.IPv4 {
					six = "fd00:42::/56"
				}
				conf := fmt.Sprintf(k3sConf, four, family != lab.IPv4, family != lab.IPv6, six, backend)
				migrate(t, lab.Spec{Name: "k3s" + strings.ReplaceAll(backend, "-", "") + family, Family: family,
					Backend: backend, NetConf: []byte(conf)})
			})
		}
	}
}

// TestOtherFlannels does the same with the configurations that RKE2's chart and Talos give flannel: another VNI,
// another port, nftables.
func TestOtherFlannels(t *testing.T) {
	for name, conf := range map[string]string{
		"rke2":  `{"Network": "10.42.0.0/16", "Backend": {"Port": 4789, "VNI": 4096, "Type": "vxlan"}}`,
		"talos": `{"Network": "10.244.0.0/16", "EnableNFTables": true, "Backend": {"Type": "vxlan", "Port": 4789}}`,
	} {
		t.Run(name, func(t *testing.T) {
			migrate(t, lab.Spec{Name: "other" + name, Family: lab.IPv4, Backend: "vxlan", NetConf: []byte(conf)})
		})
	}
}

// migrate makes a lab of three nodes with flannel, and moves them to Twill and back.
func migrate(t *testing.T, s lab.Spec) {
	t.Helper()
	flanneld, err := filepath.Abs("../../bin/flannel/flanneld")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(flanneld); err != nil {
		t.Fatalf("%v: run tools/flannel/build", err)
	}
	s.Store, s.Nodes, s.Pods, s.Agents = lab.Kube, 3, 1, map[string]string{}
	for n := 1; n <= s.Nodes; n++ {
		s.Agents[fmt.Sprintf("node%d", n)] = newK3sAgent(t, flanneld)
	}
	k := k3s{cluster: cluster{t, labtest.Start(t, s)}, agents: s.Agents}
	k.matrix()
	k.published = k.annotations()
	k.migrate()
}

func newK3sAgent(t *testing.T, flanneld string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "k3s")
	script := fmt.Sprintf(k3sAgent, dir, flanneld, small("").Programs.Agent)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

type k3s struct {
	cluster
	agents    map[string]string // of each node
	published map[string]string // what k3s's flannel wrote to the Nodes
}

// migrate moves all nodes to Twill and back, in the same order, so that neighbours run the other agent.
func (k k3s) migrate() {
	streams := k.streams()
	for _, twill := range []bool{true, false} {
		for _, node := range k.lab.Nodes() {
			k.restart(node, twill)
			for name, s := range streams {
				loss, err := s.Between(k.Context(), 0, s.Mark())
				if err != nil || loss.Lost > 0 || loss.Sent < 30 {
					k.Fatalf("%s, after %s went to Twill (%t): %v %v", name, node.Name, twill, loss, err)
				}
			}
		}
	}
}

// streams are pings from each node's pod to the next one's, of all families.
func (k k3s) streams() map[string]*host.Stream {
	k.Helper()
	streams := map[string]*host.Stream{}
	pods := k.lab.Pods()
	for i, from := range pods {
		to := pods[(i+1)%len(pods)]
		for _, addr := range to.Addrs {
			s, err := from.Stream(addr, 10*time.Millisecond)
			k.must(err)
			k.Cleanup(s.Close)
			streams[fmt.Sprintf("%s → %s", from.ID(), addr)] = s
		}
	}
	return streams
}

// restart ends k3s's flannel, leaves the node alone for as long as a pod needs to be scheduled, and starts Twill; or the
// other way round.
func (k k3s) restart(node *lab.Node, twill bool) {
	k.Helper()
	env, device := k.leaseOf(node), k.device(node)
	k.must(node.StopAgent(k.Context()))
	testwait.Pause(k, 2*time.Second, "a node without an agent loses no packet")
	file := filepath.Join(filepath.Dir(k.agents[node.Name]), "twill")
	k.must(os.RemoveAll(file))
	if twill {
		k.must(os.WriteFile(file, nil, 0o644))
	}
	k.must(node.StartAgent(k.Context()))
	testwait.Pause(k, 2*time.Second, "flannel says that it is well before it is, and nothing loses packets meanwhile")
	k.matrix()
	if now := k.leaseOf(node); !maps.Equal(now, env) {
		k.Errorf("subnet.env was %v and is %v", env, now)
	}
	if now := k.device(node); now != device {
		k.Errorf("the device was %s and is %s", device, now)
	}
	if now := k.annotations(); !maps.Equal(now, k.published) {
		k.Errorf("the Nodes' annotations were %v and are %v", k.published, now)
	}
	rules := k.exec(node, "iptables-save") + k.exec(node, "ip6tables-save")
	nftables := strings.Contains(string(k.lab.Spec().NetConf), "EnableNFTables") // both write the same tables then
	if strings.Contains(rules, "flanneld") == twill && !nftables {
		k.Errorf("to Twill: %t: the node's rules are\n%s", twill, rules)
	}
	if plan := k.execArgs(node, node.DryRun()); twill && !strings.Contains(plan, "# nothing to change") {
		k.Errorf("%s is not as it should be:\n%s", node.Name, plan)
	}
}

// leaseOf is what the CNI plugins read. The MTU is left out with IPv6 between the nodes: there flannel forgets that its
// header has 20 bytes more.
func (k k3s) leaseOf(node *lab.Node) map[string]string {
	k.Helper()
	text, err := os.ReadFile(node.SubnetFile())
	k.must(err)
	env := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if !strings.HasPrefix(key, "FLANNEL_") || key == "FLANNEL_MTU" && k.lab.Spec().Family != lab.IPv4 {
			continue // Twill has a key more
		}
		env[key] = value
	}
	return env
}

// device is the number and the MAC of the VXLAN devices, which must stay the same, since peers know the MAC.
func (k k3s) device(node *lab.Node) string {
	k.Helper()
	var links []struct {
		Index   int    `json:"ifindex"`
		Name    string `json:"ifname"`
		Address string `json:"address"`
	}
	k.must(json.Unmarshal([]byte(k.exec(node, "ip -json link show type vxlan")), &links))
	return fmt.Sprint(links)
}

// annotations are flannel's, of all Nodes, without what it writes for a family that the cluster does not have.
func (k k3s) annotations() map[string]string {
	k.Helper()
	data, err := k.lab.API(k.Context(), http.MethodGet, "/api/v1/nodes", nil)
	k.must(err)
	var list struct {
		Items []struct {
			Metadata struct {
				Name        string            `json:"name"`
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
		} `json:"items"`
	}
	k.must(json.Unmarshal(data, &list))
	all := map[string]string{}
	for _, n := range list.Items {
		for key, value := range n.Metadata.Annotations {
			if strings.HasPrefix(key, "flannel.alpha.coreos.com/") && value != "null" && value != "0.0.0.0" {
				all[n.Metadata.Name+" "+key] = value
			}
		}
	}
	if len(all) < 2*len(k.lab.Nodes()) {
		k.Fatalf("flannel published no more than %v", all)
	}
	return all
}
