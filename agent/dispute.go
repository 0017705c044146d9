package agent

import (
	"log/slog"
	"sync"
	"time"

	"github.com/twill-net/twill/subnet"
)

// disputes remembers that somebody else publishes this node's lease. An administrator may do so once, and another
// machine of this node's name does again and again: disputeLimit times within disputeWindow are a dispute.
const (
	disputeLimit  = 3
	disputeWindow = time.Minute
)

type disputes struct {
	mu    sync.Mutex
	times []time.Time // within the window
	at    string      // where the other one is
}

// note counts what was written, and reports whether that is a dispute.
func (d *disputes) note(at string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at, d.times = at, append(d.times, time.Now())
	return d.isOpen()
}

// open returns where the other machine is, "" if there is no dispute.
func (d *disputes) open() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isOpen() {
		return ""
	}
	return d.at
}

func (d *disputes) isOpen() bool {
	for len(d.times) > 0 && time.Since(d.times[0]) > disputeWindow {
		d.times = d.times[1:]
	}
	return len(d.times) >= disputeLimit
}

// disputed is told what somebody else wrote in the place of this node's lease.
func (a *Agent) disputed(written subnet.Lease) {
	at := ""
	for _, s := range written.Stacks {
		if at != "" {
			at += " and "
		}
		at += s.Underlay.String()
	}
	if !a.disputes.note(at) {
		return
	}
	if a.causes.Add(a.Log, slog.LevelWarn, "another machine publishes the lease of this node: give each a name of its own", "",
		"node", a.Node, "other_machine", at) {
		a.event("Warning", "NodeNameTaken", "another machine, at "+at+", publishes the lease of node "+a.Node+
			" too: give each machine a name of its own")
	}
}
