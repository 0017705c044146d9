//go:build soak

package soak

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/twill-net/twill/agent/reach"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/faults"
	"github.com/twill-net/twill/lab/labtest"
)

// asked returns what a node's agent says of the requests since its start.
func asked(t *testing.T, n *lab.Node) reach.Report {
	t.Helper()
	text, err := n.Ask(t.Context(), "/status")
	if err != nil {
		t.Fatal(err)
	}
	var status struct{ Reach reach.Report }
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		t.Fatal(err)
	}
	return status.Reach
}

// alarms counts what a node's agents have said of others that do not answer.
func alarms(t *testing.T, n *lab.Node) int {
	t.Helper()
	log, err := os.ReadFile(n.Log())
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(log, []byte("does not answer"))
}

// TestReach: for REACH_TIME (5m) agents ask each other every two seconds, and gateway and API server, while one after another is
// started again and pods come and go. Nothing is lost, so there is no alarm; at the end there is one, to see that there can be.
func TestReach(t *testing.T) {
	limit := 5 * time.Minute
	if s := os.Getenv("REACH_TIME"); s != "" {
		var err error
		if limit, err = time.ParseDuration(s); err != nil {
			t.Fatalf("REACH_TIME is %q: want a duration, like 20m", s)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l := labtest.Up(t, lab.Spec{Name: "soakreach", Nodes: 4, Pods: 1, Family: lab.Dual, Store: lab.Kube})
	must(l.SetAgentFlags([]string{"--reach-round=2s"}))
	nodes, total := l.Nodes(), uint64(0)
	for _, n := range nodes {
		must(n.RestartAgent(t.Context()))
	}
	for turn, began := 0, time.Now(); time.Since(began) < limit; turn++ {
		loop.Sleep(t.Context(), 15*time.Second)
		n := nodes[turn%len(nodes)]
		total += asked(t, n).Asked
		must(n.RestartAgent(t.Context()))
		p, err := n.AddPod(t.Context(), fmt.Sprint("reach", turn))
		must(err)
		must(n.DelPod(t.Context(), p))
	}
	found := 0
	for _, n := range nodes {
		r := asked(t, n)
		total += r.Asked
		found += alarms(t, n)
		if len(r.Unreached)+len(r.TooLarge) > 0 {
			t.Errorf("%s: %+v", n.Name, r)
		}
	}
	t.Logf("%d requests of %d agents in %s, %d alarms", total, len(nodes), limit, found)
	if found > 0 {
		t.Errorf("%d false alarms", found)
	}
	must(faults.BlockUDP(t.Context(), l, 8472, nodes[0]))
	testwait.Until(t, "an alarm", func() bool { return alarms(t, nodes[0]) > found })
}
