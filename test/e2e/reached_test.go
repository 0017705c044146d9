package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/faults"
	"github.com/twill-net/twill/lab/labtest"
)

// conditions returns a node's conditions as TYPE=STATUS/REASON.
func conditions(c cluster, node string) string {
	c.Helper()
	raw, err := c.lab.API(c.Context(), http.MethodGet, "/api/v1/nodes/"+node, nil)
	c.must(err)
	var n struct {
		Status struct {
			Conditions []struct{ Type, Status, Reason string }
		}
	}
	c.must(json.Unmarshal(raw, &n))
	var all []string
	for _, one := range n.Status.Conditions {
		all = append(all, one.Type+"="+one.Status+"/"+one.Reason)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestReached: a Node's condition says whether packets come back from its peers, and the node stays
// ready. An agent that does not ask takes the condition away.
func TestReached(t *testing.T) {
	c := cluster{t, labtest.Start(t, lab.Spec{Name: "e2ereached", Store: lab.Kube, Nodes: 2, Pods: 1})}
	nodes := c.lab.Nodes()
	restart := func(flags ...string) {
		c.must(c.lab.SetAgentFlags(flags))
		for _, n := range nodes {
			c.must(n.RestartAgent(t.Context()))
		}
	}
	is := func(want string) {
		t.Helper()
		want = strings.TrimSpace("NetworkUnavailable=False/TwillIsUp " + want)
		testwait.Nil(t, want, func() error {
			if got := conditions(c, "node1"); got != want {
				return fmt.Errorf("got %s", got)
			}
			return nil
		})
		if _, err := nodes[0].Ask(t.Context(), "/readyz"); err != nil {
			t.Errorf("node1 is not ready: %v", err)
		}
	}
	restart("--reach-peers=2", "--reach-round=2s")
	is("TwillPeersReached=True/PeersReached")
	c.must(faults.BlockUDP(t.Context(), c.lab, 8472, nodes[0]))
	is("TwillPeersReached=False/PeersUnreached")
	c.must(faults.Restore(t.Context(), c.lab))
	is("TwillPeersReached=True/PeersReached")

	restart("--reach-peers=0")
	is("")
}
