package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// sent takes from the queue what may be written now, as if it were.
func sent(q *events) (all []string) {
	for to, s := q.next(); to != nil; to, s = q.next() {
		q.done(to, "name", true)
		all = append(all, fmt.Sprintf("%s/%s %d", s.reason, s.message, s.count))
	}
	return all
}

// TestEventLimits: of one reason ten are written at once and one in five minutes then, of all 25 and one a minute.
func TestEventLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newEvents()
		send := func(name string, reasons, each int) int {
			n := 0
			for i := range reasons {
				for k := range each {
					q.add(event{kind: warning, reason: fmt.Sprint(name, i), message: fmt.Sprint(time.Now().UnixNano(), k)})
				}
				n += len(sent(q)) // between reasons, so that the queue has room for all
			}
			return n
		}
		for _, want := range []struct {
			after         time.Duration
			name          string
			reasons, each int
			written       int
		}{
			{0, "a", 1, 12, 10}, {0, "a", 1, 1, 0}, {5*time.Minute - time.Second, "a", 1, 3, 0}, {time.Second, "a", 1, 3, 1},
			{time.Hour, "b", 3, 10, 25}, {time.Minute, "c", 3, 10, 1}, {5 * time.Minute, "d", 9, 1, 5},
		} {
			time.Sleep(want.after)
			if n := send(want.name, want.reasons, want.each); n != want.written {
				t.Errorf("%s later, of %d reasons with %d events each: %d are written, want %d",
					want.after, want.reasons, want.each, n, want.written)
			}
		}
	})
}

// TestEventQueue: at most 64 events wait, of which ten have one reason.
func TestEventQueue(t *testing.T) {
	q := newEvents()
	for i := range 12 {
		q.add(event{kind: warning, reason: "one reason", message: fmt.Sprint(i)})
	}
	if len(q.queue) != 10 || q.queue[0].message != "0" || q.queue[9].message != "9" {
		t.Errorf("%d events of one reason wait, want the first ten", len(q.queue))
	}
	for i := range 60 {
		q.add(event{kind: warning, reason: fmt.Sprint(i), message: ""})
	}
	if len(q.queue) != 64 {
		t.Errorf("%d events wait, want 64", len(q.queue))
	}
}

// TestEventSeries: what comes again within ten minutes adds to the count, whether the first one waits or was written.
func TestEventSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newEvents()
		e := event{kind: warning, reason: "Broken", message: "it is"}
		want := func(want ...string) {
			t.Helper()
			if got := sent(q); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("written are %q, want %q", got, want)
			}
		}
		q.add(e)
		q.add(e)
		want("Broken/it is 2")
		q.add(e)
		time.Sleep(10*time.Minute - time.Second)
		q.add(e)
		want("Broken/it is 4")
		if s := q.series[e]; s.name != "name" || s.last.Sub(s.first) != 10*time.Minute-time.Second {
			t.Errorf("the series is %+v", s)
		}
		time.Sleep(10 * time.Minute)
		q.add(e)
		if s := q.series[e]; s.name != "" || !s.first.Equal(time.Now()) {
			t.Errorf("after ten minutes the series is %+v, want a new one", s)
		}
		time.Sleep(11 * time.Minute)
		q.add(e)
		want("Broken/it is 2") // one that waits is not replaced, however old it is
		select {
		case <-q.added:
		default:
			t.Error("nobody is woken")
		}
	})
}

// TestEventsRemembered: 64 different events are counted; then all are forgotten, but not because of a repetition.
func TestEventsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newEvents()
		for i := range 64 {
			q.add(event{kind: warning, reason: fmt.Sprint(i), message: ""})
			sent(q)
			time.Sleep(time.Second)
		}
		q.add(event{kind: warning, reason: "1", message: ""})
		q.add(event{kind: warning, reason: "2", message: ""})
		if one, two := q.series[event{kind: warning, reason: "1", message: ""}], q.series[event{kind: warning, reason: "2", message: ""}]; one == nil || two == nil || one.count+two.count != 4 {
			t.Errorf("of 64 events two are repeated, and the series are %+v and %+v", one, two)
		}
		q.add(event{kind: warning, reason: "65", message: ""})
		if len(q.series) != 1 {
			t.Errorf("%d events are remembered, want only the new one", len(q.series))
		}
	})
}

// TestEventNotWritten: an event that could not be written is the next one, and waits once.
func TestEventNotWritten(t *testing.T) {
	q := newEvents()
	q.add(event{kind: warning, reason: "a", message: ""})
	q.add(event{kind: warning, reason: "b", message: ""})
	to, _ := q.next()
	q.done(to, "", false)
	if len(q.queue) != 2 || q.queue[0].reason != "a" {
		t.Errorf("%d events wait, want a and b", len(q.queue))
	}
	to, _ = q.next()
	q.add(event{kind: warning, reason: "a", message: ""}) // while it is being written
	q.done(to, "", false)
	if len(q.queue) != 2 {
		t.Errorf("%d events wait, want one of each", len(q.queue))
	}
}

// TestEventsOneSender: whoever may not send now waits until ctx is done, and sends nothing.
func TestEventsOneSender(t *testing.T) {
	s := &Store{events: newEvents()}
	s.events.sending <- struct{}{} // somebody sends
	s.Event(warning, "Broken", "it is")
	for range 20 { // of two things that a select may do it picks one at random
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.sendQueued(ctx) // without a client it would crash
	}
	if len(s.events.queue) != 1 {
		t.Errorf("%d events wait, want one", len(s.events.queue))
	}
}

// TestTruncate: the API server takes 1024 bytes, and no half of a character.
func TestTruncate(t *testing.T) {
	if most := strings.Repeat("x", 1024); truncate(most) != most {
		t.Error("1024 bytes are cut off")
	}
	for _, text := range []string{strings.Repeat("x", 1025), strings.Repeat("ü", 600), "x" + strings.Repeat("€", 600)} {
		got := truncate(text)
		begin, ok := strings.CutSuffix(got, "…")
		if !ok || !strings.HasPrefix(text, begin) || !utf8.ValidString(got) || len(got) > 1024 || len(got) < 1020 {
			t.Errorf("of %d bytes %d are left: %q", len(text), len(got), got)
		}
	}
}
