package policytest

import (
	"context"
	"sync"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/policy"
)

// Source is a policy.Source of what a test puts into it. The zero value is ready.
type Source struct {
	mu     sync.Mutex
	change policy.Change
	any    bool
	notify func()
}

// Put adds a change.
func (s *Source) Put(c policy.Change) {
	s.mu.Lock()
	s.change = policy.Change{Rules: c.Rules || s.change.Rules, Pods: append(s.change.Pods, c.Pods...), Snapshot: c.Snapshot}
	s.any = true
	notify := s.notify
	s.mu.Unlock()
	if notify != nil {
		notify()
	}
}

// Watch implements policy.Source.
func (s *Source) Watch(ctx context.Context, notify func()) error {
	s.mu.Lock()
	s.notify = notify
	s.mu.Unlock()
	notify()
	<-ctx.Done()
	return nil
}

// Take implements policy.Source.
func (s *Source) Take() (policy.Change, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.change, s.any
	s.change, s.any = policy.Change{}, false
	return c, ok
}

// Follow watches a source, and calls f with each Change, one call after the other, until Watch ends.
func Follow(ctx context.Context, s policy.Source, f func(policy.Change)) error {
	changed, done := make(chan struct{}, 1), make(chan error, 1)
	go func() { done <- s.Watch(ctx, func() { loop.Notify(changed) }) }()
	for {
		select {
		case err := <-done:
			return err
		case <-changed:
			if c, ok := s.Take(); ok {
				f(c)
			}
		}
	}
}
