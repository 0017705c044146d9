// Package causes keeps a log short while the same thing happens again and again: it writes one line when a cause comes
// up, more at growing intervals while it goes on, and one when it is over.
package causes

import (
	"context"
	"log/slog"
	"regexp"
	"sync"
	"time"
)

const (
	// firstPause is the time from a cause's first line to the next one. Each pause is twice the one before, up to
	// lastPause.
	firstPause = 10 * time.Second
	lastPause  = 10 * time.Minute
	// quiet is how long a cause must not come up before it is over: longer than anybody waits before trying again.
	quiet = 90 * time.Second
	// most bounds the causes that are remembered. What comes up beyond it is logged each time.
	most = 1000
)

// Log remembers which causes were logged. The zero value is ready.
type Log struct {
	mu    sync.Mutex
	open  map[key]*cause
	timer *time.Timer // runs as long as a cause is open
}

type key struct{ what, object string }

// cause is one that is not over.
type cause struct {
	log         *slog.Logger
	level       slog.Level
	args        []any // of the last time
	first, last time.Time
	next        time.Time // when the next line is due
	pause       time.Duration
	times       int
}

// Add notes that what happened to object, and logs it with args if a line is due; it reports whether it did. What and
// object are the cause, and hold nothing that differs from one time to the next.
func (l *Log) Add(log *slog.Logger, level slog.Level, what, object string, args ...any) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, k := time.Now(), key{what, object}
	c := l.open[k]
	switch {
	case c == nil && len(l.open) >= most:
		log.Log(context.Background(), level, what, args...)
		return true
	case c == nil:
		c = &cause{first: now, next: now, pause: firstPause}
		if l.open == nil {
			l.open = map[key]*cause{}
		}
		l.open[k] = c
	}
	c.log, c.level, c.args, c.last = log, level, args, now
	c.times++
	if l.timer == nil {
		l.timer = time.AfterFunc(quiet, l.sweep)
	}
	if now.Before(c.next) {
		return false
	}
	if c.times > 1 {
		args = append(args[:len(args):len(args)], "times", c.times)
		c.pause = min(2*c.pause, lastPause)
	}
	c.next = now.Add(c.pause)
	log.Log(context.Background(), level, what, args...)
	return true
}

// Has reports whether the cause came up and is not over.
func (l *Log) Has(what, object string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[key{what, object}] != nil
}

// Error is Add of an error, whose text without its numbers is the object.
func (l *Log) Error(log *slog.Logger, what string, err error, args ...any) bool {
	return l.Add(log, slog.LevelError, what, shape(err.Error()), append(args, "err", err)...)
}

var numbers = regexp.MustCompile(`[0-9]+`)

func shape(text string) string { return numbers.ReplaceAllString(text, "#") }

// sweep ends the causes that have been quiet, and comes again for the others. That a cause is over is logged if it was
// an error or a warning, or came up more than once.
func (l *Log) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	wait := quiet
	for k, c := range l.open {
		if rest := c.last.Add(quiet).Sub(now); rest > 0 {
			wait = min(wait, rest)
			continue
		}
		delete(l.open, k)
		if c.times > 1 || c.level > slog.LevelInfo {
			args := append(c.args[:len(c.args):len(c.args)],
				"times", c.times, "lasted", c.last.Sub(c.first).Round(time.Millisecond))
			c.log.Log(context.Background(), min(c.level, slog.LevelInfo), k.what+": over", args...)
		}
	}
	l.timer = nil
	if len(l.open) > 0 {
		l.timer = time.AfterFunc(wait, l.sweep)
	}
}
