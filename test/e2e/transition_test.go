package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/host"
	"github.com/twill-net/twill/lab/labtest"
)

// transitions are the backends that a cluster gets one after the other, and what is left of the ones before when all nodes have
// followed.
var transitions = []struct{ name, conf, device string }{
	{"host-gw", `{"Type":"host-gw"}`, ""},
	{"vxlan", `{"Type":"vxlan"}`, "flannel.1"},
	{"vni", `{"Type":"vxlan","VNI":7}`, "flannel.7"},
	{"direct", `{"Type":"host-gw"}`, ""},
	{"vni-again", `{"Type":"vxlan","VNI":7}`, "flannel.7"},
	{"port", `{"Type":"vxlan","VNI":7,"Port":4789}`, "flannel.7"},
	{"port-again", `{"Type":"vxlan","VNI":7}`, "flannel.7"},
}

// TestTransition changes a cluster's backend node by node, as a DaemonSet's rollout does, under pings between all pods: none
// is lost but where a device has to be made again.
func TestTransition(t *testing.T) {
	c := cluster{t, labtest.Up(t, lab.Spec{Name: "e2echange", Store: lab.File, Nodes: 3, Pods: 1})}
	streams := c.allStreams()
	for _, to := range transitions {
		c.Run(to.name, func(t *testing.T) {
			c := cluster{t, c.lab}
			before := marks(streams)
			c.configureBackend(to.conf)
			for _, n := range c.lab.Nodes() {
				c.must(n.RestartAgent(c.Context()))
				testwait.Pause(c, 2*time.Second, "as a rollout waits for its next batch")
			}
			testwait.Pause(c, 40*time.Second, "a way that is not needed any more stays for half a minute")
			testwait.Nil(c, "the nodes have no more than "+to.name+" needs", func() error {
				for _, n := range c.lab.Nodes() {
					out := c.exec(n, "ip -o link show")
					for _, dev := range []string{"flannel.1", "flannel.7", "flannel-p"} {
						if has := strings.Contains(out, " "+dev); has != (to.device == dev) {
							return fmt.Errorf("%s: %s", n.Name, out)
						}
					}
				}
				return nil
			})
			c.matrix()
			for i, s := range streams {
				loss, err := s.Between(t.Context(), before[i], s.Mark())
				c.must(err)
				t.Logf("to %s: %s, sent every 5 ms", to.name, loss)
			}
		})
	}
}

// allStreams are pings between all pods.
func (c cluster) allStreams() (all []*host.Stream) {
	for i := range c.lab.Pods() {
		for j, p := range c.lab.Pods() {
			if i == j {
				continue
			}
			s, err := c.pod(i+1).Stream(p.Addrs[0], 5*time.Millisecond)
			c.must(err)
			c.Cleanup(s.Close)
			all = append(all, s)
		}
	}
	return all
}

// configureBackend changes the Backend of the cluster's config.
func (c cluster) configureBackend(backend string) {
	c.Helper()
	conf := fmt.Appendf(nil, `{"Network": "10.244.0.0/16", "Backend": %s}`, backend)
	for _, f := range c.lab.Nodes()[0].AgentFlags() {
		if path, ok := strings.CutPrefix(f, "--net-config-path="); ok {
			c.must(os.WriteFile(path, conf, 0o644))
		}
	}
}
