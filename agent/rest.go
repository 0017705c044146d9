package agent

import (
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

// What the store's changes cost is bounded, whoever makes how many: after newsBurst of work the loop rests from them so long that
// they take newsShare of a processor. Among thousands of peers one plan takes tens of milliseconds. But nobody who joins waits
// longer than mostNewsRest for it, whatever came before.
const newsShare, newsBurst, mostNewsRest = 0.04, 500 * time.Millisecond, time.Second

// newNewsLimit makes the limiter of that work, in microseconds.
func newNewsLimit() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(newsShare*1e6), int(newsBurst.Microseconds()))
}

// workedSince returns how long to rest after work that began when the process had used so much time.
func workedSince(limit *rate.Limiter, began time.Duration) time.Duration {
	now := time.Now()
	work := limit.ReserveN(now, int(min(used()-began, newsBurst).Microseconds()))
	rest := work.DelayFrom(now)
	if rest > mostNewsRest {
		work.CancelAt(now) // or those who join after a storm would pay for it one after the other
		return mostNewsRest
	}
	return rest
}

// used is the processor time of this process. On a busy machine a clock would count what others take.
func used() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// gate lets through what comes from c, but not while it rests.
type gate struct {
	c, open <-chan struct{} // open is c, or nil while it rests
	rested  <-chan time.Time
}

// rest closes the gate for a while; the loop opens it when rested says so.
func (g *gate) rest(d time.Duration) {
	if d > 0 {
		g.open, g.rested = nil, time.After(d)
	}
}
