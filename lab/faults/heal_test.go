package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

// pace is how long each fault took to heal. It judges nothing: the tables in Documentation/reliability.md show it.
type pace map[string]time.Duration

// log tells how long most took.
func (p pace) log(t *testing.T) {
	t.Helper()
	if len(p) == 0 {
		return
	}
	names := slices.SortedFunc(maps.Keys(p), func(a, b string) int { return cmp.Compare(p[a], p[b]) })
	p90 := p[names[len(names)*9/10]]
	t.Logf("%d faults: half were healed after %s, 90 %% after %s, all after %s", len(names), p[names[len(names)/2]].Round(time.Millisecond),
		p90.Round(time.Millisecond), p[names[len(names)-1]].Round(time.Millisecond))
}

// interval is the time between two pings, and so the unit in which an outage is counted.
const interval = 2 * time.Millisecond

// TestHeal injects every fault into a healthy lab whose pods talk, and waits for the damage to be gone. With
// TWILL_TABLE=FILE it writes what it measured there.
func TestHeal(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	times := pace{}
	table.WriteString("| fault | backend | healed after | pings lost (every 2 ms) |\n|---|---|---|---|\n")
	for _, backend := range []string{"vxlan", "host-gw"} {
		l := labtest.Up(t, lab.Spec{Name: "heal" + strings.ReplaceAll(backend, "-", ""), Backend: backend, Store: lab.Kube, Nodes: 3, Pods: 1})
		for _, f := range All() {
			if !f.Applies(l.Spec()) || f.Undo != nil {
				continue
			}
			t.Run(backend+"/"+f.Name, func(t *testing.T) {
				took, loss := heal(t, f, NewTarget(l))
				times[backend+"/"+f.Name] = took
				fmt.Fprintf(&table, "| %s | %s | %d ms | %d |\n", f.Description, backend, took.Milliseconds(), loss.Lost)
				if f.Lossless && loss.Lost > 0 {
					t.Errorf("lost %s pings, want none", loss)
				}
			})
		}
	}
	write(t, table.String())
	times.log(t)
}

// TestHealPolicies is TestHeal and TestHealAtStart for what keeps network policies from being enforced.
func TestHealPolicies(t *testing.T) {
	t.Parallel()
	l := labtest.Up(t, lab.Spec{Name: "healpolicies", Store: lab.File, Nodes: 2, Pods: 1, NetworkPolicy: true})
	for _, f := range policyFaults {
		if f.Undo != nil {
			continue
		}
		t.Run("running/"+f.Name, func(t *testing.T) {
			undoubted(t, l)
			took, loss := heal(t, f, NewTarget(l))
			t.Logf("healed after %s, lost %s pings", took.Round(time.Millisecond), loss)
		})
		t.Run("started/"+f.Name, func(t *testing.T) {
			undoubted(t, l)
			healAtStart(t, f, NewTarget(l))
		})
	}
}

// undoubted returns when no rules are left of those that are there for a second, after rules have come where there were none.
func undoubted(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, n := range l.Nodes() {
		testwait.Nil(t, "UDP is not in doubt on "+n.Name, func() error {
			rules, err := n.Exec(t.Context(), "nft", "list", "chain", "ip", "twill-policy", "forward")
			if err == nil && strings.Contains(rules, "ct state new meta l4proto udp jump") {
				err = errors.New(rules)
			}
			return err
		})
	}
}

// write puts the table where TWILL_TABLE says, and into the log.
func write(t *testing.T, table string) {
	if path := os.Getenv("TWILL_TABLE"); path != "" {
		check(t, os.WriteFile(path, []byte(table), 0o644))
	}
	t.Log("\n" + table)
}

// TestHealAtStart injects each fault that changes the node's state while no agent runs, which also proves that
// the fault does damage, and then starts the agent.
func TestHealAtStart(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "host-gw"} {
		l := labtest.Up(t, lab.Spec{Name: "start" + strings.ReplaceAll(backend, "-", ""), Backend: backend, Store: lab.File, Nodes: 2, Pods: 1})
		for _, f := range All() {
			if !f.Applies(l.Spec()) || f.Undo != nil || f.Healed != nil || f.Lossless || f.Running || strings.HasPrefix(f.Name, "peer-") || f.Name == "underlay-flap" && backend == "vxlan" {
				continue
			}
			t.Run(backend+"/"+f.Name, func(t *testing.T) {
				healAtStart(t, f, NewTarget(l))
			})
		}
	}
}

