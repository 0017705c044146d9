package enforce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
	"github.com/twill-net/twill/subnet"
)

// fakeKernel holds tables, and refuses plans that are not made for what it holds.
type fakeKernel struct {
	mu        sync.Mutex
	state     netstate.State
	observed  int
	plans     []netstate.Plan
	refuse    error
	refuseSet string // plans that make a set of this name are refused
	most      int    // plans with more changes are refused; 0: none
	unread    error  // of Observe
	events    chan struct{}
}

func (k *fakeKernel) Observe(context.Context, netstate.State) (netstate.State, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.observed++
	return clone(k.state), k.unread
}

func (k *fakeKernel) Apply(_ context.Context, p netstate.Plan) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refuse != nil {
		return k.refuse
	}
	if slices.ContainsFunc(p, func(c netstate.Change) bool {
		set, ok := c.Want.(netstate.Set)
		return ok && set.Name == k.refuseSet
	}) {
		return fmt.Errorf("set %s: refused", k.refuseSet)
	}
	if k.most > 0 && len(p) > k.most {
		return fmt.Errorf("%d changes: no buffer space", len(p))
	}
	next := clone(k.state)
	for i, c := range p {
		if was, ok := c.Was.(netstate.Hook); ok && was.Extra != "" { // the table is made anew
			maps.DeleteFunc(next, func(_ netstate.Key, o netstate.Object) bool { return familyOf(o) == was.Family })
			p = slices.Clone(p)
			p[i].Was = nil
		}
	}
	changed := map[netstate.Key]bool{}
	for _, c := range p {
		if changed[c.Key()] {
			return fmt.Errorf("%s: the plan changes it twice", c)
		}
		changed[c.Key()] = true
		if next[c.Key()] != c.Was {
			return fmt.Errorf("%s: there is %v", c, next[c.Key()])
		}
		if delete(next, c.Key()); c.Want != nil {
			next.Add(c.Want)
		}
	}
	k.state, k.plans = next, append(k.plans, p)
	return nil
}

func (k *fakeKernel) Watch(context.Context) (<-chan struct{}, error) { return k.events, nil }

func clone(s netstate.State) netstate.State {
	all := netstate.State{}
	all.Merge(s)
	return all
}

// fakePorts are the pods' ports.
type fakePorts struct {
	mu     sync.Mutex
	all    []netstate.Port
	fail   error
	events chan struct{}
}

func (p *fakePorts) List() ([]netstate.Port, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all, p.fail
}

func (p *fakePorts) Watch(context.Context) (<-chan struct{}, error) { return p.events, nil }

func (p *fakePorts) set(all []netstate.Port, fail error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all, p.fail = all, fail
}

// run is an Enforcer of node 1 of a drawn world that runs in a bubble of its own time.
type run struct {
	*testing.T
	*Enforcer
	kernel  *fakeKernel
	ports   *fakePorts
	source  policytest.Source
	world   policytest.World
	snap    policy.Snapshot
	log     *strings.Builder
	tracks  *fakeConnections
	forgot  int      // how often connections were
	refuses error    // of that
	events  []string // of the Enforcer's loop
	objects []string // of which there were events, with the reasons
}

// test runs f beside an Enforcer on a kernel.
func test(t *testing.T, k *fakeKernel, f func(*run)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &run{T: t, kernel: k, world: policytest.New(6), log: &strings.Builder{},
			tracks: &fakeConnections{}}
		k.events = make(chan struct{})
		r.snap = r.world.Snapshot(4, 6)
		r.ports = &fakePorts{all: r.world.Ports(r.snap, 1), events: make(chan struct{})}
		event := func(_, _, message string) { r.events = append(r.events, message) }
		about := func(o subnet.Object, _, reason, _ string) {
			r.objects = append(r.objects, fmt.Sprintf("%s %s/%s %s", o.Kind, o.Namespace, o.Name, reason))
		}
		forget := func([]netip.Prefix) (int, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			r.forgot++
			return 1, r.refuses
		}
		r.Enforcer = New(Config{Node: "node1", Forget: forget, Event: event, ObjectEvent: about, Bridge: "cni0", Networks: policytest.Networks, Source: &r.source,
			Kernel: k, Ports: r.ports, Connections: r.tracks, Log: slog.New(slog.NewTextHandler(r.log, nil)), Metrics: NewMetrics(prometheus.NewRegistry())})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Enforcer.Run(ctx) }()
		f(r)
		cancel()
		close(k.events)
		close(r.ports.events)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// protect tells the subnets, and reports whether policies are enforced there.
func (r *run) protect() bool {
	err := r.Protect(r.world.Site(1).Subnets)
	return err == nil
}

// sync sends the whole snapshot.
func (r *run) sync() { r.tell(policy.Change{Rules: true}) }

func (r *run) tell(c policy.Change) {
	r.Helper()
	s := r.snap
	c.Snapshot = func() policy.Snapshot { return s }
	r.source.Put(c)
	r.settle()
}

