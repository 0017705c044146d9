//go:build soak

package causes

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// usage is what the machine's processors have done since it started, in ticks.
type usage struct {
	all, idle uint64
	at        time.Time
}

// processors reads the first line of /proc/stat: cpu user nice system idle iowait irq softirq steal …
func processors() usage {
	u := usage{at: time.Now()}
	data, _ := os.ReadFile("/proc/stat") // without, nothing is known to be saturated
	line, _, _ := strings.Cut(string(data), "\n")
	for i, field := range strings.Fields(line) {
		var ticks uint64
		if _, err := fmt.Sscan(field, &ticks); err == nil && i <= 8 {
			if u.all += ticks; i == 4 {
				u.idle = ticks
			}
		}
	}
	return u
}

// A machine is saturated if so little of it was idle for so long: packets that a rule sends round in a loop take it all,
// from the labs of other runs too, and nobody's packets are in time.
const (
	saturatedIdle = 0.1
	saturatedFor  = 20 * time.Second
)

// saturated returns the share of the processors that was idle since, and whether nothing can be judged by that.
func (u usage) saturated() (idle float64, yes bool) {
	now := processors()
	if now.all == u.all {
		return 1, false
	}
	idle = float64(now.idle-u.idle) / float64(now.all-u.all)
	return idle, idle < saturatedIdle && now.at.Sub(u.at) > saturatedFor
}
