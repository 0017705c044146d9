package main

import (
	"context"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestKeepSmall: what a burst of work took goes back to the system, and not only into the runtime's own hands.
func TestKeepSmall(t *testing.T) {
	t.Setenv("GOGC", "") // empty is as good as unset
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { keepSmall(ctx, 20*time.Millisecond); close(ended) }()
	defer func() { cancel(); <-ended }()

	before := resident(t)
	work()
	if grown := resident(t) - before; grown < 32<<20 {
		t.Fatalf("64 MB of work made the program %d bytes larger: this test proves nothing", grown)
	}
	for begin := time.Now(); resident(t)-before > 16<<20; time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("after ten seconds of rest the program is still %d bytes larger than before", resident(t)-before)
		}
	}
	if now := debug.SetGCPercent(restGC); now != restGC {
		t.Errorf("the garbage collector's percentage is %d at rest, want %d", now, restGC)
	}
}

func work() {
	kept := make([][]byte, 64)
	for i := range kept {
		kept[i] = make([]byte, 1<<20)
		for j := 0; j < len(kept[i]); j += 4096 {
			kept[i][j] = 1
		}
	}
}

// resident is the second number of /proc/self/statm, in bytes.
func resident(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(data))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
