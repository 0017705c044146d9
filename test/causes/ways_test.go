//go:build soak

package causes

import (
	"context"
	"slices"
	"strings"
	"time"
)

// The ways in which the doctor looks: from the root of the lab, where it enters everything; as an agent's container has it, on
// the nodes, one by one; and these answers put together, as kubectl twill does.
const (
	outside = "outside"
	inside  = "inside"
	through = "through the agents"
)

var ways = []string{outside, inside, through}

// opinion is what the doctor said in one way, and how right it was.
type opinion struct {
	First   finding  `json:"first"`
	Seconds float64  `json:"seconds,omitempty"`
	Failed  string   `json:"failed,omitempty"`
	Green   bool     `json:"green,omitempty"`
	Where   bool     `json:"placeRight,omitempty"`
	What    bool     `json:"objectRight,omitempty"`
	Missing []string `json:"missing,omitempty"` // in the object
	False   bool     `json:"falseAlarm,omitempty"`
}

// askAgents has the doctor ask the agents of all nodes: the first of each node, and of all together.
func (r *run) askAgents(ctx context.Context) (nodes []finding, first finding, took time.Duration, err error) {
	a, took, err := askDoctor(ctx, r.cluster, r.program, "--cluster")
	for _, n := range a.Nodes {
		if len(n.Findings) > 0 {
			nodes = append(nodes, r.ofPod(n.Findings[0]))
		}
	}
	return nodes, r.ofPod(a.first()), took, err
}

// ofPod names the pod behind a port, which is what the doctor on a node calls it by.
func (r *run) ofPod(f finding) finding {
	for _, n := range r.world.nodes {
		for _, p := range n.pods {
			if f.Place == n.name+"/"+p.port {
				f.Place = p.id
			}
		}
	}
	return f
}

// isSeen reports whether an agent has the right to look where the cause is, on its node and not in pods, nor between nodes, and
// whether it loses what an agent may send for pods: pings. That the rest is not looked at, the doctor says.
func (t *trial) isSeen() bool {
	return t.injected.place != underlay && !strings.Contains(t.injected.place, "/") &&
		(t.Outcome != hurts || strings.Contains(t.Why, "icmp"))
}

// diagnose asks the doctor in all ways, and scores what it says.
func (t *trial) diagnose() {
	first, took, err := ask(t.Context(), t.program, t.lab.Name())
	t.opinion = t.score(first, took, err)
	nodes, all, took, err := t.askAgents(t.Context())
	t.Through = t.score(all, took, err)
	t.Inside = t.score(finding{}, took, err)
	for _, n := range nodes {
		if a := t.score(n, took, err); a.better(t.Inside, t.Outcome) {
			t.Inside = a
		}
	}
	t.Seen = t.isSeen()
	if t.Outcome == harmless && (t.False || t.Inside.False || t.Through.False) {
		t.Latent = t.latent()
		cuts := t.cutsOff()
		for _, a := range []*opinion{&t.opinion, &t.Inside, &t.Through} {
			a.False = a.False && !t.Latent && !cuts
		}
	}
	if t.Outcome != hurts || t.Failed != "" {
		return
	}
	if t.Green && len(t.oracle.matrix(t.Context(), patience).real()) == 0 {
		t.Outcome, t.Green = flapping, false // an entry that nobody confirms is forgotten after some seconds
	} else {
		t.follow()
	}
}

// score compares what the doctor said first with what was injected.
func (t *trial) score(first finding, took time.Duration, err error) opinion {
	a := opinion{First: first, Seconds: took.Seconds()}
	switch {
	case err != nil:
		a.Failed = err.Error()
	case t.Outcome == hurts:
		a.Where = first.Place == t.injected.place || slices.Contains(t.injected.also, first.Place)
		a.Missing = missing(t.injected.tokens, first.text())
		a.What = a.Missing == nil && first.ID != ""
		isNamed := a.Where && a.What
		a.Green = !first.broken() && !isNamed
	case t.Outcome == harmless:
		a.False = first.broken()
	}
	return a
}

// better reports whether an answer is to be taken rather than another node's: the one that is right about what hurts, and the
// one that is wrong about what does not.
func (a opinion) better(b opinion, o outcome) bool {
	right := func(a opinion) int {
		n := 0
		for i, yes := range []bool{!a.Green, a.Where, a.Where && a.What} {
			if yes {
				n += i + 1
			}
		}
		return n
	}
	if o == hurts {
		return right(a) > right(b)
	}
	return a.False && !b.False
}
