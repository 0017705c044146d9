// Package loop has what loops are made of that wait for something to happen: notices, pauses, subscriptions and retries.
package loop

import (
	"context"
	"errors"
	"time"
)

// Notify leaves a notice in a channel that has room for one, unless one is there already.
func Notify(notices chan<- struct{}) {
	select {
	case notices <- struct{}{}:
	default:
	}
}

// Sleep waits, and reports whether ctx is still alive.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Backoff is the pauses between tries of what fails: First, and each one twice as long as the one before, but no longer than Last.
type Backoff struct {
	First, Last time.Duration

	pause time.Duration
}

// Next returns the pause after one more failure.
func (b *Backoff) Next() time.Duration {
	b.pause = min(max(2*b.pause, b.First), b.Last)
	return b.pause
}

// Reset begins again with First.
func (b *Backoff) Reset() { b.pause = 0 }

// ErrBroken is what Subscribe reports when the events of a subscription end before ctx is done.
var ErrBroken = errors.New("the subscription broke")

// Subscribe waits afterRefusal before it tries again, and afterBreak, in which it hears nothing, if it was subscribed.
const afterRefusal, afterBreak = time.Second, 10 * time.Millisecond

// Subscribe calls note at each event of a subscription, and at its beginning: a new one may have missed something. When
// subscribe fails or the events end, it calls failed, and subscribes again until ctx is done.
func Subscribe(ctx context.Context, subscribe func(context.Context) (<-chan struct{}, error), note func(), failed func(error)) {
	for ctx.Err() == nil {
		events, err := subscribe(ctx)
		pause := afterRefusal
		if err == nil {
			note()
			for range events {
				note()
			}
			err, pause = ErrBroken, afterBreak
		}
		if ctx.Err() == nil {
			failed(err)
			Sleep(ctx, pause)
		}
	}
}
