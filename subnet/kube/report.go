package kube

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	component = "twilld"
	warning   = "Warning" // the kind of an event

	// sameSeries is how long a repeated event adds to the count of the first one.
	sameSeries = 10 * time.Minute
)

// Network implements subnet.Reporter: it sets the node's condition NetworkUnavailable, if the options say so.
func (s *Store) Network(up bool, reason, message string) {
	if !s.setsCond {
		return
	}
	c := condition{"True", cmp.Or(reason, "TwillIsDown"), message}
	if up {
		c = condition{"False", cmp.Or(reason, "TwillIsUp"), message}
	}
	s.own.mu.Lock()
	s.own.network = &c
	s.own.mu.Unlock()
	s.own.wake()
}

// Event implements subnet.Reporter: it queues an event on the node. Repetitions within ten minutes are counted in one
// object. Of one reason ten are written at once and one in five minutes then, of all reasons 25 and one a minute; the rest
// is only counted.
func (s *Store) Event(kind, reason, message string) {
	s.events.add(event{kind, reason, truncate(message)}, 1)
}

// sendEvents writes queued events until ctx is done.
func (s *Store) sendEvents(ctx context.Context) {
	for {
		e, times := s.events.next()
		if times > 0 {
			s.send(ctx, e, times)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-s.events.came:
		}
	}
}

// sendQueued writes the events that wait now. What the API server cannot take yet waits on.
func (s *Store) sendQueued(ctx context.Context) {
	for e, times := s.events.next(); times > 0; e, times = s.events.next() {
		err := s.recorder.record(ctx, e, times)
		s.waits.tell(taskEvent, err)
		if err != nil && !refused(err) {
			s.events.add(e, times)
			return
		}
	}
}

// send writes e, and retries until the API server refuses it.
func (s *Store) send(ctx context.Context, e event, times int32) {
	err := s.retry(ctx, taskEvent, func() error { return s.recorder.record(ctx, e, times) })
	if err != nil && ctx.Err() == nil {
		s.waits.tell(taskEvent, err)
	}
}

// recorder writes events about one node.
type recorder struct {
	api   *client
	node  string
	limit *rate.Limiter

	mu      sync.Mutex
	reasons map[string]*rate.Limiter // for each reason one more
	series  map[event]*series
}

// series is one event object in the API and how often the event happened.
type series struct {
	name    string // of the object; empty: not written yet
	count   int32
	first   time.Time
	last    time.Time
	counted bool // the event that is being written is in count
}

func newRecorder(api *client, node string) *recorder {
	return &recorder{api: api, node: node, limit: rate.NewLimiter(rate.Every(time.Minute), 25),
		reasons: map[string]*rate.Limiter{}, series: map[event]*series{}}
}

// allows reports whether one more event of a reason may be written now.
func (r *recorder) allows(reason string) bool {
	own, ok := r.reasons[reason]
	if !ok {
		own = rate.NewLimiter(rate.Every(5*time.Minute), maxOfReason)
		r.reasons[reason] = own
	}
	return own.Allow() && r.limit.Allow()
}

// record writes e, which happened so many times, as a new object or as the repetition of one. It can be called again when
// it fails.
func (r *recorder) record(ctx context.Context, e event, times int32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.find(e)
	if !s.counted {
		s.count, s.last, s.counted = s.count+times, time.Now(), true
		if !r.allows(e.reason) {
			s.counted = false
			return nil
		}
	}
	err := r.write(ctx, e, s)
	if err == nil || refused(err) {
		s.counted = false
	}
	return err
}

// find is e's series; one that is too old, or would be one too many, begins anew.
func (r *recorder) find(e event) *series {
	now := time.Now()
	s, ok := r.series[e]
	if ok && (s.counted || now.Sub(s.last) < sameSeries) {
		return s
	}
	if len(r.series) >= maxQueued {
		clear(r.series)
	}
	s = &series{first: now}
	r.series[e] = s
	return s
}

func (r *recorder) write(ctx context.Context, e event, s *series) error {
	if s.name != "" {
		patch := map[string]any{"count": s.count, "lastTimestamp": stamp(s.last)}
		err := r.api.patchEvent(ctx, s.name, patch)
		if answered(err, http.StatusForbidden) {
			return nil // the manifest gives no right to it: what is repeated is told once in ten minutes
		}
		if !answered(err, http.StatusNotFound) {
			return err
		}
		s.name = "" // the API server forgets events after an hour
	}
	name := fmt.Sprintf("%s.%x", r.node, time.Now().UnixNano())
	if err := r.api.createEvent(ctx, r.object(name, e, s)); err != nil {
		return err
	}
	s.name = name
	return nil
}

func (r *recorder) object(name string, e event, s *series) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]any{"namespace": "default", "name": name},
		// Events of kubelet have the node's name for a UID, and kubectl describe looks for that.
		"involvedObject": map[string]any{"apiVersion": "v1", "kind": "Node", "name": r.node, "uid": r.node},
		"type":           e.kind, "reason": e.reason, "message": e.message,
		"count": s.count, "firstTimestamp": stamp(s.first), "lastTimestamp": stamp(s.last),
		"source":             map[string]any{"component": component, "host": r.node},
		"reportingComponent": component, "reportingInstance": r.node,
	}
}

// stamp is a time as the API writes it.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// truncate keeps to the 1 kB that the API server takes for a message.
func truncate(s string) string {
	const most = 1024
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len("…")], "") + "…"
}