// settle waits until nothing happens any more for a second, and nothing is in doubt.
func (r *run) settle() {
	time.Sleep(doubtFor + 100*time.Millisecond)
	synctest.Wait()
}

// check compares the kernel with what the snapshot asks for.
func (r *run) check(what string) {
	r.Helper()
	site := r.world.Site(1)
	site.Ports, _ = r.ports.List()
	want, _ := policy.Desired(site, r.snap)
	r.kernel.mu.Lock()
	defer r.kernel.mu.Unlock()
	if d := netstate.Diff(want, r.kernel.state); len(d) > 0 {
		r.Errorf("%s: the kernel lacks\n%s", what, d)
	}
}

// TestEnforce follows a cluster from the start on.
func TestEnforce(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		if r.protect() {
			r.Fatal("pods may start before there is a table")
		}
		r.sync()
		r.check("at the start")
		if !r.protect() {
			r.Fatal("pods may not start")
		}
		observed := r.kernel.observed
		old := r.snap.Pods[0]
		changed := *old
		changed.Labels = r.world.Labels()
		r.snap.Pods = append([]*policy.Pod{&changed}, r.snap.Pods[1:]...)
		r.tell(policy.Change{Pods: []policy.PodChange{{Was: old, Now: &changed}}})
		r.check("after a pod changed")
		r.snap.Policies = append(r.snap.Policies, r.world.Policy("late"))
		r.sync()
		r.check("after a policy came")
		if r.kernel.observed != observed {
			r.Errorf("the tables were read %d times for changes of the cluster", r.kernel.observed-observed)
		}
	})
}

// TestBurst: a change is enforced soon, and many are enforced together.
func TestBurst(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		r.sync()
		done, pod := len(r.kernel.plans), r.snap.Pods[0]
		const times = 101
		for i := range times {
			changed := *pod
			changed.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, 100 + byte(i)})}
			r.source.Put(policy.Change{Pods: []policy.PodChange{{Was: pod, Now: &changed}}, Snapshot: func() policy.Snapshot { return r.snap }})
			pod = &changed
			time.Sleep(gatherFor + time.Millisecond)
			if synctest.Wait(); i == 0 && len(r.kernel.plans) != done+1 {
				r.Errorf("the first change waits for more than %s", gatherFor)
			}
		}
		r.snap.Pods = append([]*policy.Pod{pod}, r.snap.Pods[1:]...)
		r.settle()
		r.check("after a burst")
		if n := len(r.kernel.plans) - done; n > times*int(gatherFor+time.Millisecond)/int(minPause)+1 {
			r.Errorf("%d changes in %s are %d plans", times, times*(gatherFor+time.Millisecond), n)
		}
	})
}

// TestNoLease: nothing is written before the agent has a lease, not even over what an earlier agent left.
func TestNoLease(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.sync()
		if len(r.kernel.plans) > 0 {
			r.Errorf("tables are written without a lease:\n%s", r.kernel.plans)
		}
		r.protect()
		r.settle()
		r.check("with a lease")
		if len(r.kernel.plans) != 3 {
			r.Errorf("%d plans, want one that closes, one of all, and another when nothing is in doubt any more:\n%s", len(r.kernel.plans), r.kernel.plans)
		}
	})
}

// TestAltered: what somebody else does to the tables is put back, and said.
func TestAltered(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		r.sync()
		r.kernel.mu.Lock()
		for key := range r.kernel.state {
			if key.Kind == netstate.KindHook {
				delete(r.kernel.state, key)
			}
		}
		r.kernel.mu.Unlock()
		r.kernel.events <- struct{}{}
		r.settle()
		r.check("after the hooks were deleted")
		if !strings.Contains(r.log.String(), "changed by somebody else") {
			r.Errorf("the log does not say it:\n%s", r.log)
		}
	})
}

// TestRefused: what the kernel refuses is tried again, from what it has.
func TestRefused(t *testing.T) {
	test(t, &fakeKernel{refuse: errors.New("no buffer space")}, func(r *run) {
		r.protect()
		r.sync()
		if r.protect() {
			r.Error("pods may start although the kernel refuses the tables")
		}
		r.kernel.mu.Lock()
		r.kernel.refuse = nil
		r.kernel.mu.Unlock()
		time.Sleep(lastRetry)
		r.settle()
		r.check("after the kernel took it")
		if err := r.Enforced(); err != nil {
			r.Errorf("after the kernel took it: %v", err)
		}
		r.kernel.mu.Lock()
		r.kernel.refuse = errors.New("no buffer space")
		r.kernel.mu.Unlock()
		r.snap.Policies = nil
		r.sync()
		if err := r.Enforced(); err == nil || !strings.Contains(err.Error(), "no buffer space") || !r.protect() {
			r.Errorf("while the kernel refuses a change: %v, and pods may start: %t", err, r.protect())
		}
	})
}

