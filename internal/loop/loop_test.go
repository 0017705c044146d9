package loop

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestSubscribe: what a subscription may have missed is noted, what failed is said, and the next try comes later.
func TestSubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began, noted := time.Now(), 0
		var failures []string
		var at []time.Duration
		subscribe := func(context.Context) (<-chan struct{}, error) {
			switch at = append(at, time.Since(began)); len(at) {
			case 1:
				return nil, errors.New("refused")
			case 4:
				cancel()
			}
			events := make(chan struct{}, 2)
			events <- struct{}{}
			close(events)
			return events, nil
		}
		Subscribe(ctx, subscribe, func() { noted++ }, func(err error) { failures = append(failures, err.Error()) })
		if want := []string{"refused", ErrBroken.Error(), ErrBroken.Error()}; !slices.Equal(failures, want) {
			t.Errorf("failures: got %q, want %q", failures, want)
		}
		if want := []time.Duration{0, afterRefusal, afterRefusal + afterBreak, afterRefusal + 2*afterBreak}; !slices.Equal(at, want) || noted != 6 {
			t.Errorf("subscribed at %v, want %v; %d notes, want 6", at, want, noted)
		}
	})
}

func TestBackoff(t *testing.T) {
	b := Backoff{First: time.Second, Last: 5 * time.Second}
	for range 2 {
		var got []time.Duration
		for range 5 {
			got = append(got, b.Next()/time.Second)
		}
		if want := []time.Duration{1, 2, 4, 5, 5}; !slices.Equal(got, want) {
			t.Errorf("pauses of %v seconds, want %v", got, want)
		}
		b.Reset()
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !Sleep(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("slept for %s, want a minute", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if Sleep(ctx, time.Hour) || time.Since(began) != time.Minute+time.Second {
			t.Errorf("woken after %s, want when ctx is done", time.Since(began)-time.Minute)
		}
	})
}
