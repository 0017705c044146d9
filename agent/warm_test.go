package agent

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fake"
)

// restarted is a node whose agent ended, with a peer in the checkpoint; the next one waits long for the list.
func restarted(t *testing.T) *node {
	n := newNode(t)
	n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
	stop := n.start()
	n.eventually("a route to node2", func() bool { return strings.Contains(n.state(), peerRoute) && n.ready() })
	stop()
	n.list = make(chan struct{})
	return n
}

// TestRunWarm is ready before the store has told of the peers, because everything is as it was, and then applies what is new.
func TestRunWarm(t *testing.T) {
	n := restarted(t)
	n.kernel.SetFaults(fake.Faults{Change: func(c netstate.Change) error { t.Errorf("wrote %s", c); return nil }})
	stop := n.start()
	defer stop()
	n.eventually("ready without the list", n.ready)
	n.kernel.SetFaults(fake.Faults{})
	n.addPeer("node3", "10.244.3.0/24", "192.168.33.103", "0e:00:00:00:00:03")
	close(n.list)
	n.eventually("a route to node3", func() bool { return strings.Contains(n.state(), "10.244.3.0/24 via 10.244.3.0") })
}

// TestRunNotWarm waits for the list when something is not as the checkpoint has it.
func TestRunNotWarm(t *testing.T) {
	for name, spoil := range map[string]func(n *node){
		"a route is missing": func(n *node) { n.must(n.kernel.Run("ip route del 10.244.2.0/24")) },
		"an entry is too many": func(n *node) {
			n.must(n.kernel.Run("ip neigh add 10.244.9.0 lladdr 0e:00:00:00:00:09 dev flannel.1 nud permanent"))
		},
		"the machine has started": func(n *node) { n.must(n.kernel.Run("ip link del flannel.1")) },
		"no checkpoint":           func(n *node) { n.must(os.Remove(n.checkpoint())) },
		"another lease": func(n *node) {
			c, err := readCheckpoint(n.checkpoint())
			n.must(err)
			c.Local.Stacks[0].Data = []byte(`{"VNI":1,"VtepMAC":"0e:00:00:00:00:01"}`)
			n.must(writeCheckpoint(n.checkpoint(), c))
		},
		"published at another address": func(n *node) { // of which the kernel knows nothing
			c, err := readCheckpoint(n.checkpoint())
			n.must(err)
			c.Local.Stacks[0].Underlay = netip.MustParseAddr("192.168.33.99")
			n.must(writeCheckpoint(n.checkpoint(), c))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := restarted(t)
			spoil(n)
			stop := n.start()
			defer stop()
			n.eventually("the lease, and a look behind it", func() bool { return strings.Contains(n.log.String(), "leased") && len(n.agent.kicks) == 0 })
			for end := time.Now().Add(3 * firstRetry); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
				if n.ready() {
					t.Fatal("ready without the list")
				}
			}
			close(n.list)
			n.eventually("ready with the list", n.ready)
		})
	}
}

// TestNotReadyBeforeAllWasWritten: the store's word alone makes no node ready.
func TestNotReadyBeforeAllWasWritten(t *testing.T) {
	var s Status
	s.concluded(true, true, errors.New("eth1 is away"))
	if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "eth1 is away") {
		t.Errorf("in sync, and nothing was written: %v", err)
	}
	s.concluded(false, false, nil)
	if err := s.Ready(); err == nil {
		t.Error("ready without the store")
	}
	s.concluded(true, false, nil)
	if err := s.Ready(); err != nil {
		t.Errorf("all is written: %v", err)
	}
	s.concluded(true, true, nil)
	if err := s.Ready(); err != nil {
		t.Errorf("wrong for a moment: %v", err)
	}
}

// TestWarmEnds has a node whose list does not come not ready any more.
func TestWarmEnds(t *testing.T) {
	var s Status
	s.warm(time.Now().Add(time.Minute))
	if err := s.Ready(); err != nil {
		t.Errorf("warm: %v", err)
	}
	s.warm(time.Now().Add(-time.Second))
	if err := s.Ready(); err == nil {
		t.Error("ready without the list for longer than warmFor")
	}
	s.concluded(true, false, nil)
	if err := s.Ready(); err != nil {
		t.Errorf("with the list: %v", err)
	}
}
