package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
)

// patience is how long links, routes and neighbours wait for the firewall's rules. Over netlink they take milliseconds.
// Where a program writes them, that may hang, or wait for another one's lock.
const patience = 250 * time.Millisecond

// lateError is why nobody knows the firewall's rules now, or whether they are written.
type lateError struct {
	since  time.Time // when the call began that has not ended
	before error     // what the last one ended with that nobody had waited for
}

func (e lateError) Error() string {
	text := fmt.Sprintf("the firewall's rules have been waited for since %s", e.since.UTC().Format(time.RFC3339))
	if e.before != nil {
		text += "; before that: " + e.before.Error()
	}
	return text
}

// aside is Rules whose calls are made by a goroutine of their own, one after the other.
type aside struct {
	rules Rules
	again chan struct{} // somebody should observe: a call has ended for which nobody had waited, or what one saw is old

	mu      sync.Mutex
	began   time.Time // of the call that goes on; zero: there is none
	before  error     // see lateError
	late    *seen     // by the last call, if nobody had waited for it: the next Observe returns it
	changed bool      // something has, since the last call began
}

// seen is what Observe returns.
type seen struct {
	state netstate.State
	err   error
}

// Aside returns rules for which nobody waits longer than a quarter of a second: then Observe and Apply return an error,
// and go on beside. Watch notifies when they have ended, and again if something has changed before that was seen. Until
// then no other call is made.
func Aside(rules Rules) Rules { return &aside{rules: rules, again: make(chan struct{}, 1)} }

func (s *aside) Observe(ctx context.Context) (netstate.State, error) {
	if late := s.takeLate(); late != nil {
		return late.state, late.err
	}
	now := &seen{} // written by the call, also when it is late
	err := s.call(ctx, func() error {
		now.state, now.err = s.rules.Observe(ctx)
		return now.err
	}, now)
	if err != nil {
		return nil, err
	}
	return now.state, nil
}

func (s *aside) Apply(ctx context.Context, p netstate.Plan) error {
	s.takeLate() // which is not so any more
	return s.call(ctx, func() error { return s.rules.Apply(ctx, p) }, nil)
}

// takeLate returns what a late Observe saw, once. It may have read before something changed, of which the notification
// has come and gone: then there is another one.
func (s *aside) takeLate() *seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	late := s.late
	s.late = nil
	if late != nil && s.changed {
		loop.Notify(s.again)
	}
	return late
}

// Watch implements Rules.
func (s *aside) Watch(ctx context.Context) (<-chan struct{}, error) {
	events, err := s.rules.Watch(ctx)
	if err != nil {
		return nil, err
	}
	all := make(chan struct{}, 1)
	go func() {
		defer close(all)
		for {
			select {
			case _, ok := <-events:
				if !ok {
					return
				}
				s.change()
			case <-s.again:
			}
			loop.Notify(all)
		}
	}()
	return all, nil
}

func (s *aside) change() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = true
}

// call makes a call, and waits for its end with patience. What it sees is kept if it is late.
func (s *aside) call(ctx context.Context, f func() error, sees *seen) error {
	s.mu.Lock()
	if !s.began.IsZero() {
		defer s.mu.Unlock()
		return lateError{s.began, s.before}
	}
	began := time.Now()
	s.began, s.changed = began, false
	s.mu.Unlock()
	done, given := make(chan error), make(chan struct{})
	go func() {
		err := f()
		select {
		case done <- err:
		case <-given:
			s.end(err, sees)
			loop.Notify(s.again)
		}
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		s.end(nil, nil)
		return err
	case <-timer.C:
	case <-ctx.Done():
	}
	close(given)
	s.mu.Lock()
	defer s.mu.Unlock()
	return lateError{began, s.before}
}

// end notes that a call has ended, and why it failed or what it saw if nobody has waited for that.
func (s *aside) end(err error, late *seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.before, s.late = time.Time{}, err, late
}
