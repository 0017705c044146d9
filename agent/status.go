package agent

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twill-net/twill/backend"
)

// status is how the agent is doing, for probes. Any goroutine may ask.
type status struct {
	mu            sync.Mutex
	began         time.Time // the last round of the loop; before there is one, the agent
	runs          bool      // that round has not ended
	synced        bool
	applied       bool            // the data path was complete once
	leased        bool            // subnet.env has the lease
	err           error           // of the last reconcile
	degradedSince time.Time       // zero: the data path works
	runnerErr     error           // why the backend's Runner does not run, nil if it does or there is none
	downSince     time.Time       // zero: the Runner never ran
	upSince       time.Time       // when the Runner began to run
	says          string          // what the Runner said last
	reports       bool            // the Runner is a Reporter
	health        backend.Health  // what it said last
	fastPath      *FastPathStatus // nil: nobody wants one, or nothing is known yet
}

// stuckAfter is how long the loop may be silent before the agent counts as dead.
const stuckAfter = 3 * resync

// unreadyAfter is how long the data path may be degraded, or a round of the loop take, before the node is not ready any
// more.
const unreadyAfter = 30 * time.Second

// begin notes that a round of the loop begins.
func (s *status) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.runs = time.Now(), true
}

// end notes that the round has ended.
func (s *status) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = false
}

// update notes how a reconcile ended.
func (s *status) update(synced, degraded bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced, s.err = synced, err
	switch {
	case !degraded:
		s.applied, s.degradedSince = s.applied || synced, time.Time{}
	case s.degradedSince.IsZero():
		s.degradedSince = time.Now()
	}
}

// lease notes that subnet.env has the lease.
func (s *status) lease() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leased = true
}

// isLeased reports whether subnet.env has the lease.
func (s *status) isLeased() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leased
}

// updateRunner notes that the backend's Runner runs, or why it does not.
func (s *status) updateRunner(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.runnerErr == nil && err != nil:
		s.downSince = time.Now()
	case s.runnerErr != nil && err == nil:
		s.upSince = time.Now()
	}
	s.runnerErr = err
}

// Live returns why the agent should be restarted, nil if it should not.
func (s *status) Live() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if quiet := time.Since(s.began); quiet > stuckAfter {
		return fmt.Errorf("the reconcile loop has not run for %s", quiet.Round(time.Second))
	}
	return nil
}

// Ready returns why pods of this node cannot count on their network, nil if they can.
func (s *status) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.synced:
		return errors.New("no lease, or not in sync with the store yet")
	case !s.applied:
		return fmt.Errorf("the node has not been brought to the wanted state yet%s", errText(s.err))
	case s.runs && time.Since(s.began) > unreadyAfter:
		return fmt.Errorf("a round of the loop has not ended for %s: nothing is repaired", time.Since(s.began).Round(time.Second))
	case s.runnerErr != nil && time.Since(s.downSince) > unreadyAfter:
		return fmt.Errorf("the backend moves no packets: %w", s.runnerErr)
	case s.reports && !s.health.Seen:
		return fmt.Errorf("the network does not lead packets to this node's pods yet%s", errText(s.health.Err))
	case !s.health.Wrong.IsZero() && time.Since(s.health.Wrong) > unreadyAfter:
		return fmt.Errorf("the network has not led packets to this node's pods for %s%s",
			time.Since(s.health.Wrong).Round(time.Second), errText(s.health.Err))
	case !s.degradedSince.IsZero() && time.Since(s.degradedSince) > unreadyAfter:
		return fmt.Errorf("the data path has been wrong for %s", time.Since(s.degradedSince).Round(time.Second))
	}
	return nil
}

// wasReady reports whether the data path has ever been complete.
func (s *status) wasReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied
}

// works reports whether packets can take the way of the backend: the data path has been complete, and the backend's Runner
// runs, if there is one, and says so.
func (s *status) works() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied && s.runnerErr == nil && (!s.reports || s.health.Seen)
}

// updateFastPath notes how the fast path is, and returns how it was.
func (s *status) updateFastPath(now FastPathStatus) (before *FastPathStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.fastPath = s.fastPath, &now
	return before
}

// fast returns how the fast path is, nil if nobody wants one.
func (s *status) fast() *FastPathStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fastPath
}
