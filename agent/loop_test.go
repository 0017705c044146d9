package agent

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fake"
)

// hanging is a firewall whose program hangs as long as there is a gate.
type hanging struct {
	*fake.Kernel
	gate  atomic.Pointer[chan struct{}] // it opens when it is closed
	calls atomic.Int32                  // that began
}

func (h *hanging) wait() {
	h.calls.Add(1)
	if gate := h.gate.Load(); gate != nil {
		<-*gate
	}
}

// hang returns what lets the program go on.
func (h *hanging) hang() (release func()) {
	gate := make(chan struct{})
	h.gate.Store(&gate)
	return func() { h.gate.Store(nil); close(gate) }
}

func (h *hanging) Observe(ctx context.Context) (netstate.State, error) {
	h.wait()
	return h.Kernel.Observe(ctx, nil)
}

func (h *hanging) Apply(ctx context.Context, p netstate.Plan) error {
	h.wait()
	return h.Kernel.Apply(ctx, p)
}

// TestRulesHang: no route waits for a program that writes rules, nor for its lock; nobody is told that all is well
// meanwhile, and what the program left is made up for when it goes on.
func TestRulesHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		rules := &hanging{Kernel: fake.New(netstate.Left{})}
		n.tune = func(c *Config) { c.Kernel = Join(n.kernel, Aside(rules)) }
		stop := n.start()
		defer stop()
		n.eventually("ready", n.ready)
		whole := n.state()
		release := rules.hang()
		began := rules.calls.Load()
		for range 5 {
			n.must(n.kernel.Run("ip route del 10.244.2.0/24"))
			n.eventually("the route is back", func() bool { return n.state() == whole })
		}
		if calls := rules.calls.Load() - began; calls != 1 {
			t.Errorf("%d calls wait for the program, want one", calls)
		}
		n.must(rules.Kernel.Apply(t.Context(), deleteAll(t, rules.Kernel)))
		time.Sleep(time.Minute)
		if n.ready() {
			t.Error("ready, and nobody knows the rules")
		}
		if n.logs("the firewall's rules have been waited for") == 0 {
			t.Errorf("the log does not say that the rules are waited for:\n%s", n.log.String())
		}
		release()
		rules.SetFaults(fake.Faults{Observe: func() error { return errors.New("exit status 127") }})
		n.must(n.kernel.Run("ip route del 10.244.2.0/24"))
		n.eventually("the route is back, though the program fails", func() bool { return n.state() == whole })
		rules.SetFaults(fake.Faults{})
		n.eventually("the rules are back", func() bool { return len(deleteAll(t, rules.Kernel)) > 0 && n.ready() })
	})
}

// slowAnswer is a firewall whose program hangs after it has read.
type slowAnswer struct{ *hanging }

func (s slowAnswer) Observe(ctx context.Context) (netstate.State, error) {
	have, err := s.Kernel.Observe(ctx, nil)
	s.wait()
	return have, err
}

// TestRulesChangeMeanwhile: what changes after a program has read is put back when it has answered, and not at the resync.
func TestRulesChangeMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		rules := slowAnswer{&hanging{Kernel: fake.New(netstate.Left{})}}
		n.tune = func(c *Config) { c.Kernel = Join(n.kernel, Aside(rules)) }
		stop := n.start()
		defer stop()
		n.eventually("ready", n.ready)
		all, release := deleteAll(t, rules.Kernel), rules.hang()
		n.agent.trigger()
		time.Sleep(time.Second)
		n.must(rules.Kernel.Apply(t.Context(), all))
		time.Sleep(time.Second)
		release()
		time.Sleep(resync / 2)
		if now := deleteAll(t, rules.Kernel); len(now) != len(all) {
			t.Errorf("half a minute later there are the rules\n%s\nwant\n%s", now, all)
		}
	})
}

// sluggish is a firewall whose program never hangs and always takes a second.
type sluggish struct{ *fake.Kernel }

