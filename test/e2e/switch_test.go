package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// TestSwitchBackend gives a running cluster another backend: the cluster's config is changed and every agent is started
// again without its checkpoint, since with it a node would have both backends for a while. The new path comes with one plan,
// and nothing of the old one stays. How much is lost while nodes are of different backends is in the log.
func TestSwitchBackend(t *testing.T) {
	c := cluster{t, labtest.Up(t, lab.Spec{Name: "e2eswitch", Store: lab.File, Nodes: 3, Pods: 1})}
	streams := c.streams()
	for _, to := range []string{"host-gw", "udp", "wireguard", "vxlan"} {
		c.Run(to, func(t *testing.T) {
			c := cluster{t, c.lab}
			before := marks(streams)
			began := time.Now()
			c.switchTo(to)
			took := time.Since(began)
			c.matrix()
			c.mustHaveOnly(to)
			for i, s := range streams {
				loss, err := s.Between(t.Context(), before[i], s.Mark())
				if err != nil && !strings.Contains(err.Error(), "unreachable") {
					t.Error(err)
				}
				t.Logf("to %s in %d ms: %s, sent every 5 ms", to, took.Milliseconds(), loss)
			}
		})
	}
}

// streams are pings from the first node's pod to the others'.
func (c cluster) streams() (all []*host.Stream) {
	for _, p := range c.lab.Pods()[1:] {
		s, err := c.pod(1).Stream(p.Addrs[0], 5*time.Millisecond)
		c.must(err)
		c.Cleanup(s.Close)
		all = append(all, s)
	}
	return all
}

func marks(streams []*host.Stream) (all []host.Mark) {
	for _, s := range streams {
		all = append(all, s.Mark())
	}
	return all
}

// configure changes the cluster's config.
func (c cluster) configure(backend string) {
	c.Helper()
	conf := fmt.Appendf(nil, `{"Network": "10.244.0.0/16", "Backend": {"Type": %q}}`, backend)
	c.must(c.lab.SetNetConf(c.Context(), conf))
}

// switchTo changes the cluster's config and starts all agents again, without their checkpoints: they change at once.
func (c cluster) switchTo(backend string) {
	c.configure(backend)
	var wg sync.WaitGroup
	for _, n := range c.lab.Nodes() {
		wg.Go(func() {
			err := errors.Join(n.StopAgent(c.Context()), os.Remove(n.CheckpointFile()))
			if err = errors.Join(err, n.StartAgent(c.Context())); err != nil {
				c.Error(err)
			}
		})
	}
	wg.Wait()
}

// devices are those that each backend makes.
var devices = map[string]string{"vxlan": "flannel.1", "udp": "flannel0", "wireguard": "flannel-wg"}

// mustHaveOnly waits until no node has another backend's device or routes.
func (c cluster) mustHaveOnly(backend string) {
	c.Helper()
	for _, n := range c.lab.Nodes() {
		testwait.Nil(c, n.Name+" has no more than "+backend+" needs", func() error {
			if out := c.exec(n, "ip -o link show") + c.exec(n, "ip route show proto 116"); c.hasOthers(out, backend) {
				return errors.New(out)
			}
			if plan := c.execArgs(n, n.DryRun()); !strings.Contains(plan, "# nothing to change") {
				return errors.New(plan) // a peer that has just published is followed a moment later
			}
			return nil
		})
	}
}

func (c cluster) hasOthers(out, backend string) bool {
	for b, dev := range devices {
		if b != backend && (strings.Contains(out, " "+dev+":") || strings.Contains(out, "dev "+dev+" ")) {
			return true
		}
	}
	return false
}