func healAtStart(t *testing.T, f Fault, v *Target) {
	w := recorder(t, v)
	check(t, v.Node.KillAgent())
	check(t, f.Inject(t.Context(), v))
	damage, err := w.Diff(t.Context())
	check(t, err)
	if len(damage) == 0 {
		t.Error("the fault does no damage")
	}
	check(t, v.Node.StartAgent(t.Context()))
	waitHealed(t, w, f, v)
}

// wakes numbers the routes of wake: who makes the same one again is taken for somebody who keeps making it.
var wakes atomic.Uint32

// wake makes the agents reconcile, with a route that is theirs to delete. The minute after which they would reconcile
// without a cause begins then, which is longer than testwait.Limit: what heals before heals by what the agent was told.
func wake(t *testing.T, nodes ...*lab.Node) {
	t.Helper()
	n := wakes.Add(1)
	route := fmt.Sprintf("198.51.%d.%d/32", 100+n>>8, n&0xff)
	for _, node := range nodes {
		check(t, run(t.Context(), node, "ip route add blackhole %s proto %d", route, netstate.Protocol))
		testwait.Nil(t, "the agent of "+node.Name+" deletes a route that nobody wants", func() error {
			left, err := node.Exec(t.Context(), "ip", "route", "show", "type", "blackhole", route)
			if err == nil && left != "" {
				err = errors.New(left)
			}
			return err
		})
	}
}

// heal injects the fault and returns how long it took until the damage was gone, and what was lost.
func heal(t *testing.T, f Fault, v *Target) (time.Duration, host.Loss) {
	w := recorder(t, v)
	pods := [2]*lab.Pod{v.Node.Pods()[0], v.Peer.Pods()[0]}
	stream, err := pods[0].Stream(v.Address(pods[1].Addrs), interval)
	check(t, err)
	defer stream.Close()
	testwait.Until(t, "the pods talk", func() bool { return stream.Mark() > 20 })
	wake(t, v.Node, v.Peer)
	before := stream.Mark()
	check(t, f.Inject(t.Context(), v))
	injected := time.Now()
	waitHealed(t, w, f, v)
	took := time.Since(injected)
	after := stream.Mark()
	testwait.Until(t, "the pods go on talking", func() bool { return stream.Mark() > after+20 })
	loss, err := stream.Between(t.Context(), before, stream.Mark())
	if err != nil && !strings.Contains(err.Error(), "unreachable") { // the node says what the fault did
		t.Log(err)
	}
	return took, loss
}

func recorder(t *testing.T, v *Target) *Recorder {
	t.Helper()
	w, err := NewRecorder(t.Context(), v.Node.Host)
	check(t, err)
	return w
}

// waitHealed returns when the damage is gone and the pods reach each other.
func waitHealed(t *testing.T, w *Recorder, f Fault, v *Target) {
	t.Helper()
	testwait.Nil(t, f.Name+" is healed", func() error {
		if rest := remaining(t.Context(), w, f, v); rest != "" { // agents' logs are shown with a failure
			return errors.New(rest)
		}
		return nil
	})
}

// remaining says what is still wrong, empty if nothing is.
func remaining(ctx context.Context, w *Recorder, f Fault, v *Target) string {
	if f.Healed != nil {
		if ok, err := f.Healed(ctx, v); err != nil || !ok {
			return fmt.Sprint("what the fault asks for is not so yet, error: ", err)
		}
	} else if plan, err := w.Diff(ctx); err != nil || len(plan) > 0 {
		return fmt.Sprintf("%serror: %v", plan, err)
	}
	ping := host.Ping{To: v.Address(v.Peer.Pods()[0].Addrs), Timeout: time.Second}
	if _, err := v.Node.Pods()[0].Ping(ctx, ping); err != nil {
		return "the pods do not reach each other: " + err.Error()
	}
	return ""
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
