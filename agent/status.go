package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Status is how the agent is doing, for probes. Any goroutine may ask.
type Status struct {
	mu         sync.Mutex
	lastBeat   time.Time
	synced     bool
	applied    bool      // once complete
	why        error     // what the last look could not do
	warmUntil  time.Time // until then the checkpoint's leases count as the store's
	wrongSince time.Time // zero: the data path is right
	down       error     // why the backend's own part does not run, nil if it does or there is none
	downSince  time.Time // zero: it never ran
	upSince    time.Time // when the backend's own part began to run
	says       string    // what it said last
	retry      time.Duration
	said       map[string]string // the last error of each operation, to say it in full only once
}

// stuckAfter is how long the loop may be silent before the agent counts as dead: three resyncs.
const stuckAfter = 3 * resync

// wrongFor is how long the data path may be wrong before the node is not ready any more.
const wrongFor = 30 * time.Second

func (s *Status) beat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastBeat = time.Now()
}

func (s *Status) concluded(synced, broken bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced, s.why = synced, err
	switch {
	case !broken:
		s.applied, s.wrongSince = s.applied || synced, time.Time{}
	case s.wrongSince.IsZero():
		s.wrongSince = time.Now()
	}
}

// warm has the checkpoint's leases, as the kernel has them already, stand in for the store's until then.
func (s *Status) warm(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warmUntil = until
}

// runs says whether the backend's own part runs, and if not, why.
func (s *Status) runs(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.down == nil && err != nil:
		s.downSince = time.Now()
	case s.down != nil && err == nil:
		s.upSince = time.Now()
	}
	s.down = err
}

// Live says why the agent should be restarted, nil if it should not.
func (s *Status) Live() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if quiet := time.Since(s.lastBeat); !s.lastBeat.IsZero() && quiet > stuckAfter {
		return fmt.Errorf("the reconcile loop has not run for %s", quiet.Round(time.Second))
	}
	return nil
}

// Ready says why pods of this node cannot count on their network, nil if they can.
func (s *Status) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	warm := time.Now().Before(s.warmUntil)
	switch {
	case !s.synced && !warm:
		return errors.New("no lease, or not in sync with the store yet")
	case !s.applied && !warm:
		return fmt.Errorf("the node has not been brought to the wanted state yet%s", errText(s.why))
	case s.down != nil && time.Since(s.downSince) > wrongFor:
		return fmt.Errorf("the backend moves no packets: %w", s.down)
	case !s.wrongSince.IsZero() && time.Since(s.wrongSince) > wrongFor:
		return fmt.Errorf("the data path has been wrong for %s", time.Since(s.wrongSince).Round(time.Second))
	}
	return nil
}

// logError logs an error: the first of its text in full, repetitions at debug level.
func (s *Status) logError(log *slog.Logger, what string, err error) {
	if s.isNews(what, err.Error()) {
		log.Error(what, "err", err)
		return
	}
	log.Debug(what, "err", err)
}

// logOnce logs a warning one time.
func (s *Status) logOnce(log *slog.Logger, what string, args ...any) {
	if s.isNews(what, "") {
		log.Warn(what, args...)
	}
}

func (s *Status) isNews(what, text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said == nil {
		s.said = map[string]string{}
	}
	old, known := s.said[what]
	s.said[what] = text
	return !known || old != text
}

// backoff is the pause before the next try after an error.
func (s *Status) backoff() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retry = min(max(2*s.retry, firstRetry), lastRetry)
	return s.retry
}

// worked ends a row of errors.
func (s *Status) worked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retry, s.said = 0, nil
}

// wasReady says whether the data path has ever been complete.
func (s *Status) wasReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied
}
