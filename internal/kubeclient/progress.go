package kubeclient

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Progress calls Waiting when a task is held up for a new reason, or no longer.
type Progress struct {
	Waiting func(task string, err error)

	mu   sync.Mutex
	last map[string]string
}

// Report notes that task is held up by err, or succeeded if err is nil, and reports whether that is new.
func (p *Progress) Report(task string, err error) bool {
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last[task] == reason {
		return false
	}
	if p.last == nil {
		p.last = map[string]string{}
	}
	p.last[task] = reason
	if p.Waiting != nil {
		p.Waiting(task, err)
	}
	return true
}

// Backoff returns the time between attempts: 0.2 to 5 seconds and once more as long at random, because all nodes lose
// the API server at the same moment.
func Backoff() wait.Backoff {
	return wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 6, Cap: 5 * time.Second}
}
