package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// The tasks that Options.Waiting is called with.
const (
	taskName    = "find the node's name"
	taskAcquire = "acquire the lease"
	taskWatch   = "watch nodes"
	taskRead    = "read nodes"
	taskPublish = "publish the lease"
	taskNetwork = "set NetworkUnavailable"
	taskEvent   = "record an event"
)

// progress calls Options.Waiting when a task is held up for a new reason, or no longer.
type progress struct {
	waiting func(task string, err error)

	mu   sync.Mutex
	last map[string]string
}

// report notes that task is held up by err, or succeeded if err is nil, and reports whether that is new.
func (p *progress) report(task string, err error) bool {
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last[task] == reason {
		return false
	}
	if p.last == nil {
		p.last = map[string]string{}
	}
	p.last[task] = reason
	if p.waiting != nil {
		p.waiting(task, err)
	}
	return true
}

// backoff is the time between attempts: 0.2 to 5 seconds and once more as long at random, because all nodes lose the
// API server at the same moment.
var backoff = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 6, Cap: 5 * time.Second}

// retry repeats do until it succeeds, its error is one that waiting does not mend, or ctx is done.
func (s *Store) retry(ctx context.Context, task string, do func() error) error {
	var last error
	err := backoff.DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) {
		last = do()
		if isTerminal(last) || errors.Is(last, errNoPodCIDR) {
			return false, last
		}
		if ctx.Err() == nil || last == nil {
			s.progress.report(task, last)
		}
		return last == nil, nil
	})
	if err == nil || errors.Is(err, last) {
		return err
	}
	return timeoutError(ctx, task, last)
}

// timeoutError is the error of a task that ctx ended, which is about ctx first and about the last attempt second.
func timeoutError(ctx context.Context, task string, last error) error {
	if errors.Is(last, ctx.Err()) {
		return fmt.Errorf("%s: %w", task, last)
	}
	return fmt.Errorf("%s: %w; the last attempt: %w", task, ctx.Err(), last)
}

// pause waits for d, and reports whether ctx let it.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
