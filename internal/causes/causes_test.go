package causes

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// buffer is a log's text; sweeps write to it from a goroutine of their own.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// take returns the messages since the last call, without their times.
func (b *buffer) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return strings.Split(strings.TrimSpace(b.text.String()), "\n")
}

func newLog() (*slog.Logger, *buffer) {
	b := &buffer{}
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})), b
}

func check(t *testing.T, b *buffer, want ...string) {
	t.Helper()
	if got := b.take(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("logged\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// TestAdd: a repair that is needed ten times a second for an hour is one line, lines at growing intervals, and one
// line when it is over.
func TestAdd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Log
		log, text := newLog()
		var at []string
		for began := time.Now(); time.Since(began) < time.Hour; time.Sleep(100 * time.Millisecond) {
			if l.Add(log, slog.LevelInfo, "repaired", "cni0", "object", "cni0") {
				at = append(at, time.Since(began).String())
			}
		}
		want := []string{"0s", "10s", "30s", "1m10s", "2m30s", "5m10s", "10m30s", "20m30s", "30m30s", "40m30s", "50m30s"}
		if fmt.Sprint(at) != fmt.Sprint(want) {
			t.Errorf("logged at %s, want %s", at, want)
		}
		lines := text.take()
		if lines[0] != "level=INFO msg=repaired object=cni0" || lines[1] != "level=INFO msg=repaired object=cni0 times=101" {
			t.Errorf("logged %q", lines)
		}
		time.Sleep(quiet)
		check(t, text, `level=INFO msg="repaired: over" object=cni0 times=36000 lasted=59m59.9s`)
		l.Add(log, slog.LevelInfo, "repaired", "cni0", "object", "cni0")
		check(t, text, "level=INFO msg=repaired object=cni0")
		time.Sleep(2 * quiet)
		check(t, text, "")
	})
}

// TestError: errors that differ in a number are one cause; another error, or another object, is another one.
func TestError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Log
		log, text := newLog()
		for i := range 8 {
			l.Error(log, "write", fmt.Errorf("%d objects are left", i), "node", "node1")
			time.Sleep(time.Second)
		}
		check(t, text, `level=ERROR msg=write node=node1 err="0 objects are left"`)
		l.Error(log, "write", errors.New("no device"))
		l.Error(log, "read", errors.New("no device"))
		check(t, text, `level=ERROR msg=write err="no device"`, `level=ERROR msg=read err="no device"`)
		time.Sleep(quiet - 8*time.Second)
		check(t, text, "")
		time.Sleep(8*time.Second + time.Millisecond) // the last two end at this very moment
		got := text.take()
		if len(got) != 3 || got[0] != `level=INFO msg="write: over" node=node1 err="7 objects are left" times=8 lasted=7s` {
			t.Errorf("logged %q", got)
		}
		if l.timer != nil || len(l.open) != 0 {
			t.Errorf("a timer runs for %d causes", len(l.open))
		}
	})
}

// TestMost: more causes than are remembered are all logged.
func TestMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Log
		log, text := newLog()
		for i := range most + 1 {
			l.Add(log, slog.LevelWarn, "left out", fmt.Sprint(i))
		}
		text.take()
		if !l.Has("left out", "0") || l.Has("left out", fmt.Sprint(most)) || l.Has("other", "0") {
			t.Error("others are remembered than were logged first")
		}
		l.Add(log, slog.LevelWarn, "left out", fmt.Sprint(most))
		check(t, text, `level=WARN msg="left out"`)
		if l.Add(log, slog.LevelWarn, "left out", "0"); len(l.open) != most {
			t.Errorf("%d causes are remembered", len(l.open))
		}
		check(t, text, "")
	})
}
