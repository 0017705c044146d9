package steps

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSteps: a step that takes long is told of, in the log at growing intervals, and one that has ended is not.
func TestSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var table Table
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			table.Log(ctx, slog.New(slog.NewTextHandler(&log, nil)))
		}()
		end := table.Begin("waits for a lock")
		quick := table.BeginStore("asks the store")
		time.Sleep(slow - time.Second)
		if s := table.Slow(); len(s) > 0 {
			t.Errorf("slow after four seconds: %v", s)
		}
		quick()
		time.Sleep(37 * time.Second)
		if s := fmt.Sprint(table.Slow()); s != "[since 41s: waits for a lock]" {
			t.Errorf("slow: %s", s)
		}
		end()
		if s := table.Slow(); len(s) > 0 {
			t.Errorf("slow after its end: %v", s)
		}
		time.Sleep(time.Minute)
		cancel()
		<-ended
		if got := strings.Count(log.String(), "waits for a lock"); got != 4 || strings.Contains(log.String(), "asks") {
			t.Errorf("%d lines, want 4 (at 5, 10, 20 and 40 s):\n%s", got, log.String())
		}
	})
}

// TestNil: nobody need keep steps.
func TestNil(t *testing.T) {
	var table *Table
	table.Begin("does something")()
	if s := table.Slow(); s != nil {
		t.Errorf("slow: %v", s)
	}
}
