package scale

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Wakeups counts, until it is asked, how often a process that rested went on.
type Wakeups struct {
	pid   int
	began time.Time
	stop  chan struct{}
	rate  chan Rate
}

// Rate is what an agent does in a second.
type Rate struct {
	Wakeups  float64 // fiftieths of a second in which something ran after one in which nothing did
	Switches float64 // times that a thread went to sleep: several threads do at each wake-up, Go's sysmon again and again
	err      error
}

// CountWakeups begins to count.
func (a *Agent) CountWakeups() *Wakeups {
	w := &Wakeups{pid: a.PID, began: time.Now(), stop: make(chan struct{}), rate: make(chan Rate, 1)}
	go w.count()
	return w
}

// Rate ends the count.
func (w *Wakeups) Rate() (Rate, error) {
	close(w.stop)
	r := <-w.rate
	return r, r.err
}

func (w *Wakeups) count() {
	first, err := w.switches()
	tick := time.NewTicker(time.Second / 50)
	defer tick.Stop()
	woken, busy := 0, false
	for last, now := first, 0; ; last = now {
		select {
		case <-tick.C:
		case <-w.stop:
			seconds := time.Since(w.began).Seconds()
			w.rate <- Rate{float64(woken) / seconds, float64(last-first) / seconds, err}
			return
		}
		now, err = w.switches()
		if now != last && !busy {
			woken++
		}
		busy = now != last
	}
}

// switches is how often threads of the process have gone to sleep.
func (w *Wakeups) switches() (total int, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", w.pid))
	for _, file := range files {
		data, _ := os.ReadFile(file) // a thread may have ended
		_, rest, _ := strings.Cut(string(data), "\nvoluntary_ctxt_switches:")
		line, _, _ := strings.Cut(rest, "\n")
		n, _ := strconv.Atoi(strings.TrimSpace(line))
		total += n
	}
	if total == 0 {
		err = errors.Join(err, fmt.Errorf("no thread of process %d has run", w.pid))
	}
	return total, err
}
