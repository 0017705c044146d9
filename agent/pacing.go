package agent

import (
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

// budget bounds how often something is done: burst times at once, and rate times a second in the
// long run. Two things have one: the work for changes of the leases, in microseconds of processor
// time, and the changes of each peer's record. Who stays within the budget never waits; who exceeds
// it waits until the rate has paid for the excess.
type budget struct {
	limit *rate.Limiter
	most  time.Duration // what would have to wait longer is not taken from the budget
}

// take takes n from the budget and returns how long to wait for that.
func (b budget) take(n int, now time.Time) time.Duration {
	r := b.limit.ReserveN(now, n)
	wait := r.DelayFrom(now)
	if wait > b.most {
		r.CancelAt(now)
	}
	return wait
}

// Changes of the leases may take workShare of a processor, whoever makes how many: among thousands
// of peers one plan takes tens of milliseconds. But nobody who joins waits longer than mostPause
// for it, whatever came before.
const workShare, workBurst, mostPause = 0.04, 2 * time.Second, time.Second

func newWorkBudget() budget {
	return budget{rate.NewLimiter(rate.Limit(workShare*1e6), int(workBurst.Microseconds())), mostPause}
}

// pauseAfter returns for how long to pause after work that is done.
func (b budget) pauseAfter(work time.Duration) time.Duration {
	return min(b.take(int(min(work, workBurst).Microseconds()), time.Now()), b.most)
}

// A peer's record may change peerChanges times a minute, and then once in peerRest: a rollout that is taken back changes it
// eight times.
const peerChanges, peerRest = 20, time.Minute / 20

func newRecordBudget(changes int) *budget {
	return &budget{limit: rate.NewLimiter(rate.Every(peerRest), changes)}
}

// cpuTime returns the processor time of this process. On a busy machine a clock would count what others take.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// pacer hands out a source's events, but none while it pauses. One event waits for the end of the
// pause; more would say nothing else.
type pacer struct {
	events <-chan struct{}
	resume <-chan time.Time // nil unless it pauses; whoever receives from it sets it to nil
}

func (p *pacer) next() <-chan struct{} {
	if p.resume != nil {
		return nil
	}
	return p.events
}

func (p *pacer) pause(d time.Duration) {
	if d > 0 {
		p.resume = time.After(d)
	}
}