// TestUnreadable: tables that cannot be read are written all the same, after one try; nobody is blamed for what they lacked, and
// a later change needs no reading either.
func TestUnreadable(t *testing.T) {
	test(t, &fakeKernel{unread: errors.New("i/o timeout")}, func(r *run) {
		r.kernel.state = netstate.NewState(netstate.Filter{Family: netstate.IPv4, Name: "in-old", Rules: "accept"})
		r.protect()
		r.sync()
		time.Sleep(firstRetry)
		r.settle()
		r.check("although the tables cannot be read")
		if err := r.Enforced(); err != nil || r.kernel.observed != 1 {
			r.Errorf("after %d readings: %v", r.kernel.observed, err)
		}
		r.snap.Policies = r.snap.Policies[1:]
		r.sync()
		r.check("after a policy is gone")
		r.kernel.events <- struct{}{} // something was changed, and what cannot be told
		time.Sleep(firstRetry)
		r.settle()
		r.check("after somebody may have changed the tables")
		if strings.Contains(r.log.String(), "changed by somebody else") || r.kernel.observed != 2 {
			r.Errorf("after %d readings the log says:\n%s", r.kernel.observed, r.log)
		}
	})
}

func familyOf(o netstate.Object) netstate.Family {
	switch o := o.(type) {
	case netstate.Hook:
		return o.Family
	case netstate.Filter:
		return o.Family
	case netstate.Set:
		return o.Family
	case netstate.Element:
		if o.Dev == "" {
			return netstate.FamilyOf(o.Prefix.Addr())
		}
	}
	return netstate.Ethernet
}

// TestNoSource: without the API server a node keeps the tables that it has, and one that has booted starts no pod.
func TestNoSource(t *testing.T) {
	kernel := &fakeKernel{}
	test(t, kernel, func(r *run) {
		r.protect()
		r.sync()
	})
	other := clone(kernel.state)
	for key, o := range other {
		if f, ok := o.(netstate.Filter); ok {
			f.Rules = strings.ReplaceAll(f.Rules, "10.244.1.0/24", "10.244.9.0/24")
			other[key] = f
		}
	}
	for name, c := range map[string]struct {
		kernel    *fakeKernel
		protected bool
	}{
		"booted":          {&fakeKernel{}, false},
		"restarted":       {&fakeKernel{state: clone(kernel.state)}, true},
		"of other leases": {&fakeKernel{state: other}, false},
	} {
		t.Run(name, func(t *testing.T) {
			test(t, c.kernel, func(r *run) {
				if r.settle(); r.protect() {
					r.Error("pods may start before the source had time to answer")
				}
				time.Sleep(2 * patience)
				r.settle()
				if r.protect() != c.protected {
					r.Errorf("pods may start: %v, want %v\n%s", !c.protected, c.protected, r.log)
				}
				if len(c.kernel.plans) > 0 {
					r.Errorf("tables are written without the source:\n%s", c.kernel.plans)
				}
				r.sync()
				r.check("when the source is back")
				if !r.protect() {
					r.Error("pods may not start")
				}
			})
		})
	}
}

// TestFlush: whoever waits for a change goes on when the kernel has it, and not before.
func TestFlush(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		r.sync()
		if err := r.Flush(r.Context()); err != nil {
			r.Errorf("nothing was told: %v", err)
		}
		old := r.snap.Pods[0]
		changed := *old
		changed.Labels = r.world.Labels()
		changed.Addrs = []netip.Addr{netip.MustParseAddr("10.244.1.99")}
		r.snap.Pods = append([]*policy.Pod{&changed}, r.snap.Pods[1:]...)
		s := r.snap
		change := policy.Change{Pods: []policy.PodChange{{Was: old, Now: &changed}}, Snapshot: func() policy.Snapshot { return s }}
		flush := func(within time.Duration) error {
			ctx, cancel := context.WithTimeout(r.Context(), within)
			defer cancel()
			return r.Flush(ctx)
		}
		r.source.Put(change)
		synctest.Wait()
		began := time.Now()
		if err := flush(time.Second); err != nil {
			r.Error(err)
		}
		if took := time.Since(began); took >= gatherFor {
			r.Errorf("waited for %v, as long as for more changes", took)
		}
		r.check("when it was waited for")

		r.kernel.mu.Lock()
		r.kernel.refuse = errors.New("no buffer space")
		r.kernel.mu.Unlock()
		r.snap.Pods = append([]*policy.Pod{old}, r.snap.Pods[1:]...)
		s = r.snap
		r.source.Put(policy.Change{Pods: []policy.PodChange{{Was: &changed, Now: old}}, Snapshot: change.Snapshot})
		synctest.Wait()
		if err := flush(time.Second); !errors.Is(err, context.DeadlineExceeded) {
			r.Errorf("the kernel refuses it: %v", err)
		}
		done := make(chan error)
		go func() { done <- flush(time.Minute) }()
		r.settle()
		r.kernel.mu.Lock()
		r.kernel.refuse = nil
		r.kernel.mu.Unlock()
		if err := <-done; err != nil {
			r.Errorf("when the kernel takes it: %v", err)
		}
		r.check("when the kernel takes it")
	})
}
