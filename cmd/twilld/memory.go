package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The agent holds a few megabytes and idles. At its start, and when many nodes join, it makes three times as much, in
// which nobody would look for a while: the runtime collects an idle program's garbage every two minutes, and returns
// free memory slowly.
const (
	startGC = 100     // the garbage collector's percentage until the agent first comes to rest: it saves a cold start some collections
	restGC  = 50      // and from then on
	burst   = 4 << 20 // bytes allocated after which a collection is worth its 20 ms
	glance  = time.Second
)

// keepSmall collects garbage and returns free memory to the system whenever a burst of work is over, until ctx is done.
// An operator's word about the garbage collector, GOGC, goes first.
func keepSmall(ctx context.Context, every time.Duration) {
	chosen := os.Getenv("GOGC") != ""
	if !chosen {
		debug.SetGCPercent(startGC)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	before, collected := allocated(), uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := allocated()
		if now-before < burst/4 && now-collected > burst {
			if !chosen {
				debug.SetGCPercent(restGC)
			}
			debug.FreeOSMemory()
			collected = now
		}
		before = now
	}
}

// allocated is how many bytes were ever allocated.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
