// Package steps keeps what a start does now, so that one that hangs says where.
package steps

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// slow is how long a step takes before it is told of.
const slow = 5 * time.Second

// Step is one that has not ended.
type Step struct {
	Does  string // such as "waits for /run/flannel/.twilld.lock"
	Since time.Time
	Store bool // it waits for the store, which a new start would do as well
}

// String says what the step does, and since when: "since 40s: waits for …".
func (s Step) String() string {
	return fmt.Sprintf("since %s: %s", time.Since(s.Since).Round(time.Second), s.Does)
}

// Table is the steps that have not ended. The zero value is ready, and a nil Table keeps none.
type Table struct {
	mu   sync.Mutex
	open []*Step
}

// Begin adds a step, until end is called.
func (t *Table) Begin(does string) (end func()) { return t.add(&Step{Does: does, Since: time.Now()}) }

// BeginStore is Begin of a step that waits for the store.
func (t *Table) BeginStore(does string) (end func()) {
	return t.add(&Step{Does: does, Since: time.Now(), Store: true})
}

func (t *Table) add(s *Step) (end func()) {
	if t == nil {
		return func() {}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = append(t.open, s)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.open = slices.DeleteFunc(t.open, func(o *Step) bool { return o == s })
	}
}

// Slow returns the steps that have taken five seconds, the oldest first.
func (t *Table) Slow() (all []Step) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.open {
		if time.Since(s.Since) >= slow {
			all = append(all, *s)
		}
	}
	return all
}

// Log logs steps that are slow, at growing intervals, until ctx is done.
func (t *Table) Log(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(slow)
	defer tick.Stop()
	due := map[time.Time]time.Duration{} // of a step, by its begin: how old it is at its next line
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, s := range t.Slow() {
			if age := time.Since(s.Since); age >= due[s.Since] {
				due[s.Since] = 2 * age
				log.Warn("the start takes long", "step", s.String())
			}
		}
	}
}
