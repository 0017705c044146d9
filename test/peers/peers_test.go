//go:build soak

package peers

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// Of each backend's agents: how much of a processor they may take while the hostile node writes, how much
// memory they may hold, and how much they may log, in bytes.
const (
	mostCPU    = 0.25
	mostMemory = 160 << 20
	mostLog    = 1 << 20
)

// TestPeers lets one hostile node write for PEERS_TIME (8m), a part of it for each backend. PEERS_SEED
// repeats a run; without it the seed is the time.
func TestPeers(t *testing.T) {
	seed, limit := uint64(time.Now().Unix()), 8*time.Minute
	if s := os.Getenv("PEERS_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		must(t, err)
	}
	if s := os.Getenv("PEERS_TIME"); s != "" {
		var err error
		limit, err = time.ParseDuration(s)
		must(t, err)
	}
	t.Logf("PEERS_SEED=%d", seed)
	backends := []string{"vxlan", "host-gw", "wireguard", "udp"}
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) { newFight(t, backend, seed).run(limit / time.Duration(len(backends))) })
	}
}

// fight is one hostile node against the others of a lab.
type fight struct {
	*testing.T
	*hostile
	lab            *lab.Lab
	kubelet, admin *kubelet
	watched        []watched // agents of the others
	streams        []stream
	taken, refused map[string]int // writes, by what they say
}

// watched is an agent whose node has nothing to do with the hostile one.
type watched struct {
	*lab.Node
	process host.Process
	routes  string // to the others, in the beginning
}

// stream is an endless ping between two pods.
type stream struct {
	*host.Stream
	from, to string
	mark     host.Mark
}

// newFight takes the oldest node of four.
func newFight(t *testing.T, backend string, seed uint64) *fight {
	l := labtest.Up(t, lab.Spec{Name: "peers", Nodes: 4, Pods: 1, Backend: backend, Store: lab.Kube})
	nodes := l.Nodes()
	f := &fight{T: t, lab: l, taken: map[string]int{}, refused: map[string]int{},
		kubelet: newKubelet(t, l, nodes[0].Name), admin: newKubelet(t, l, "")}
	f.hostile = &hostile{Rand: rand.New(rand.NewPCG(seed, 0)), node: nodes[0].Name, own: f.admin.annotations(t, nodes[0].Name)}
	at := nodes[0].Underlay()[0].As4()
	for _, last := range []byte{0, 1, 254, 255} {
		f.near = append(f.near, fmt.Sprintf("%d.%d.%d.%d", at[0], at[1], at[2], last))
	}
	must(t, nodes[0].KillAgent())
	for _, n := range nodes[1:] {
		f.targets = append(f.targets, target{f.admin.annotations(t, n.Name), n.Subnets()[0], n.Pods()[0].Addrs[0]})
		f.watched = append(f.watched, watched{n, n.Agent(), f.routes(n)})
		for _, to := range nodes[1:] {
			if to == n {
				continue
			}
			s, err := n.Pods()[0].Stream(to.Pods()[0].Addrs[0], 20*time.Millisecond)
			must(t, err)
			t.Cleanup(s.Close)
			f.streams = append(f.streams, stream{s, n.Pods()[0].ID(), to.Pods()[0].ID(), s.Mark()})
		}
	}
	return f
}

