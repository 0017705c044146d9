package agent

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLive: an agent whose loop is silent for three minutes should be restarted.
func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s status
		s.begin()
		for _, step := range []struct {
			sleep time.Duration
			dead  bool
		}{{0, false}, {170 * time.Second, false}, {20 * time.Second, true}} {
			time.Sleep(step.sleep)
			if err := s.Live(); (err != nil) != step.dead {
				t.Errorf("%s later: %v", step.sleep, err)
			}
		}
		if s.begin(); s.Live() != nil {
			t.Errorf("after a reconcile: %v", s.Live())
		}
	})
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

// TestDegradedForAWhile: a data path that does not work for half a minute makes the node unready,
// whatever it is that fails, and when it works again the node is ready.
func TestDegradedForAWhile(t *testing.T) {
	for name, test := range map[string]struct {
		set  func(s *status, err error)
		want string
	}{
		"data path": {func(s *status, err error) { s.update(true, err != nil, err) }, "the data path has been wrong for 31s"},
		"runner":    {(*status).updateRunner, "the backend moves no packets: no device"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s status
				s.update(true, false, nil)
				for range 2 {
					test.set(&s, errors.New("no device"))
					time.Sleep(29 * time.Second)
					test.set(&s, errors.New("no device")) // the same failure goes on
					if err := s.Ready(); err != nil {
						t.Errorf("after 29 s: %v", err)
					}
					time.Sleep(2 * time.Second)
					if err := s.Ready(); err == nil || err.Error() != test.want {
						t.Errorf("after 31 s: %v, want %s", err, test.want)
					}
					if test.set(&s, nil); s.Ready() != nil {
						t.Errorf("it works again: %v", s.Ready())
					}
				}
				if s.update(false, false, nil); s.Ready() == nil || !s.wasReady() {
					t.Errorf("out of sync: %v, was ready %t", s.Ready(), s.wasReady())
				}
			})
		})
	}
}

// TestUpSince: the time since which a Runner runs is that of its last start.
func TestUpSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := status{runnerErr: errors.New("it has not started yet")}
		began := time.Now()
		s.updateRunner(nil)
		time.Sleep(time.Second)
		if s.updateRunner(nil); s.upSince != began {
			t.Errorf("up since %s, want %s", s.upSince, began)
		}
		s.updateRunner(errors.New("no port"))
		time.Sleep(time.Second)
		if s.updateRunner(nil); s.upSince != time.Now() || s.downSince != began.Add(time.Second) {
			t.Errorf("up since %s, down since %s", s.upSince, s.downSince)
		}
	})
}
