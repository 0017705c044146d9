//go:build soak

package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/faults"
	"github.com/twill-net/twill/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// week is one run.
type week struct {
	*testing.T
	lab    *lab.Lab
	random *rand.Rand
	faults []faults.Fault
	pods   int // ever added

	injected, refused int // faults
	calm              map[string]agentLook
	looks             map[string][]agentLook
}

// The least and the most nodes, and pods of a node.
const (
	leastNodes, mostNodes = 3, 6
	mostPods              = 6
)

// TestSoak takes random steps for SOAK_TIME (20m). SOAK_SEED repeats a run; without it the seed is the time.
func TestSoak(t *testing.T) {
	seed, limit := uint64(time.Now().Unix()), 20*time.Minute
	if s := os.Getenv("SOAK_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("SOAK_SEED is %q: want a number", s)
		}
	}
	if s := os.Getenv("SOAK_TIME"); s != "" {
		var err error
		if limit, err = time.ParseDuration(s); err != nil {
			t.Fatalf("SOAK_TIME is %q: want a duration, like 20m", s)
		}
	}
	t.Logf("SOAK_SEED=%d", seed)
	w := newWeek(t, seed)
	steps := 0
	for began := time.Now(); time.Since(began) < limit; steps++ {
		w.step(steps)
	}
	w.mustNotHaveGrown()
	t.Logf("%d steps, every invariant held after each; %d pods were added", steps, w.pods)
}

func newWeek(t *testing.T, seed uint64) *week {
	random := rand.New(rand.NewPCG(seed, 0))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	spec := lab.Spec{Name: "soak", Nodes: 4, Pods: 2, Backend: pick("vxlan", "vxlan", "host-gw"), Store: pick(lab.Etcd, lab.Kube)}
	// The faults' own nodes and pods have addresses from 10.244.200.0 on.
	spec.NetConf = fmt.Appendf(nil, `{"Network": "10.244.0.0/16", "SubnetMax": "10.244.199.0", "Backend": {"Type": %q}}`, spec.Backend)
	t.Logf("backend %s, store %s", spec.Backend, spec.Store)
	w := &week{T: t, random: random, lab: labtest.Up(t, spec), looks: map[string][]agentLook{}}
	for _, f := range faults.All() {
		if f.Applies(w.lab.Spec()) && !isSequel(f.Name) {
			w.faults = append(w.faults, f)
		}
	}
	for _, n := range w.lab.Nodes() {
		w.addForeign(n)
	}
	w.mustHold("the beginning", nil)
	return w
}

// step does one thing, and then everything must hold again.
func (w *week) step(number int) {
	nodes := w.lab.Nodes()
	n := nodes[w.random.IntN(len(nodes))]
	what, restarted := w.choose()(n, nodes)
	w.Logf("%d: %s", number, what)
	w.mustHold(what, restarted)
}

// action does something to n and says what, and which nodes' agents are other processes since.
type action func(n *lab.Node, all []*lab.Node) (what string, restarted []string)

// choose weighs the actions.
func (w *week) choose() action {
	switch k := w.random.IntN(100); {
	case k < 50:
		return w.fault
	case k < 65:
		return w.addPod
	case k < 80:
		return w.delPod
	case k < 85:
		return w.join
	case k < 90:
		return w.leave
	case k < 95:
		return w.killAgent
	}
	return w.stopStore
}

// sequels are the faults that only make sense after another.
var sequels = map[string]string{"peer-moves": "peer-moves-back", "subnet-usurped": "usurper-leaves",
	"underlay-second-address": "underlay-first-address", "underlay-mtu-lowered": "underlay-mtu-restored",
	"default-route-moves": "default-route-back", "iptables-flushed": "iptables-restored"}

func isSequel(name string) bool {
	return slices.Contains(slices.Collect(maps.Values(sequels)), name)
}

// fault injects one of the library, waits a moment, and takes it back where no agent can.
func (w *week) fault(n *lab.Node, all []*lab.Node) (string, []string) {
	f := w.faults[w.random.IntN(len(w.faults))]
	peer := all[(slices.Index(all, n)+1+w.random.IntN(len(all)-1))%len(all)]
	if len(n.Pods()) == 0 || len(peer.Pods()) == 0 {
		return w.addPod(n, all)
	}
	v := faults.NewTarget(w.lab)
	v.Node, v.Peer = n, peer
	if f.Undo != nil { // some are injected before an agent could heal them
		w.must(n.StopAgent(w.Context()))
	}
	w.injected++
	if err := f.Inject(w.Context(), v); err != nil { // an agent that was faster, which must stay the exception
		w.Logf("%s on %s: %v", f.Name, n.Name, err)
		if w.refused++; w.refused > 5+w.injected/10 {
			w.Fatalf("%d of %d faults could not be injected", w.refused, w.injected)
		}
	}
	w.sleep(300 * time.Millisecond)
	if f.Undo != nil {
		w.must(f.Heal(w.Context(), v))
	}
	if sequel, ok := sequels[f.Name]; ok {
		all := faults.All()
		w.must(all[slices.IndexFunc(all, func(f faults.Fault) bool { return f.Name == sequel })].Inject(w.Context(), v))
	}
	return fmt.Sprintf("%s on %s (peer %s): %s", f.Name, n.Name, peer.Name, f.Description), []string{n.Name, peer.Name}
}

func (w *week) addPod(n *lab.Node, _ []*lab.Node) (string, []string) {
	if len(n.Pods()) >= mostPods {
		return w.delPod(n, nil)
	}
	w.pods++
	p, err := n.AddPod(w.Context(), fmt.Sprint("soak", w.pods))
	w.must(err)
	return "add " + p.ID(), nil
}

func (w *week) delPod(n *lab.Node, _ []*lab.Node) (string, []string) {
	pods := n.Pods()
	if len(pods) < 2 {
		return w.addPod(n, nil)
	}
	p := pods[w.random.IntN(len(pods))]
	w.must(n.DelPod(w.Context(), p))
	return "delete " + p.ID(), nil
}

func (w *week) join(n *lab.Node, all []*lab.Node) (string, []string) {
	if len(all) >= mostNodes {
		return w.leave(n, all)
	}
	joined, err := w.lab.Join(w.Context())
	w.must(err)
	w.addForeign(joined)
	return "join " + joined.Name, []string{joined.Name}
}

func (w *week) leave(n *lab.Node, all []*lab.Node) (string, []string) {
	if len(all) <= leastNodes {
		return w.join(n, all)
	}
	w.must(n.Leave(w.Context()))
	delete(w.calm, n.Name)
	delete(w.looks, n.Name)
	return "leave " + n.Name, nil
}

func (w *week) killAgent(n *lab.Node, _ []*lab.Node) (string, []string) {
	w.must(n.KillAgent())
	w.sleep(200 * time.Millisecond)
	return "kill the agent of " + n.Name, []string{n.Name}
}

func (w *week) stopStore(*lab.Node, []*lab.Node) (string, []string) {
	w.must(w.lab.StopStore(w.Context()))
	w.sleep(3 * time.Second)
	w.must(w.lab.StartStore(w.Context()))
	return "stop the store and start it again", nil
}

// sleep is a random part of most.
func (w *week) sleep(most time.Duration) {
	ctx, cancel := context.WithTimeout(w.Context(), time.Duration(w.random.Int64N(int64(most))))
	defer cancel()
	<-ctx.Done()
}

func (w *week) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}