// routes are those to the pods of the nodes that have nothing to do with it, and what the kernel has for them.
func (f *fight) routes(n *lab.Node) string {
	var all []string
	for _, command := range []string{"ip route show", "ip neigh show nud permanent"} {
		out, err := n.Exec(f.Context(), strings.Fields(command)...)
		must(f.T, err)
		for line := range strings.Lines(out) {
			for _, o := range f.lab.Nodes()[1:] {
				if subnet := o.Subnets()[0]; o != n && strings.HasPrefix(line, subnet.Addr().String()) {
					all = append(all, line)
				}
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// run writes for a while, in phases, and looks at the end of each.
func (f *fight) run(limit time.Duration) {
	began, cpu := time.Now(), f.cpu()
	for phase := 0; time.Since(began) < limit; phase++ {
		f.phase(phase, time.Duration(1+f.IntN(5))*time.Second)
	}
	took := time.Since(began)
	for i, n := range f.watched {
		share := (f.cpu()[i] - cpu[i]).Seconds() / took.Seconds()
		f.Logf("%s took %.1f %% of a processor and holds %d MiB, its log has %d bytes", n.Name, 100*share, f.memory(n)>>20, f.logged(n))
		if share > mostCPU {
			f.Errorf("%s took %.1f %% of a processor", n.Name, 100*share)
		}
	}
	f.Logf("taken %v, refused %v", f.taken, f.refused)
	for says, n := range f.refused {
		if f.taken[says] == 0 {
			f.Errorf("none of %d writes of %s was taken: that proves nothing", n, says)
		}
	}
	f.peace()
}

// phase writes at one rate.
func (f *fight) phase(number int, long time.Duration) {
	rate := pick(f.hostile, 1, 5, 25, 25, 100)
	if number%8 == 7 {
		f.anew()
	}
	end := time.Now().Add(long)
	for n := 0; time.Now().Before(end); n++ {
		f.send(f.next())
		wait, cancel := context.WithTimeout(f.Context(), time.Second/time.Duration(rate))
		<-wait.Done()
		cancel()
	}
	f.mustHold(fmt.Sprintf("phase %d, %d writes a second", number, rate))
}

func (f *fight) send(w write) {
	status, answer, err := f.kubelet.do(f.Context(), http.MethodPatch, w.path, w.body)
	must(f.T, err)
	switch {
	case status/100 == 2:
		f.taken[w.says]++
	case status == http.StatusInternalServerError || status == http.StatusForbidden:
		f.Fatalf("%s: %d: %s", w.says, status, answer)
	default:
		f.refused[w.says]++
	}
}

// anew makes the Node anew with an odd podCIDR; it is then the youngest.
func (f *fight) anew() {
	f.admin.mustDo(f.T, http.MethodDelete, nodePath(f.node), nil)
	w := f.again()
	if status, _, err := f.admin.do(f.Context(), http.MethodPost, "/api/v1/nodes", w.body); err != nil || status/100 != 2 {
		f.refused[w.says]++
		f.admin.mustDo(f.T, http.MethodPost, "/api/v1/nodes", object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": f.node}})
		return
	}
	f.taken[w.says]++
}

// mustHold is what must hold at any time.
func (f *fight) mustHold(after string) {
	f.Helper()
	for i := range f.streams {
		s := &f.streams[i]
		now := s.Mark()
		loss, err := s.Between(f.Context(), s.mark, now)
		if loss.Lost > 0 {
			f.Errorf("after %s: %s of the pings of %s to %s: %v", after, loss, s.from, s.to, err)
		}
		s.mark = now
	}
	for _, n := range f.watched {
		if n.Agent() != n.process || !n.AgentRunning() {
			f.Errorf("after %s: the agent of %s has ended", after, n.Name)
		}
		if err := n.Probe(f.Context(), "/readyz"); err != nil {
			f.Errorf("after %s: %v", after, err)
		}
		if now := f.routes(n.Node); now != n.routes {
			f.Errorf("after %s: %s had\n%sand has\n%s", after, n.Name, n.routes, now)
		}
		if size := f.memory(n); size > mostMemory {
			f.Errorf("after %s: %s holds %d MiB", after, n.Name, size>>20)
		}
		if size := f.logged(n); size > mostLog {
			f.Errorf("after %s: %s has logged %d bytes", after, n.Name, size)
		}
		if data, err := os.ReadFile(n.Log()); err != nil || bytes.Contains(data, []byte("goroutine ")) {
			f.Errorf("after %s: %s has panicked: %v", after, n.Name, err)
		}
	}
	if f.Failed() {
		f.FailNow()
	}
}

// peace is the hostile node becoming an honest one: a Node of its own, and its agent.
func (f *fight) peace() {
	n := f.lab.Nodes()[0]
	must(f.T, n.Forget(f.Context()))
	must(f.T, n.StartAgent(f.Context()))
	pings, err := f.lab.Converge(f.Context(), testwait.Limit)
	must(f.T, err)
	for _, p := range pings {
		if !p.OK() {
			f.Errorf("in peace %s does not reach %s: %s", p.From, p.To, p.Error)
		}
	}
}

// cpu is the processor time that the agents have used.
func (f *fight) cpu() []time.Duration {
	var all []time.Duration
	for _, n := range f.watched {
		var t unix.Timespec
		// The clock of a process: its pid inverted and shifted, and 2 for "scheduled" (kernel/time/posix-cpu-timers.c).
		must(f.T, unix.ClockGettime(int32(^n.process.PID<<3|2), &t))
		all = append(all, time.Duration(t.Nano()))
	}
	return all
}

// memory is what an agent holds, in bytes.
func (f *fight) memory(n watched) (size int64) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.process.PID))
	must(f.T, err)
	for line := range strings.Lines(string(data)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &size)
	}
	return size << 10
}

func (f *fight) logged(n watched) int64 {
	info, err := os.Stat(n.Log())
	must(f.T, err)
	return info.Size()
}
