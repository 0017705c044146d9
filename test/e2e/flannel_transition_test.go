//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// TestFlannelTransition has a node of genuine flannel in a cluster whose other nodes run Twill and get another VNI, or backend.
// These say in their records what they offer; flannel ignores that, and they keep its way: nothing is lost, nor when one of them
// goes back, until flannel has the new config, too. When it has, nothing is left of the old one.
func TestFlannelTransition(t *testing.T) {
	flanneld := genuineFlannel(t)
	for name, to := range map[string]way{"vni": vxlan7, "hostgw": hostgw} {
		t.Run(name, func(t *testing.T) {
			c := &changing{change: change{name: "flannel", ways: []way{vxlan1, to}}}
			c.cluster = cluster{t, labtest.Up(t, lab.Spec{Name: "flt" + name, Store: lab.Kube, Nodes: 3, Pods: 1,
				NetConf: c.netConf(lab.IPv4, vxlan1), Agents: map[string]string{"node3": flanneld}})}
			c.streams = c.allStreams()
			c.restartWith(to, 1, 2)
			c.restartWith(vxlan1, 1)
			c.restartWith(to, 1)
			testwait.Pause(t, 35*time.Second, "a way that is not needed any more stays for half a minute")
			for _, n := range c.lab.Nodes()[:2] {
				if said := c.record(n); !strings.Contains(said, `\"Ways\":`) || !strings.Contains(said, `"backend-type":"vxlan"`) {
					t.Errorf("the record of %s is %s, want both ways, and flannel's as its own", n.Name, said)
				}
				c.leads(n, "flannel.1", c.lab.Nodes()[2])
			}
			c.restartWith(vxlan1, 3) // flannel reads the records anew
			c.lostNothing(t)
			c.restartWith(to, 3)
			c.matrix()
			testwait.Nil(t, "nothing is left of the way of before", func() error {
				for _, n := range c.lab.Nodes()[:2] {
					if said := c.record(n) + c.exec(n, "ip -o link show"); strings.Contains(said, "Ways") || strings.Contains(said, " flannel.1:") {
						return fmt.Errorf("%s: %s", n.Name, said)
					}
				}
				return nil
			})
			c.matrix()
		})
	}
}

// TestFlannelEarlier has a node of genuine flannel beside one of Twill whose podCIDR changes while it has pods of the one before.
// flannel ignores what the record says of that: it reaches the node's new pods, and Twill's nodes reach both.
func TestFlannelEarlier(t *testing.T) {
	c := cluster{t, labtest.Up(t, lab.Spec{Name: "flearlier", Store: lab.Kube, Nodes: 3, Pods: 1,
		Agents: map[string]string{"node3": genuineFlannel(t)}})}
	moved := c.lab.Nodes()[1]
	c.must(c.lab.DeleteNode(t.Context(), moved.Name))
	_, err := c.lab.API(t.Context(), http.MethodPost, "/api/v1/nodes", fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Node",
		"metadata": {"name": %q, "annotations": {"some": "annotation, as every Node has"}}, "spec": {"podCIDR": "10.244.77.0/24", "podCIDRs": ["10.244.77.0/24"]},
		"status": {"addresses": [{"type": "InternalIP", "address": %q}]}}`, moved.Name, moved.Underlay()[0]))
	c.must(err)
	c.must(moved.RestartAgent(t.Context()))
	added, err := moved.AddPod(t.Context(), "new")
	c.must(err)
	testwait.Nil(t, "the record names the subnet of before", func() error {
		if said := c.record(moved); !strings.Contains(said, `\"Earlier\":[\"10.244.2.0/24\"]`) {
			return fmt.Errorf("it is %s", said)
		}
		return nil
	})
	for _, way := range []struct{ from, to *lab.Pod }{
		{c.pod(3), added}, {added, c.pod(3)}, {c.pod(1), added}, {c.pod(1), moved.Pods()[0]}, {moved.Pods()[0], c.pod(1)},
	} {
		testwait.Nil(t, way.from.ID()+" reaches "+way.to.ID(), func() error {
			_, err := way.from.Ping(t.Context(), host.Ping{To: way.to.Addrs[0], Timeout: time.Second})
			return err
		})
	}
}

// restartWith gives nodes, by their numbers, another config.
func (c *changing) restartWith(to way, nodes ...int) {
	c.Helper()
	c.must(c.lab.SetNetConf(c.Context(), c.netConf(lab.IPv4, to)))
	for _, n := range nodes {
		c.must(c.lab.Nodes()[n-1].RestartAgent(c.Context()))
		testwait.Pause(c, 2*time.Second, "as a rollout waits for its next batch")
	}
}

// lostNothing fails the test if a stream has lost a packet since it began.
func (c *changing) lostNothing(t *testing.T) {
	for i, s := range c.streams {
		loss, err := s.Between(t.Context(), 0, s.Mark())
		if t.Logf("stream %d: %s", i, loss); err != nil || loss.Lost > 0 || loss.Sent < 1000 {
			t.Errorf("stream %d: %s: %v", i, loss, err)
		}
	}
}

// record returns what a Node says of its network.
func (c cluster) record(n *lab.Node) string {
	c.Helper()
	said, err := c.lab.API(c.Context(), http.MethodGet, "/api/v1/nodes/"+n.Name, nil)
	c.must(err)
	var node struct {
		Metadata struct{ Annotations map[string]string }
	}
	c.must(json.Unmarshal(said, &node))
	text, err := json.Marshal(node.Metadata.Annotations)
	c.must(err)
	return strings.ReplaceAll(string(text), "flannel.alpha.coreos.com/", "")
}

// leads fails the test unless a node's route to another one's pods leads to a device.
func (c cluster) leads(from *lab.Node, device string, to *lab.Node) {
	c.Helper()
	if route := c.exec(from, "ip route get "+to.Pods()[0].Addrs[0].String()); !strings.Contains(route, " dev "+device+" ") {
		c.Errorf("from %s to %s: %s, want %s", from.Name, to.Name, route, device)
	}
}
