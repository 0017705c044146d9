package agent

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestLive: an agent whose loop is silent for three minutes should be restarted.
func TestLive(t *testing.T) {
	var s status
	if err := s.Live(); err != nil {
		t.Errorf("before the first look: %v", err)
	}
	for quiet, dead := range map[time.Duration]bool{0: false, 170 * time.Second: false, 190 * time.Second: true} {
		s.lastHeartbeat = time.Now().Add(-quiet)
		if err := s.Live(); (err != nil) != dead {
			t.Errorf("silent for %s: %v", quiet, err)
		}
	}
	if s.heartbeat(); s.Live() != nil {
		t.Errorf("after a look: %v", s.Live())
	}
}

// TestNotReadyBeforeAllWasWritten: the store's word alone makes no node ready.
func TestNotReadyBeforeAllWasWritten(t *testing.T) {
	var s status
	s.update(true, true, errors.New("eth1 is away"))
	if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "eth1 is away") {
		t.Errorf("in sync, and nothing was written: %v", err)
	}
	s.update(false, false, nil)
	if err := s.Ready(); err == nil {
		t.Error("ready without the store")
	}
	s.update(true, false, nil)
	if err := s.Ready(); err != nil {
		t.Errorf("all is written: %v", err)
	}
	s.update(true, true, nil)
	if err := s.Ready(); err != nil {
		t.Errorf("wrong for a moment: %v", err)
	}
}

// TestWrongForAWhile: a data path that is wrong for half a minute makes the node unready, and when
// it is right again it is ready.
func TestWrongForAWhile(t *testing.T) {
	var s status
	s.update(true, false, nil)
	s.update(true, true, errors.New("no device"))
	began := s.degradedSince
	if s.update(true, true, errors.New("no device")); began.IsZero() || s.degradedSince != began {
		t.Errorf("wrong since %s, and then since %s", began, s.degradedSince)
	}
	for age, ready := range map[time.Duration]bool{29 * time.Second: true, 31 * time.Second: false} {
		s.degradedSince = time.Now().Add(-age)
		if err := s.Ready(); (err == nil) != ready || err != nil && !strings.Contains(err.Error(), "wrong for 31s") {
			t.Errorf("wrong for %s: %v", age, err)
		}
	}
	s.update(true, false, nil)
	if err := s.Ready(); err != nil {
		t.Errorf("right again: %v", err)
	}
	if s.update(false, false, nil); s.Ready() == nil || !s.wasReady() {
		t.Errorf("out of sync: %v, was ready %t", s.Ready(), s.wasReady())
	}
}

// TestDownForAWhile: the same of a backend's own part.
func TestDownForAWhile(t *testing.T) {
	var s status
	s.update(true, false, nil)
	s.updateRunner(errors.New("no port"))
	for age, ready := range map[time.Duration]bool{29 * time.Second: true, 31 * time.Second: false} {
		s.downSince = time.Now().Add(-age)
		if s.updateRunner(errors.New("no port")); (s.Ready() == nil) != ready {
			t.Errorf("down for %s: %v", age, s.Ready())
		}
	}
	s.updateRunner(nil)
	began := s.upSince
	if s.updateRunner(nil); began.IsZero() || s.upSince != began || s.Ready() != nil {
		t.Errorf("up since %s, and then since %s: %v", began, s.upSince, s.Ready())
	}
}

// TestBackoff: the pauses of a row of errors double from the first to the last, and success ends the row.
func TestBackoff(t *testing.T) {
	var s status
	for range 2 {
		for _, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000} {
			if got := s.backoff(); got != want*time.Millisecond {
				t.Errorf("waits %s, want %d ms", got, want)
			}
		}
		s.resetErrors()
	}
}

// TestIsNew: an error is news once, and again when another was there meanwhile or all was well.
func TestIsNew(t *testing.T) {
	var s status
	for i, step := range []struct {
		what, text string
		news       bool
	}{{"a", "x", true}, {"a", "x", false}, {"b", "x", true}, {"a", "y", true}, {"a", "x", true}, {"b", "x", false}} {
		if got := s.isNew(step.what, step.text); got != step.news {
			t.Errorf("step %d: news %t, want %t", i, got, step.news)
		}
	}
	if s.resetErrors(); !s.isNew("b", "x") {
		t.Error("what comes after all was well is no news")
	}
}
