// Package testwait is how tests wait on a real kernel or real processes: until a condition holds and, where what
// must not happen has no condition, for a time that passes. Where neither is in play, testing/synctest has a clock
// that costs nothing.
package testwait

import (
	"errors"
	"testing"
	"time"
)

// Limit is after how long a wait is taken for one that never ends. It judges no pace: a busy machine stays far below
// it. It is shorter than the minute after which an agent reconciles without a cause, so that what was repaired only
// then, because an event was lost, still fails.
const Limit = 50 * time.Second

// Until asks ok until it holds. The test ends with what if it does not within Limit.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Nil(t, what, func() error {
		if ok() {
			return nil
		}
		return errors.New("it is not so")
	})
}

// Nil asks check until it returns nil. The test ends with what and the last error if it does not within Limit, or
// when its context does.
func Nil(t testing.TB, what string, check func() error) {
	t.Helper()
	pause := time.Millisecond
	for end := time.Now().Add(Limit); ; {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s: %v", Limit, what, err)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("the test ended before: %s: %v", what, err)
		case <-time.After(pause):
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// Pause lets d pass for what must not happen meanwhile, or for a kernel that offers nothing to ask; why says which. A
// test on a busy machine then sees less, but what it says stays true.
func Pause(t testing.TB, d time.Duration, why string) {
	t.Helper()
	t.Logf("%s: %s", d, why)
	select {
	case <-t.Context().Done():
		t.Fatalf("the test ended within a pause of %s: %s", d, why)
	case <-time.After(d):
	}
}
