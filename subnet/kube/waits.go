package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// The tasks that Options.Waiting is told of.
const (
	taskName    = "find the node's name"
	taskAcquire = "acquire the lease"
	taskWatch   = "watch nodes"
	taskRead    = "read nodes"
	taskPublish = "publish the lease"
	taskNetwork = "set NetworkUnavailable"
	taskEvent   = "record an event"
)

// waits remembers what Options.Waiting was told, so that it is told of changes only.
type waits struct {
	told func(task string, err error)

	mu   sync.Mutex
	last map[string]string
}

// tell says that task waits because of err, or that it got on if err is nil; it returns whether that is news.
func (w *waits) tell(task string, err error) bool {
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last[task] == reason {
		return false
	}
	if w.last == nil {
		w.last = map[string]string{}
	}
	w.last[task] = reason
	if w.told != nil {
		w.told(task, err)
	}
	return true
}

// refusal is an error that waiting does not mend.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func refused(err error) bool {
	var r refusal
	return errors.As(err, &r)
}

// backoff grows from least to most, with jitter: all nodes lose the API server at the same moment.
type backoff struct{ least, most, next time.Duration }

func (b *backoff) step() time.Duration {
	b.next = min(max(b.next*2, b.least), b.most)
	return b.next/2 + rand.N(b.next/2+1)
}

func (b *backoff) reset() { b.next = 0 }

// pause waits for d, and says whether ctx let it.
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

// retry repeats do until it succeeds, is refused, or ctx is done.
func (s *Store) retry(ctx context.Context, task string, do func() error) error {
	wait := backoff{least: 200 * time.Millisecond, most: 10 * time.Second}
	for {
		err := do()
		if err == nil {
			s.waits.tell(task, nil)
			return nil
		}
		if refused(err) {
			return err
		}
		if ctx.Err() != nil {
			return given(ctx, task, err)
		}
		s.waits.tell(task, err)
		d := wait.step()
		if errors.Is(err, errNoPodCIDR) {
			d, wait.next = pollPodCIDR, 0
		}
		if !pause(ctx, d) {
			return given(ctx, task, err)
		}
	}
}

// given is the error of a task that was given up, which is about ctx first and about the last attempt second.
func given(ctx context.Context, task string, last error) error {
	if errors.Is(last, ctx.Err()) {
		return fmt.Errorf("%s: %w", task, last)
	}
	return fmt.Errorf("%s: %w; the last attempt: %w", task, ctx.Err(), last)
}
