package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

const (
	component = "twilld"
	warning   = "Warning" // the kind of an event

	// sameSeries is how long a repeated event adds to the count of the first one.
	sameSeries = 10 * time.Minute
)

// What the API server is spared: peers decide what events are about them, and every agent sends its own. At most
// maxQueued events wait, of which maxOfReason have one reason; more are dropped. As many different ones are counted.
const maxQueued, maxOfReason = 64, 10

// Event implements subnet.Reporter: it queues an event on the node. Repetitions within ten minutes are counted in one
// object. Of one reason ten are written at once and one in five minutes then, of all reasons 25 and one a minute; the
// rest is only counted.
func (s *Store) Event(kind, reason, message string) {
	s.ObjectEvent(subnet.Object{APIVersion: "v1", Kind: "Node", Name: s.node, UID: s.node}, kind, reason, message)
}

// ObjectEvent implements subnet.ObjectReporter, within the limits of Event.
func (s *Store) ObjectEvent(about subnet.Object, kind, reason, message string) {
	s.events.add(event{kind, reason, truncate(message), about})
}

// Flush writes the events that wait, until ctx is done. While Watch runs it does that.
func (s *Store) Flush(ctx context.Context) { s.sendQueued(ctx) }

// event is what Event was called with; the same event again is a repetition.
type event struct {
	kind, reason, message string
	about                 subnet.Object
}

// series is an event with its repetitions, which are one object in the API.
type series struct {
	event
	name        string // of the object; empty: not written yet
	count       int32
	first, last time.Time
	queued      bool
}

// events are those that wait for the API server, each once, and the series that were written.
type events struct {
	added   chan struct{} // there is something in the queue
	sending chan struct{} // a lock that a context can give up on

	mu      sync.Mutex
	queue   []*series
	series  map[event]*series
	limit   *rate.Limiter
	reasons map[string]*rate.Limiter // for each reason one more
}

func newEvents() *events {
	return &events{added: make(chan struct{}, 1), sending: make(chan struct{}, 1), series: map[event]*series{},
		limit: rate.NewLimiter(rate.Every(time.Minute), 25), reasons: map[string]*rate.Limiter{}}
}

// add counts e, and queues it unless it waits already.
func (q *events) add(e event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s, ok := q.series[e]
	if !ok || !s.queued && time.Since(s.last) >= sameSeries {
		s = &series{event: e, first: time.Now()}
	}
	if !s.queued {
		if !q.hasRoom(e.reason) {
			return
		}
		if len(q.series) >= maxQueued && !ok {
			clear(q.series)
		}
		s.queued, q.series[e], q.queue = true, s, append(q.queue, s)
	}
	s.count, s.last = s.count+1, time.Now()
	loop.Notify(q.added)
}

func (q *events) hasRoom(reason string) bool {
	same := 0
	for _, o := range q.queue {
		if o.reason == reason {
			same++
		}
	}
	return same < maxOfReason && len(q.queue) < maxQueued
}

// next takes the oldest series of the queue that may be written now; nil: there is none.
func (q *events) next() (*series, series) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.queue) > 0 {
		s := q.queue[0]
		q.queue, s.queued = q.queue[1:], false
		own, ok := q.reasons[s.reason]
		if !ok {
			own = rate.NewLimiter(rate.Every(5*time.Minute), maxOfReason)
			q.reasons[s.reason] = own
		}
		if own.Allow() && q.limit.Allow() {
			return s, *s
		}
	}
	return nil, series{}
}

// done notes under which name s was written; if it was not, it is the queue's first again.
func (q *events) done(s *series, name string, written bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s.name = name
	if !written && !s.queued {
		s.queued, q.queue = true, slices.Insert(q.queue, 0, s)
	}
}

// sendEvents writes queued events until ctx is done.
func (s *Store) sendEvents(ctx context.Context) {
	for ctx.Err() == nil {
		s.sendQueued(ctx)
		select {
		case <-ctx.Done():
		case <-s.events.added:
		}
	}
}

// sendQueued writes the events that wait now. It repeats each until the API server takes or refuses it, or ctx is done.
func (s *Store) sendQueued(ctx context.Context) {
	select {
	case s.events.sending <- struct{}{}:
		defer func() { <-s.events.sending }()
	case <-ctx.Done():
		return
	}
	for to, e := s.events.next(); to != nil; to, e = s.events.next() {
		err := s.retry(ctx, taskEvent, func() (err error) { e.name, err = s.writeEvent(ctx, e); return err })
		s.events.done(to, e.name, err == nil || kubeclient.IsTerminal(err))
		switch {
		case kubeclient.IsTerminal(err):
			s.progress.Report(taskEvent, err)
		case err != nil:
			return
		}
	}
}

// writeEvent writes a series as a new object or as the repetition of one, and returns the object's name.
func (s *Store) writeEvent(ctx context.Context, e series) (string, error) {
	if e.name != "" {
		patch := map[string]any{"count": e.count, "lastTimestamp": timestamp(e.last)}
		to := s.api.Metadata.Resource(eventsResource).Namespace(e.namespace())
		err := s.api.patch(ctx, to, e.name, types.MergePatchType, patch)
		if apierrors.IsForbidden(err) {
			return e.name, nil // the manifest gives no right to it: what is repeated is written once in ten minutes
		}
		if !apierrors.IsNotFound(err) { // the API server forgets events after an hour
			return e.name, kubeclient.Explain("patch", "events", err)
		}
	}
	name := fmt.Sprintf("%s.%x", s.node, time.Now().UnixNano())
	object := map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]any{"namespace": e.namespace(), "name": name},
		// Events of kubelet have the node's name for a UID, and kubectl describe looks for that.
		"involvedObject": map[string]any{"apiVersion": e.about.APIVersion, "kind": e.about.Kind, "namespace": e.about.Namespace,
			"name": e.about.Name, "uid": e.about.UID},
		"type": e.kind, "reason": e.reason, "message": e.message,
		"count": e.count, "firstTimestamp": timestamp(e.first), "lastTimestamp": timestamp(e.last),
		"source":             map[string]any{"component": component, "host": s.node},
		"reportingComponent": component, "reportingInstance": s.node,
	}
	r := s.api.rest.Post().Namespace(e.namespace()).Resource("events")
	if err := s.api.create(ctx, r, object); err != nil {
		return "", kubeclient.Explain("create", "events", err)
	}
	return name, nil
}

// namespace is where an event is: beside its object.
func (e event) namespace() string { return cmp.Or(e.about.Namespace, metav1.NamespaceDefault) }

// timestamp returns a time as the API writes it.
func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// truncate keeps to the 1 kB that the API server takes for a message.
func truncate(s string) string {
	const most = 1024
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len("…")], "") + "…"
}
