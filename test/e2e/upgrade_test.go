//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// TestUpgrade replaces the agents by those of an earlier commit node by node, and then by this commit's again, while pods
// ping each other, a stream of TCP goes on and datagrams are answered: nothing is lost, each node keeps its subnets and its
// pods, what a policy denies never passes, and at the end nothing of the earlier agents is left over. TWILL_PREVIOUS names the
// commit.
func TestUpgrade(t *testing.T) {
	earlier := labtest.EarlierAgent(t)
	for name, spec := range map[string]lab.Spec{
		"vxlan":    {Backend: "vxlan", Family: lab.Dual, Store: lab.File},
		"kube":     {Backend: "vxlan", Family: lab.Dual, Store: lab.Kube},
		"hostgw":   {Backend: "host-gw", Family: lab.Dual, Store: lab.File},
		"fast":     {Backend: "vxlan", Family: lab.IPv4, Store: lab.File, FastPath: true},
		"policies": {Backend: "vxlan", Family: lab.Dual, Store: lab.File, NetworkPolicy: true},
	} {
		t.Run(name, func(t *testing.T) {
			versions := versioned{dir: t.TempDir(), earlier: earlier}
			spec.Name, spec.Nodes, spec.Pods, spec.Agents = "upgrade"+name, 3, 1, map[string]string{}
			for n := range spec.Nodes {
				node := fmt.Sprintf("node%d", n+1)
				spec.Agents[node] = versions.agent(t, node)
			}
			c := cluster{t, labtest.Up(t, spec)}
			c.upgrade(versions)
		})
	}
}

// upgrade goes to the earlier commit and back under traffic.
func (c cluster) upgrade(versions versioned) {
	subnets := map[string]string{}
	for _, n := range c.lab.Nodes() {
		subnets[n.Name] = fmt.Sprint(n.Subnets())
	}
	server, endStream := c.inbox(c.pod(2)), c.stream(c.pod(1), c.pod(2))
	flow := c.flow(c.pod(1), server.at)
	endDenied := func() {}
	if c.lab.Spec().NetworkPolicy {
		endDenied = c.denied(c.lab.Nodes()[0], c.pod(3))
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		flow.send(stop)
	}()
	c.unharmed(func() {
		for _, toEarlier := range []bool{true, false} {
			for i, n := range c.lab.Nodes() {
				c.must(n.StopAgent(c.Context()))
				c.must(versions.choose(n.Name, toEarlier))
				c.must(n.StartAgent(c.Context()))
				if version := c.versionOf(n); (version == versions.earlier) != toEarlier {
					c.Fatalf("to the earlier agent: %t, and %s runs %s", toEarlier, n.Name, version)
				}
				if now := fmt.Sprint(n.Subnets()); now != subnets[n.Name] {
					c.Errorf("%s had %s and has %s", n.Name, subnets[n.Name], now)
				}
				c.newPod(n, fmt.Sprintf("new%t%d", toEarlier, i))
			}
			c.matrix()
		}
	})
	close(stop)
	<-stopped
	endDenied()
	endStream(2 * len(c.lab.Nodes()))
	sent := int(flow.sent.Load())
	testwait.Nil(c, "all datagrams come, and come back", func() error {
		if there, back := server.count(), flow.count(); there != sent || back != sent {
			return fmt.Errorf("%d of %d datagrams came, and %d came back", there, sent, back)
		}
		return nil
	})
	for _, n := range c.lab.Nodes() {
		testwait.Nil(c, n.Name+" holds what this commit's agent wants, and no more", func() error {
			out, err := n.Exec(c.Context(), n.DryRun()...)
			if err == nil && !strings.Contains(out, "# nothing to change") {
				err = fmt.Errorf("the agent would change\n%s", out)
			}
			return err
		})
	}
}

// denied sends datagrams from a node to a pod of another one, which a policy denies, until end is called. That fails the test if
// one has come.
func (c cluster) denied(from *lab.Node, to *lab.Pod) (end func()) {
	c.Helper()
	var sent, came atomic.Uint64
	server := c.listenUDP(to)
	go func() {
		for buffer := make([]byte, 100); ; came.Add(1) {
			if _, _, err := server.ReadFromUDPAddrPort(buffer); err != nil {
				return
			}
		}
	}()
	conn, err := from.Dial(c.Context(), "udp", server.LocalAddr().String())
	c.must(err)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		defer conn.Close()
		for tick := time.NewTicker(time.Millisecond); ; sent.Add(1) {
			select {
			case <-stop:
				return
			case <-tick.C:
				_, _ = conn.Write([]byte("denied"))
			}
		}
	}()
	testwait.Until(c, "datagrams come that no policy denies yet", func() bool { return came.Load() > 0 })
	c.must(c.lab.ApplyManifest("from-pods.yaml", []byte(fromPods)))
	var silent, since uint64
	testwait.Until(c, "nothing comes any more", func() bool {
		if now := came.Load(); now != silent {
			silent, since = now, sent.Load()
		}
		return sent.Load() > since+500
	})
	begin := sent.Load()
	return func() {
		close(stop)
		<-stopped
		c.Logf("%d datagrams were denied", sent.Load()-begin)
		if now := came.Load(); now != silent || sent.Load() == begin {
			c.Errorf("%d of %d datagrams came that a policy denies", now-silent, sent.Load()-begin)
		}
	}
}

// newPod adds a pod, which reaches all others, and deletes it.
func (c cluster) newPod(n *lab.Node, name string) {
	c.Helper()
	p, err := n.AddPod(c.Context(), name)
	c.must(err)
	c.matrix()
	c.must(n.DelPod(c.Context(), p))
}

// versionOf is the program that a node's agent is.
func (c cluster) versionOf(n *lab.Node) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", n.Agent().PID))
	c.must(err)
	return path
}

// versioned makes agents that are this commit's, or an earlier one's where a file says so.
type versioned struct{ dir, earlier string }

// agent is the program of a node.
func (v versioned) agent(t *testing.T, node string) string {
	t.Helper()
	path := filepath.Join(v.dir, "twilld-"+node)
	script := fmt.Sprintf("#!/bin/sh\n[ ! -e %s ] || exec %s \"$@\"\nexec %s \"$@\"\n", v.mark(node), v.earlier,
		labtest.Spec(lab.Spec{}).Programs.Agent)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func (v versioned) mark(node string) string { return filepath.Join(v.dir, node+"-earlier") }

// choose says which one the agent of a node is when it starts.
func (v versioned) choose(node string, earlier bool) error {
	if earlier {
		return os.WriteFile(v.mark(node), nil, 0o644)
	}
	return os.Remove(v.mark(node))
}
