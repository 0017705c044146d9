//go:build soak

package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
)

// patience is how long everything may take to be right again after a step.
const patience = testwait.Limit

// mustHold waits until everything holds that must. restarted are the nodes whose agents the step may have ended; those
// that are down are started.
func (w *week) mustHold(after string, restarted []string) {
	w.Helper()
	for _, n := range w.lab.Nodes() {
		if old, ok := w.calm[n.Name]; ok && !slices.Contains(restarted, n.Name) && n.Agent() != old.process {
			w.Fatalf("after %s: the agent of %s is another process", after, n.Name)
		}
		if !n.AgentRunning() && !slices.Contains(restarted, n.Name) {
			w.Fatalf("after %s: the agent of %s has ended", after, n.Name)
		}
		w.must(n.StartAgent(w.Context()))
	}
	var err error
	for began := time.Now(); ; {
		if err = w.check(); err == nil {
			break
		}
		if time.Since(began) > patience {
			w.Fatalf("after %s, for %s:\n%v", after, patience, err)
		}
	}
	w.calm = map[string]agentLook{}
	for _, n := range w.lab.Nodes() {
		w.calm[n.Name] = w.look(n)
		w.looks[n.Name] = append(w.looks[n.Name], w.calm[n.Name])
	}
}

// check is what does not hold.
func (w *week) check() error {
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	var errs []error
	for _, n := range w.lab.Nodes() {
		errs = append(errs, w.plan(ctx, n), w.reservations(n), w.links(ctx, n), w.foreignIntact(ctx, n), noPanic(n))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	pings, err := w.lab.Matrix(ctx)
	if err != nil {
		return err
	}
	for _, p := range pings {
		if !p.OK() {
			errs = append(errs, fmt.Errorf("%s does not reach %s: %s", p.From, p.To, p.Error))
		}
	}
	return errors.Join(errs...)
}

// plan: the kernel is as the leases ask.
func (w *week) plan(ctx context.Context, n *lab.Node) error {
	var out bytes.Buffer
	if err := n.Attach(ctx, nil, &out, &out, n.DryRun()...); err != nil {
		return fmt.Errorf("dry run on %s: %w: %s", n.Name, err, out.String())
	}
	if !strings.Contains(out.String(), "# nothing to change") {
		return fmt.Errorf("%s is not as it should be:\n%s", n.Name, out.String())
	}
	return nil
}

// reservations: every pod's address is reserved, and no other.
func (w *week) reservations(n *lab.Node) error {
	files, err := os.ReadDir(filepath.Join(n.Dir(), "networks", "cbr0"))
	if err != nil && len(n.Pods()) > 0 {
		return err
	}
	var have, want []string
	for _, f := range files {
		if a, err := netip.ParseAddr(f.Name()); err == nil {
			have = append(have, a.String())
		}
	}
	for _, p := range n.Pods() {
		for _, a := range p.Addrs {
			want = append(want, a.String())
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		return fmt.Errorf("%s has reserved %v, its pods have %v", n.Name, have, want)
	}
	return nil
}

// links: a pair for each pod and none more.
func (w *week) links(ctx context.Context, n *lab.Node) error {
	out, err := n.Exec(ctx, "ip", "-o", "link", "show", "master", "cni0")
	if err != nil && len(n.Pods()) > 0 {
		return err
	}
	if have := strings.Count(out, "\n"); err == nil && have != len(n.Pods()) {
		return fmt.Errorf("%s has %d ports on cni0, and %d pods:\n%s", n.Name, have, len(n.Pods()), out)
	}
	return nil
}

// foreign is what somebody else has on a node.
var foreign = []string{
	"ip link add other0 type veth peer name other1", "ip link set other0 up", "ip link set other1 up",
	"ip addr add 198.18.0.1/24 dev other0", "ip route add 198.18.7.0/24 via 198.18.0.2 dev other0 proto static",
	"ip route add 10.99.0.0/16 via 198.18.0.2 dev other0 metric 77", "ip neigh add 198.18.0.2 lladdr 0a:00:00:00:00:02 dev other0 nud permanent",
}

func (w *week) addForeign(n *lab.Node) {
	for _, command := range foreign {
		if _, err := n.Exec(w.Context(), strings.Fields(command)...); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *week) foreignIntact(ctx context.Context, n *lab.Node) error {
	for look, want := range map[string][]string{
		"ip -o addr show dev other0":   {"198.18.0.1/24"},
		"ip route show dev other0":     {"198.18.7.0/24 via 198.18.0.2 proto static", "10.99.0.0/16 via 198.18.0.2 metric 77"},
		"ip neigh show dev other0":     {"198.18.0.2 lladdr 0a:00:00:00:00:02 PERMANENT"},
		"ip -o link show dev other1":   {"UP"},
		"ip -o route show table local": {"198.18.0.1"},
	} {
		out, err := n.Exec(ctx, strings.Fields(look)...)
		if err != nil {
			return fmt.Errorf("what is not Twill's on %s is gone: %w", n.Name, err)
		}
		for _, s := range want {
			if !strings.Contains(out, s) {
				return fmt.Errorf("%s has lost what is not Twill's, %q, and has:\n%s", n.Name, s, out)
			}
		}
	}
	return nil
}

func noPanic(n *lab.Node) error {
	data, err := os.ReadFile(n.Log())
	if err == nil && bytes.Contains(data, []byte("goroutine ")) {
		err = fmt.Errorf("the agent of %s has panicked, look into %s", n.Name, n.Log())
	}
	return err
}

// agentLook is what an agent's process holds in a calm moment.
type agentLook struct {
	process host.Process
	fds     int
	threads int
	rss     int // KiB
}

func (w *week) look(n *lab.Node) agentLook {
	p := n.Agent()
	dir := fmt.Sprintf("/proc/%d", p.PID)
	fds, err := os.ReadDir(dir + "/fd")
	w.must(err)
	status, err := os.ReadFile(dir + "/status")
	w.must(err)
	l := agentLook{process: p, fds: len(fds)}
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &l.rss)
		_, _ = fmt.Sscanf(line, "Threads: %d", &l.threads)
	}
	return l
}

// mustNotHaveGrown compares the beginning and the end of every agent process that has lived long enough: file
// descriptors exactly but for a connection that is being renewed, memory after the start has settled.
func (w *week) mustNotHaveGrown() {
	for name, looks := range w.looks {
		looks = slices.DeleteFunc(looks, func(l agentLook) bool { return l.process != w.calm[name].process })
		if len(looks) < 10 {
			continue
		}
		first, last := looks[len(looks)/3], looks[len(looks)-1]
		w.Logf("%s: %d steps in one process: fds %d to %d, threads %d to %d, memory %d to %d KiB", name, len(looks),
			first.fds, last.fds, first.threads, last.threads, first.rss, last.rss)
		if last.fds > first.fds+6 {
			w.Errorf("the agent of %s had %d files open and has %d", name, first.fds, last.fds)
		}
		if last.rss > first.rss+first.rss/4+4096 {
			w.Errorf("the agent of %s used %d KiB and uses %d", name, first.rss, last.rss)
		}
	}
}
