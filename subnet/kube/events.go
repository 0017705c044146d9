package kube

import "sync"

// What the API server is spared: peers decide what is told of them, and every agent tells it.
const (
	// maxQueued events wait for the API server, of which maxOfReason have one reason; more are dropped. As many
	// different ones are counted.
	maxQueued, maxOfReason = 64, 10
)

// event is what Event was told; the same event again is a repetition.
type event struct{ kind, reason, message string }

// queue holds the events that wait for the API server, each once.
type queue struct {
	came chan struct{} // there is one

	mu     sync.Mutex
	order  []event
	counts map[event]int32
}

func newQueue() *queue {
	return &queue{came: make(chan struct{}, 1), counts: map[event]int32{}}
}

// add queues e, which happened so many times, or counts it if it waits already.
func (q *queue) add(e event, times int32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.counts[e] == 0 {
		same := 0
		for _, o := range q.order {
			if o.reason == e.reason {
				same++
			}
		}
		if same == maxOfReason || len(q.order) == maxQueued {
			return
		}
		q.order = append(q.order, e)
	}
	q.counts[e] += times
	select {
	case q.came <- struct{}{}:
	default:
	}
}

// next takes the oldest event, and how many times it happened; none if that is 0.
func (q *queue) next() (event, int32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		return event{}, 0
	}
	e := q.order[0]
	times := q.counts[e]
	q.order = q.order[1:]
	delete(q.counts, e)
	return e, times
}