func (sluggish) think(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

func (s sluggish) Observe(ctx context.Context) (netstate.State, error) {
	s.think(ctx)
	return s.Kernel.Observe(ctx, nil)
}

func (s sluggish) Apply(ctx context.Context, p netstate.Plan) error {
	s.think(ctx)
	return s.Kernel.Apply(ctx, p)
}

// TestRulesSlow: a program that always takes longer than anybody waits brings the rules to what is wanted, and keeps them so.
func TestRulesSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		rules := sluggish{fake.New(netstate.Left{})}
		n.tune = func(c *Config) { c.Kernel = Join(n.kernel, Aside(rules)) }
		stop := n.start()
		defer stop()
		n.eventually("ready", n.ready)
		all := len(deleteAll(t, rules.Kernel))
		if all == 0 {
			t.Fatal("ready without rules")
		}
		must(t, rules.Kernel.Apply(t.Context(), deleteAll(t, rules.Kernel)[1:]))
		n.eventually("the rules are back", func() bool { return len(deleteAll(t, rules.Kernel)) == all })
		time.Sleep(5 * time.Minute)
		if !n.ready() {
			t.Error("not ready, though all is as wanted")
		}
	})
}

// TestRulesHangBesideRefusal: that the kernel refuses the path to a peer hides from nobody that the rules are unknown.
func TestRulesHangBesideRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		rules := &hanging{Kernel: fake.New(netstate.Left{})}
		n.tune = func(c *Config) { c.Kernel = Join(n.kernel, Aside(rules)) }
		n.kernel.SetFaults(fake.Faults{Change: func(c netstate.Change) error {
			if r, ok := c.Want.(netstate.Route); ok && r.Dst.String() == "10.244.2.0/24" {
				return syscall.EINVAL
			}
			return nil
		}})
		release := rules.hang()
		stop := n.start()
		defer stop()
		time.Sleep(unreadyAfter / 2)
		if n.ready() {
			t.Error("ready, and no rule was ever written")
		}
		if n.logs("the firewall's rules have been waited for") == 0 {
			t.Errorf("the log does not say that the rules are waited for:\n%s", n.log.String())
		}
		release()
		n.eventually("ready without the path to one peer", n.ready)
	})
}

// deleteAll is the plan that deletes what a kernel has of ours.
func deleteAll(t *testing.T, k *fake.Kernel) netstate.Plan {
	t.Helper()
	have, err := k.Observe(t.Context(), nil)
	must(t, err)
	return netstate.Diff(nil, have)
}

// TestCleanupWithoutRules: what is not the firewall's goes also where its program fails, and the error says so.
func TestCleanupWithoutRules(t *testing.T) {
	_, rules := halves()
	rules.err = errors.New("exit status 127")
	net := fake.New(netstate.Left{})
	must(t, net.Apply(t.Context(), netstate.Plan{{Want: netstate.Bridge{Name: "cni0", MTU: 1450, Up: true}}}))
	plan, err := Cleanup(t.Context(), Join(net, rules))
	if len(plan) == 0 || !isAboutRules(err) {
		t.Errorf("deleted %s, %v", plan, err)
	}
	if left := deleteAll(t, net); len(left) > 0 {
		t.Errorf("left %s", left)
	}
}

// TestRulesFail: what a program said of which nobody waited for the end is an error all the same.
func TestRulesFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, rules := halves()
		rules.err = errors.New("the lock is held")
		slow := slowRules{rules, make(chan struct{})}
		k := Join(net, Aside(slow))
		if _, err := k.Observe(t.Context(), nil); !isAboutRules(err) {
			t.Errorf("observe: %v", err)
		}
		slow.gate <- struct{}{}
		synctest.Wait()
		if _, err := k.Observe(t.Context(), nil); !isAboutRules(err) || !strings.Contains(err.Error(), "the lock is held") {
			t.Errorf("observe again: %v", err)
		}
		close(slow.gate)
		synctest.Wait()
		rules.err = nil
		if have, err := k.Observe(t.Context(), nil); err != nil || len(have) != 2 {
			t.Errorf("saw %s, %v", have, err)
		}
	})
}

