package chaos

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/subnet"
)

// TestCopiedKey: the oldest node publishes a younger one's WireGuard key, with an address of its own and
// then with the other one's too. The younger one loses no packet, and an agent that starts again does not
// take the copy for the first.
func TestCopiedKey(t *testing.T) {
	l := labtest.Up(t, lab.Spec{Name: "mishapkeys", Store: lab.Kube, Nodes: 3, Pods: 1, Backend: "wireguard"})
	evil, n, target := l.Nodes()[0], l.Nodes()[1], l.Nodes()[2]
	must(t, evil.KillAgent())
	stream, err := n.Pods()[0].Stream(target.Pods()[0].Addrs[0], 10*time.Millisecond)
	must(t, err)
	defer stream.Close()
	begin := stream.Mark()
	mustHaveLostNone := func() {
		t.Helper()
		goesOn(t, stream, 100)
		loss, err := stream.Between(t.Context(), begin, stream.Mark())
		must(t, err)
		if loss.Lost > 0 {
			t.Errorf("%s between nodes that have nothing to do with it", loss)
		}
	}
	annotate := func(name, value string) {
		t.Helper()
		must(t, l.Annotate(t.Context(), evil.Name, map[string]string{"flannel.alpha.coreos.com/" + name: value}))
	}

	annotate("backend-data", string(published(t, n, target.Name).Data))
	waitSaved(t, n, "the dispute", func(snap subnet.Snapshot) bool { return len(snap.Claims) == 2 })
	mustHaveLostNone()
	must(t, n.RestartAgent(t.Context())) // which moves the packets itself where the kernel has no WireGuard
	mustReach(t, n.Pods()[0], target.Pods()[0])
	begin = stream.Mark()
	mustHaveLostNone()

	annotate("public-ip", target.Underlay()[0].String())
	waitSaved(t, n, "the other address", func(snap subnet.Snapshot) bool {
		return slices.ContainsFunc(snap.Peers, func(p subnet.Lease) bool { return p.Node == evil.Name && p.Stacks[0].Underlay == target.Underlay()[0] })
	})
	mustHaveLostNone()
}

// saved is what the agent of n knows of the others.
func saved(t *testing.T, n *lab.Node) subnet.Snapshot {
	t.Helper()
	s, err := agent.ReadCheckpoint(filepath.Join(n.Dir(), "checkpoint.json"))
	must(t, err)
	return s.Snapshot
}

// published is what the agent of n knows of a peer, as soon as it does.
func published(t *testing.T, n *lab.Node, peer string) (s subnet.Stack) {
	t.Helper()
	waitSaved(t, n, peer, func(snap subnet.Snapshot) bool {
		i := slices.IndexFunc(snap.Peers, func(p subnet.Lease) bool { return p.Node == peer })
		if i >= 0 {
			s = snap.Peers[i].Stacks[0]
		}
		return i >= 0
	})
	return s
}

func waitSaved(t *testing.T, n *lab.Node, what string, holds func(subnet.Snapshot) bool) {
	t.Helper()
	testwait.Nil(t, n.Name+" hears of "+what, func() error {
		if s := saved(t, n); !holds(s) {
			return fmt.Errorf("it knows %+v", s)
		}
		return nil
	})
}
