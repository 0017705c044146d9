package procfs

import (
	"errors"
	"io/fs"
	"testing"
	"time"
)

func TestRead(t *testing.T) {
	if got, err := Read("/proc/self/comm"); got != "procfs.test" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := Read("/proc/self/nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want that there is no such file", err)
	}
	if got, err := Read("/proc/self"); err == nil {
		t.Errorf("got %q of a directory", got)
	}
}

// TestUntilNext: it ends at a multiple of the interval, and never at once.
func TestUntilNext(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, 3 * time.Second, 7 * time.Millisecond} {
		before := time.Now()
		wait := UntilNext(interval)
		after := time.Now()
		if wait <= 0 || wait > interval {
			t.Errorf("interval %v: %v", interval, wait)
		}
		end := after.Add(wait)
		if late := end.Sub(end.Truncate(interval)); late > after.Sub(before) {
			t.Errorf("interval %v: it ends %v after a multiple", interval, late)
		}
	}
}
