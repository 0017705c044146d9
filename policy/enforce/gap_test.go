package enforce

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
)

// doubts reports whether the kernel's hooks have the rule about UDP.
func (r *run) doubts() bool {
	r.kernel.mu.Lock()
	defer r.kernel.mu.Unlock()
	hook, _ := r.kernel.state[netstate.Hook{Family: netstate.IPv4}.Key()].(netstate.Hook)
	return strings.Contains(hook.Rules, "new proto 17 jump backwards")
}

// TestGap: when rules come where there were none, what may have begun in the other direction is forgotten, once, and UDP is in
// doubt for a second. What is wrong with that is tried again.
func TestGap(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		r.sync()
		if r.forgot != 1 || r.doubts() {
			r.Errorf("at the start: connections were forgotten %d times, and the doubt has not ended: %v", r.forgot, r.doubts())
		}
		r.snap.Policies = append(r.snap.Policies, r.world.Policy("late"))
		r.sync()
		if r.forgot != 1 {
			r.Errorf("after a policy: connections were forgotten %d times", r.forgot)
		}
		r.refuses = errors.New("no buffer space")
		r.kernel.mu.Lock()
		maps.DeleteFunc(r.kernel.state, func(key netstate.Key, _ netstate.Object) bool { return key.Kind == netstate.KindHook })
		r.kernel.mu.Unlock()
		r.kernel.events <- struct{}{}
		time.Sleep(doubtFor / 2)
		synctest.Wait()
		if r.forgot != 2 || !r.doubts() {
			r.Errorf("after the hooks were deleted: connections were forgotten %d times, in doubt: %v", r.forgot, r.doubts())
		}
		r.snap.Policies = r.snap.Policies[1:]
		snap := r.snap
		r.source.Put(policy.Change{Rules: true, Snapshot: func() policy.Snapshot { return snap }})
		time.Sleep(doubtFor / 4)
		synctest.Wait()
		if !r.doubts() {
			r.Error("another policy ends the doubt")
		}
		r.kernel.mu.Lock()
		r.refuses = nil
		r.kernel.mu.Unlock()
		r.settle()
		r.check("at the end")
		if r.forgot != 4 || r.doubts() {
			r.Errorf("at the end: connections were forgotten %d times, in doubt: %v", r.forgot, r.doubts())
		}
	})
}

// TestPolicyAsDoubtEnds: a change of the hooks' rules that comes just before the doubt ends, and is written behind, ends it, too.
func TestPolicyAsDoubtEnds(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		later := r.snap.Policies
		r.snap.Policies = nil
		tell := func() {
			snap := r.snap
			r.source.Put(policy.Change{Rules: true, Snapshot: func() policy.Snapshot { return snap }})
		}
		tell()
		time.Sleep(gatherFor + doubtFor - gatherFor/2)
		if !r.doubts() {
			r.Error("nothing is in doubt")
		}
		r.snap.Policies = later
		tell()
		r.settle()
		r.check("at the end")
		if r.doubts() || r.log.String() != "" {
			r.Errorf("in doubt: %v, the log is\n%s", r.doubts(), r.log)
		}
	})
}
