package kube

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/internal/kubeclient"
)

func progressing() (*Store, *reports) {
	w := &reports{}
	return &Store{progress: kubeclient.Progress{Waiting: w.add}}, w
}

// TestRetry: the first attempt is made at once, the next after 0.2 to 0.4 seconds, and later ones after 5 to 10.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := progressing()
		shortest, longest := time.Hour, time.Duration(0)
		for range 20 {
			last, attempts := time.Now(), 0
			err := s.retry(t.Context(), "try", func() error {
				wait := time.Since(last)
				if attempts++; attempts == 1 && wait != 0 || attempts == 2 && (wait < 200*time.Millisecond || wait > 400*time.Millisecond) {
					t.Errorf("attempt %d comes after %s", attempts, wait)
				}
				if attempts > 7 {
					shortest, longest = min(shortest, wait), max(longest, wait)
				}
				time.Sleep(time.Second) // which counts for nothing
				if last = time.Now(); attempts < 15 {
					return errors.New("not yet")
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if shortest < 5*time.Second || longest > 10*time.Second || longest < 8*time.Second {
			t.Errorf("late attempts come after %s to %s, want 5 to 10 seconds", shortest, longest)
		}
		if !w.has("try: not yet") || !w.has("try: ok") {
			t.Errorf("told %v", w.text)
		}
	})
}

// TestRetryEnds: what waiting does not mend is returned as it is, and a time that is up names the last reason.
func TestRetryEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := progressing()
		for _, want := range []error{kubeclient.Terminal(errors.New("for ever")), fmt.Errorf("node %w", errNoPodCIDR)} {
			attempts := 0
			err := s.retry(t.Context(), "try", func() error { attempts++; return want })
			if !errors.Is(err, want) || err.Error() != want.Error() || attempts != 1 {
				t.Errorf("%v after %d attempts, want %v after one", err, attempts, want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		down := errors.New("down")
		err := s.retry(ctx, "try", func() error { return down })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, down) {
			t.Errorf("got %v, want that the time is up, and why", err)
		}
		w.text = nil
		if err := s.retry(ctx, "try", func() error { return fmt.Errorf("call: %w", ctx.Err()) }); err == nil || err.Error() != "try: call: context deadline exceeded" {
			t.Errorf("got %v, want that the time is up, once", err)
		}
		if len(w.text) > 0 {
			t.Errorf("told %q, and it is not the task that is held up", w.text)
		}
		if err := s.retry(ctx, "try", func() error { return nil }); err != nil || !w.has("try: ok") {
			t.Errorf("it succeeded at last: %v, told %q", err, w.text)
		}
	})
}