type slowRules struct {
	*rulesHalf
	gate chan struct{}
}

func (s slowRules) Observe(ctx context.Context) (netstate.State, error) {
	<-s.gate
	return s.rulesHalf.Observe(ctx)
}

// TestDiskHangs: no route waits for a file that is being written, and the node is not ready before its files are there.
func TestDiskHangs(t *testing.T) {
	n := newNode(t)
	n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
	stop := n.start()
	defer stop()
	testwait.Until(t, "ready", n.ready)
	whole, release := n.state(), make(chan struct{})
	hangs := make(chan struct{})
	ended := make(chan error)
	go func() {
		ended <- n.agent.files.Write(filepath.Join(n.dir, "subnet.env"), 0o644, func() ([]byte, error) {
			close(hangs)
			<-release
			return nil, errors.New("it hung")
		})
	}()
	<-hangs
	for range 3 {
		n.must(n.kernel.Run("ip route del 10.244.2.0/24"))
		testwait.Until(t, "the route is back", func() bool { return n.state() == whole })
	}
	n.agent.report() // does not wait either
	close(release)
	<-ended
}

// TestFilesAreFacts: a node is ready when its files are written, which are tried until then; one that is ready stays so.
func TestFilesAreFacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		env := filepath.Join(n.dir, "full", "subnet.env")
		n.must(os.WriteFile(filepath.Dir(env), nil, 0o600)) // no directory
		n.tune = func(c *Config) { c.Settings.SubnetFile = env }
		stop := n.start()
		defer stop()
		time.Sleep(time.Minute)
		if err := n.agent.status.Ready(); err == nil || !strings.Contains(err.Error(), "not a directory") {
			t.Errorf("without subnet.env: %v", err)
		}
		n.must(os.Remove(filepath.Dir(env)))
		n.eventually("ready", n.ready)
		if _, err := os.Stat(env); err != nil {
			t.Error(err)
		}
	})
}

// TestCountHangs: no route waits until the pods of an old lease are counted, which reads files; their gateway stays.
func TestCountHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		release := make(chan struct{})
		n.live = func(netip.Prefix) (int, error) { <-release; return 0, nil }
		stop := n.start()
		defer stop()
		n.eventually("ready", n.ready)
		n.must(n.kernel.Run("ip addr add 10.244.77.1/24 dev cni0"))
		whole := n.state()
		for range 3 {
			n.must(n.kernel.Run("ip route del 10.244.2.0/24"))
			n.eventually("the route is back", func() bool { return n.state() == whole })
		}
		close(release)
		n.eventually("the address without pods is gone", func() bool { return !n.has("10.244.77.1/24") })
	})
}

// TestReadyRound: a round that does not end makes the node unready, and one that ended long ago does not.
func TestReadyRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		stop := n.start()
		n.eventually("ready", n.ready)
		time.Sleep(resync - time.Second)
		if !n.ready() {
			t.Errorf("while nothing happens: %v", n.agent.status.Ready())
		}
		release := make(chan struct{})
		n.kernel.SetFaults(fake.Faults{Observe: func() error { <-release; return nil }})
		n.agent.trigger()
		time.Sleep(unreadyAfter - time.Second)
		if !n.ready() {
			t.Errorf("after %s: %v", unreadyAfter-time.Second, n.agent.status.Ready())
		}
		time.Sleep(2 * time.Second)
		if err := n.agent.status.Ready(); err == nil || !strings.Contains(err.Error(), "a round of the loop has not ended for 31s") {
			t.Errorf("a round that hangs: %v", err)
		}
		close(release)
		n.kernel.SetFaults(fake.Faults{})
		n.eventually("ready again", n.ready)
		stop()
	})
}
