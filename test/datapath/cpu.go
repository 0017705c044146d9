package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// clock is what the machine's processors have done since it started.
type clock struct{ busy, idle time.Duration }

// readClock reads /proc/stat.
func readClock() (clock, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return clock{}, fmt.Errorf("read the processors' time: %w", err)
	}
	return parseClock(string(data))
}

// parseClock takes the first line, of all processors, in hundredths of a second (proc(5)). Softirqs, in which the kernel
// handles most packets, are in it; what a hypervisor gave to others (steal) is neither busy nor idle.
func parseClock(stat string) (clock, error) {
	var user, nice, system, idle, iowait, irq, softirq int64
	line, _, _ := strings.Cut(stat, "\n")
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq); err != nil {
		return clock{}, fmt.Errorf("read the processors' time: %q: %w", line, err)
	}
	const tick = 10 * time.Millisecond
	return clock{busy: time.Duration(user+nice+system+irq+softirq) * tick, idle: time.Duration(idle+iowait) * tick}, nil
}

// since is what the processors did between two readings.
func (c clock) since(before clock) clock { return clock{c.busy - before.busy, c.idle - before.idle} }

// share is how much of the time they were busy, 0 to 1.
func (c clock) share() float64 {
	if c.busy+c.idle == 0 {
		return 0
	}
	return float64(c.busy) / float64(c.busy+c.idle)
}
