//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// TestFlannel changes a node from genuine flannel to Twill and back, in a cluster whose other node runs Twill, and in
// one whose other node runs flannel. Pods ping each other all the while, and no packet is lost, except by
// udp, where the agents move them: there pods reach each other after each change.
func TestFlannel(t *testing.T) {
	flanneld := genuineFlannel(t)
	for _, backend := range []string{"vxlan", "host-gw", "udp"} {
		for _, store := range []string{lab.Etcd, lab.Kube} {
			for _, family := range []string{lab.IPv4, lab.Dual} {
				if backend == "udp" && family == lab.Dual {
					continue // flannel's has IPv4 only
				}
				for _, peer := range []string{"twilld", "flanneld"} {
					t.Run(fmt.Sprintf("%s/%s/%s/beside %s", backend, store, family, peer), func(t *testing.T) {
						s := lab.Spec{Name: "fl" + strings.ReplaceAll(backend, "-", "") + store + family + peer[:1],
							Backend: backend, Store: store, Family: family, Nodes: 2, Pods: 1}
						either := newSwitchable(t, flanneld)
						s.Agents = map[string]string{"node1": either.path}
						if peer == "flanneld" {
							s.Agents["node2"] = flanneld
						}
						c := cluster{t, labtest.Start(t, s)}
						c.matrix()
						c.change(either, true)
						c.change(either, false)
						c.change(either, true)
					})
				}
			}
		}
	}
}

func genuineFlannel(t *testing.T) string {
	t.Helper()
	flanneld, err := filepath.Abs("../../bin/flannel/flanneld")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(flanneld); err != nil {
		t.Fatalf("%v: run tools/flannel/build", err)
	}
	return flanneld
}

// TestFlannelSpreadMetrics has flannel take over a node from Twill whose routes have metrics of their own, and give it
// back, while pods ping each other. A node that leaves meanwhile leaves no more than Twill's route behind.
func TestFlannelSpreadMetrics(t *testing.T) {
	flanneld := genuineFlannel(t)
	for backend, beside := range map[string]routes{"vxlan": {twills: 1, others: 1}, "host-gw": {twills: 1}} {
		t.Run(backend, func(t *testing.T) {
			either := newSwitchable(t, flanneld)
			conf := fmt.Sprintf(`{"Network": "10.244.0.0/16", "Backend": {"Type": %q, "SpreadMetrics": true}}`, backend)
			s := lab.Spec{Name: "fls" + strings.ReplaceAll(backend, "-", ""), Backend: backend, NetConf: []byte(conf),
				Store: lab.Kube, Nodes: 3, Pods: 1, Agents: map[string]string{"node1": either.path}}
			if err := os.WriteFile(either.file, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			c := cluster{t, labtest.Start(t, s)}
			c.matrix()
			leaving := c.lab.Nodes()[2]
			stays, leaves := c.lab.Nodes()[1].Subnets()[0], leaving.Subnets()[0]
			one := routes{twills: 1}
			c.hasRoutes("with Twill", stays, one)
			c.change(either, false)
			c.hasRoutes("with flannel", stays, beside)
			c.unharmed(func() { c.must(leaving.Leave(c.Context())) })
			c.hasRoutes("with flannel, after its node has left", leaves, routes{twills: beside.others})
			c.change(either, true)
			c.hasRoutes("with Twill again", stays, one)
			c.hasRoutes("with Twill again, after its node has left", leaves, routes{})
			if backend == "vxlan" { // what scale.md tells to do
				c.change(either, false)
				c.unharmed(func() { c.exec(c.lab.Nodes()[0], "ip route flush proto 116") })
				c.hasRoutes("with flannel, without Twill's", stays, routes{others: 1})
			}
		})
	}
}

// routes counts a node's routes to a subnet: Twill's with a metric, and all others.
type routes struct{ twills, others int }

// hasRoutes waits until node1 has these routes to a subnet.
func (c cluster) hasRoutes(when string, to netip.Prefix, want routes) {
	c.Helper()
	testwait.Nil(c, fmt.Sprintf("%s: the routes to %s", when, to), func() error {
		var got routes
		text := c.exec(c.lab.Nodes()[0], "ip route show exact "+to.String())
		for line := range strings.Lines(text) {
			if strings.Contains(line, "proto 116") && strings.Contains(line, "metric") {
				got.twills++
			} else {
				got.others++
			}
		}
		if got != want {
			return fmt.Errorf("they are %+v, want %+v:\n%s", got, want, text)
		}
		return nil
	})
}

// switchable is a program that is flannel, or Twill when a file is there.
type switchable struct{ path, file string }

func newSwitchable(t *testing.T, flanneld string) switchable {
	t.Helper()
	dir := t.TempDir()
	s := switchable{filepath.Join(dir, "flanneld"), filepath.Join(dir, "twill")}
	script := fmt.Sprintf("#!/bin/sh\n[ -e %s ] || exec %s \"$@\"\nexec %s \"$@\" --checkpoint-file=%s/checkpoint.json\n",
		s.file, flanneld, small("").Programs.Agent, dir)
	if err := os.WriteFile(s.path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

// change ends the agent of node1 and starts the other one; what peers are told of the node stays as it was.
func (c cluster) change(agent switchable, twill bool) {
	c.Helper()
	node := c.lab.Nodes()[0]
	subnets := fmt.Sprint(node.Subnets())
	around := c.unharmed
	if c.lab.Spec().Backend == "udp" {
		around = func(do func()) { do() }
	}
	around(func() {
		c.must(node.StopAgent(c.Context()))
		c.must(os.RemoveAll(agent.file))
		switch {
		case twill:
			c.must(os.WriteFile(agent.file, nil, 0o644))
		case c.lab.Spec().Backend == "udp": // it stands with its routes, and flannel makes another one beside it
			c.exec(node, "ip link delete flannel0")
		}
		c.must(node.StartAgent(c.Context()))
		testwait.Pause(c, 2*time.Second, "flannel says that it is well before it is, and nothing loses packets meanwhile")
	})
	c.matrix()
	if now := fmt.Sprint(node.Subnets()); now != subnets {
		c.Errorf("the node had %s and has %s", subnets, now)
	}
	if rules := c.exec(node, "iptables-save"); strings.Contains(rules, "flanneld") == twill {
		c.Errorf("to Twill: %t: the node's rules are\n%s", twill, rules)
	}
}
