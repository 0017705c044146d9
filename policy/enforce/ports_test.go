package enforce

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate"
)

// TestPorts: ports are followed when they come and go, and before that for whoever waits.
func TestPorts(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		r.sync()
		r.check("at the start")
		all := r.ports.all
		if len(all) < 2 || len(r.snap.Policies) == 0 {
			r.Fatalf("%d ports and %d policies prove nothing", len(all), len(r.snap.Policies))
		}
		observed := r.kernel.observed
		r.ports.set(slices.Clone(all[1:]), nil)
		r.ports.events <- struct{}{}
		r.settle()
		r.check("after a port went")

		late := netstate.Port{Name: "vethlate"}.WithAddrs(r.snap.Pods[0].Addrs)
		r.ports.set(append(slices.Clone(all[1:]), late), nil)
		began := time.Now()
		if err := r.Flush(r.Context()); err != nil || time.Since(began) > gatherFor {
			r.Errorf("waited for %v: %v", time.Since(began), err)
		}
		r.check("when somebody waited for a port that came")
		if r.kernel.observed != observed {
			r.Errorf("the tables were read %d times for ports", r.kernel.observed-observed)
		}
	})
}

// TestUnreadablePorts: while ports cannot be read nothing is written, and what happens meanwhile is not lost.
func TestUnreadablePorts(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		all := r.ports.all
		r.ports.set(nil, errors.New("no buffer space"))
		r.protect()
		if r.sync(); r.protect() {
			r.Error("pods may start although nobody knows which ports there are")
		}
		r.ports.set(all, nil)
		time.Sleep(lastRetry)
		r.settle()
		r.check("when ports can be read")

		r.ports.set(nil, errors.New("no buffer space"))
		r.ports.events <- struct{}{}
		r.settle()
		r.snap.Policies = append(r.snap.Policies, r.world.Policy("late"))
		r.sync()
		r.ports.set(all, nil)
		time.Sleep(lastRetry)
		r.settle()
		r.check("when ports can be read again")
	})
}
